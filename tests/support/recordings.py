"""Recordings made by hand: a Script whose events are taped, cut into segments where the test likes.

The files are what edgeguardd.recorder writes; no loop, no thread and no clock is needed for them.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from edgeguardd import __version__
from edgeguardd.core.config import Config, Policy, TargetSpec
from edgeguardd.core.effects import Effect
from edgeguardd.core.events import Event, SampleTaken
from edgeguardd.core.model import Sample
from edgeguardd.core.recording import FORMAT, Clock, Header, Packer, Segment, beginning, event_line
from tests.support.script import Script, commands, usage

# 2026-03-01 12:00:00 UTC at the script's monotonic 100 s.
NOON_S = 1772366400.0

MIB = 1 << 20


class Taped(Script):
    """A script that is recorded. `steps` is what the engine made of each event, `ends` the file and its size then."""

    def __init__(self, policy: Policy | None = None, *, run: str = "run", version: str = __version__) -> None:
        self.steps: list[tuple[float, Event, list[Effect]]] = []
        self.files: list[bytes] = []
        self.ends: list[tuple[int, int]] = []
        self._run = run
        self._version = version
        self._packer: Packer | None = None
        self._number = 0
        self.config = Config(targets=(TargetSpec("llm", path="/llm", policy=policy or Policy()),))
        super().__init__(policy)

    def do(self, event: Event) -> list[Effect]:
        """One event: taped, then handled."""
        self._add(event_line(event, self.now))
        effects = super().do(event)
        self.steps.append((self.now, event, effects))
        return effects

    def cut(self, *, complete: bool = True) -> None:
        """The segment is over; the next event opens another. complete: nothing is lost in between."""
        if self._packer is not None:
            if complete:
                self.files[-1] += self._packer.end()
            self._packer = None

    def segments(self) -> list[Segment]:
        """All that was taped, as files that are read anew each time."""
        return [Segment(content, f"segment {number}") for number, content in enumerate(self.files)]

    def write(self, directory: str | os.PathLike[str], first: int = 1) -> str:
        """The files in a directory, as the recorder names them. Returns the directory."""
        self.cut()
        os.makedirs(directory, exist_ok=True)
        for number, content in enumerate(self.files, first):
            with open(os.path.join(directory, f"recording-{number:08}.jsonl.gz"), "wb") as file:
                file.write(content)
        return os.fspath(directory)

    def _add(self, line: bytes) -> None:
        if self._packer is None:
            self._packer = Packer()
            clock = Clock(NOON_S + self.now - 100.0, self.now)
            header = Header(FORMAT, self._version, self._run, self._number, None, clock, self.config)
            self._number += 1
            self.files.append(self._packer.add(beginning(header, self.engine)))
        self.files[-1] += self._packer.add(line)
        self.ends.append((len(self.files) - 1, len(self.files[-1])))


@contextlib.contextmanager
def in_utc() -> Iterator[None]:
    """Local time is UTC, whatever the machine says."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


def incident(script: Taped) -> Taped:
    """A request that grows for half a minute, a server that trims when asked, and everything restored."""
    script.join()
    script.need(300)
    script.pass_time(20, every=1.0)
    for _ in range(60):
        script.needed_mib += 12
        script.now += 0.5
        for command in commands(script.do(SampleTaken(Sample("llm", (usage("/llm", script.needed_mib),))))):
            script.now += 0.02
            if command.parameters.release_bytes:
                script.needed_mib -= command.parameters.release_bytes / MIB
                script.need(script.needed_mib)
            script.ack(command)
    script.need(200)
    for _ in range(90):
        for command in commands(script.pass_time(0.5)):
            script.ack(command)
    return script
