"""What a run before this one has left: its records and its journal as one state, and what of it holds no longer.

Must not: write, fail. Upstream: state, journal, core.kept. Downstream: keeper (the shapes), daemon.
"""

import os
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Final, assert_never

import msgspec
from msgspec import Struct, structs

from edgeguardd.core.events import StateRecalled
from edgeguardd.core.kept import KeptCommand, KeptMachine, KeptSubscriber, KeptTarget, learned_only
from edgeguardd.core.ladder import LASTING, VOIDED_BY
from edgeguardd.core.model import Level
from edgeguardd.journal import Found
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.guarded import Standing
from edgeguardd.state import StateDirectory

RUN_KIND: Final = "run"
TARGET_KIND: Final = "target"

# How long who was subscribed before has to come back: clients pause for 5 s at most between two attempts.
RETURN_S: Final = 10.0
# Clients that have been alone for so long lift what was restricted (ADR 7): then no level is in force any more.
KEPT_FOR_S: Final = 30.0

# Numbers that are left out where it is not known how far a run has come: more than it can have given.
SKIPPED_NUMBERS: Final = 1_000_000

ANOTHER_KERNEL: Final = "the machine was started anew since"
ANOTHER_CGROUP: Final = "its cgroup is another one now"
TOO_LONG: Final = f"the daemon was away for over {KEPT_FOR_S:g} s, and servers have lifted what was in force"
STRANGE: Final = (
    "cannot use lines of the journal: they are of another epoch than the records; give each state directory a place of "
    "its own for it (RuntimeDirectory=); levels come from memory"
)
UNREAD: Final = (
    "cannot use a line of the journal: {}; it is passed over; go on with the version that wrote it, or let numbers be "
    "left out and levels come from memory, as now"
)
NO_RUN: Final = "the record of the last run cannot be used"


class RunRecord(Struct, frozen=True):
    """The daemon itself. last_seq: the last number that it gave, or more; turn: the journal's that came with it."""

    boot_id: str
    epoch: str
    at: float
    last_seq: int = 0
    machine: KeptMachine = KeptMachine()
    version: str = ""
    turn: int = 0


class TargetRecord(Struct, frozen=True):
    """One target: where it is, which cgroup that is, how many kills have been told, whether a subscriber brought it.

    upto: the number of the last line of the journal that it holds.
    """

    boot_id: str
    epoch: str
    at: float
    upto: int
    path: str
    inode: int | None
    kills: int | None
    dynamic: bool
    kept: KeptTarget


class Sent(Struct, frozen=True, tag=True):
    """A command was about to be told, with this rung in force."""

    n: int
    target: str
    name: str
    pid: int
    rung: Level
    command: KeptCommand


class Spent(Struct, frozen=True, tag=True):
    """A number was about to be told, and nobody owes an answer to it: its target is guarded no longer."""

    n: int
    target: str
    seq: int


class Leveled(Struct, frozen=True, tag=True):
    """A level was about to be told."""

    n: int
    target: str
    level: Level
    reason: str
    announced: Level
    announced_reason: str
    rung: Level


class Killed(Struct, frozen=True, tag=True):
    """memory.events stands at so many kills, and they are about to be told."""

    n: int
    target: str
    kills: int


class Appeared(Struct, frozen=True, tag=True):
    """A cgroup came under the target's path: nothing that held for the last one holds for it."""

    n: int
    target: str
    path: str
    shown: str
    inode: int | None
    kills: int | None
    dynamic: bool


Entry = Sent | Spent | Leveled | Killed | Appeared


class Dropped(Struct, frozen=True):
    """What was not taken over, and why."""

    target: str
    level: Level
    commands: int
    why: str


class Recalled(Struct, frozen=True):
    """What goes on. `dynamic`: paths of targets that subscribers had brought; `standing`: counters already told.

    last_entry: the number of the last line of the journal.
    """

    epoch: str
    event: StateRecalled
    last_entry: int = 0
    continued: bool = False
    away_s: float | None = None
    standing: dict[str, Standing] = {}
    dynamic: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()


