"""The plan for systemd: what is wanted against drop-ins, what systemd says, and the kernel -> changes.

Must not: look at or change anything (systemd does). Upstream: model. Downstream: systemd.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, structs

from edgeguardd.core import systemdvalues
from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate.provision.model import (
    CPU_MAX,
    CPU_WEIGHT,
    OOM_GROUP,
    PROPERTIES,
    SIZES,
    SWAP_MAX,
    Change,
    Entry,
    Group,
    Kind,
    kernel_text,
    number_of,
)

# Behind every name that people give their own drop-ins, and behind the 50-… of `systemctl set-property`: of all folders
# together the last name wins (systemd.unit(5); seen with 252).
NAME = "zz-edgeguardd-provision.conf"
ETC = "/etc/systemd/system"
RUN = "/run/systemd/system"
# Where `systemctl set-property` writes; systemd.unit(5), "Unit File Load Path".
CONTROL = "system.control"
SYSTEMD = "systemd"
ACTIVE = "active"
_HEADER = "# Written by `edgeguardctl provision` from [provision] of edgeguardd.toml: change it there.\n"

_CPU_UNSET = 2**64 - 1
# What only a start brings: systemctl set-property does not take it.
_AT_START = frozenset({OOM_GROUP})


class UnitFound(Struct, frozen=True):
    """One unit as systemd and the kernel have it.

    `shown`: the words of `systemctl show`. `drop_ins`: path -> text of those that are ours. `kernel`: file -> text
    of its cgroup; empty: it has none. `setters`: our settings that other files of the unit set, as "KEY in FILE".
    """

    shown: Mapping[str, str]
    drop_ins: Mapping[str, str] = {}
    kernel: Mapping[str, str] = {}
    setters: Mapping[str, str] = {}
    processes: int = 0


def asked() -> tuple[str, ...]:
    """The properties that `systemctl show` is asked for."""
    state = ("Id", "LoadState", "ActiveState", "ControlGroup", "Slice", "NeedDaemonReload", "DropInPaths", "MainPID")
    shown = [name for name in PROPERTIES.values() if name != "CPUQuota"]
    return (*state, *shown, "CPUQuotaPerSecUSec", "OOMScoreAdjust")


def text_of(group: Group) -> str:
    """The drop-in."""
    section = "Slice" if group.is_slice else "Service"
    return f"{_HEADER}[{section}]\n" + "".join(f"{key}={value}\n" for key, value in group.lines)


def path_of(name: str, folder: str) -> str:
    """Where the drop-in of a unit is."""
    return f"{folder}/{name}.d/{NAME}"


def placed(group: Group, found: UnitFound) -> Group:
    """The group where systemd has it, when the configuration does not say."""
    if group.is_slice or group.moves:
        return group
    slice_ = found.shown.get("Slice", "")
    if not slice_.endswith(".slice") or slice_ == "-.slice":
        return group
    parts = slice_.removesuffix(".slice").split("-")
    above = tuple(f"{'-'.join(parts[:end])}.slice" for end in range(1, len(parts) + 1))
    return structs.replace(group, above=above)


def faults(group: Group, found: UnitFound, controllers: frozenset[str], has_swap: bool) -> list[str]:
    """Why systemd would not do it."""
    state = found.shown.get("LoadState", "not-found")
    faulty = []
    if state in ("not-found", "masked", "bad-setting", "error") and not (group.is_slice and state == "not-found"):
        what = {"not-found": "systemd knows no such unit; install it first, or correct the name"}
        faulty.append(what.get(state, f"it is {state}; see `systemctl status {group.name}`"))
    if group.is_slice and OOM_GROUP in group.values:
        faulty.append("systemd has no oom_group for slices, and writes 0; give it to the services")
    faulty += [
        f"the kernel has no {one} controller; boot with cgroup_enable={one}, or leave its settings out"
        for one in sorted({file.partition(".")[0] for file in group.values})
        if one not in controllers
    ]
    if found.kernel and SWAP_MAX in group.values and SWAP_MAX not in found.kernel and has_swap:
        faulty.append("this kernel cannot limit swap; boot with swapaccount=1, or leave swap_max out")
    return faulty


def changes(
    groups: Sequence[Group], found: Mapping[str, UnitFound], entries: Sequence[Entry], folder: str
) -> tuple[list[Change], list[str], list[str]]:
    """What is to be done in order, what systemd has otherwise in spite of the drop-in, and notes."""
    refused: list[str] = []
    notes: list[str] = []
    files = [change for group in groups for change in _drop_in(group, found[group.name], folder)]
    back = list(_back(groups, found, entries, notes))
    new = {change.place for change in (*files, *back)}
    stale = any(unit.shown.get("NeedDaemonReload") == "yes" for unit in found.values()) or any(
        _held_until_reload(group, found[group.name]) for group in groups
    )
    reload = [Change(Kind.RELOAD, SYSTEMD, "daemon-reload", None, "done")] if new or stale else []
    started = [change for group in groups for change in _started(group, found[group.name])]
    live: list[Change] = []
    for group in groups:
        unit = found[group.name]
        if not reload:
            refused += [*_overridden(group, unit), *_missing(group, unit)]
        notes += _later(group, unit)
        live += _live(group, unit)
    if not reload:
        notes += [
            note
            for name, unit in found.items()
            if all(group.name != name for group in groups)
            for note in _not_back(name, unit)
        ]
    live += _left_behind(groups, found, entries)
    idle = [Change(Kind.SLICE, e.place, e.key, ACTIVE, "inactive") for e in _to_stop(groups, found, entries, notes)]
    return [*files, *back, *reload, *started, *live, *idle], refused, notes


def shown_number(file: str, words: Mapping[str, str]) -> int | None:
    """What systemd says a kernel file gets; None: it does not tell."""
    if file == CPU_MAX:
        text = words.get("CPUQuotaPerSecUSec", "")
        span_us = systemdvalues.time_span(text) if text else None
        return span_us if span_us in (None, INFINITE) else (span_us or 0) // 10
    text = words.get(PROPERTIES[file], "")
    if file == OOM_GROUP:
        return int(text == "kill") if text else None
    if text in ("infinity", "[not set]"):
        return INFINITE if file in SIZES else 100
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
    return 100 if file == CPU_WEIGHT and number == _CPU_UNSET else number


def behind(unit: UnitFound) -> Iterator[tuple[str, int]]:
    """Files of its cgroup that read something else than systemd has, with what it has."""
    for file, now in unit.kernel.items():
        has = shown_number(file, unit.shown)
        if file not in _AT_START and has is not None and number_of(file, now) != has:
            yield file, has


def _drop_in(group: Group, unit: UnitFound, folder: str) -> Iterator[Change]:
    text, path = text_of(group), path_of(group.name, folder)
    if unit.drop_ins.get(path) != text:
        yield Change(Kind.DROP_IN, group.name, path, unit.drop_ins.get(path), text)


def _started(group: Group, unit: UnitFound) -> Iterator[Change]:
    if group.is_slice and unit.shown.get("ActiveState") != ACTIVE:
        yield Change(Kind.SLICE, group.name, "state", "inactive", ACTIVE)


def _live(group: Group, unit: UnitFound) -> Iterator[Change]:
    """Kernel files that do not have it yet; of a unit without a cgroup there are none."""
    for file, number in group.values.items():
        now = unit.kernel.get(file)
        if now is not None and file not in _AT_START and number_of(file, now) != number:
            yield Change(Kind.LIVE, group.name, file, now, kernel_text(file, number))


def _held_until_reload(group: Group, unit: UnitFound) -> bool:
    """Whether `systemctl set-property` has set something else, which ours, by its name, wins over at a reload.

    systemd 252 says NeedDaemonReload of such a unit, 257 does not.
    """
    for file, number in group.values.items():
        setter = unit.setters.get(PROPERTIES[file], "")
        if f"/{CONTROL}/" in setter and setter.rpartition("/")[2] < NAME and shown_number(file, unit.shown) != number:
            return True
    return False


def _overridden(group: Group, unit: UnitFound) -> Iterator[str]:
    for file, number in group.values.items():
        has = shown_number(file, unit.shown)
        if has is not None and has != number:
            where = unit.setters.get(PROPERTIES[file])
            remedy = f"{where} sets it, take that out" if where else f"see `systemctl cat {group.name}`"
            yield (
                f"cannot have {PROPERTIES[file]} of {group.name}: systemd says "
                f"{kernel_text(file, has).split()[0]}, not {kernel_text(file, number).split()[0]}; {remedy}"
            )


def _missing(group: Group, unit: UnitFound) -> Iterator[str]:
    """A file that its running cgroup does not have, so that systemd's word is all there is."""
    for file, number in group.values.items():
        idle = file == SWAP_MAX and number in (0, INFINITE)
        if unit.kernel and file not in unit.kernel and not idle:
            yield (
                f"cannot see {file} of {group.name} in the kernel: its cgroup has no such file; see whether the slices "
                f"around it have DisableControllers={file.partition('.')[0]}"
            )


