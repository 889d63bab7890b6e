"""A target as it was when the daemon went: kept, and put in place again in the next run.

Must not: read or write files, decide what a level calls for. Upstream: kept, target. Downstream: engine, and the
daemon's keeper, which calls `keep`.

Whoever was subscribed counts as subscribed until the grace is over, under a negative number: its commands stay on their
way, nobody concludes that there is nobody to ask, and no last resort is run for want of one. When it comes back, known
by name and process, it is told again what it has not answered: same numbers, same parameters, the time that is left.
Why so: docs/adr/0017.
"""

from msgspec import structs

from edgeguardd.core.commands import Outstanding
from edgeguardd.core.effects import Effect, Fact, Note, SetTimer
from edgeguardd.core.events import AckReceived
from edgeguardd.core.kept import Course, KeptCommand, KeptMachine, KeptSubscriber, KeptTarget
from edgeguardd.core.ladder import Situation
from edgeguardd.core.ledger import Ledger
from edgeguardd.core.machine import MachineGauge
from edgeguardd.core.model import AckStatus, Action, Level, Outcome
from edgeguardd.core.policy import bounded_flaps
from edgeguardd.core.restores import Subscriber, arm_owed
from edgeguardd.core.target import Target

# Whoever comes back in the last moment gets this long for what it is told again.
LEAST_LEFT_S = 0.5

# What ends a command that its server, back with another hello, cannot carry out any more.
UNABLE = "it does not support this any more"


def keep(target: Target) -> KeptTarget:
    """What is to outlive this run."""
    gauge, ledger = target.gauge, target.ledger
    return KeptTarget(
        target.name,
        target.path,
        gauge.level,
        gauge.reason,
        target.level,
        target.reason,
        ledger.rung,
        ledger.exhausted,
        ledger.rejecting,
        structs.replace(ledger.course),
        gauge.learned_static_bytes,
        gauge.lead.learned_s,
        target.admissions.typical_bytes,
        gauge.flaps,
        gauge.fell_at,
        tuple((level, place, at) for (level, place), at in target.resorted_at.items()),
        tuple(_kept(subscriber, target) for subscriber in ledger.subscribers.values()),
        tuple(ledger.commands.ended),
    )


def keep_machine(gauge: MachineGauge) -> KeptMachine:
    """The machine's level: it falls after a dwell, however often the daemon is restarted."""
    return KeptMachine(gauge.level, gauge.reason)


def recall(target: Target, kept: KeptTarget, now: float, wait_s: float, last_absent: int, out: list[Effect]) -> int:
    """Put a new target where the kept one was. Subscribers get numbers below last_absent; the last one is returned.

    A command ends after the grace at the earliest: nobody can answer before he is let in. Its own time stays what it
    was, so that whoever is back soon has no more of it than is left; and several restarts add one grace to it, so that
    it ends whoever stays away, however often the daemon is restarted.
    """
    _recall_figures(target, kept)
    ledger = target.ledger
    for one in kept.subscribers:
        last_absent -= 1
        _recall_subscriber(target, one, last_absent, now, wait_s, out)
    _begin_alike_anew(target, now, wait_s, out)
    # One that falls due for somebody who is away is on its way until he is back.
    arm_owed(target.name, ledger.subscribers.values(), out)
    known: dict[str, Fact] = {"target": target.name, "level": target.level.word, "rung": ledger.rung.word}
    fields = {**known, "outstanding": len(ledger.outstanding), "subscribers": len(kept.subscribers)}
    if target.level > Level.NORMAL or kept.subscribers:
        out.append(Note("info", "state_recalled", fields))
    if kept.subscribers:
        out.append(SetTimer(f"return:{target.name}", now + wait_s))
    return last_absent


def absent_of(ledger: Ledger, name: str, pid: int) -> Subscriber | None:
    """The subscriber that has come back; None: this is somebody new."""
    return next((s for s in ledger.subscribers.values() if s.id < 0 and (s.name, s.pid) == (name, pid)), None)


def come_back(
    target: Target, was: Subscriber, subscriber: int, supports: frozenset[Action], at: Situation, out: list[Effect]
) -> None:
    """It is here again: tell again what it has not answered. What it cannot do any more is not asked of it."""
    ledger = target.ledger
    del ledger.subscribers[was.id]
    commands = ledger.commands.of(was.id)
    if was.id in target.reports:
        target.reports[subscriber] = target.reports.pop(was.id)
    was.id, was.supports = subscriber, supports
    ledger.subscribers[subscriber] = was
    for one in commands:
        one.subscriber = subscriber
        if one.done or _can(was, one):
            ledger.commands.tell_again(one, LEAST_LEFT_S, at.now, out)
    for one in commands:
        # What ends here may raise the rung, and that may end the others.
        if not one.done and not _can(was, one) and one.command.seq in ledger.outstanding:
            answer = AckReceived(subscriber, one.command.seq, AckStatus.UNSUPPORTED, message=UNABLE)
            ledger.ack(answer, at, out)
    ledger.catch_up(was, at, out)


