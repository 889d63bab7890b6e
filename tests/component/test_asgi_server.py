"""Real servers under load, guarded by a real daemon: what callers get while memory is critical, and afterwards."""

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator

import pytest

from tests.support import asgiserver
from tests.support.asgiserver import Callers, Server
from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

TARGET = """
[[target]]
name = "llm"
path = "/llm"
[defaults]
dwell = 0.1
restore_dwell = 0.1
[sampling]
fast = 0.05
slow = 0.1
"""

# What the reader of docs/how-to/subscribe.md has: a cache, and an endpoint that streams.
READERS_OWN = """
import asyncio
import os
from fastapi.responses import StreamingResponse

class Cache:
    async def drop(self, size):
        return size

cache = Cache()

{block}

@app.post("/v1/chat/completions")
async def chat(request: dict):
    async def tokens():
        for number in range(10):
            yield f"data: token {{number}}\\n\\n"
            await asyncio.sleep(0.01)
        while request["until"] and not os.path.exists(request["until"]):
            yield ": still there\\n\\n"
            await asyncio.sleep(0.02)
        yield "data: [DONE]\\n\\n"

    return StreamingResponse(tokens(), media_type="text/event-stream")

@app.get("/healthz")
async def healthz():
    return "fine"
"""


@pytest.fixture
def daemon(place: str, llm: FakeCgroup) -> Iterator[Daemon]:
    """A daemon that guards it."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as running:
        yield running


@pytest.fixture
def fastapi(place: str, daemon: Daemon) -> Iterator[Server]:
    """The ten lines of the documentation in an application of the reader's, under uvicorn."""
    with open(os.path.join(REPOSITORY, "docs/how-to/subscribe.md")) as file:
        found = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL)
    assert found
    assert len([line for line in found[1].splitlines() if line]) <= 10
    # The reader's server lives in its own cgroup; here the target is named, since a fake tree holds no process.
    block = found[1].replace('AsyncSubscriber("my-server")', 'AsyncSubscriber("my-server", target="llm")')
    with open(f"{place}/app.py", "w") as file:
        file.write(READERS_OWN.format(block=block))
    argv = [sys.executable, "-m", "uvicorn", "--app-dir", place, "--port", "0", "--no-access-log", "app:app"]
    with asgiserver.running(argv, f"{place}/server.log", EDGEGUARDD_SOCKET=daemon.socket_path) as server:
        eventually(lambda: daemon.status()["subscribers"], what="the application subscribes")
        yield server


def test_critical_memory_lets_streams_end_and_refuses_new_requests(
    place: str, llm: FakeCgroup, daemon: Daemon, fastapi: Server
) -> None:
    """In-flight streams end whole, new ones get 503 with Retry-After at once, and all is well again by itself."""
    long_ones: list[asgiserver.Answer] = []
    body = {"until": f"{place}/may-end"}
    streams = [
        threading.Thread(target=lambda: long_ones.append(fastapi.ask("/v1/chat/completions", body))) for _ in range(4)
    ]
    for stream in streams:
        stream.start()
    with Callers(fastapi, 4, "/v1/chat/completions", {"until": None}) as callers:
        eventually(lambda: daemon.status()["subscribers"] and callers.statuses().count(200) >= 8)

        llm.usage(950 * MIB)
        eventually(lambda: callers.statuses().count(503) >= 40, what="requests are refused")
        assert fastapi.ask("/healthz").status == 200
        assert daemon.status()["targets"][0]["level"] == "critical"
        assert long_ones == []
        with open(f"{place}/may-end", "w"):
            pass
        for stream in streams:
            stream.join()

        llm.usage(100 * MIB)
        eventually(lambda: daemon.status()["targets"][0]["in_force"]["accept_requests"], 60, what="restored")
        seen = len(callers.answers)
        eventually(lambda: callers.statuses(seen).count(200) >= 8, what="requests are served again")
    refused = [answer for answer in callers.answers if answer.status == 503]
    took_ms = sorted(answer.took_s * 1000 for answer in refused)
    print(
        f"{len(callers.answers)} requests, {len(refused)} refused in ms: median {statistics.median(took_ms):.1f}, "
        f"p90 {took_ms[len(took_ms) * 9 // 10]:.1f}, max {took_ms[-1]:.1f}; "
        f"{len(long_ones)} streams in flight, 0 dropped"
    )
    everybody = [*callers.answers, *long_ones]
    assert [answer.dropped for answer in everybody if answer.dropped] == []
    assert {answer.status for answer in everybody} == {200, 503}
    assert [answer.status for answer in long_ones] == [200] * 4
    for answer in everybody:
        if answer.status == 200:
            assert answer.body.count(b"data: token") == 10
            assert answer.body.endswith(b"data: [DONE]\n\n")
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert (answer.error["type"], answer.error["code"]) == ("overloaded_error", "memory_pressure")
    # Whatever else the machine does, a refusal itself waits for nothing.
    assert took_ms[0] < 50
    assert fastapi.process.poll() is None


