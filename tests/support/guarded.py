"""A daemon with one target in a tree of its own, for tests that only look at it from outside.

Must not: know what they look for. Upstream: running, faketree. Downstream: component tests.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import Daemon

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nfast = 0.05\nslow = 0.1\n'


@contextlib.contextmanager
def daemon(body: str = TARGET, *, http: str = "") -> Iterator[tuple[Daemon, FakeTree, FakeCgroup]]:
    """The daemon, its tree, and the target's cgroup of 100 of 1000 MiB."""
    place = tempfile.mkdtemp(prefix="eg-", dir="/tmp")  # short: Unix socket paths have room for 107 bytes
    try:
        os.mkdir(f"{place}/tree")
        tree = FakeTree(f"{place}/tree")
        llm = tree.cgroup("/llm", max_bytes=1000 * MIB)
        llm.usage(100 * MIB)
        with Daemon(place, body, cgroup_root=tree.path, http=http) as running:
            yield running, tree, llm
    finally:
        shutil.rmtree(place)
