"""Ten inference servers under the daemon's care, which write down what they got and did; and an oracle that reads it.

    python3 -m tests.support.subscriberload run JOURNAL [--socket PATH] [--count 10] [--hold-mib 8] [--take-s 0.05]
    python3 -m tests.support.subscriberload check JOURNAL [--gap-s 1.5] [--least-level critical]

One file, which needs nothing but edgeguardd.client, so that it runs in a guest beside the installed package. `run`
goes on until SIGTERM or SIGINT. Every line of the journal is one JSON object with `at` (CLOCK_MONOTONIC seconds, the
same for all processes of a machine), `name` (whose) and `what`:

    welcome  epoch, level, in_force             let in
    begin    epoch, seq, action, parameters     a handler starts on a command; seq 0: what a welcome calls for
    end      epoch, seq, action, freed_bytes    it has done it
    level    level
    pong     took_s                             a new connection was made and answered
    state    in_force, level                    at the end: what it takes to be in force

The memory that a trim gives back is real (`--hold-mib` each, which grows again while requests are let in).
Must not: know the daemon, look into the client. Upstream: edgeguardd.client. Downstream: component and system tests.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from edgeguardd.client import AsyncSubscriber, Command, NoEffect, Released

BLOCK_BYTES = 1 << 20
PROBE_EVERY_S = 0.02
PROBE_WITHIN_S = 10.0
# What was told last may still be being carried out when the run is ended.
SETTLE_S = 5.0
LEVELS = ("normal", "elevated", "high", "critical", "emergency")

Line = dict[str, Any]


class Journal:
    """Lines go to the file at once, whole: whoever reads it after a kill finds all that was done."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, name: str, what: str, **fields: object) -> None:
        """One line."""
        line = {"at": time.monotonic(), "name": name, "what": what, **fields}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


