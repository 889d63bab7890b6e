"""What subscribers say, and who of them serves which target: joining, answers, reports, requests to admit.

Must not: judge an answer (ledger does) or memory (guard, policy do). Upstream: guard, ledger, admission, resume.
Downstream: engine.
"""

from edgeguardd.core import gate, resume
from edgeguardd.core.effects import AnswerAdmit, Disconnect, Effect, Refuse, Welcome
from edgeguardd.core.events import AckReceived, AdmitAsked, ReportReceived, SubscriberJoined, SubscriberLeft
from edgeguardd.core.guard import Guard
from edgeguardd.core.model import InForce, Report, Role
from edgeguardd.core.restores import Subscriber
from edgeguardd.core.target import Target


class Subscribers:
    """Of one engine."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._home: dict[int, str] = {}

    def joined(self, event: SubscriberJoined, now: float, out: list[Effect]) -> None:
        """A peer was let in: it hears what is in force, and a server is asked for its part."""
        target = self._guard.targets.get(event.target or "")
        if event.role is Role.OBSERVER or event.target is None:
            level = self._guard.worst_level() if target is None else target.level
            in_force = InForce() if target is None else target.ledger.in_force()
            out.append(Welcome(event.subscriber, event.target, level, in_force))
            return
        if target is None:
            out.append(Disconnect(event.subscriber, f"target {event.target} is not guarded any more"))
            return
        self._home[event.subscriber] = target.name
        in_force = target.ledger.in_force(event.supports)
        out.append(Welcome(event.subscriber, target.name, target.level, in_force))
        at = self._guard.situation(target, now)
        was = resume.absent_of(target.ledger, event.name, event.pid)
        if was is None:
            joined = Subscriber(event.subscriber, event.name, event.supports, pid=event.pid)
            target.ledger.join(joined, at, out)
        else:
            resume.come_back(target, was, event.subscriber, event.supports, at, out)
        self._guard.after(target, at, out)

    def left(self, event: SubscriberLeft, now: float, out: list[Effect]) -> None:
        """A connection ended."""
        target = self._home_of(event.subscriber)
        self._home.pop(event.subscriber, None)
        if target is not None:
            target.reports.pop(event.subscriber, None)
            target.admissions.leave(event.subscriber)
            at = self._guard.situation(target, now)
            target.ledger.leave(event.subscriber, at, out)
            self._guard.after(target, at, out)

    def dropped(self, target: Target, out: list[Effect]) -> None:
        """A target is guarded no longer: nobody serves it."""
        for subscriber in target.ledger.subscribers:
            self._home.pop(subscriber, None)
            out.append(Disconnect(subscriber, f"target {target.name} is not guarded any more"))

    def acked(self, event: AckReceived, now: float, out: list[Effect]) -> None:
        """A server has answered a command."""
        target = self._home_of(event.subscriber)
        if target is None:
            text = f"cannot take the ack of seq {event.seq}: you serve no target"
            out.append(Refuse(event.subscriber, "unknown_seq", text))
            return
        at = self._guard.situation(target, now)
        target.ledger.ack(event, at, out)
        self._guard.after(target, at, out)

    def reported(self, event: ReportReceived, now: float, out: list[Effect]) -> None:
        """A server says how it is: the last word on each figure counts."""
        target = self._home_of(event.subscriber)
        if target is None:
            return
        old = target.reports.get(event.subscriber, Report())
        target.reports[event.subscriber] = _merged(old, event.report)
        target.admissions.finish(event.subscriber, event.finished)
        if event.report.static_bytes is not None:
            self._guard.judge(target, now, out)

    def asked(self, event: AdmitAsked, now: float, out: list[Effect]) -> None:
        """A server asks whether to take one more request."""
        target = self._home_of(event.subscriber)
        if target is None:
            out.append(Refuse(event.subscriber, "not_allowed", "cannot admit: an observer takes no requests"))
            return
        refusal = gate.closed(target)
        if refusal is None:
            key = (event.subscriber, event.id)
            refusal = target.admissions.decide(key, _wanted_bytes(event, target), target.room_bytes(), now)
        if refusal is None:
            out.append(AnswerAdmit(event.subscriber, event.id, True, "it fits"))
        else:
            out.append(AnswerAdmit(event.subscriber, event.id, False, refusal, gate.retry_after_s(target)))

    def _home_of(self, subscriber: int) -> Target | None:
        return self._guard.targets.get(self._home.get(subscriber, ""))


def _merged(old: Report, new: Report) -> Report:
    """The last word on each figure."""
    names = Report.__struct_fields__
    return Report(*(getattr(old, n) if getattr(new, n) is None else getattr(new, n) for n in names))


def _wanted_bytes(event: AdmitAsked, target: Target) -> int | None:
    if event.bytes is not None:
        return event.bytes
    report = target.reports.get(event.subscriber)
    if event.tokens is None or report is None or report.bytes_per_token is None:
        return None
    return event.tokens * report.bytes_per_token
