"""A bridge as a process of its own between a real daemon and a stand-in; its cgroup is plain files."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeguardd.bridges.calls import Http
from edgeguardd.bridges.endpoint import endpoint
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon
from tests.support.standins.llama import FakeLlama
from tests.support.standins.vllm import WEIGHT_BYTES, Vllm
from tests.support.wait import soon

REST_BYTES = 100 * MIB
CONFIGURATION = """
[defaults]
dwell = "100ms"
restore_dwell = "100ms"

[[target]]
name = "llm"
path = "/llm"
"""


@pytest.fixture
def llm(place: str) -> FakeCgroup:
    """A cgroup of 100 of 1000 MiB."""
    os.mkdir(f"{place}/tree")
    cgroup = FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB)
    cgroup.usage(REST_BYTES)
    shutil.copy(f"{cgroup.path}/memory.stat", f"{place}/rest")
    return cgroup


class Bridge:
    """One `edgeguardctl bridge`; `stop` is a command that empties the cgroup, as the end of a process does."""

    def __init__(self, place: str, llm: FakeCgroup, url: str, **options: str | None) -> None:
        self.log_path = f"{place}/bridge.log"
        self.front = Http(endpoint(f"unix:{place}/gate"))
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(f"{place}/notify")
        self.notify.setblocking(False)
        settings = {
            "server": "llama-server",
            "target": "llm",
            "socket": f"{place}/s",
            "url": url,
            "listen": f"unix:{place}/gate",
            "cgroup": "/llm",
            "cgroup-root": f"{place}/tree",
            "stop": f"cp {place}/rest {llm.path}/memory.stat",
            "start": "true",
            "drain": "20s",
            "log-format": "json",
            **options,
        }
        with open(f"{place}/llama.toml", "w") as file:
            file.write(
                "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if value is not None)
            )
        self.settings_path = f"{place}/llama.toml"
        self.environment = {**os.environ, "NOTIFY_SOCKET": f"{place}/notify", "RUNTIME_DIRECTORY": place}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """From its start to SIGTERM."""
        with open(self.log_path, "ab") as log:  # noqa: ASYNC230 - a moment
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "bridge", "--settings", self.settings_path),
                cwd=REPOSITORY,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        try:
            yield process
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 30) == 0, self.log()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self.notify.close()

    def log(self) -> str:
        """All it has said."""
        with open(self.log_path) as file:
            return file.read()

    def facts(self, event: str) -> list[dict[str, Any]]:
        """Its log lines of one name."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == event]

    async def status(self) -> int:
        """Of one request through the gate."""
        return (await self.front.ask("POST", "/completion", {"prompt": "once"}, within_s=20)).status


def test_pressure_reaches_a_stock_server_and_memory_comes_back_measured_by_the_daemon(
    place: str, llm: FakeCgroup
) -> None:
    """Who is inside gets its answer, who comes is told 503 at once, and afterwards all is as before."""

    async def scene(daemon: Daemon) -> None:
        async with FakeLlama() as server:
            bridge = Bridge(place, llm, server.url)
            async with bridge.running():
                await soon(lambda: daemon.facts("subscriber_joined"), what="subscribed")
                assert b"READY=1" in bridge.notify.recv(4096)
                server.go.clear()
                inside = asyncio.create_task(bridge.status())
                await soon(lambda: server.running == 1)
                llm.usage(950 * MIB)
                await soon(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "reject_requests"])
                began = time.monotonic()
                refused = await bridge.front.ask("POST", "/completion", {})
                assert (refused.status, refused.headers["retry-after"]) == (503, "2")
                assert time.monotonic() - began < 5.0  # half of the patience that it would have waited
                assert (await bridge.front.get("/health")).status == 200
                server.go.set()
                assert await inside == 200
                ended = await soon(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "trim_kv_cache"])
                assert ended[-1]["outcome"] == "done"
                assert ended[-1]["freed_bytes"] == 850 * MIB
                assert bridge.facts("bridge_released")[0]["freed_bytes"] == 850 * MIB
                await soon(lambda: daemon.status()["targets"][0]["in_force"]["accept_requests"], what="restored")
                assert await bridge.status() == 200
                assert server.served == 2

    with Daemon(place, CONFIGURATION, cgroup_root=f"{place}/tree") as daemon:
        asyncio.run(scene(daemon))


def test_a_trim_that_is_only_logical_is_followed_by_one_that_is_not(place: str, llm: FakeCgroup) -> None:
    """On the default ladder, at its lowest level: edgeguardd sees that nothing left, asks again, and gets it."""

    async def scene(daemon: Daemon) -> None:
        async with FakeLlama() as server:
            bridge = Bridge(place, llm, server.url)
            async with bridge.running():
                await soon(lambda: daemon.facts("subscriber_joined"), what="subscribed")
                llm.usage(650 * MIB)
                await soon(lambda: bridge.facts("bridge_released"), what="released")
                trims = [f for f in daemon.facts("command_ended") if f["action"] == "trim_kv_cache"]
                assert trims[0]["outcome"] == "ineffective"
                assert [slot.tokens for slot in server.slots] == [0, 0]
                await soon(lambda: daemon.status()["worst_level"] == "normal", what="normal")

    with Daemon(place, CONFIGURATION, cgroup_root=f"{place}/tree") as daemon:
        asyncio.run(scene(daemon))


