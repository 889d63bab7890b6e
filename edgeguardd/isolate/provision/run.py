"""Provisioning from plan to proof: refuse, apply one change after another, read back, else roll back.

Must not: know a back end's ways. Upstream: model, refusals, state. Downstream: cli.provision.
What was there before is written down before each change, so that --undo works also after kill -9.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct, structs

from edgeguardd.errors import EdgeguardError
from edgeguardd.isolate.provision.model import Change, Entry, Group, Kind, Plan, ProvisionError, Record
from edgeguardd.isolate.provision.refusals import Request
from edgeguardd.state import StateDirectory

KIND: Final = "provisioned"
# What leaves nothing behind. LIVE is kept only until the end: a run that is killed must not leave a limit in between.
_PASSING = frozenset({Kind.RELOAD})


class Backend(Protocol):
    """What carries changes out. `where`: for people."""

    name: str
    where: str

    def plan(self, groups: Sequence[Group], entries: Sequence[Entry], request: Request) -> Plan:
        """Look, and say what is to be done; nothing when all is as wanted."""

    def apply(self, change: Change) -> None:
        """Carry one change out. Raises EdgeguardError."""

    def finish(self) -> None:
        """After the last change, or the last one of a rollback. Raises EdgeguardError."""

    def inode(self, change: Change) -> int:
        """Of the cgroup that a change is in; 0 where that does not matter."""


class Outcome(Struct, frozen=True):
    """What was done, and what is worth saying."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]


class Provisioning:
    """One run over one back end. `boot_id`: of this run of the kernel."""

    def __init__(self, backend: Backend, state: StateDirectory, request: Request, boot_id: str) -> None:
        """`request`: groups wanted; none at all is an undo."""
        self._backend = backend
        self._state = state
        self._request = request
        self._boot_id = boot_id
        self._record = self._load()

    def plan(self) -> Plan:
        """What is to be done. Raises EdgeguardError when nothing can be told."""
        return self._backend.plan(self._request.groups, self._record.entries, self._request)

    def run(self, plan: Plan) -> Outcome:
        """Do it, and prove it. Raises ProvisionError: all is as it was before, or the message says what is not."""
        if plan.refusals:
            raise ProvisionError("\n".join(plan.refusals))
        before = self._record
        done: list[Change] = []
        try:
            for change in plan.changes:
                self._note(change)
                done.append(change)
                self._backend.apply(change)
                self._note(change)
            self._backend.finish()
            again = self._proof()
        except (EdgeguardError, KeyboardInterrupt) as error:
            raise ProvisionError(f"{str(error) or 'interrupted'}\n{self._roll_back(done, before)}") from None
        self._forget_ended()
        return Outcome(plan.changes, again.notes)

    def _proof(self) -> Plan:
        """Look again: nothing may be left to do. Raises ProvisionError."""
        again = self.plan()
        wrong = [*again.refusals, *(_unlike(change) for change in again.changes)]
        if wrong:
            raise ProvisionError("\n".join(wrong))
        return again

    def _roll_back(self, done: list[Change], before: Record) -> str:
        failed: list[str] = []
        for change in reversed(done):
            try:
                self._backend.apply(change.reversed())
            except EdgeguardError as error:
                failed.append(str(error))
        try:
            self._backend.finish()
        except EdgeguardError as error:
            failed.append(str(error))
        if not failed:
            try:
                self._save(before)
            except EdgeguardError as error:
                failed.append(str(error))
        if failed:
            left = "; ".join(failed)
            return f"cannot roll all of it back ({left}); mend that, then run `edgeguardctl provision --undo`"
        return f"rolled back: {len(done)} changes were taken back, all is as it was before"

    # The record

    def _load(self) -> Record:
        found = self._state.load(KIND, self._backend.name, Record) or Record(self._backend.name, self._boot_id)
        if found.boot_id == self._boot_id:
            return found
        # What the kernel held is gone with its last run; files are not.
        kept = tuple(entry for entry in found.entries if entry.kind is Kind.DROP_IN)
        return Record(self._backend.name, self._boot_id, kept)

    def _note(self, change: Change) -> None:
        """Write down what was there, before the change; and once more after it, when a cgroup has its inode."""
        if change.kind in _PASSING:
            return
        entries = {(entry.kind, entry.place, entry.key): entry for entry in self._record.entries}
        key = (change.kind, change.place, change.key)
        known = entries.get(key)
        ours = known is not None and change.before == known.written
        again = known is not None and change.after == known.written
        before = known.before if known is not None and (ours or again) else change.before
        entries[key] = Entry(change.kind, change.place, change.key, before, change.after, self._backend.inode(change))
        self._save(structs.replace(self._record, entries=tuple(entries.values())))

    def _forget_ended(self) -> None:
        """What is as it was before we came needs no record any more."""
        kept = tuple(
            entry for entry in self._record.entries if entry.written != entry.before and entry.kind is not Kind.LIVE
        )
        if not self._request.groups:
            kept = ()
        self._save(structs.replace(self._record, entries=kept))

    def _save(self, record: Record) -> None:
        if record == self._record:
            return
        self._record = record
        if record.entries:
            self._state.save(KIND, self._backend.name, record)
        else:
            self._state.remove(KIND, self._backend.name)


def _unlike(change: Change) -> str:
    return (
        f"cannot see {change.key or 'the cgroup'} of {change.place} as wanted: it reads {change.before}, not "
        f"{change.after}; see who else writes it"
    )
