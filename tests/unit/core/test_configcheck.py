"""What works but is probably not meant."""

import pytest

from edgeguardd.core.config import Config, HttpConfig, Ladder, Policy, SocketConfig, TargetSpec
from edgeguardd.core.configcheck import warnings

TARGET = TargetSpec("a", path="/a")


def test_the_defaults_give_no_warning() -> None:
    """Nobody is warned about what the program itself chose."""
    assert warnings(Config()) == []


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (Config(socket=SocketConfig(mode=0o666)), "every user"),
        (Config(http=HttpConfig(address="0.0.0.0")), "not loopback"),  # noqa: S104
        (Config(self_targets=False), "nothing is guarded"),
        (Config(socket=SocketConfig(stall_s=60.0)), "three heartbeats"),
        (Config(targets=(TARGET, TargetSpec("b", path="/a"))), "the same cgroup"),
        (Config(targets=(TargetSpec("a", path="/a", policy=Policy(ladder=Ladder((), (), (), ()))),)), "empty ladder"),
    ],
)
def test_what_is_probably_not_meant_is_said(config: Config, word: str) -> None:
    """Each doubtful choice has one sentence."""
    found = warnings(config)
    assert len(found) == 1
    assert word in found[0]


def test_http_that_is_off_gives_no_warning() -> None:
    """An address nobody listens on harms nobody."""
    assert warnings(Config(http=HttpConfig(enabled=False, address="0.0.0.0"))) == []  # noqa: S104