def _later(group: Group, unit: UnitFound) -> Iterator[str]:
    """What holds from the next start on."""
    if group.is_slice:
        return
    if unit.shown.get("ActiveState") != ACTIVE:
        yield f"{group.name} does not run: its limits hold from its next start on"
        return
    cgroup = unit.shown.get("ControlGroup", "")
    if group.moves and cgroup and cgroup != group.path:
        yield f"{group.name} runs in {cgroup} until `systemctl restart {group.name}`; then in {group.path}"
    late = unit.kernel.get(OOM_GROUP)
    if OOM_GROUP in group.values and late is not None and number_of(OOM_GROUP, late) != group.values[OOM_GROUP]:
        yield f"oom_group of {group.name} holds from its next start on: `systemctl restart {group.name}`"


def _back(
    groups: Sequence[Group], found: Mapping[str, UnitFound], entries: Sequence[Entry], notes: list[str]
) -> Iterator[Change]:
    wanted = {group.name for group in groups}
    for entry in entries:
        if entry.kind is not Kind.DROP_IN or entry.place in wanted:
            continue
        now = found[entry.place].drop_ins.get(entry.key) if entry.place in found else None
        if now == entry.before:
            continue
        if now != entry.written:
            what = "removed" if now is None else "changed"
            notes.append(f"{entry.key} was {what} by somebody since: left alone")
            continue
        yield Change(Kind.DROP_IN, entry.place, entry.key, now, entry.before)


