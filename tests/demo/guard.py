"""edgeguardd for the guarded run: started beside the server, outside its cgroup; its log becomes timeline lines.

Must not: tune anything; the daemon runs on its defaults. Upstream: run. Downstream: `python -m edgeguardd run`.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from edgeguardd.core.config import MachineConfig
from tests.demo.timeline import LIMITS

MIB = 1024 * 1024
STARTED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 20.0


# What is worth a line of the timeline: text, the level if it has changed, bytes given back.
Said = Callable[[str | None, str | None, int], None]


def socket_path(directory: str) -> str:
    """Where the daemon of this run listens."""
    return f"{directory}/edgeguardd.sock"


class Guard:
    """`async with Guard(directory, said):` - ready inside the block."""

    def __init__(self, directory: str, said: Said, configuration: str = "") -> None:
        self._directory = directory
        self._said = said
        # The defaults, and neither what /etc may hold on this machine nor what a daemon of its own keeps in /var.
        self._configuration = f"{directory}/edgeguardd.toml"
        with open(self._configuration, "w") as file:
            file.write(f"state_directory = {json.dumps(f'{directory}/state')}\n{configuration}")
        self._started = asyncio.Event()

    async def __aenter__(self) -> "Guard":
        options = [
            "--config",
            self._configuration,
            "--socket",
            socket_path(self._directory),
            "--http",
            "off",
            "--log-format",
            "json",
        ]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "edgeguardd", "run", *options, stderr=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())
        await asyncio.wait_for(self._started.wait(), STARTED_WITHIN_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOPPED_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            try:
                self._take(json.loads(line))
            except ValueError:
                self._said(line.decode(errors="replace").rstrip(), None, 0)

    def _take(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "started":
                self._started.set()
            case "level_changed":
                self._said(f"level {line['was']} -> {line['level']}: {line['why']}", line["level"], 0)
            case "command_sent":
                self._said(f"edgeguardd asks: {asked(line)}", None, 0)
            case "command_ended":
                freed = max(0, line["freed_bytes"] or 0) if line["action"] == "trim_kv_cache" else 0
                self._said(f"server: {answered(line)}", None, freed)
            case other if line.get("severity") in {"warning", "error"}:
                self._said(f"edgeguardd: {other} {figures(line)}", None, 0)


def machine_guard(directory: str, said: Said) -> Guard:
    """With marks for the machine that are the defaults' shares of what the server has room for (see rivals)."""
    share = LIMITS.max_bytes / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    defaults = MachineConfig()
    marks = {"elevated": defaults.elevated_ratio, "high": defaults.high_ratio, "critical": defaults.critical_ratio}
    rows = [f'{name} = "{ratio * share:.3%}"' for name, ratio in marks.items()]
    return Guard(directory, said, "\n".join(["[machine]", *rows, ""]))


def asked(line: dict[str, Any]) -> str:
    """A command in a few words."""
    match line["action"]:
        case "trim_kv_cache":
            return f"trim the KV cache by {(line.get('release_bytes') or 0) / MIB:.1f} MiB"
        case "reduce_batch":
            return f"run {line['max_batch_ratio']:.0%} of the batch"
        case "reject_requests":
            return "reject new requests"
        case action:
            return f"{action} {figures(line)}"


def answered(line: dict[str, Any]) -> str:
    """How a command ended, in a few words."""
    text = f"{line['action']} {line['outcome']} after {line['took_s'] * 1000:.0f} ms"
    if line["action"] == "trim_kv_cache":
        text += f", {max(0, line['freed_bytes'] or 0) / MIB:.1f} MiB freed"
    return text


def figures(line: dict[str, Any]) -> str:
    """What else a log line says."""
    known = {"time", "severity", "event", "action", "target", "subscriber", "seq"}
    return ", ".join(f"{key} {value}" for key, value in line.items() if key not in known and value is not None)
