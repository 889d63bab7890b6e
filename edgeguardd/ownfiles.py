"""Whether a file is the daemon's own, and still where it was opened: asked of what is open, not of a name.

Must not: open or change anything. Upstream: nothing. Downstream: state, statelock, journal.
"""

import os
from typing import Final

# What is behind the name of a file that is put aside.
DAMAGED: Final = ".damaged"


def anothers(found: os.stat_result) -> str | None:
    """Why this may be another one's work, though it lies in our directory: whose it is, or who may write there."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to uid {found.st_uid}, which is not the daemon's user"
    return "others may write it" if found.st_mode & 0o022 else None


def is_at(fd: int, path: str, *, follow: bool = True) -> bool:
    """Whether what is open here still stands at the path. Raises OSError where that cannot be told.

    `follow`: also when a symbolic link leads there.
    """
    ours = os.fstat(fd)
    try:
        there = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def unseen(path: str, error: OSError) -> str:
    """The sentence for it: nothing is lost by it, unless the path goes before the next look."""
    return (
        f"cannot see whether {path} is still there: {os.strerror(error.errno or 0)}; if it stays so, see the kernel log"
    )
