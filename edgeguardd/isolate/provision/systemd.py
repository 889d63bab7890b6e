"""systemd as a back end: drop-ins, systemctl, and the cgroup files to read back.

Must not: decide what is to be done (drop_ins does), restart or stop a service, write a cgroup file: the tree is
systemd's. Upstream: drop_ins. Downstream: run.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import structs

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate.provision import drop_ins
from edgeguardd.isolate.provision.drop_ins import ACTIVE, CONTROL, UnitFound
from edgeguardd.isolate.provision.lowering import Patience, in_steps
from edgeguardd.isolate.provision.model import (
    CPU_MAX,
    HIGH,
    MAX,
    PROPERTIES,
    Change,
    Entry,
    Found,
    Group,
    Kind,
    Machine,
    Plan,
    ProvisionError,
    kernel_text,
    number_of,
    size_text,
)
from edgeguardd.isolate.provision.refusals import Request, refusals
from edgeguardd.isolate.unit import Loader
from edgeguardd.isolate.unit import Machine as UnitMachine
from edgeguardd.isolate.unitfiles import SYSTEM_PATH, SearchPath
from edgeguardd.isolate.unitfiles import Found as UnitFiles

_TIMEOUT_S = 90
_MAX_FILE_BYTES = 65536
_ENVIRONMENT = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_PAGERSECURE": "1"}


class _Without(SearchPath):
    """A search path in which some drop-ins are not there."""

    def __init__(self, folders: tuple[str, ...], root: str, hidden: set[str]) -> None:
        super().__init__(folders, root)
        self._hidden = hidden

    def find(self, name: str) -> UnitFiles:
        """As SearchPath does, less the hidden ones."""
        found = super().find(name)
        return structs.replace(found, drop_ins=tuple(path for path in found.drop_ins if path not in self._hidden))


class SystemdBackend:
    """The system manager. `prefix` goes before every path of unit files, for tests."""

    name = "systemd"

    def __init__(self, cgroup_root: str, machine: Machine, wait_s: float, *, runtime: bool, prefix: str = "") -> None:
        """`runtime`: until the next boot only."""
        self.where = "systemd" + (", until the next boot" if runtime else "")
        self._folder = drop_ins.RUN if runtime else drop_ins.ETC
        self._root = cgroup_root.rstrip("/")
        self._machine = machine
        self._patience = Patience(wait_s)
        self._prefix = prefix
        self._force = False
        self._controls: set[str] = set()
        self._rewritten: set[str] = set()
        self._unread = False

    def plan(self, groups: Sequence[Group], entries: Sequence[Entry], request: Request) -> Plan:
        """Look, and say what is to be done."""
        self._force = request.force
        names = dict.fromkeys([*(group.name for group in groups), *(entry.place for entry in entries)])
        units = {name: self._unit(name, _paths_of(name, entries)) for name in names}
        groups = [drop_ins.placed(group, units[group.name]) for group in groups]
        controllers = frozenset(_text(f"{self._root}/cgroup.controllers").split())
        found = {group.name: self._found(group, units[group.name], controllers) for group in groups}
        machine = request.machine
        refused = refusals(Request(groups, found, machine, *_rest(request)))
        changes, overridden, notes = drop_ins.changes(groups, units, entries, self._folder)
        back = self._limits_back(groups, units, changes)
        if not request.force:
            refused += [self._too_low(change) for change in back]
        return Plan(tuple(self._ordered([*changes, *back], units)), (*refused, *overridden), tuple(notes))

    def apply(self, change: Change) -> None:
        """Carry one change out. Raises ProvisionError."""
        match change.kind:
            case Kind.DROP_IN:
                self._write(change.key, change.after)
                self._rewritten.add(change.place)
                self._unread = True
            case Kind.RELOAD:
                self._reload()
            case Kind.SLICE:
                self._systemctl("start" if change.after == ACTIVE else "stop", "--", change.place)
            case _:
                self._set(change)

    def finish(self) -> None:
        """Have the kernel's files be as systemd reads its own, then take away what set-property left for that.

        The drop-ins say the same, and later ones shall win over it.
        """
        # A rollback puts drop-ins back after its reload.
        if self._unread:
            self._reload()
        for name in sorted(self._rewritten):
            self._write_again(name)
        self._rewritten.clear()
        left = [path for path in self._controls if os.path.exists(path)]
        self._controls.clear()
        for path in left:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))
        if left:
            self._reload()

    def inode(self, change: Change) -> int:
        """Files are told by their content."""
        del change
        return 0

    # Looking

    def _unit(self, name: str, paths: set[str]) -> UnitFound:
        own = {*paths, drop_ins.path_of(name, self._folder)}
        answer = self._systemctl("show", f"--property={','.join(drop_ins.asked())}", "--", name)
        shown = dict(line.partition("=")[::2] for line in answer.splitlines() if "=" in line)
        cgroup = shown.get("ControlGroup", "")
        kernel = {} if not cgroup else self._kernel(cgroup)
        setters = self._setters(shown.get("DropInPaths", "").split(), own)
        processes = len(_text(f"{self._root}{cgroup}/cgroup.procs").split()) if cgroup else 0
        if cgroup and "populated 1" in _text(f"{self._root}{cgroup}/cgroup.events"):
            processes = max(processes, 1)
        ours = {path: text for path in own if (text := _optional(self._prefix + path)) is not None}
        return UnitFound(shown, ours, kernel, setters, processes)

    def _kernel(self, cgroup: str) -> dict[str, str]:
        found = {file: _optional(f"{self._root}{cgroup}/{file}") for file in PROPERTIES}
        return {file: text.strip() for file, text in found.items() if text is not None}

    def _setters(self, paths: Sequence[str], own: set[str]) -> dict[str, str]:
        """Setting -> the drop-in behind ours that sets it last."""
        found = {}
        for path in paths:
            for line in _text(self._prefix + path).splitlines():
                key = line.partition("=")[0].strip()
                if path not in own and key in PROPERTIES.values():
                    found[key] = path
        return found

    def _found(self, group: Group, unit: UnitFound, controllers: frozenset[str]) -> Found:
        faults = tuple(drop_ins.faults(group, unit, controllers, self._machine.has_swap))
        cgroup = unit.shown.get("ControlGroup", "")
        if not unit.kernel:
            return Found(faults=faults)
        stat = dict(line.split() for line in _text(f"{self._root}{cgroup}/memory.stat").splitlines())
        droppable = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
        return Found(cgroup, unit.kernel, self._used(cgroup), droppable, faults)

    def _used(self, cgroup: str) -> int:
        text = _text(f"{self._root}{cgroup}/memory.current").strip()
        return int(text) if text.isdigit() else 0

    def _cgroup(self, unit: str) -> str:
        return self._systemctl("show", "--property=ControlGroup", "--value", "--", unit).strip()

    def _limits_back(
        self, groups: Sequence[Group], units: Mapping[str, UnitFound], changes: Sequence[Change]
    ) -> list[Change]:
        """Limits that come to hold where ours go, of the unit's other files, and that are below what is in use."""
        touched = dict.fromkeys(change.place for change in changes if change.kind is Kind.DROP_IN)
        if not touched:
            return []
        ours = {self._prefix + path for unit in units.values() for path in unit.drop_ins}
        path = _Without(SYSTEM_PATH, self._prefix or "/", ours)
        loader = Loader(path, UnitMachine(self._machine.memory_bytes, self._machine.page_bytes))
        wanted = {(group.name, file) for group in groups for file in group.values}
        found = []
        for name in touched:
            cgroup = units[name].shown.get("ControlGroup", "")
            values = loader.load(name).values if cgroup else {}
            for file in (HIGH, MAX):
                limit = values.get(PROPERTIES[file])
                if limit is None or (name, file) in wanted or self._used(cgroup) <= limit:
                    continue
                now = units[name].kernel.get(file, "max")
                found.append(Change(Kind.LIVE, name, file, now, kernel_text(file, limit)))
        return found

    def _too_low(self, change: Change) -> str:
        used, limit = self._used(self._cgroup(change.place)), number_of(change.key, change.after or "") or 0
        return (
            f"cannot take our {change.key} of {change.place} away: its own files say {size_text(limit)}, and it uses "
            f"{size_text(used)}, {size_text(used - limit)} more; have it use less, or give --force to lower it in steps"
        )

    def _ordered(self, changes: Sequence[Change], units: Mapping[str, UnitFound]) -> list[Change]:
        """Limits below what is in use come first, in steps: a reload would write them at once."""
        used = {name: self._used(unit.shown["ControlGroup"]) for name, unit in units.items() if unit.kernel}
        high = {name: unit.kernel[HIGH] for name, unit in units.items() if HIGH in unit.kernel}
        limits = [one for one in changes if one.kind is Kind.LIVE and one.key in (HIGH, MAX)]
        low = {one.place for one in limits if (number_of(one.key, one.after or "") or 0) < used.get(one.place, 0)}
        first = [one for one in limits if one.place in low]
        return [
            *in_steps(first, used, high, self._machine.page_bytes),
            *(change for change in changes if change not in first),
        ]

    # Changing

    def _write(self, path: str, text: str | None) -> None:
        full = self._prefix + path
        try:
            if text is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(full)
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(full))
                return
            os.makedirs(os.path.dirname(full), mode=0o755, exist_ok=True)
            scratch = f"{full}.new"
            with open(scratch, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, full)
        except OSError as error:
            raise ProvisionError(f"cannot write {path}: {error.strerror}; run this as root") from None

    def _set(self, change: Change) -> None:
        """Make the kernel have it now, where systemd's reload has not."""
        cgroup = self._cgroup(change.place)
        if not cgroup or change.after is None:
            return
        now = number_of(change.key, _text(f"{self._root}{cgroup}/{change.key}"))
        limit = number_of(change.key, change.after)
        if limit is None or now == limit:
            return
        used_bytes = self._used(cgroup) if change.key in (HIGH, MAX) and (now is None or limit < now) else 0
        if used_bytes > limit and (change.key == MAX or not self._force):
            raise ProvisionError(
                f"cannot set {change.key} of {change.place} to {size_text(limit)}: it has come to use "
                f"{size_text(used_bytes)} meanwhile; run this again"
            )
        self._property(change.place, change.key, limit)
        if used_bytes > limit:
            self._patience.wait(change.place, limit, lambda: self._used(cgroup))

    def _write_again(self, name: str) -> None:
        """What a drop-in does not say any more: systemd 252 writes cgroups at a reload, 257 what changes after it."""
        unit = self._unit(name, set())
        for file, has in drop_ins.behind(unit):
            if has != INFINITE and file in (HIGH, MAX) and has < self._used(unit.shown["ControlGroup"]):
                continue  # as plan does: nobody is throttled or killed for tidiness
            self._property(name, file, has)

    def _reload(self) -> None:
        self._systemctl("daemon-reload")
        self._unread = False

    def _property(self, unit: str, file: str, number: int) -> None:
        name = PROPERTIES[file]
        value = "infinity" if number == INFINITE else str(number)
        if file == CPU_MAX:
            value = "" if number == INFINITE else f"{number / 1000:.2f}%"
        self._controls.add(f"{self._prefix}/run/systemd/{CONTROL}/{unit}.d/50-{name}.conf")
        self._systemctl("set-property", "--runtime", "--", unit, f"{name}={value}")

    def _systemctl(self, *words: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603  fixed words, and names that the configuration has checked
                ["systemctl", "--no-ask-password", *words],  # noqa: S607  where PATH has it
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env={**os.environ, **_ENVIRONMENT},
            )
        except subprocess.TimeoutExpired:
            raise ProvisionError(f"cannot run systemctl {words[0]}: no answer in {_TIMEOUT_S} s") from None
        except OSError as error:
            raise ProvisionError(f"cannot run systemctl: {error.strerror}; install systemd, or set PATH") from None
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines()
            raise ProvisionError(f"cannot do `systemctl {' '.join(words)}`: {why[-1] if why else 'it failed'}")
        return done.stdout.decode(errors="replace")


def _paths_of(name: str, entries: Sequence[Entry]) -> set[str]:
    return {entry.key for entry in entries if entry.kind is Kind.DROP_IN and entry.place == name}


def _rest(request: Request) -> tuple[int, bool, bool]:
    return request.reserve_bytes, request.overcommit, request.force


def _text(path: str) -> str:
    return _optional(path) or ""


def _optional(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return None
