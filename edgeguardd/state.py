"""Small records that outlive the daemon: what it has to put back, and later what it has counted.

Must not: know what the records mean. Upstream: msgspec, one directory. Downstream: kernel.relief, kernel.lastresort,
daemon.

One file a record, named KIND-HASH.json: keys are cgroup paths, which strangers choose, so they are hashed and never
become part of a path. A file holds the version, the kind, the key, a checksum and the record, and is replaced as a
whole. What cannot be used (cut, of another version, no plain file, another user's) is put aside as NAME.damaged and
said, never fatal. Files with other names are somebody else's and are left alone.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from edgeguardd.errors import EdgeguardError
from edgeguardd.ownfiles import DAMAGED, anothers

VERSION: Final = 1
# A record is a handful of figures; what is larger is not ours.
MAX_RECORD_BYTES: Final = 64 * 1024
# As many as there can be targets (configtable.MAX_TARGETS).
MAX_RECORDS: Final = 4096

SUFFIX: Final = ".json"

R = TypeVar("R", bound=Struct)

_KIND = re.compile(r"[a-z]+")
_NAME = re.compile(r"([a-z]+)-[0-9a-f]{32}\.json")
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: a FIFO put in place of a record must not stop the daemon.
_OPEN_RECORD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_RECORD = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_WRITABLE_PLACE = "set StateDirectory=edgeguardd in the unit, or state_directory to a place that the daemon may write"
_REMEDIES = {
    errno.ENOENT: "create the directory above it, or set state_directory",
    errno.ENOTDIR: "a part of the path is not a directory; set state_directory",
    errno.ELOOP: "a part of the path is a loop of symbolic links; set state_directory",
    errno.EACCES: _WRITABLE_PLACE,
    errno.EPERM: _WRITABLE_PLACE,
    errno.EROFS: _WRITABLE_PLACE,
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "raise the quota of the daemon's user",
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
}
_DEFAULT_REMEDY = "see the kernel log, or set state_directory to another place"


class StateError(EdgeguardError):
    """A record cannot be written or removed: no directory, no permission, no room."""


class _DamagedError(Exception):
    """This file is no record of ours; the text says why."""


class _Envelope(Struct):
    v: int
    kind: str
    key: str
    check: str
    record: msgspec.Raw


class StateDirectory:
    """The records in one directory. It is opened for each use, so that one made later, or made again, serves.

    `faults` counts what could not be written, removed, read or used.
    """

    def __init__(
        self,
        path: str,
        on_fault: Callable[[str], None],
        max_bytes: int = MAX_RECORD_BYTES,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        """`path`: absolute; it is made (0700) at the first save. `on_fault` gets a sentence for what was put aside.

        `require` raises StateError where the records are not ours to change.
        """
        self.path = path.rstrip("/") or "/"
        self.faults = 0
        self._max_bytes = max_bytes
        self._tell = on_fault
        self._require_ours = require

    def make(self) -> None:
        """Make the directory, if it alone is missing. What stands in the way is told, and again at each use."""
        try:
            with self._directory(create=True):
                pass
        except StateError as error:
            self._on_fault(str(error))
        except OSError as error:
            self._on_fault(self._sentence("make", "", error))

    def save(self, kind: str, key: str, record: Struct, *, durable: bool = True) -> None:
        """Write the record, in place of the one with this kind and key. Raises StateError, and then the old one stands.

        `durable`: also against a power cut, at the price of an fsync, which can take a second on a busy flash disk.
        Without it the record survives whatever becomes of this process, but not of this kernel.
        """
        name, data = file_name(kind, key), _packed(kind, key, record)
        if len(data) > self._max_bytes:
            raise StateError(f"cannot write {self.path}/{name}: {len(data)} bytes are too many; give it a shorter name")
        with self._doing("write", name), self._directory(create=True) as directory:
            self._require_ours()
            if not _exists(name, directory) and len(_names(kind, directory)) >= MAX_RECORDS:
                raise StateError(
                    f"cannot write {self.path}/{name}: {MAX_RECORDS} records of {kind} are there; remove old ones"
                )
            _replace(name, data, directory, durable)

    def load(self, kind: str, key: str, record_type: type[R]) -> R | None:
        """The record; None: there is none that can be used, and on_fault has been told if there is a damaged one."""
        return self._load(kind, record_type, file_name(kind, key)).get(key)

    def load_all(self, kind: str, record_type: type[R], lost: str = "") -> dict[str, R]:
        """Key -> record, for every one that can be used; on_fault is told of the others, with what is `lost` by it."""
        return self._load(kind, record_type, None, lost)

    def remove(self, kind: str, key: str) -> None:
        """Forget the record; there being none is fine. Raises StateError."""
        name = file_name(kind, key)
        with self._doing("remove", name), contextlib.suppress(FileNotFoundError), self._directory() as directory:
            self._require_ours()
            os.unlink(name, dir_fd=directory)

    @contextlib.contextmanager
    def _directory(self, *, create: bool = False) -> Iterator[int]:
        """The directory's descriptor, for the length of the block. Raises OSError, StateError."""
        try:
            directory = os.open(self.path, _OPEN_DIRECTORY)
        except FileNotFoundError:
            if not create:
                raise
            os.mkdir(self.path, 0o700)
            directory = os.open(self.path, _OPEN_DIRECTORY)
        try:
            self._require_private(os.fstat(directory))
            yield directory
        finally:
            # Nothing was written through it that could be lost, and failing closes it as well (close(2)).
            with contextlib.suppress(OSError):
                os.close(directory)

    def _require_private(self, found: os.stat_result) -> None:
        """Who can write a record can have limits written by the daemon."""
        if found.st_uid not in (0, os.geteuid()):
            raise StateError(f"cannot use {self.path}: it belongs to uid {found.st_uid}; chown it to the daemon's user")
        if found.st_mode & 0o022:
            raise StateError(f"cannot use {self.path}: others may write there; chmod go-w {self.path}")

    @contextlib.contextmanager
    def _doing(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.faults += 1
            raise StateError(self._sentence(verb, name, error)) from None
        except StateError:
            self.faults += 1
            raise

    def _on_fault(self, sentence: str) -> None:
        self.faults += 1
        self._tell(sentence)

    def _load(self, kind: str, record_type: type[R], only: str | None, lost: str = "") -> dict[str, R]:
        """Key -> record, of one file or of all of this kind. Whatever cannot be used is said and left out."""
        found = {}
        try:
            with self._directory() as directory:
                for name in _names(kind, directory)[:MAX_RECORDS] if only is None else [only]:
                    loaded = self._load_file(name, directory, kind, record_type, lost)
                    if loaded is not None:
                        found[loaded[0]] = loaded[1]
        except FileNotFoundError:
            pass
        except StateError as error:
            self._on_fault(str(error))
        except OSError as error:
            self._on_fault(self._sentence("read", "", error))
        return found

    def _sentence(self, verb: str, name: str, error: OSError) -> str:
        number = error.errno or 0
        where = f"{self.path}/{name}".rstrip("/")
        return f"cannot {verb} {where}: {os.strerror(number)}; {_REMEDIES.get(number, _DEFAULT_REMEDY)}"

    def _load_file(self, name: str, directory: int, kind: str, record_type: type[R], lost: str) -> tuple[str, R] | None:
        """Key and record. A file that is none is put aside; one that cannot be read stays."""
        try:
            return _unpacked(name, _read(name, directory, self._max_bytes), kind, record_type)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._on_fault(self._sentence("read", name, error))
        except _DamagedError as damage:
            self._put_aside(name, directory, str(damage), lost)
        return None

    def _put_aside(self, name: str, directory: int, why: str, lost: str) -> None:
        try:
            self._require_ours()
            os.rename(name, name + DAMAGED, src_dir_fd=directory, dst_dir_fd=directory)
            then = f"it is {name}{DAMAGED} now, to be looked at and removed"
        except OSError as error:
            then = f"it cannot be put aside ({os.strerror(error.errno or 0)}), so remove it"
        except StateError:
            then = "it is left to its owner"
        self._on_fault("; ".join(filter(None, (f"cannot use {self.path}/{name}: {why}", then, lost))))


def file_name(kind: str, key: str) -> str:
    """The name of a record's file. `kind` is one word of small letters; anything can be a key."""
    if not _KIND.fullmatch(kind):
        raise ValueError(f"not a kind of record: {kind!r}")
    return f"{kind}-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}{SUFFIX}"


def _packed(kind: str, key: str, record: Struct) -> bytes:
    # Quoted, because a cgroup's name need not be UTF-8, and JSON is.
    quoted = urllib.parse.quote(key, errors="surrogateescape")
    raw = msgspec.json.encode(record)
    return msgspec.json.encode(_Envelope(VERSION, kind, quoted, _checksum(kind, quoted, raw), msgspec.Raw(raw))) + b"\n"


def _unpacked(name: str, data: bytes, kind: str, record_type: type[R]) -> tuple[str, R]:
    """Key and record. Raises _DamagedError."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        raw = bytes(envelope.record)
        if envelope.v != VERSION:
            raise _DamagedError(f"version {envelope.v} is not known here")
        if envelope.check != _checksum(envelope.kind, envelope.key, raw):
            raise _DamagedError("its checksum is wrong")
        record = msgspec.json.decode(raw, type=record_type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _DamagedError(f"it is no record ({error})") from None
    key = urllib.parse.unquote(envelope.key, errors="surrogateescape")
    if envelope.kind != kind or file_name(kind, key) != name:
        raise _DamagedError("it was written under another name")
    return key, record


def _checksum(kind: str, quoted_key: str, raw: bytes) -> str:
    return hashlib.sha256(f"{kind}\n{quoted_key}\n".encode() + raw).hexdigest()


def _names(kind: str, directory: int) -> list[str]:
    """The files that are named as records of this kind."""
    found = ((name, _NAME.fullmatch(name)) for name in os.listdir(directory))
    return sorted(name for name, match in found if match is not None and match[1] == kind)


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(name: str, directory: int, max_bytes: int) -> bytes:
    """The whole file. Raises OSError, _DamagedError."""
    try:
        fd = os.open(name, _OPEN_RECORD, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _DamagedError("it is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise _DamagedError("it is a socket") from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _DamagedError("it is no plain file")
        if (why := anothers(found)) is not None:
            raise _DamagedError(why)
        data = os.read(fd, max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise _DamagedError(f"it is larger than {max_bytes} bytes")
    return data


def _replace(name: str, data: bytes, directory: int, durable: bool) -> None:
    """Write beside the file and rename: whoever reads sees the old one or the new one, whole. Raises OSError."""
    scratch = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(scratch, dir_fd=directory)
    fd = os.open(scratch, _CREATE_RECORD, 0o600, dir_fd=directory)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(scratch, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:  # an interrupt too must not leave half a record beside the whole one
        with contextlib.suppress(OSError):
            os.unlink(scratch, dir_fd=directory)
        raise
    if durable:
        os.fsync(directory)
