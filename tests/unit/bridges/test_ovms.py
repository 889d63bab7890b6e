"""The bridge to OpenVINO Model Server, against a stand-in that reads a real configuration file."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges.ovmsfile import COPY, OvmsFile
from edgeguardd.client import Released
from tests.support.bridging import Bridged
from tests.support.standins.ovms import MODEL_BYTES, Ovms
from tests.support.wait import soon

RELOAD = "/v1/config/reload"
# As an operator has written it, by hand.
TEXT = """{
  "model_config_list": [
    {"config": {"name": "faces",  "base_path": "/models/faces", "nireq": 4}}
  ],
  "mediapipe_config_list": [ {"name": "llm", "base_path": "/models/llm"} ],
  "monitoring": {"metrics": {"enable": true}}
}
"""
NAMES = {"faces", "llm"}


def run(tmp_path: Path, test: Callable[[Ovms, Path], Awaitable[None]], text: str = TEXT) -> None:
    """A test with a stand-in that is up, and its file."""
    path = tmp_path / "models" / "config.json"
    path.parent.mkdir()
    path.write_text(text)

    async def with_server() -> None:
        async with Ovms(path) as server:
            await test(server, path)

    asyncio.run(with_server())


async def found(server: Ovms, path: Path | None, **options: Any) -> Bridged:
    """A bridge that measures what the stand-in holds."""
    config = None if path is None else str(path)
    return await Bridged("ovms", server, needed=lambda: server.resident_bytes, config_path=config, **options).found()


def written(path: Path) -> str:
    """What is in it."""
    return path.read_text()


def write(path: Path, text: str) -> None:
    """As another program does."""
    path.write_text(text)


def facts(path: Path) -> os.stat_result:
    """Its number, owner and mode."""
    return path.stat()


def files(path: Path) -> list[str]:
    """What is in the file's directory."""
    return sorted(name.name for name in path.parent.iterdir())


def test_an_unload_takes_the_models_out_of_the_file_and_back(tmp_path: Path) -> None:
    """Reload, verify, measure; afterwards the file is what the operator wrote, byte for byte, and no copy is left."""

    async def test(server: Ovms, path: Path) -> None:
        bridged = await found(server, path)
        released = await bridged.unload()
        assert isinstance(released, Released)
        assert released.bytes == 2 * MODEL_BYTES
        tree = json.loads(written(path))
        assert tree["model_config_list"] == tree["mediapipe_config_list"] == []
        assert tree["monitoring"] == {"metrics": {"enable": True}}
        await bridged.restore()
        assert server.done() == [RELOAD, RELOAD]
        assert written(path) == TEXT
        assert files(path) == ["config.json"]
        assert {name for name, state in server.served.items() if state == "AVAILABLE"} == NAMES

    run(tmp_path, test)


def test_owner_and_mode_are_kept(tmp_path: Path) -> None:
    """OVMS runs as another user, who has to be able to read it, and others may not."""

    async def test(server: Ovms, path: Path) -> None:
        os.chmod(path, 0o640)
        if os.geteuid() == 0:
            os.chown(path, 1234, 2345)
        before = facts(path)
        bridged = await found(server, path)
        await bridged.unload()
        for file in (path, Path(f"{path}{COPY}")):
            now = facts(file)
            assert (now.st_mode, now.st_uid, now.st_gid) == (before.st_mode, before.st_uid, before.st_gid)

    run(tmp_path, test)


def test_the_file_is_never_seen_half_written(tmp_path: Path) -> None:
    """It is another file each time, put in its place as a whole; a symbolic link to it stays one."""

    async def test(server: Ovms, path: Path) -> None:
        link = tmp_path / "link.json"
        link.symlink_to(path)
        bridged = await found(server, link)
        before = facts(path).st_ino
        await bridged.unload()
        assert facts(path).st_ino != before
        assert link.is_symlink()
        assert files(path) == ["config.json", f"config.json{COPY}"]

    run(tmp_path, test)


def test_running_requests_end_before_their_model_goes(tmp_path: Path) -> None:
    """OVMS's reload waits for them, and the bridge for the reload; others are not held up."""

    async def test(server: Ovms, path: Path) -> None:
        bridged = await found(server, path)
        asked = asyncio.create_task(server.http(30).ask("POST", "/v2/models/faces/infer", {"inputs": []}))
        await soon(lambda: server.work.running)
        unloading = asyncio.create_task(bridged.unload())
        await soon(lambda: server.done("/v2/models/faces/infer") == [RELOAD])
        assert await bridged.reject() is None
        assert not unloading.done()
        server.work.end()
        assert (await asked).status == 200
        assert isinstance(await unloading, Released)

    run(tmp_path, test)


