"""Files below a root directory: of this machine ("/"), or of a copy of another one.

Must not: know what they mean; write. Upstream: core.kernelfmt. Downstream: gather.
"""

import os
import re

from edgeguardd.core import kernelfmt
from edgeguardd.isolate.doctor.facts import Attempt

READ_BYTES = 4 << 20
MAX_LISTED = 4096


class Tree:
    """Files below a root. Every reading is bounded, and never waits for a writer."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") + "/"

    def full(self, path: str) -> str:
        """The path to open."""
        return self.root + path.lstrip("/")

    def read(self, path: str) -> bytes | None:
        """The content, as far as it goes; None: it cannot be read."""
        try:
            fd = os.open(self.full(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return None
        content = b""
        try:
            while len(content) < READ_BYTES and (piece := os.read(fd, READ_BYTES - len(content))):
                content += piece
        except OSError:
            return None
        finally:
            os.close(fd)
        return content

    def words(self, path: str) -> tuple[str, ...] | None:
        """The content as words."""
        content = self.read(path)
        return None if content is None else kernelfmt.words(content)

    def text(self, path: str) -> str | None:
        """The content as one line, without zero bytes and white space at its ends."""
        content = self.read(path)
        return None if content is None else content.decode(errors="replace").strip("\0 \t\n")

    def number(self, path: str) -> int | None:
        """The content as a whole number."""
        text = self.text(path)
        return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else None

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted; nothing where it cannot be listed."""
        try:
            with os.scandir(self.full(path)) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(MAX_LISTED), strict=False))
        except OSError:
            return []

    def there(self, path: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(self.full(path))

    def attempt(self, path: str, flags: int) -> Attempt:
        """Open a file as it would be used, and close it again."""
        try:
            os.close(os.open(self.full(path), flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError as error:
            return Attempt("/" + path.lstrip("/"), os.strerror(error.errno or 0).lower())
        return Attempt("/" + path.lstrip("/"))
