"""The example server on ONNX Runtime in a real cgroup: what a trim gives back, as the daemon measures it."""

import json
import sys

import pytest

from tests.support import asgiserver
from tests.support.cgroup import Cgroup
from tests.support.running import Daemon
from tests.support.wait import eventually

pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")

MIB = 1 << 20
TEXT_BYTES = 6000  # its scores take 137 MiB
LIMIT = 320 * MIB


@pytest.mark.cost(15)
@pytest.mark.timeout(240)
def test_a_trim_takes_more_than_half_of_an_onnx_server(cgroup: Cgroup, run_dir: str) -> None:
    """A long text grows the arena for good; when the limit comes near, one command brings the cgroup below half.

    No configuration: the server subscribes, and so the daemon guards its cgroup.
    """
    argv = [sys.executable, "packaging/examples/onnx-server/server.py", "--port", "0"]
    with (
        Daemon(run_dir) as daemon,
        asgiserver.running(
            argv, f"{run_dir}/server.log", spawn=cgroup.spawn, EDGEGUARDD_SOCKET=daemon.socket_path
        ) as server,
    ):
        (subscriber,) = eventually(lambda: daemon.status()["subscribers"], 60, what="the example subscribes")
        first = server.ask("/v1/embeddings", {"input": "a text"})
        assert (first.status, server.ask("/v1/embeddings", {"input": "x" * TEXT_BYTES}).status) == (200, 200)

        def target() -> dict[str, int]:
            (found,) = daemon.status()["targets"]
            assert found["name"] == subscriber["target"]
            return dict(found)

        held = cgroup.keyed("memory.stat")["anon"]
        grown = eventually(lambda: (now := target())["needed_bytes"] >= held and now["needed_bytes"])
        assert daemon.facts("command_sent") == []
        cgroup.set(max=LIMIT)
        (ended,) = eventually(lambda: daemon.facts("command_ended"), what="the trim")
        assert (ended["action"], ended["outcome"]) == ("trim_kv_cache", "done")
        left = eventually(lambda: (now := target()["needed_bytes"]) < grown / 2 and now, what="less than half")
        print(
            f"measured by the daemon: {grown / MIB:.0f} MiB needed, {ended['freed_bytes'] / MIB:.0f} MiB freed "
            f"by the trim in {ended['took_s'] * 1000:.0f} ms, {left / MIB:.0f} MiB left"
        )
        assert ended["freed_bytes"] > grown / 2
        assert cgroup.counters()["oom_kill"] == 0
        again = server.ask("/v1/embeddings", {"input": "a text"})
        assert json.loads(again.body) == json.loads(first.body)
