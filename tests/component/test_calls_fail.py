"""Calls into the kernel that failed, and had been thought not to: each is survived, and leaves nothing behind.

All calls of the daemon, one after another: `make torture`.
"""

import errno
from collections.abc import Iterator

import pytest

from tests.torture import calls, callsites

# module, function, call, error: what failing each call into the kernel has found.
FOUND = [
    ("edgeguardd.kernel.cgroupfs", "opened", "os.fstat", errno.ENOMEM),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[calls.Stage]:
    """A daemon on plain files, with a server that obeys."""
    with calls.Stage() as made:
        yield made


@pytest.mark.parametrize(("module", "function", "call", "number"), FOUND)
def test_a_failed_call_leaves_nothing(stage: calls.Stage, module: str, function: str, call: str, number: int) -> None:
    """While there is something of everything to do it fails each time; then all is at rest, whole, and still guards."""
    wanted = (module, function, call)
    keys = [site.key for site in callsites.sites() if (site.module, site.function, site.call) == wanted]
    assert keys, "there is no such call any more"
    for key in keys:
        case = calls.Case(key, number)
        calls.while_running(stage, case)
        assert not case.wrong
        assert case.hits, "the call was not made, so nothing was shown"
