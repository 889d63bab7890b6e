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
    ("edgeguardd.ownfiles", "is_at", "os.fstat", errno.ENOMEM),
    ("edgeguardd.ownfiles", "is_at", "os.stat", errno.EACCES),
]
FOUND_AT_START = [
    ("edgeguardd.kernel.wakeups", "_made_epoll", "select.epoll", errno.ENOMEM),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[calls.Stage]:
    """A daemon on plain files, with a server that obeys."""
    with calls.Stage() as made:
        yield made


@pytest.mark.parametrize(("module", "function", "call", "number"), FOUND)
def test_a_failed_call_leaves_nothing(stage: calls.Stage, module: str, function: str, call: str, number: int) -> None:
    """While there is something of everything to do it fails each time; then all is at rest, whole, and still guards."""
    for key in keys(module, function, call):
        case = calls.Case(key, number)
        calls.while_running(stage, case)
        assert not case.wrong
        assert case.hits, "the call was not made, so nothing was shown"


@pytest.mark.parametrize(("module", "function", "call", "number"), FOUND_AT_START)
def test_a_start_that_cannot_be_ends_with_a_sentence(
    stage: calls.Stage, module: str, function: str, call: str, number: int
) -> None:
    """No traceback and no defect; the next start is as good as any."""
    for key in keys(module, function, call):
        case = calls.Case(key, number)
        calls.at_start(stage, case)
        assert not case.wrong
        assert case.died, "the call was not made, so nothing was shown"


def keys(module: str, function: str, call: str) -> list[str]:
    """The sites of a call in a function."""
    wanted = (module, function, call)
    found = [site.key for site in callsites.sites() if (site.module, site.function, site.call) == wanted]
    assert found, "there is no such call any more"
    return found


@pytest.mark.parametrize("effect", ["PutBackLimit", "SetTimer", "AnnounceLevel"])
def test_a_planted_defect_is_noticed(effect: str) -> None:
    """An order of the engine's that is not carried out: who judges the failed calls has something to say."""
    with calls.Stage() as planted:
        planted.patience_s = 0.5
        planted.daemon.ask("lose", effect=effect)
        planted.tour()
        planted.rest()
        planted.join()
        case = calls.Case(effect, errno.EIO)
        calls.judge(planted, case, len(planted.daemon.all_facts()), len(planted.daemon.words))
        assert case.wrong