def test_a_gate_takes_over_what_a_dead_bridge_left_and_nothing_else(place: str, llm: FakeCgroup) -> None:
    """A socket that somebody serves stays theirs, a file stays a file; one sentence says so."""

    async def refused(bridge: Bridge, why: str) -> None:
        argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "bridge", "--settings", bridge.settings_path]
        process = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, why in said.decode()) == (1, True), said

    async def scene() -> None:
        async with FakeLlama() as server:
            bridge = Bridge(place, llm, server.url)
            gate = f"{place}/gate"
            with open(gate, "w"):  # noqa: ASYNC230 - a moment
                pass
            await refused(bridge, "it is no socket; choose another --listen")
            os.unlink(gate)
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(gate)
                other.listen()
                await refused(bridge, "somebody does already")
            async with bridge.running():
                await soon(lambda: bridge.facts("bridge_ready"), what="found")
                assert await bridge.status() == 200
                assert os.stat(gate).st_mode & 0o777 == 0o666

    asyncio.run(scene())


def test_a_bridge_waits_for_a_server_that_is_not_there_yet_and_says_so_once(place: str, llm: FakeCgroup) -> None:
    """Clients are told to come again; SIGTERM ends it all the same."""

    async def scene() -> None:
        server = FakeLlama()
        async with server:
            pass
        bridge = Bridge(place, llm, server.url)
        async with bridge.running():
            await soon(lambda: os.path.exists(f"{place}/gate") and bridge.facts("bridge_waits"), what="waiting")
            refused = await bridge.front.ask("POST", "/completion", {})
            assert (refused.status, refused.field("error", "code")) == (503, "no_server")
            assert "connection refused" in bridge.facts("bridge_waits")[0]["why"]
            async with server:
                await soon(lambda: bridge.facts("bridge_ready"), what="found")
                ready = bridge.facts("bridge_ready")[0]
                assert (ready["version"], ready["places"]) == ("b6123-0c1e570", 2)
        assert len(bridge.facts("bridge_waits")) == 1

    asyncio.run(scene())


def test_what_only_running_requests_need_is_parked_while_requests_are_refused(place: str, llm: FakeCgroup) -> None:
    """On the ladder as it is, the trim of the rung that refuses is the one that parks; restore brings it back first."""

    async def scene(daemon: Daemon) -> None:
        async with Vllm() as server:
            bridge = Bridge(place, llm, server.url, server="vllm", stop=None, start=None)
            async with bridge.running():
                await soon(lambda: daemon.facts("subscriber_joined"), what="subscribed")
                llm.usage(950 * MIB)
                await soon(lambda: bridge.facts("bridge_parked"), what="parked")
                assert server.device_bytes == WEIGHT_BYTES
                refused = await bridge.front.ask("POST", "/v1/completions", {})
                assert (refused.status, refused.headers["retry-after"]) == (503, "2")
                llm.usage(REST_BYTES)
                await soon(lambda: daemon.status()["targets"][0]["in_force"]["accept_requests"], what="restored")
                await soon(lambda: bridge.facts("bridge_loaded"), what="loaded")
                asked = asyncio.create_task(bridge.front.ask("POST", "/v1/completions", {}, within_s=20))
                await soon(lambda: server.work.running)
                server.work.end()
                assert (await asked).json()["choices"][0]["text"] == "hello"
                assert server.done("/v1/completions")[-2:] == ["/reset_prefix_cache", "/resume"]
                assert not [call for call in server.done() if call.startswith("/sleep")]

    with Daemon(place, CONFIGURATION, cgroup_root=f"{place}/tree") as daemon:
        asyncio.run(scene(daemon))


def test_the_shortest_command_line_starts_and_says_what_it_cannot_do(place: str) -> None:
    """A server's address is enough to begin with."""

    async def scene() -> None:
        async with FakeLlama() as server:
            argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "bridge", "llama-server", "--url", server.url]
            process = await asyncio.create_subprocess_exec(
                *argv, "--log-format", "json", "--socket", f"{place}/s", cwd=REPOSITORY, stderr=asyncio.subprocess.PIPE
            )
            said: list[dict[str, Any]] = []
            try:
                assert process.stderr is not None
                while not said or said[-1]["event"] != "bridge_ready":
                    said.append(json.loads(await asyncio.wait_for(process.stderr.readline(), 30)))
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 30) == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert said[-1]["commands"] == ["restore", "trim_kv_cache"]
            why = " ".join(line["why"] for line in said[:-1])
            assert [word for word in ("--listen", "--unit", "--cgroup") if word not in why] == []

    asyncio.run(scene())