def test_a_bridge_that_died_is_followed_by_one_that_puts_the_file_back(tmp_path: Path) -> None:
    """The copy beside it tells what it was, whatever the bridge still knew."""

    async def test(server: Ovms, path: Path) -> None:
        state = tmp_path / "taken"
        await (await found(server, path, state=state)).unload()
        state.write_text("[]")
        await found(server, path, state=state)
        assert written(path) == TEXT
        assert set(server.served.values()) == {"AVAILABLE"}

    run(tmp_path, test)


def test_what_somebody_has_written_meanwhile_stays(tmp_path: Path) -> None:
    """Theirs counts; what they do not name comes back."""

    async def test(server: Ovms, path: Path) -> None:
        bridged = await found(server, path)
        await bridged.unload()
        theirs = {
            "model_config_list": [
                {"config": {"name": "new", "base_path": "/models/new"}},
                {"config": {"name": "faces", "base_path": "/models/faces2"}},
            ]
        }
        write(path, json.dumps(theirs))
        await bridged.restore()
        tree = json.loads(written(path))
        assert [entry["config"]["base_path"] for entry in tree["model_config_list"]] == [
            "/models/new",
            "/models/faces2",
        ]
        assert tree["mediapipe_config_list"] == [{"name": "llm", "base_path": "/models/llm"}]
        assert {name for name, state in server.served.items() if state == "AVAILABLE"} == NAMES | {"new"}

    run(tmp_path, test)


def test_a_reload_that_is_refused_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The file is put back, and OVMS told so."""

    async def test(server: Ovms, path: Path) -> None:
        bridged = await found(server, path)
        server.override(RELOAD, 412, {"error": "Reloading config file failed. Check server logs for more info."})
        assert "412" in await bridged.failure_of(bridged.unload())
        assert written(path) == TEXT
        assert files(path) == ["config.json"]

    run(tmp_path, test)


def test_a_server_that_reads_another_file_is_told_apart(tmp_path: Path) -> None:
    """200 without any effect: the models are still served. The operator's file is put back."""

    async def test(server: Ovms, path: Path) -> None:
        other = path.parent / "other.json"
        other.write_text(TEXT)
        bridged = await found(server, other)
        assert "--config_path" in await bridged.failure_of(bridged.unload())
        assert written(other) == TEXT
        assert set(server.served.values()) == {"AVAILABLE"}

    run(tmp_path, test)


def test_a_model_that_does_not_load_again_keeps_the_gate_shut(tmp_path: Path) -> None:
    """The file is whole, so that a restart of OVMS or the next restore brings it back."""

    async def test(server: Ovms, path: Path) -> None:
        bridged = await found(server, path)
        await bridged.unload()
        server.broken.add("llm")
        assert "412" in await bridged.failure_of(bridged.restore())
        assert written(path) == TEXT
        assert await bridged.refuses()
        server.broken.clear()
        server.start_again()
        await bridged.restore()
        assert not await bridged.refuses()

    run(tmp_path, test)


def test_without_the_file_it_says_so(tmp_path: Path) -> None:
    """The gate refuses and limits all the same."""

    async def test(server: Ovms, _: Path) -> None:
        bridged = await found(server, None)
        assert "--config-path FILE" in bridged.look.cannot[0]
        assert set(bridged.bridge.handlers()) == {"reject_requests", "restore"}
        assert server.done() == []

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "it is no JSON"), ("[]", "no configuration of OVMS"), ('{"model_config_list": {}}', "no configuration")],
)
def test_a_file_that_is_none_of_ovms_is_left_alone(tmp_path: Path, text: str, said: str) -> None:
    """It is said at the start, before anything is written."""

    async def test(server: Ovms, path: Path) -> None:
        other = path.parent / "other.json"
        other.write_text(text)
        bridged = await found(server, other)
        assert said in bridged.look.cannot[0]
        assert not bridged.look.unloads

    run(tmp_path, test)


def test_a_directory_that_is_not_writable_is_said(tmp_path: Path) -> None:
    """Replacing the file means writing beside it."""
    path = tmp_path / "missing" / "config.json"
    assert "is not writable" in (OvmsFile(str(path)).obstacle() or "")


def test_what_is_mounted_by_itself_is_said() -> None:
    """As a single file is into a container: replacing it would work on one side only."""
    assert "mount its directory" in (OvmsFile("/proc").obstacle() or "")
