"""What a log says beside kernel OOM kills: systemd's units, systemd-oomd, killers in user space. Bounded, in order.

Must not: count any of it as a kernel kill. Upstream: othermessages. Downstream: collector, asjson.
"""

from typing import Final

from msgspec import Struct

from edgeguardd.core.oomlog.dress import Line
from edgeguardd.core.oomlog.othermessages import KubeletSaw, OomdKilled, TalosVictims, UnitSaid, UserspaceKilled
from edgeguardd.core.oomlog.report import When

MAX_EACH: Final = 1024


class Unit(Struct):
    """A systemd unit in which something was killed."""

    unit: str
    manager_pid: int | None
    result: str | None
    when: When


class Oomd(Struct):
    """A cgroup that systemd-oomd killed; `processes`: how many, where systemd says so."""

    said: OomdKilled
    when: When
    processes: int | None = None


class Userspace(Struct):
    """A kill by a killer in user space; `times`: how often it repeated itself (SIGTERM, then SIGKILL)."""

    said: UserspaceKilled
    when: When
    times: int = 1
    processes: tuple[int | str, ...] = ()


class Others:
    """Filled by the collector. `waiting`: so many lines may pass before the second one of a message has come."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.oomd: list[Oomd] = []
        self.userspace: list[Userspace] = []
        self.kubelet: list[KubeletSaw] = []
        self.reaped: dict[int, tuple[str | None, When]] = {}
        self.panic: str | None = None
        self.suppressed = 0
        self.waiting = 0

    def take(self, said: UnitSaid | OomdKilled | UserspaceKilled | TalosVictims | KubeletSaw, line: Line) -> None:
        """Keep what was said, joined with what was said about the same before."""
        if isinstance(said, UnitSaid):
            self._unit(said, line)
        elif isinstance(said, OomdKilled):
            self._oomd(said, line)
        elif isinstance(said, UserspaceKilled):
            self._userspace(said, line)
        elif isinstance(said, TalosVictims):
            if self.userspace and self.userspace[-1].said.killer == "talos":
                self.userspace[-1].processes = said.processes
        elif len(self.kubelet) < MAX_EACH:
            self.kubelet.append(said)

    def reaped_unknown(self, pid: int, comm: str | None, when: When) -> None:
        """The reaper named a process whose kill is not in the log."""
        if len(self.reaped) < MAX_EACH:
            self.reaped.setdefault(pid, (comm, when))

    def _unit(self, said: UnitSaid, line: Line) -> None:
        if said.killed_by_oomd is not None:
            for kill in reversed(self.oomd):
                if kill.processes is None and kill.said.cgroup.rpartition("/")[2] == said.unit:
                    kill.processes = said.killed_by_oomd or None
                    return
            return
        manager = line.program_pid if line.program == "systemd" else None
        for unit in reversed(self.units):
            if unit.unit == said.unit and (unit.result is None or said.result is None):
                unit.result = unit.result or said.result
                return
        if len(self.units) < MAX_EACH:
            self.units.append(Unit(said.unit, manager, said.result, When.of(line)))

    def _oomd(self, said: OomdKilled, line: Line) -> None:
        for kill in reversed(self.oomd[-4:]):
            # "Marked" is followed by "Killed" in some versions.
            if kill.said.cgroup == said.cgroup and kill.processes is None:
                return
        if len(self.oomd) < MAX_EACH:
            self.oomd.append(Oomd(said, When.of(line)))

    def _userspace(self, said: UserspaceKilled, line: Line) -> None:
        for kill in reversed(self.userspace[-8:]):
            if kill.said.killer == said.killer and said.pid is not None and kill.said.pid == said.pid:
                kill.times += 1
                return
        if len(self.userspace) < MAX_EACH:
            self.userspace.append(Userspace(said, When.of(line)))