def recall(
    state: StateDirectory,
    read: Callable[[str, int], Found],
    root: CgroupRoot,
    boot_id: str,
    now: float,
    on_fault: Callable[[str], None],
) -> Recalled:
    """Read everything. `read` gives the journal of an epoch, which has to hold a turn."""
    run = state.load(RUN_KIND, RUN_KIND, RunRecord)
    records = state.load_all(TARGET_KIND, TargetRecord)
    if run is None or run.boot_id != boot_id or run.at > now:
        read("", 0)  # said where it is damaged
        return _anew(records, NO_RUN if run is None else ANOTHER_KERNEL)
    found = read(run.epoch, run.turn)
    if found.strange:
        on_fault(STRANGE)
    mine = {name: record for name, record in records.items() if (record.boot_id, record.epoch) == (boot_id, run.epoch)}
    entries, understood = _entries(found, on_fault)
    last_seq, last_entry = _bring_up_to_date(mine, entries, run)
    skipped = SKIPPED_NUMBERS if found.overflowed or not understood else 0
    others = {name: record for name, record in records.items() if name not in mine}
    alive_at = max(run.at, found.alive_at, *(record.at for record in mine.values()))
    away_s = max(0.0, now - alive_at)
    why_not = {name: _why_not(record, root, away_s) for name, record in mine.items()}
    dropped = [one for name, why in why_not.items() if why for one in _dropped({name: mine[name]}, why)]
    kept = [mine[name].kept if why is None else learned_only(mine[name].kept) for name, why in why_not.items()]
    kept += [learned_only(record.kept) for record in others.values()]
    machine = run.machine if away_s <= KEPT_FOR_S else KeptMachine()
    return Recalled(
        run.epoch,
        StateRecalled(tuple(kept), machine, last_seq + skipped, RETURN_S),
        last_entry,
        continued=True,
        away_s=away_s,
        standing={n: Standing(path_of(r), r.inode, r.kills, r.dynamic) for n, r in mine.items()},
        dynamic=tuple(path_of(record) for name, record in mine.items() if record.dynamic and why_not[name] is None),
        dropped=(*dropped, *_dropped(others, NO_RUN)),
    )


def without_numbers(recalled: Recalled) -> Recalled:
    """Where nothing can be written, numbers cannot go on: a new epoch, in which no command is on its way."""
    targets = tuple(
        structs.replace(kept, subscribers=tuple(structs.replace(s, commands=()) for s in kept.subscribers))
        for kept in recalled.event.targets
    )
    event = structs.replace(recalled.event, targets=targets, last_seq=0)
    return structs.replace(recalled, epoch=uuid.uuid4().hex, event=event, continued=False)


def quoted(path: str) -> str:
    """A cgroup's path as a text: it need not be UTF-8."""
    return urllib.parse.quote(path, errors="surrogateescape")


def path_of(record: TargetRecord) -> str:
    """The path again."""
    return urllib.parse.unquote(record.path, errors="surrogateescape")


def _anew(records: dict[str, TargetRecord], why: str) -> Recalled:
    """Nothing goes on but what was learned."""
    kept = tuple(learned_only(record.kept) for record in records.values())
    event = StateRecalled(kept, KeptMachine(), 0, RETURN_S)
    return Recalled(uuid.uuid4().hex, event, dropped=_dropped(records, why))


def _bring_up_to_date(mine: dict[str, TargetRecord], entries: list[Entry], run: RunRecord) -> tuple[int, int]:
    """Add to the records what the journal says came after them; the last number given, and that of the last entry."""
    last_seq, last_entry = run.last_seq, max((record.upto for record in mine.values()), default=0)
    for entry in entries:
        last_entry = max(last_entry, entry.n)
        if isinstance(entry, Sent):
            last_seq = max(last_seq, entry.command.command.seq)
        if isinstance(entry, Spent):
            last_seq = max(last_seq, entry.seq)
        if isinstance(entry, Appeared) and entry.target not in mine:
            mine[entry.target] = _begun(entry, run)
        elif entry.target in mine and entry.n > mine[entry.target].upto:
            mine[entry.target] = _folded(mine[entry.target], entry)
    return last_seq, last_entry


