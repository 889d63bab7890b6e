"""The server of the bare run."""

import asyncio
from pathlib import Path

import pytest

from tests.llama.server import NotReadyError, Place, Server


def test_a_process_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    """The error names the status and where to look."""

    async def scene() -> None:
        (tmp_path / "cgroup.procs").touch()
        server = Server(Place("/bin/false", "m", str(tmp_path), str(tmp_path / "s"), str(tmp_path / "log")))
        with pytest.raises(NotReadyError, match=r"ended with 1: see .*log"):
            await server.start()
        assert not server.running

    asyncio.run(scene())
