"""The names of targets that are found, not configured: each cgroup its own, and each short enough for a hello to say.

Must not: know what is guarded. Upstream: core.wire (how long a name may be), cgroupfs. Downstream: targets.
"""

import hashlib

from edgeguardd.core.wire import MAX_NAME_CHARS
from edgeguardd.kernel.cgroupfs import shown

# systemd and container runtimes do not use it in the names of cgroups.
_MARK = "~"
# 64 bits: nobody makes a second cgroup of the same name by trying.
_DIGEST_CHARS = 16


def found_name(path: str, prefix: str = "") -> str:
    """The name of the cgroup at this path: `prefix` and the path where that will do.

    A path that is too long, cannot be printed or has a "~" in it gets the beginning of its SHA-256 between two "~"
    where its middle is cut out, or at its end where nothing is: so no two cgroups share a name.
    """
    if len(prefix) + len(path) <= MAX_NAME_CHARS and path.isprintable() and _MARK not in path:
        return prefix + path
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    mark = f"{_MARK}{digest}{_MARK}"
    text = shown(path)
    room = MAX_NAME_CHARS - len(prefix) - len(mark)
    if len(text) <= room:
        return prefix + text + mark
    # The end tells more: a container's id is there, and what precedes it is the same for all.
    head = room // 3
    return prefix + text[:head] + mark + text[head - room :]