class Server:
    """One subscriber with a cache of real pages. `release`: gives bytes back instead, and says how many."""

    def __init__(
        self,
        name: str,
        journal: Journal,
        *,
        hold_bytes: int = 0,
        take_s: float = 0.0,
        release: Callable[[int], int] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.accepting = True
        self._journal = journal
        self._hold_bytes = hold_bytes
        self._take_s = take_s
        self._release = release or self._give_back
        self._blocks: list[mmap.mmap] = []
        self._epoch = ""
        self._stands: Line = {"max_batch_ratio": 1.0, "accept_requests": True}
        names = ("trim_kv_cache", "reduce_batch", "reject_requests", "unload_model", "restore")
        handlers = dict.fromkeys(names, self._obey)
        self.guard = AsyncSubscriber(name, handlers=handlers, on_event=self._heard, **options)

    def grow(self) -> None:
        """Take one more block, as a request would."""
        if self.accepting and len(self._blocks) * BLOCK_BYTES < self._hold_bytes:
            block = mmap.mmap(-1, BLOCK_BYTES)
            block.write(b"\x5a" * BLOCK_BYTES)
            self._blocks.append(block)

    def in_force(self) -> Line:
        """What the client takes to be in force."""
        return {"max_batch_ratio": self.guard.max_batch_ratio, "accept_requests": self.guard.accept_requests}

    def settled(self) -> bool:
        """Whether it has carried out what is in force."""
        return self._stands == self.in_force()

    def close(self) -> None:
        """Write down where it stands, and give everything back."""
        self._journal.write(self.name, "state", in_force=self.in_force(), level=self.guard.level.word)
        for block in self._blocks:
            block.close()

    def _heard(self, event: object) -> None:
        kind = type(event).__name__
        if kind == "WelcomeLine":
            self._epoch = str(getattr(event, "epoch", ""))
            in_force = {word: getattr(event, word, None) for word in ("max_batch_ratio", "accept_requests")}
            level = getattr(event, "level", None)
            self._journal.write(self.name, "welcome", epoch=self._epoch, level=level, in_force=in_force)
        elif kind == "LevelLine":
            self._journal.write(self.name, "level", level=getattr(event, "level", None))

    async def _obey(self, command: Command) -> Released | NoEffect:
        asked = {
            word: value
            for word in ("release_bytes", "needed_target_bytes", "max_batch_ratio", "accept_requests", "model_loaded")
            if (value := getattr(command.parameters, word)) is not None
        }
        told = {"epoch": self._epoch, "seq": command.seq, "action": command.action.value}
        self._journal.write(self.name, "begin", **told, parameters=asked)
        await asyncio.sleep(self._take_s)
        self._stands.update({word: value for word, value in asked.items() if word in self._stands})
        self.accepting = self._stands["accept_requests"]
        freed = self._release(command.parameters.release_bytes or 0) if command.action == "trim_kv_cache" else 0
        self._journal.write(self.name, "end", **told, freed_bytes=freed)
        return Released(freed) if freed else NoEffect()

    def _give_back(self, wanted_bytes: int) -> int:
        freed = 0
        while self._blocks and freed < wanted_bytes:
            self._blocks.pop().close()
            freed += BLOCK_BYTES
        return freed


async def run(servers: Iterable[Server], journal: Journal, path: str, until: asyncio.Event) -> None:
    """Keep the servers subscribed, growing and probing until told to stop."""
    everybody = list(servers)
    async with contextlib.AsyncExitStack() as stack:
        for server in everybody:
            await stack.enter_async_context(server.guard)
        work = [asyncio.create_task(_grow(everybody)), asyncio.create_task(_probe(path, journal))]
        try:
            await until.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    while not all(server.settled() for server in everybody):  # noqa: ASYNC110  for ten, at the end
                        await asyncio.sleep(PROBE_EVERY_S)
            for server in everybody:
                server.close()


async def _grow(servers: list[Server]) -> None:
    while True:
        for server in servers:
            server.grow()
            await asyncio.sleep(0.005)


async def _probe(path: str, journal: Journal) -> None:
    """Whether somebody new is served: a connection of its own each time, answered."""
    while True:
        began = time.monotonic()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(b'{"type":"ping","id":"probe"}\n')
                    if b"pong" in await reader.readline():
                        journal.write("probe", "pong", took_s=time.monotonic() - began)
                finally:
                    writer.close()
        await asyncio.sleep(PROBE_EVERY_S)


# The oracle


def read(path: str) -> list[Line]:
    """The journal; a last line that was cut by a kill is left out."""
    lines: list[Line] = []
    for line in Path(path).read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def problems(lines: list[Line], *, gap_s: float | None = None, least_level: str | None = None) -> list[str]:
    """What is wrong with what they got and did; nothing when all is well.

    gap_s        the longest time that a new connection may have had to wait for its answer
    least_level  every welcome but each server's first says at least this level
    """
    found = list(_twice(lines))
    found += _unlike(lines)
    found += _forgotten(lines)
    if least_level is not None:
        found += _levels_lost(lines, least_level)
    if gap_s is not None and longest_gap_s(lines) > gap_s:
        found.append(f"nobody new was served for {longest_gap_s(lines):.2f} s")
    return found


def longest_gap_s(lines: list[Line]) -> float:
    """The longest time from one answered probe to the next."""
    answered = [line["at"] for line in lines if line["what"] == "pong"]
    return max((after - before for before, after in itertools.pairwise(answered)), default=0.0)


def _twice(lines: list[Line]) -> Iterator[str]:
    """A command is carried out once, however often it is told."""
    seen: set[tuple[str, str, int]] = set()
    for line in lines:
        if line["what"] == "end" and line["seq"] > 0:
            key = (line["name"], line["epoch"], line["seq"])
            if key in seen:
                yield f"{line['name']} did {line['action']} {line['seq']} of epoch {line['epoch']} twice"
            seen.add(key)


def _unlike(lines: list[Line]) -> Iterator[str]:
    """One number is one command: the same action and parameters whenever it is told."""
    seen: dict[tuple[str, str, int], tuple[str, str]] = {}
    for line in lines:
        if line["what"] == "begin" and line["seq"] > 0:
            key = (line["name"], line["epoch"], line["seq"])
            order = (line["action"], json.dumps(line["parameters"], sort_keys=True))
            if seen.setdefault(key, order) != order:
                yield f"{line['name']} got two commands as {line['seq']}: {seen[key]} and {order}"


def _forgotten(lines: list[Line]) -> Iterator[str]:
    """At the end, what a server has carried out is what is in force."""
    stands: dict[str, Line] = {}
    begun: dict[tuple[str, str], Line] = {}
    for line in lines:
        mine = stands.setdefault(line["name"], {"max_batch_ratio": 1.0, "accept_requests": True})
        match line["what"]:
            case "begin":
                begun[line["name"], line["action"]] = line["parameters"]
            case "end":
                asked = begun.pop((line["name"], line["action"]), {})
                mine.update({word: value for word, value in asked.items() if word in mine})
            case "state" if mine != line["in_force"]:
                yield f"{line['name']} stands at {mine}, and {line['in_force']} is in force"


def _levels_lost(lines: list[Line], least: str) -> Iterator[str]:
    """After the first welcome, no later one has forgotten the level."""
    known: set[str] = set()
    for line in lines:
        if line["what"] == "welcome":
            if line["name"] in known and LEVELS.index(line["level"]) < LEVELS.index(least):
                yield f"{line['name']} was told {line['level']} at {line['at']:.3f}, at least {least} holds"
            known.add(line["name"])


# The command line


def main(argv: list[str]) -> int:
    """Run or check. 0: all is well."""
    parser = argparse.ArgumentParser(prog="subscriberload")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("journal")
    runs.add_argument("--socket", default=os.environ.get("EDGEGUARDD_SOCKET", "/run/edgeguardd/edgeguardd.sock"))
    runs.add_argument("--count", type=int, default=10)
    runs.add_argument("--target", default="self")
    runs.add_argument("--hold-mib", type=int, default=8)
    runs.add_argument("--take-s", type=float, default=0.05)
    checks = commands.add_parser("check")
    checks.add_argument("journal")
    checks.add_argument("--gap-s", type=float, default=None)
    checks.add_argument("--least-level", choices=LEVELS, default=None)
    args = parser.parse_args(argv)
    if args.command == "run":
        asyncio.run(_run(args))
        return 0
    lines = read(args.journal)
    found = problems(lines, gap_s=args.gap_s, least_level=args.least_level)
    done = sum(1 for line in lines if line["what"] == "end" and line["seq"] > 0)
    welcomes = sum(1 for line in lines if line["what"] == "welcome")
    print(f"{welcomes} welcomes, {done} commands carried out, longest gap {longest_gap_s(lines):.2f} s")
    for problem in found:
        print(problem)
    return 1 if found else 0


async def _run(args: argparse.Namespace) -> None:
    until = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    journal = Journal(args.journal)
    servers = [
        Server(
            f"load-{n}",
            journal,
            hold_bytes=args.hold_mib << 20,
            take_s=args.take_s,
            path=args.socket,
            target=args.target,
        )
        for n in range(args.count)
    ]
    await run(servers, journal, args.socket, until)
    journal.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
