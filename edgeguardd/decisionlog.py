"""One line a decision, with the figures that made it. Names are stable: docs/reference/log.md lists them.

Must not: decide, or say what is only intended. Upstream: events and effects, after they happened. Downstream: logs.
"""

from collections.abc import Iterable

from msgspec import to_builtins

from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Effect, Note
from edgeguardd.core.events import SubscriberJoined, SubscriberLeft
from edgeguardd.core.model import Outcome
from edgeguardd.core.wire import Hello
from edgeguardd.errors import EdgeguardError
from edgeguardd.logs import get_logger
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.pressurewatch import Watcher

log = get_logger()


def done(effects: Iterable[Effect]) -> None:
    """What has been carried out of one event, in order; effects that decide nothing have no line."""
    for effect in effects:
        match effect:
            case AnnounceLevel():
                level_changed(effect)
            case Deliver() if effect.again:
                command_told_again(effect)
            case Deliver():
                command_sent(effect)
            case CommandEnded():
                command_ended(effect)
            case Note():
                note(effect)
            case _:
                pass


def level_changed(change: AnnounceLevel) -> None:
    """A target's level rose (warning) or fell (info)."""
    write = log.warning if change.level > change.was else log.info
    write("level_changed", target=change.target, level=change.level.word, was=change.was.word, why=change.reason)


def command_sent(order: Deliver) -> None:
    """A command was handed to the subscriber's connection."""
    command = order.command
    log.info(
        "command_sent",
        target=command.target,
        subscriber=order.subscriber,
        seq=command.seq,
        action=command.action.value,
        level=command.level.word,
        deadline_s=command.deadline_s,
        why=command.reason,
        **to_builtins(command.parameters),
    )


def command_told_again(order: Deliver) -> None:
    """Its subscriber is back after a restart of the daemon: number and parameters are those of the command as sent."""
    command = order.command
    log.info(
        "command_told_again",
        target=command.target,
        subscriber=order.subscriber,
        seq=command.seq,
        action=command.action.value,
        deadline_s=round(command.deadline_s, 3),
    )


def command_ended(end: CommandEnded) -> None:
    """A command has its outcome; claimed bytes are the server's word, freed bytes were measured."""
    write = log.info if end.outcome in (Outcome.DONE, Outcome.SUPERSEDED) else log.warning
    write(
        "command_ended",
        target=end.target,
        subscriber=end.subscriber,
        seq=end.seq,
        action=end.action.value,
        outcome=end.outcome.value,
        took_s=round(end.took_s, 4),
        claimed_bytes=end.claimed_bytes,
        freed_bytes=end.freed_bytes,
        message=end.message,
    )


def subscriber_joined(event: SubscriberJoined) -> None:
    """A peer was let in."""
    log.info(
        "subscriber_joined",
        subscriber=event.subscriber,
        name=event.name,
        role=event.role.value,
        target=event.target,
        supports=sorted(action.value for action in event.supports),
    )


def peer_refused(peer: Peer, hello: Hello, error: EdgeguardError) -> None:
    """A peer said hello and was sent away; it has been told the same sentence."""
    log.warning("peer_refused", name=hello.name, target=hello.target, pid=peer.pid, uid=peer.uid, why=str(error))


def subscriber_left(event: SubscriberLeft) -> None:
    """A connection ended."""
    log.info("subscriber_left", subscriber=event.subscriber, reason=event.reason)


def watcher_changed(watcher: Watcher, came: bool) -> None:
    """A program that heeds memory pressure came, or went."""
    if came:
        log.info("watcher_joined", target=watcher.target, pid=watcher.peer.pid, uid=watcher.peer.uid)
    else:
        log.info("watcher_left", target=watcher.target, pid=watcher.peer.pid)


def note(fact: Note) -> None:
    """A fact that the engine wants said."""
    getattr(log, fact.severity)(fact.event, **fact.fields)
