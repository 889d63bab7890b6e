"""What has to be said of a daemon, a machine and a target beside the figures: one sentence each, none when all is well.

Must not: draw or print. Upstream: statusdoc, words. Downstream: status, watchviews (the page at `/` says the same).
"""

from collections.abc import Iterator

from edgeguardd.cli import words
from edgeguardd.cli.statusdoc import KernelLogRow, MachineRow, ResortRow, Status, TargetRow

MAX_REASON_CHARS = 400

# The phases of relief (core.relief) in which memory.high is not simply as it was set.
RELIEF = {
    "asked": "memory.high is being lifted for a trim",
    "lifted": "memory.high is lifted for a trim",
    "returning": "memory.high is being put back",
    "unavailable": "memory.high cannot be lifted for trims, see the log",
}


def daemon(status: Status) -> list[str]:
    """Why the figures may not be trusted, and whom the kernel killed."""
    found = []
    if status.stale_s is not None:
        found.append(f"the last sample is {words.span(status.stale_s)} old: the daemon sees nothing any more")
    found += [f"state: {words.name(fault, MAX_REASON_CHARS)}" for fault in status.state.faults]
    found += _kernel_kills(status.kernel_log)
    return found


def _kernel_kills(log: KernelLogRow) -> Iterator[str]:
    """The kernel's last OOM kill, with what to change."""
    last = log.last_report
    if last is not None:
        victim = f"{words.name(last.comm)} of {words.name(last.target)}" if last.target else words.name(last.comm)
        yield (
            f"OOM reports of the kernel so far: {log.reports}; the last killed {victim}: "
            f"{words.name(last.why, MAX_REASON_CHARS)}; {words.name(last.remedy, MAX_REASON_CHARS)}"
        )


def machine(row: MachineRow) -> list[str]:
    """The machine's memory, and why its level is what it is; nothing where it is not read."""
    if row.sample is None:
        return [] if row.degraded is None else [f"machine: cannot be read: {words.name(row.degraded, 200)}"]
    line = (
        f"machine {words.name(row.level)}: {words.size(row.sample.available_bytes)} of "
        f"{words.size(row.sample.total_bytes)} available"
    )
    line += "".join(
        f", {words.name(device.name)} {words.size(device.used_bytes)} of {words.size(device.total_bytes)} in use"
        for device in row.devices
    )
    if row.level != "normal" and row.reason:
        line += f", {_since(row.level_age_s)}: {words.name(row.reason, MAX_REASON_CHARS)}"
    return [line]


def _since(level_age_s: float | None) -> str:
    """The figures in a reason are of that time, and not of now."""
    return "from before the start on" if level_age_s is None else f"since {words.ago(level_age_s)}"


def target(row: TargetRow, status: Status) -> list[str]:
    """Lines below a target that is not simply at rest."""
    return [*_standing(row, status), *_happening(row)]


def _standing(row: TargetRow, status: Status) -> Iterator[str]:
    if state := words.state(row, MAX_REASON_CHARS):
        yield state
    if row.limit_bytes is not None and row.limit_path not in {None, row.path}:
        yield f"the limit is {words.name(row.limit_kind)} of {words.name(row.limit_path, MAX_REASON_CHARS)}"
    if row.level != "normal" and row.reason is not None:
        yield f"{words.name(row.level)} {_since(row.level_age_s)}: {words.name(row.reason, MAX_REASON_CHARS)}"
        if row.calls is not None and row.calls != row.reason:
            yield f"now: {words.name(row.calls, MAX_REASON_CHARS)}"
    if not any(peer.role == "inference" and peer.target == row.name for peer in status.subscribers):
        yield "nobody subscribed: nobody can be asked"
    if row.watchers:
        yield f"{row.watchers} program{'' if row.watchers == 1 else 's'} told of its pressure, without an answer"
    if kills := row.counters.oom_kill if row.counters else None:
        yield f"{kills} process{'' if kills == 1 else 'es'} killed by the kernel so far"


def _happening(row: TargetRow) -> Iterator[str]:
    for command in row.outstanding:
        yield (
            f"waiting {words.span(command.age_s)} for #{command.seq} {words.name(command.action)} "
            f"({words.name(command.status)} by subscriber {command.subscriber})"
        )
    if row.relief in RELIEF:
        yield RELIEF[row.relief]
    yield from _last_resort(row.last_resort)


def _last_resort(row: ResortRow) -> Iterator[str]:
    if row.running:
        yield "the last resort is being carried out"
    if row.last is not None:
        said = "" if row.last.message is None else f": {words.name(row.last.message, MAX_REASON_CHARS)}"
        yield (
            f"last resort {words.name(row.last.action)} {words.name(row.last.outcome)} "
            f"{words.span(row.last.age_s)} ago{said}"
        )
