"""docs/how-to/bridges.md: its commands start bridges, its files are read, and no server is left out."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges import catalog
from edgeguardd.cli.bridge import read_settings
from edgeguardd.core.configparse import read
from tests.support.children import ending
from tests.support.documents.pages import blocks, commands
from tests.support.running import REPOSITORY
from tests.support.standins.llama import FakeLlama
from tests.support.standins.vllm import Vllm
from tests.support.wait import eventually

PAGE = Path(REPOSITORY, "docs/how-to/bridges.md").read_text()
COMMANDS = [command.text.removeprefix("edgeguardctl ") for command in commands("docs/how-to/bridges.md")]
TOML = [block.text for block in blocks("docs/how-to/bridges.md", "toml")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words.split()[:2]) + str(len(words)))
def test_each_command_starts_a_bridge(tmp_path: Path, command: str) -> None:
    """As printed, but for where the stand-in, the gate and the daemon are. The child is one that does nothing."""

    async def scene() -> None:
        async with Vllm() if command.startswith("bridge vllm") else FakeLlama() as server:
            words, _, child = command.partition(" -- ")
            argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *shlex.split(words)]
            argv += ["--url", server.url, "--listen", f"unix:{tmp_path}/gate", "--socket", f"{tmp_path}/absent"]
            argv += ["--cgroup-root", str(tmp_path), "--log-format", "json"]
            (tmp_path / "llm").mkdir()
            (tmp_path / "llm/cgroup.procs").touch()
            (tmp_path / "cgroup.controllers").write_text("memory\n")
            argv += ["--", "sleep", "60"] if child else []
            ready = await asyncio.to_thread(first_line, argv, "bridge_ready")
            assert ready["version"] in {"b6123-0c1e570", "0.33.0"}
            assert "trim_kv_cache" in ready["commands"]

    assert shutil.which("sleep")
    asyncio.run(scene())


def first_line(argv: list[str], event: str) -> dict[str, Any]:
    """The first log line of this event; the program is ended with SIGTERM then."""
    started = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with ending(started) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith(b"{") and json.loads(line)["event"] == event:
                process.terminate()
                assert eventually(lambda: process.poll() is not None, what="it ends")
                assert process.returncode == 0
                return dict(json.loads(line))
    raise AssertionError(f"no {event}: {said}")


def test_its_files_are_read(tmp_path: Path) -> None:
    """The daemon takes the target, the bridge its settings."""
    target, settings = TOML
    assert read(target.encode(), "bridges.md").targets[0].name == "llm"
    (tmp_path / "llama.toml").write_text(settings)
    assert read_settings(str(tmp_path / "llama.toml")).drain == 90.0


def test_every_server_has_its_row_with_what_it_needs_and_its_dangers() -> None:
    """And no row is of a server that there is no bridge to."""
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    assert {row[1].split("`")[1] for row in rows} == set(catalog.SERVERS)
    assert all(len(row) == 8 and all(cell.strip() for cell in row[1:7]) for row in rows)


@pytest.mark.parametrize("word", re.findall(r"`(--[a-z-]+)`", PAGE))
def test_every_option_that_is_named_exists(word: str) -> None:
    """The bridge's own are on the reference page; the others are a server's."""
    of_servers = {"--slot-save-path", "--no-models-autoload", "--cache-ram", "--metrics", "--enable-sleep-mode"}
    of_servers |= {"--enable-memory-saver", "--enable-weights-cpu-backup"}
    reference = Path(REPOSITORY, "docs/reference/cli.md").read_text()
    assert word in of_servers or f"`{word}" in reference or word == "--"
