"""What people ask a replay for: the decisions among its effects, each with its time, its target and one sentence.

Must not: replay, print, read effects that only keep the daemon going (timers, sampling, welcomes).
Upstream: replay. Downstream: difference, incidents, the command line.
"""

import enum
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from msgspec import Struct, to_builtins

from edgeguardd.core.effects import (
    AnnounceLevel,
    AnswerAdmit,
    AnswerGate,
    CancelTimer,
    CommandEnded,
    Deliver,
    Disconnect,
    Effect,
    Note,
    PutBackLimit,
    RaiseLimit,
    Refuse,
    RunLastResort,
    SampleEvery,
    SetTimer,
    SignalPressure,
    Thaw,
    Welcome,
)
from edgeguardd.core.engine import Engine
from edgeguardd.core.model import Command
from edgeguardd.core.replay import Opened, Step

MACHINE = "(machine)"
_MIB = 1 << 20


class Kind(enum.StrEnum):
    """What a decision is about."""

    LEVEL = "level"
    COMMAND = "command"
    OUTCOME = "outcome"
    RELIEF = "relief"
    LAST_RESORT = "last_resort"
    ADMISSION = "admission"
    NOTE = "note"


class Decision(Struct, frozen=True):
    """One decision. `what` is its stable word: the level reached, the action, the outcome, the name of a note.

    Times are monotonic and wall-clock seconds; `target` is "" where it concerns none.
    """

    now: float
    wall_s: float
    target: str
    kind: Kind
    what: str
    sentence: str
    effect: Effect


def decisions(steps: Iterable[Opened | Step]) -> Iterator[Decision]:
    """The decisions of a replay, in order."""
    for step in steps:
        if isinstance(step, Step):
            yield from of_step(step)


def of_step(step: Step) -> Iterator[Decision]:
    """The decisions of one step."""
    for effect in step.effects:
        told = _told(effect, step.engine)
        if told is not None:
            target, kind, what, sentence = told
            yield Decision(step.now, step.wall_s, target, kind, what, sentence, effect)


def as_json(decision: Decision) -> dict[str, Any]:
    """The decision with all its figures, as JSON values."""
    return {
        "wall_s": round(decision.wall_s, 6),
        "monotonic_s": decision.now,
        "target": decision.target,
        "kind": decision.kind.value,
        "what": decision.what,
        "sentence": decision.sentence,
        "figures": {name: value for name, value in to_builtins(decision.effect).items() if name != "type"},
    }


def _told(effect: Effect, engine: Engine) -> tuple[str, Kind, str, str] | None:  # noqa: PLR0911  one row an effect
    match effect:
        case AnnounceLevel():
            steps = f"{effect.was.word} -> {effect.level.word}"
            return effect.target, Kind.LEVEL, effect.level.word, f"level {steps}: {effect.reason}"
        case Deliver():
            command = effect.command
            sentence = _ordered(command, _name(effect, engine))
            said = f"after a restart, {sentence}" if effect.again else sentence
            return command.target, Kind.COMMAND, command.action.value, said
        case CommandEnded():
            return effect.target, Kind.OUTCOME, effect.outcome.value, _ended(effect)
        case RaiseLimit():
            to = f"{_mib(effect.from_bytes)} to {_mib(effect.to_bytes)}"
            return effect.target, Kind.RELIEF, "raise", f"lift memory.high from {to}"
        case PutBackLimit():
            return effect.target, Kind.RELIEF, "put_back", "put memory.high back"
        case RunLastResort():
            amount = "" if effect.reclaim_bytes is None else f" {_mib(effect.reclaim_bytes)}"
            action = effect.step.action.value
            return effect.target, Kind.LAST_RESORT, action, f"last resort: {action}{amount}"
        case Thaw():
            return effect.target, Kind.LAST_RESORT, "thaw", "thaw"
        case AnswerAdmit():
            what = "granted" if effect.granted else "refused"
            sentence = f"request {effect.id} {what}: {effect.reason}"
            return _home(effect.subscriber, engine), Kind.ADMISSION, what, sentence
        case AnswerGate():
            what = "granted" if effect.granted else "refused"
            return effect.target, Kind.ADMISSION, what, f"request at the gate {what}: {effect.reason}"
        case Note():
            figures = ", ".join(_figure(key, value) for key, value in effect.fields.items() if key != "target")
            target = MACHINE if effect.event == "machine_level_changed" else str(effect.fields.get("target", ""))
            return target, Kind.NOTE, effect.event, f"{effect.event.replace('_', ' ')}{figures and ': '}{figures}"
        case Welcome() | Refuse() | Disconnect() | SetTimer() | CancelTimer() | SampleEvery() | SignalPressure():
            return None
        case _:
            assert_never(effect)


def _ordered(command: Command, name: str) -> str:
    asked = ", ".join(
        f"{field.removesuffix('_bytes')} {_mib(value) if field.endswith('_bytes') else value}"
        for field, value in to_builtins(command.parameters).items()
    )
    return f"ask {name} for {command.action} (#{command.seq}{asked and ', '}{asked}), within {command.deadline_s:g} s"


def _ended(end: CommandEnded) -> str:
    figures = [f"after {end.took_s:.2f} s"]
    if end.claimed_bytes is not None:
        figures.append(f"claimed {_mib(end.claimed_bytes)}")
    if end.freed_bytes is not None:
        figures.append(f"freed {_mib(end.freed_bytes)}")
    said = "" if end.message is None else f": {end.message}"
    return f"{end.action} (#{end.seq}) {end.outcome} {', '.join(figures)}{said}"


def _name(order: Deliver, engine: Engine) -> str:
    target = engine.targets.get(order.command.target)
    known = None if target is None else target.ledger.subscribers.get(order.subscriber)
    return f"subscriber {order.subscriber}" if known is None else known.name


def _home(subscriber: int, engine: Engine) -> str:
    homes = (target.name for target in engine.targets.values() if subscriber in target.ledger.subscribers)
    return next(homes, "")


def _figure(key: str, value: object) -> str:
    """A field of a note. Sizes are named so, but for the two of limit_raised."""
    if isinstance(value, int) and not isinstance(value, bool) and (key.endswith("_bytes") or key in {"from", "to"}):
        return f"{key.removesuffix('_bytes')} {_mib(value)}"
    return f"{key} {value}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.1f} MiB"
