"""OVMS's config.json: taken empty and put back, as a whole each time, with a copy beside it while it is empty.

Must not: call OVMS, or run on an event loop's thread (it waits for the disk). Upstream: json. Downstream: ovms.
"""

import contextlib
import json
import os
from typing import Any

from edgeguardd.bridges.calls import ServerError

# What makes OVMS load something: models, MediaPipe graphs (LLMs among them), pipelines.
LISTS = ("model_config_list", "mediapipe_config_list", "pipeline_config_list")
COPY = ".edgeguardd"
PART = ".edgeguardd-part"
MAX_FILE_BYTES = 4 * 1024 * 1024


class OvmsFile:
    """The file at `path`; a symbolic link is followed once, so that it stays one."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)

    def obstacle(self) -> str | None:
        """Why it cannot be replaced; None: it can."""
        directory = os.path.dirname(self.path)
        if os.path.ismount(self.path):
            return f"cannot unload models: {self.path} is mounted by itself and cannot be replaced; mount its directory"
        if not os.access(directory, os.W_OK | os.X_OK):
            return f"cannot unload models: {directory} is not writable; let the bridge's user write there"
        try:
            self._read(self.path)
        except ServerError as error:
            return str(error)
        return None

    def strip(self) -> tuple[str, ...]:
        """Leave nothing in it that is loaded; the names of what it held. Raises ServerError."""
        raw, tree = self._read(self.path)
        if not os.path.exists(self.path + COPY):  # else it is stripped already, and the copy is the true one
            self._write(self.path + COPY, raw)
        _, whole = self._read(self.path + COPY)
        self._write(self.path, _text({name: [] if name in LISTS else value for name, value in tree.items()}))
        return tuple(dict.fromkeys(name for entry in _entries(whole) + _entries(tree) for name in _names(entry)))

    def put_back(self) -> tuple[str, ...]:
        """What the copy holds and the file does not; the names of all. Raises ServerError."""
        _, tree = self._read(self.path)
        if os.path.exists(self.path + COPY):
            raw, whole = self._read(self.path + COPY)
            stripped = {name: [] if name in LISTS else value for name, value in whole.items()}
            # Somebody has written to it meanwhile: theirs counts, and what they do not name comes back.
            self._write(self.path, raw if tree == stripped else _text(_merged(tree, whole)))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + COPY)
            _, tree = self._read(self.path)
        return tuple(dict.fromkeys(name for entry in _entries(tree) for name in _names(entry)))

    def _read(self, path: str) -> tuple[bytes, dict[str, Any]]:
        try:
            with open(path, "rb") as file:
                raw = file.read(MAX_FILE_BYTES)
            tree = json.loads(raw)
        except OSError as error:
            raise ServerError(f"cannot read {path}: {error.strerror}; correct --config-path") from None
        except (ValueError, RecursionError):
            raise ServerError(f"cannot use {path}: it is no JSON; correct it, or --config-path") from None
        if not isinstance(tree, dict) or not all(isinstance(tree.get(name, []), list) for name in LISTS):
            raise ServerError(f"cannot use {path}: it is no configuration of OVMS; correct --config-path")
        return raw, tree

    def _write(self, path: str, raw: bytes) -> None:
        """As a whole, with the file's owner and mode."""
        part = self.path + PART
        try:
            like = os.stat(self.path)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, like.st_mode & 0o777)
                file.write(raw)
                file.flush()
                os.fsync(descriptor)
            os.replace(part, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise ServerError(f"cannot write {path}: {error.strerror}; see who may write in its directory") from None


def _text(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, indent=4).encode() + b"\n"


def _entries(tree: dict[str, Any]) -> list[Any]:
    return [entry for name in LISTS for entry in tree.get(name, [])]


def _names(entry: object) -> list[str]:
    """A model's name is in its `config`; a graph's and a pipeline's is its own."""
    inner = entry.get("config", entry) if isinstance(entry, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return [name] if isinstance(name, str) else []


def _merged(tree: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    named = {name for entry in _entries(tree) for name in _names(entry)}
    merged = dict(tree)
    for key in LISTS:
        missing = [entry for entry in whole.get(key, []) if not named.intersection(_names(entry))]
        if key in tree or missing:
            merged[key] = [*tree.get(key, []), *missing]
    return merged
