"""docs/how-to/subscribe.md: every program on it, as printed, with what a reader's own server would have.

The first one, of FastAPI, is in test_asgi_server.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edgeguardd.client import AsyncSubscriber
from edgeguardd.client.asgi import MemoryGuard, Wanted
from tests.support import asgiserver
from tests.support.asgi import StreamingApp
from tests.support.documents.pages import blocks, commands
from tests.support.faketree import MIB, FakeCgroup
from tests.support.onnxmodels import squaring
from tests.support.running import Daemon
from tests.support.wait import DEADLINE_S, eventually, soon

CONFIG = '[[target]]\nname = "llm"\npath = "/llm"\n[defaults]\ndwell = 0.1\nrestore_dwell = 0.1\n'
PAGE = "docs/how-to/subscribe.md"


def the_one_with(text: str) -> str:
    """The program that holds this; the reader's server lives in its own cgroup, here the target is named."""
    (found,) = [block.text for block in blocks(PAGE, "python") if text in block.text]
    return found.replace('Subscriber("my-server")', 'Subscriber("my-server", target="llm")')


def run(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a program of the page with the reader's own names."""
    exec(compile(source, "docs/how-to/subscribe.md", "exec"), names)  # noqa: S102 - the reader's own code
    return names


@pytest.fixture
def daemon(place: str, llm: FakeCgroup, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon that guards it, where clients look for it."""
    with Daemon(place, CONFIG, cgroup_root=f"{place}/tree") as running:
        monkeypatch.setenv("EDGEGUARDD_SOCKET", running.socket_path)
        yield running


class Cache:
    """The reader's cache: dropping it frees."""

    def __init__(self, cgroup: FakeCgroup) -> None:
        self.dropped: list[int] = []
        self._cgroup = cgroup

    def drop(self, size: int) -> int:
        self.dropped.append(size)
        self._cgroup.usage(100 * MIB)
        return size


def test_the_server_with_threads(daemon: Daemon, llm: FakeCgroup) -> None:
    """It reports, trims, is reduced and rejects, and all is lifted again."""
    cache = Cache(llm)

    class Server:
        weights_bytes = 50 * MIB
        accepting = True
        batch = 8
        seen: set[tuple[int, bool]] = set()  # noqa: RUF012 - one server

        def serve_forever(self) -> None:
            eventually(lambda: daemon.status()["subscribers"])
            llm.usage(980 * MIB)
            eventually(lambda: self.batch == 2 and not self.accepting, what="reduced and rejecting")
            eventually(lambda: self.batch == 8 and self.accepting, 60, what="restored")

    run(the_one_with("serve_forever"), {"cache": cache, "server": Server()})
    assert cache.dropped


def test_the_server_with_an_event_loop(daemon: Daemon, llm: FakeCgroup) -> None:
    """It answers, trims in a thread, and refuses what the daemon says does not fit."""
    cache = Cache(llm)
    names: dict[str, Any] = {"cache": cache}
    windows: list[int] = []

    class Model:
        async def generate(self, prompt: str, window: int) -> str:
            windows.append(window)
            return prompt.upper()

    async def serve(answer: Any) -> None:
        guard = names["guard"]
        await soon(lambda: guard.connected)
        assert await answer("hello") == "HELLO"
        guard.report(bytes_per_token=MIB)
        refused = ""
        until = time.monotonic() + DEADLINE_S  # the report takes its way, too
        while not refused.startswith("503, try again in ") and time.monotonic() < until:
            refused = await answer("x" * 1000)
        assert "do not fit" in refused
        llm.usage(700 * MIB)
        await soon(lambda: cache.dropped)

    names.update(model=Model(), serve=serve)
    run(the_one_with("async with guard:"), names)
    assert set(windows) == {4096}


def test_asking_before_a_request_is_taken() -> None:
    """The size comes from the length of the body, and the middleware takes the function as it is."""
    names = run(the_one_with("wanted=wanted"), {"app": StreamingApp(), "guard": AsyncSubscriber("s")})
    assert isinstance(names["app"], MemoryGuard)
    assert names["wanted"]({"headers": [(b"content-length", b"400")]}) == Wanted(tokens=1124)
    assert names["wanted"]({"headers": []}) == Wanted(tokens=1024)


def test_onnx_runtime(daemon: Daemon, llm: FakeCgroup) -> None:
    """Runs give the right answer with and without pressure, and a trim says what it gave back."""
    pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")
    import numpy as np  # noqa: PLC0415 - comes with onnxruntime

    names = run(the_one_with("ArenaShrinker"), {"session": squaring()})
    try:
        eventually(lambda: names["guard"].connected)
        feeds = {"x": np.ones((5000, 4), np.float32)}
        (before,) = names["infer"](feeds)
        llm.usage(700 * MIB)
        (ended,) = eventually(lambda: daemon.facts("command_ended"))
        assert ended["claimed_bytes"] > 80 * MIB
        assert names["infer"](feeds) == [before]
    finally:
        names["guard"].close()


def test_the_example_is_started_and_asked_as_printed(place: str) -> None:
    """On a free port here, so that the test disturbs nobody."""
    pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")
    start, ask = (shlex.split(one.text) for one in commands(PAGE) if "packaging/" in one.text or "curl" in one.text)
    assert start == ["python", "packaging/examples/onnx-server/server.py"]
    curl, option, body, url = ask
    assert (curl, option) == ("curl", "-d")
    path = url.removeprefix("http://127.0.0.1:8000")
    argv = [sys.executable, *start[1:], "--port", "0"]
    with asgiserver.running(argv, f"{place}/log", EDGEGUARDD_SOCKET=f"{place}/none") as server:
        assert server.ask(path, json.loads(body)).status == 200