def test_a_daemon_that_is_killed_and_comes_back_finds_the_application_as_it_was(
    llm: FakeCgroup, daemon: Daemon, fastapi: Server
) -> None:
    """It goes on refusing meanwhile, and is told by the new daemon that all is well."""
    llm.usage(950 * MIB)
    eventually(lambda: fastapi.ask("/v1/chat/completions", {"until": None}).status == 503)
    daemon.kill()
    assert fastapi.ask("/v1/chat/completions", {"until": None}).status == 503
    llm.usage(100 * MIB)
    daemon.start()
    eventually(lambda: fastapi.ask("/v1/chat/completions", {"until": None}).status == 200, 60)


def test_the_onnx_example_gives_its_arena_back(place: str, llm: FakeCgroup, daemon: Daemon) -> None:
    """A long text makes it grow by a quarter of a GiB; a trim takes it back, a shorter one is still served."""
    pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")
    argv = [sys.executable, "packaging/examples/onnx-server/server.py", "--port", "0", "--target", "llm"]
    with asgiserver.running(argv, f"{place}/server.log", EDGEGUARDD_SOCKET=daemon.socket_path) as server:
        eventually(lambda: daemon.status()["subscribers"], what="the example subscribes")
        first = server.ask("/v1/embeddings", {"input": "x"})
        at_rest = server.anonymous_bytes()
        assert server.ask("/v1/embeddings", {"input": "x" * 8192}).status == 200
        grown = server.anonymous_bytes()
        assert grown - at_rest > 200 * MIB
        llm.usage(650 * MIB)
        ended = eventually(lambda: daemon.facts("command_ended"), what="a trim")[0]
        shrunk = server.anonymous_bytes()
        print(f"MiB: at rest {at_rest // MIB}, grown {grown // MIB}, after the trim {shrunk // MIB}")
        assert (ended["action"], ended["claimed_bytes"] > 200 * MIB) == ("trim_kv_cache", True)
        assert shrunk < grown / 2
        again = server.ask("/v1/embeddings", {"input": "x"})
        assert (again.status, len(json.loads(again.body)["data"][0]["embedding"])) == (200, 64)
        assert again.body == first.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": ""}, 400),
        ({"input": "x" * 8193}, 400),
        ({"input": 7}, 400),
        ({"inputs": "x"}, 400),
        (["input"], 400),
        ({"input": "\ud800"}, 400),
        ({"input": "x" * 60_000}, 413),
    ],
)
def test_the_onnx_example_refuses_what_it_cannot_compute(onnx_alone: Server, body: object, status: int) -> None:
    """With a sentence that says what to send."""
    answer = onnx_alone.ask("/v1/embeddings", body)
    assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")


def test_the_onnx_example_serves_without_a_daemon(onnx_alone: Server) -> None:
    """And says once that nobody is there."""
    assert onnx_alone.ask("/v1/embeddings", {"input": "a text"}).status == 200
    assert onnx_alone.ask("/health").status == 200
    assert onnx_alone.log_text().count("cannot reach edgeguardd") == 1


@pytest.fixture(scope="module")
def onnx_alone() -> Iterator[Server]:
    """The example with no daemon anywhere."""
    pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")
    path = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
    argv = [sys.executable, "packaging/examples/onnx-server/server.py", "--port", "0", "--socket", f"{path}/none"]
    with asgiserver.running(argv, f"{path}/log") as server:
        yield server
    shutil.rmtree(path)
