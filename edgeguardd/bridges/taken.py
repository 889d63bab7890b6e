"""What a bridge has taken out of memory, in a file: a bridge that dies brings it back at its next start.

Must not: decide when to bring back. Upstream: msgspec. Downstream: bridge.
"""

import contextlib
import os

import msgspec

from edgeguardd.errors import EdgeguardError

MAX_FILE_BYTES = 64 * 1024


class Taken:
    """The record at `path`; None: nothing is kept."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def read(self) -> tuple[str, ...] | None:
        """What is out of memory; None: nothing. A file that cannot be read counts as "everything"."""
        if self._path is None:
            return None
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=tuple[str, ...])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return ()

    def write(self, names: tuple[str, ...]) -> None:
        """Keep it, as a whole. Raises EdgeguardError."""
        if self._path is None:
            return
        part = f"{self._path}.part"
        try:
            with open(part, "wb") as file:
                file.write(msgspec.json.encode(names))
            os.replace(part, self._path)
        except OSError as error:
            raise EdgeguardError(f"cannot write {self._path}: {error.strerror}; correct --state") from None

    def clear(self) -> None:
        """It is all back."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