def _left_behind(groups: Sequence[Group], found: Mapping[str, UnitFound], entries: Sequence[Entry]) -> Iterator[Change]:
    """What a run that was killed in between has set, and nobody since."""
    wanted = {(group.name, file) for group in groups for file in group.values}
    for entry in entries:
        unit = found.get(entry.place)
        now = unit.kernel.get(entry.key) if unit is not None and entry.kind is Kind.LIVE else None
        if now is None or entry.before is None or entry.written is None or (entry.place, entry.key) in wanted:
            continue
        if number_of(entry.key, now) == number_of(entry.key, entry.written) != number_of(entry.key, entry.before):
            yield Change(Kind.LIVE, entry.place, entry.key, now, entry.before)


def _not_back(name: str, unit: UnitFound) -> Iterator[str]:
    """A unit that is not ours any more, in whose cgroup something of it is left."""
    cgroup, slice_ = unit.shown.get("ControlGroup", ""), unit.shown.get("Slice", "")
    if name.endswith(".service") and cgroup and slice_ and f"/{slice_}/" not in cgroup:
        yield f"{name} runs in {cgroup} until `systemctl restart {name}`; then in {slice_}"
    for file, has in behind(unit):
        now = unit.kernel[file]
        yield f"{file} of {name} reads {now}, and systemd has {kernel_text(file, has)}: `systemctl restart {name}`"


def _to_stop(
    groups: Sequence[Group], found: Mapping[str, UnitFound], entries: Sequence[Entry], notes: list[str]
) -> Iterator[Entry]:
    """Slices that we started, that are not wanted any more and hold nothing: stopping one stops all in it."""
    wanted = {group.name for group in groups}
    for entry in entries:
        unit = found.get(entry.place)
        if entry.kind is not Kind.SLICE or entry.place in wanted or unit is None:
            continue
        if unit.shown.get("ActiveState") != ACTIVE or entry.written != ACTIVE:
            continue
        if unit.processes:
            notes.append(f"{entry.place} is in use and goes on, without its limits")
        else:
            yield entry