def _entries(found: Found, on_fault: Callable[[str], None]) -> tuple[list[Entry], bool]:
    """What the lines say, and whether all of them could be understood: one of a newer version may not."""
    decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
    entries = []
    for line in found.lines:
        try:
            entries.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            on_fault(UNREAD.format(error))
    return entries, len(entries) == len(found.lines)


def _begun(entry: Appeared, run: RunRecord) -> TargetRecord:
    kept = KeptTarget(entry.target, entry.shown)
    return TargetRecord(
        run.boot_id, run.epoch, run.at, entry.n, entry.path, entry.inode, entry.kills, entry.dynamic, kept
    )


def _folded(record: TargetRecord, entry: Entry) -> TargetRecord:
    """The record with what was told after it."""
    kept = record.kept
    match entry:
        case Killed():
            return structs.replace(record, kills=entry.kills)
        case Leveled():
            kept = structs.replace(
                kept,
                level=entry.level,
                reason=entry.reason,
                announced=entry.announced,
                announced_reason=entry.announced_reason,
                rung=entry.rung,
            )
            return structs.replace(record, kept=kept)
        case Sent():
            return structs.replace(record, kept=_with_command(kept, entry))
        case Spent():
            return record
        case Appeared():
            known = learned_only(kept) if entry.inode != record.inode else kept
            known = structs.replace(known, path=entry.shown)
            return structs.replace(record, path=entry.path, inode=entry.inode, kills=entry.kills, kept=known)
        case _:
            assert_never(entry)


def _with_command(kept: KeptTarget, entry: Sent) -> KeptTarget:
    seq = entry.command.command.seq
    if any(one.told and one.command.seq == seq for s in kept.subscribers for one in s.commands) or seq in kept.ended:
        return kept
    known = [(s.name, s.pid) for s in kept.subscribers]
    if (entry.name, entry.pid) not in known:
        added = KeptSubscriber(entry.name, entry.pid, frozenset({entry.command.command.action}))
        kept = structs.replace(kept, subscribers=(*kept.subscribers, added))
    subscribers = tuple(
        _with(s, entry.command) if (s.name, s.pid) == (entry.name, entry.pid) else s for s in kept.subscribers
    )
    return structs.replace(kept, subscribers=subscribers, rung=entry.rung)


def _with(subscriber: KeptSubscriber, told: KeptCommand) -> KeptSubscriber:
    """What the newer command has taken the place of is not owed any more; a lasting one counts as told."""
    action = told.command.action
    voided = VOIDED_BY.get(action, frozenset()) | {action}
    commands = tuple(one for one in subscriber.commands if one.command.action not in voided)
    lasting = {action: told.command.parameters} if action in LASTING else {}
    return structs.replace(
        subscriber,
        supports=subscriber.supports | {action},
        applied={**subscriber.applied, **lasting},
        told={**subscriber.told, **lasting},
        commands=(*commands, told),
    )


def _why_not(record: TargetRecord, root: CgroupRoot, away_s: float) -> str | None:
    if away_s > KEPT_FOR_S:
        return TOO_LONG
    try:
        same = record.inode == os.stat(root.full(path_of(record))).st_ino
    except (OSError, ValueError):
        same = record.inode is None
    return None if same else ANOTHER_CGROUP


def _dropped(records: dict[str, TargetRecord], why: str) -> tuple[Dropped, ...]:
    """Of those that there is something to say of."""
    found = (
        Dropped(name, record.kept.announced, sum(len(s.commands) for s in record.kept.subscribers), why)
        for name, record in records.items()
    )
    return tuple(one for one in found if one.level > Level.NORMAL or one.commands)
