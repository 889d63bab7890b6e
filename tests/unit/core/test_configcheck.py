"""What works but is probably not meant."""

import pytest

from edgeguardd.core.config import (
    Config,
    DeviceSpec,
    HttpConfig,
    Ladder,
    LastResorts,
    LastResortStep,
    MachineConfig,
    OomScoreRule,
    Policy,
    SocketConfig,
    TargetSpec,
)
from edgeguardd.core.configcheck import restarts_of_nothing, warnings
from edgeguardd.core.model import LastResort

TARGET = TargetSpec("a", path="/a")
RESTART = Policy(last_resort=LastResorts(critical=(LastResortStep(LastResort.RESTART),)))


RULE = OomScoreRule("b", 2, unit="a.service", comm="a")


def test_a_narrower_rule_before_a_wider_one_is_no_mistake() -> None:
    """That is how an exception is written."""
    assert warnings(Config(oom_scores=(RULE, OomScoreRule("a", 1, unit="a.service")))) == []


def test_the_defaults_give_no_warning() -> None:
    """Nobody is warned about what the program itself chose."""
    assert warnings(Config()) == []


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (Config(socket=SocketConfig(mode=0o666)), "every user"),
        (Config(http=HttpConfig(address="0.0.0.0")), "gets 421 until hosts has that name"),  # noqa: S104
        (Config(http=HttpConfig(address="0.0.0.0", hosts=frozenset({"a"}))), "read /status and /metrics"),  # noqa: S104
        (Config(self_targets=False), "nothing is guarded"),
        (Config(socket=SocketConfig(stall_s=60.0)), "three heartbeats"),
        (Config(targets=(TARGET, TargetSpec("b", path="/a"))), "the same cgroup"),
        (Config(targets=(TargetSpec("a", path="/a", policy=Policy(ladder=Ladder((), (), (), ()))),)), "empty ladder"),
        (Config(defaults=RESTART), "defaults.last_resort.critical restarts the target's unit"),
        (
            Config(oom_scores=(OomScoreRule("a", 1, unit="a.service"), RULE)),
            'oom_score "b" never decides: "a" before it',
        ),
        (Config(oom_scores=(OomScoreRule("a", -1, comm="sshd"),)), "a name that any process can take"),
        (Config(machine=MachineConfig(enabled=False, devices=(DeviceSpec("a", "nvml"),))), "no device is read either"),
    ],
)
def test_what_is_probably_not_meant_is_said(config: Config, word: str) -> None:
    """Each doubtful choice has one sentence."""
    found = warnings(config)
    assert len(found) == 1
    assert word in found[0]


def by(name: str, path: str | None = None, unit: str | None = None, glob: str | None = None) -> TargetSpec:
    """A target found by path, unit or glob."""
    return TargetSpec(name, path=path, unit=unit, glob=glob)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"path": "/system.slice/llm.service"}, {"unit": "llm.service"}),
        ({"path": "/llm.slice/llm-gpu.slice/llm.service"}, {"unit": "llm.service"}),
        ({"path": "/system.slice/_memory.service"}, {"unit": "memory.service"}),
        ({"path": "/system.slice/llm.service"}, {"glob": "/system.slice/llm*"}),
        ({"unit": "llm.service"}, {"glob": "/*/l[lx]m.service"}),
        ({"unit": "a-b.slice"}, {"glob": "/a.slice/a-?.slice"}),
        ({"unit": "llm.service"}, {"unit": "llm.service"}),
        ({"glob": "/a/*"}, {"glob": "/a/*"}),
    ],
)
def test_two_targets_with_one_cgroup_are_told(one: dict[str, str], two: dict[str, str]) -> None:
    """By whatever ways they name it, and in whatever order, as far as the words tell."""
    for targets in ((by("a", **one), by("b", **two)), (by("a", **two), by("b", **one))):
        (found,) = warnings(Config(targets=targets))
        assert '"a"' in found
        assert '"b"' in found


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"path": "/system.slice/other.service"}, {"unit": "llm.service"}),
        ({"path": "/llm.service/worker"}, {"unit": "llm.service"}),
        ({"path": "/a/b/c"}, {"glob": "/a/*"}),
        ({"path": "/a/.b"}, {"glob": "/a/*"}),
        ({"path": "/a/b"}, {"glob": "/a/[!b]"}),
        ({"unit": "llm.scope"}, {"glob": "/system.slice/*"}),
        ({"glob": "/a/*"}, {"glob": "/*/b"}),
    ],
)
def test_targets_that_need_not_meet_are_not_told(one: dict[str, str], two: dict[str, str]) -> None:
    """A pattern does not cross a "/"; where a scope is, and what two patterns find, is not known beforehand."""
    assert warnings(Config(targets=(by("a", **one), by("b", **two)))) == []


def test_http_that_is_off_gives_no_warning() -> None:
    """An address nobody listens on harms nobody."""
    assert warnings(Config(http=HttpConfig(enabled=False, address="0.0.0.0"))) == []  # noqa: S104


def test_only_a_service_can_be_restarted_by_being_the_target() -> None:
    """A path, a glob, a slice and a scope name nothing that systemd starts."""
    for spec in (
        TargetSpec("a", path="/a", policy=RESTART),
        TargetSpec("a", glob="/a*", policy=RESTART),
        TargetSpec("a", unit="a.slice", policy=RESTART),
        TargetSpec("a", unit="a.scope", policy=RESTART),
    ):
        assert restarts_of_nothing(spec) == ["critical"]
    assert restarts_of_nothing(TargetSpec("a", unit="a.service", policy=RESTART)) == []
    named = LastResorts(critical=(LastResortStep(LastResort.RESTART, unit="b.service"),))
    assert restarts_of_nothing(TargetSpec("a", path="/a", policy=Policy(last_resort=named))) == []


def test_without_self_targets_the_defaults_may_restart() -> None:
    """Then each target is known, and checked by itself."""
    assert warnings(Config(defaults=RESTART, self_targets=False, targets=(TargetSpec("a", unit="a.service"),))) == []