def _begin_alike_anew(target: Target, now: float, wait_s: float, out: list[Effect]) -> None:
    """Of two of one name and process nobody knows which is which: none gets the other's commands.

    Their commands are lost, what any of them may have in force all may, and a restore that one is owed all are.
    """
    ledger, at, back_by = target.ledger, target.situation(now), now + wait_s + LEAST_LEFT_S
    alike: dict[tuple[str, int], list[Subscriber]] = {}
    for one in ledger.subscribers.values():
        alike.setdefault((one.name, one.pid), []).append(one)
    for group in (group for group in alike.values() if len(group) > 1):
        commands = [command for one in group for command in ledger.commands.of(one.id)]
        told = {action: parameters for one in group for action, parameters in one.told.items()}
        owed = any(one.restore_at is not None for one in group)
        owed |= any(command.command.action is Action.RESTORE for command in commands)
        owed_at = min((one.restore_at for one in group if one.restore_at is not None), default=back_by)
        for command in commands:
            ledger.commands.end(command, Outcome.LOST, at, out)
        for one in group:
            one.applied, one.told = {}, dict(told)
            one.restore_at = owed_at if owed else None


def _can(subscriber: Subscriber, one: Outstanding) -> bool:
    return one.command.action is Action.RESTORE or one.command.action in subscriber.supports


def give_up(target: Target, at: Situation, out: list[Effect]) -> None:
    """The grace is over: whoever has not come back has left."""
    ledger = target.ledger
    for one in [s for s in ledger.subscribers.values() if s.id < 0]:
        fields: dict[str, Fact] = {"target": target.name, "name": one.name, "pid": one.pid}
        out.append(Note("warning", "subscriber_missing", {**fields, "outstanding": len(ledger.commands.of(one.id))}))
        target.reports.pop(one.id, None)
        ledger.leave(one.id, at, out)


def kept_command(one: Outstanding) -> KeptCommand:
    """A command on its way."""
    return KeptCommand(
        one.command,
        one.sent_at,
        one.due_at,
        one.needed_at_send,
        one.accepted,
        one.done,
        one.claimed_bytes,
        one.message,
        one.told,
        one.credited_bytes,
        one.ends_by,
    )


def _kept(subscriber: Subscriber, target: Target) -> KeptSubscriber:
    return KeptSubscriber(
        subscriber.name,
        subscriber.pid,
        subscriber.supports,
        dict(subscriber.applied),
        dict(subscriber.told),
        subscriber.restore_attempts,
        subscriber.restore_at,
        target.reports.get(subscriber.id),
        tuple(kept_command(one) for one in target.ledger.commands.of(subscriber.id)),
    )


def _recall_figures(target: Target, kept: KeptTarget) -> None:
    gauge, ledger = target.gauge, target.ledger
    gauge.level, gauge.fell_at = kept.level, kept.fell_at
    gauge.flaps = bounded_flaps(kept.flaps)
    gauge.learned_static_bytes = kept.learned_static_bytes
    gauge.lead.learned_s = kept.lead_s
    target.admissions.typical_bytes = kept.typical_bytes
    target.level = kept.announced
    if kept.reason:
        gauge.reason, target.reason = kept.reason, kept.announced_reason
    target.resorted_at = {(level, place): at for level, place, at in kept.resorted}
    ledger.rung, ledger.exhausted, ledger.rejecting = kept.rung, kept.exhausted, kept.rejecting
    ledger.course = structs.replace(kept.course or Course())
    ledger.commands.ended.extend(kept.ended)


def _recall_subscriber(
    target: Target, kept: KeptSubscriber, number: int, now: float, wait_s: float, out: list[Effect]
) -> None:
    ledger = target.ledger
    ledger.subscribers[number] = Subscriber(
        number,
        kept.name,
        kept.supports,
        dict(kept.applied),
        dict(kept.told),
        kept.restore_attempts,
        kept.restore_at,
        kept.pid,
    )
    if kept.report is not None:
        target.reports[number] = kept.report
    for one in kept.commands:
        ledger.commands.resume(
            Outstanding(
                one.command,
                number,
                one.sent_at,
                one.needed_at_send,
                one.due_at,
                one.accepted,
                one.done,
                one.claimed_bytes,
                one.message,
                one.told,
                one.credited_bytes,
                one.ends_by,
            ),
            # Whoever comes back in the last moment has some time left; who does not has left before it is over.
            wait_s + LEAST_LEFT_S,
            now,
            out,
        )
