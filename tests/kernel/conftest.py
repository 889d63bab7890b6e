"""Kernel tests run on this host's own cgroup v2 if it has one, else inside user-mode Linux: same files, same results.

Environment: EDGEGUARDD_KERNEL_WHERE=host|uml overrides the choice, EDGEGUARDD_KERNEL_GUESTS (2) says how many guests
share the files, EDGEGUARDD_KERNEL_LIMIT_S how long one may take.
Marks: needs("feature") from tests/support/features.py; cost(seconds) for a test that takes much longer than a second.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.support import cgroup as cgroups
from tests.support import features
from tests.support.cgroup import Cgroup
from tests.support.hog import Hog
from tests.support.uml.host_plugin import IN_GUEST_VARIABLE, KernelInGuests

WHERE_VARIABLE = "EDGEGUARDD_KERNEL_WHERE"
HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_configure(config: pytest.Config) -> None:
    """Choose where to run, once, before anything is collected."""
    config.addinivalue_line("markers", "cost(seconds): what a kernel test takes; used to share files among guests")
    if not runs_here():
        config.pluginmanager.register(KernelInGuests(config, HERE), "edgeguardd-kernel-in-guests")


def runs_here() -> bool:
    """Whether this process itself runs the kernel tests. Inside a guest there is no second choice."""
    if IN_GUEST_VARIABLE in os.environ:
        return True
    where = os.environ.get(WHERE_VARIABLE)
    if where is not None:
        return where == "host"
    return cgroups.usable() is None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """needs("feature"): skip where the kernel is excused, fail where it is not."""
    for mark in item.iter_markers("needs"):
        verdict = features.verdict(mark.args[0])
        if not verdict.present and verdict.excused:
            pytest.skip(verdict.reason)
        if not verdict.present:
            pytest.fail(verdict.reason, pytrace=False)


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    """Each test closes what it opens."""
    before = descriptors()
    yield
    gc.collect()
    leaked = {number: what for number, what in descriptors().items() if before.get(number) != what}
    assert not leaked, f"descriptors left open: {leaked}"


def descriptors() -> dict[int, str]:
    """This process's open descriptors and what each is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return found


@pytest.fixture
def cgroup(no_leaked_descriptors: None) -> Iterator[Cgroup]:
    """A fresh cgroup under the root. Removed afterwards with all that runs in it; what cannot be is a failure."""
    with Cgroup.fresh() as fresh:
        yield fresh
    assert not os.path.exists(fresh.path)


@pytest.fixture
def hog(cgroup: Cgroup) -> Iterator[Hog]:
    """A process in `cgroup` that holds as much memory as it is told to."""
    started = Hog(cgroup)
    yield started
    # Throttled above memory.high it could take minutes to die.
    if os.path.exists(cgroup.path):
        cgroup.write("memory.high", "max")
    started.close()


@pytest.fixture
def run_dir(no_leaked_descriptors: None) -> Iterator[str]:
    """A private directory on tmpfs for Unix sockets: in a guest they work there only."""
    path = tempfile.mkdtemp(prefix="edgeguardd-test-", dir="/run")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def disk_dir() -> Iterator[str]:
    """A private directory on a file system with a page cache that can be dropped, unlike tmpfs: /tmp or /var/tmp."""
    path = tempfile.mkdtemp(prefix="edgeguardd-test-", dir="/var/tmp")
    yield path
    shutil.rmtree(path)
