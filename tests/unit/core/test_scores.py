"""Which rule a process falls under: every condition counts, the first rule decides."""

import pytest

from edgeguardd.core import scores
from edgeguardd.core.config import OomScoreRule
from edgeguardd.core.scores import Facts, Wanted
from edgeguardd.errors import FormatError

LLAMA = Facts("llama-server", "/usr/bin/llama-server", "/inference.slice/llama.service")


def rule(name: str = "r", **conditions: str) -> OomScoreRule:
    return OomScoreRule(name, 500, **conditions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "facts", "fits"),
    [
        ({"comm": "llama-server"}, LLAMA, True),
        ({"comm": "llama"}, LLAMA, False),
        ({"comm": "llama-server"}, Facts(), False),
        ({"exe": "/usr/bin/llama-server"}, LLAMA, True),
        ({"exe": "/usr/bin/llama-server"}, Facts(exe="/usr/bin/llama-server (deleted)"), True),
        ({"exe": "/usr/bin"}, LLAMA, False),
        ({"exe": "/usr/bin/llama-server"}, Facts(), False),
        ({"unit": "llama.service"}, LLAMA, True),
        ({"unit": "inference.slice"}, LLAMA, True),
        ({"unit": "a.service"}, LLAMA, False),
        ({"unit": "llama.service"}, Facts(cgroup="/a.slice/llama.service/child"), True),
        ({"unit": "cgroup.service"}, Facts(cgroup="/a.slice/_cgroup.service"), True),
        ({"unit": "llama.service"}, Facts(cgroup="/a.slice/llama.service-not"), False),
        ({"unit": "llama.service"}, Facts(), False),
        ({"cgroup": "/inference.slice"}, LLAMA, True),
        ({"cgroup": "/inference.slice/*"}, LLAMA, True),
        ({"cgroup": "/inference.slice/*/*"}, LLAMA, False),
        ({"cgroup": "/*/llama.service"}, LLAMA, True),
        ({"cgroup": "/inference"}, LLAMA, False),
        ({"cgroup": "/*"}, Facts(cgroup="/"), True),
        ({"cgroup": "/a[bc]/d?"}, Facts(cgroup="/ac/de/f"), True),
        ({"cgroup": "/a*"}, Facts(cgroup="/b/a"), False),
        ({"cgroup": "/a"}, Facts(), False),
        ({"comm": "llama-server", "unit": "llama.service"}, LLAMA, True),
        ({"comm": "llama-server", "unit": "a.service"}, LLAMA, False),
        ({"comm": "\udcff"}, Facts(comm="\udcff"), True),
    ],
)
def test_a_process_falls_under_a_rule_when_all_of_it_holds(
    conditions: dict[str, str], facts: Facts, fits: bool
) -> None:
    """By unit and cgroup also from below."""
    the_rule = rule(**conditions)
    assert (scores.match((the_rule,), facts) is the_rule) == fits


def test_the_first_rule_decides() -> None:
    """An exception stands before what it is an exception from."""
    first, second = rule("a", comm="llama-server"), rule("b", unit="inference.slice")
    assert scores.match((first, second), LLAMA) is first
    assert scores.match((second, first), LLAMA) is second
    assert scores.match((), LLAMA) is None


def test_only_what_the_rules_ask_for_is_read() -> None:
    """Each is one more file to open for every process."""
    assert scores.wanted(()) == Wanted()
    assert scores.wanted((rule(comm="a"),)) == Wanted(comm=True)
    assert scores.wanted((rule(unit="a.service"), rule(exe="/a"))) == Wanted(exe=True, cgroup=True)
    assert scores.wanted((rule(cgroup="/a"),)) == Wanted(cgroup=True)


def test_stat_is_read_behind_the_name() -> None:
    """A process may call itself anything, its own end of the field included."""
    line = b"7 (a) R 1 (b) S 1 7 7 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"
    plain, kernel = scores.stat(line % 0x400000), scores.stat(line % 0x208040)
    assert (plain.started_ticks, plain.kernel_thread, plain.ended) == (4711, False, False)
    assert kernel.kernel_thread
    assert scores.stat((line % 0).replace(b" S ", b" Z ")).ended


@pytest.mark.parametrize("data", [b"", b"7 (a", b"7 (a) S", b"7 (a) S " + b"x " * 30])
def test_a_stat_that_is_cut_is_refused(data: bytes) -> None:
    """It is not guessed."""
    with pytest.raises(FormatError):
        scores.stat(data)
