"""What a subscriber cannot be made of is refused when it is made, in one sentence."""

import math
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.client import AsyncSubscriber, Role, Subscriber


@pytest.mark.parametrize("kind", [Subscriber, AsyncSubscriber])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "with name '': it has to be 1 to 128 characters without control characters; "),
        ({"name": "x" * 129}, "with name 'xxx"),
        ({"name": "a\nb"}, "with name 'a\\nb'"),
        ({"name": "a\n"}, "with name 'a\\n'"),
        ({"name": None}, "with name None"),
        ({"target": ""}, "with target ''"),
        ({"role": "inferenc"}, "with role 'inferenc': no such role; choose one of inference, observer"),
        ({"role": None}, "with role None"),
        ({"path": "edgeguardd.sock"}, "at 'edgeguardd.sock': the path is relative; write the socket's path from / on"),
        ({"path": "/" + "x" * 107}, "at '/xxx"),
        ({"path": "/a\0b"}, "at '/a\\x00b'"),
        ({"lost_after_s": -1}, "with lost_after_s -1: no time span; give seconds, or None for never"),
        ({"lost_after_s": math.nan}, "with lost_after_s nan"),
    ],
)
def test_what_the_daemon_would_never_let_in_is_refused_at_once(
    kind: type[Subscriber], options: dict[str, Any], says: str
) -> None:
    """Not minutes later in a log, by a daemon that may be away when the server starts."""
    with pytest.raises(ValueError, match=r"^cannot subscribe ") as caught:
        kind(**{"name": "s", **options})
    assert says in str(caught.value)
    assert "; " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_relative_path_from_the_environment_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be looked for wherever the server happens to run."""
    monkeypatch.setenv("EDGEGUARDD_SOCKET", "run/s")
    with pytest.raises(ValueError, match="'run/s': the path is relative"):
        Subscriber("s")


def test_what_the_daemon_would_let_in_is_taken() -> None:
    """Names in any script, roles as words, paths as objects, times without end."""
    guard = Subscriber("мой сервер", target=None, role="observer", path=Path("/run/x"), lost_after_s=math.inf)
    assert guard.path == "/run/x"
    Subscriber("s", role=Role.INFERENCE, lost_after_s=None)
