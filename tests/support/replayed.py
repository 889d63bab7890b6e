"""What a daemon recorded, replayed: the same decisions, to the last figure, as its log says that it made.

Must not: read the log for what was meant; each line is a decision that was carried out. Upstream: running.Daemon.
"""

import os
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from edgeguardd.cli.recordings import Recordings
from edgeguardd.core import replay
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Effect
from edgeguardd.segments import SUBDIRECTORY

if TYPE_CHECKING:
    from tests.support.running import Daemon

Decision = tuple[Any, ...]


def check(daemon: "Daemon") -> int:
    """Replay every segment; fail unless all decisions of the log come out again, in order. How many they were."""
    directory = os.path.join(daemon.state_directory, SUBDIRECTORY)
    if not os.path.isdir(directory):
        return 0
    replayed: list[Decision] = []
    for item in replay.recorded(iter(Recordings(directory))):
        if isinstance(item, replay.Opened):
            assert item.exact is not False, "the engine does not stand as the recorded one stood"
        else:
            replayed += [decision for effect in item.effects if (decision := _of_effect(effect)) is not None]
    logged = [decision for fact in daemon.all_facts() if (decision := _of_fact(fact)) is not None]
    rest = iter(replayed)
    # The log leaves out lines beyond its rate, and a killed daemon its last second: what it has must come in order.
    missing = [decision for decision in logged if decision not in rest]
    assert not missing, f"logged, and not decided again by the replay: {missing[:3]} of {len(logged)}"
    return len(logged)


def _of_effect(effect: Effect) -> Decision | None:
    match effect:
        case Deliver(subscriber, command):
            parameters = tuple(sorted(to_builtins(command.parameters).items()))
            return ("sent", command.target, subscriber, command.seq, command.action.value, command.reason, parameters)
        case AnnounceLevel():
            return ("level", effect.target, effect.level.word, effect.was.word, effect.reason)
        case CommandEnded():
            return (
                "ended",
                effect.target,
                effect.seq,
                effect.outcome.value,
                effect.freed_bytes,
                round(effect.took_s, 4),
            )
        case _:
            return None


def _of_fact(fact: dict[str, Any]) -> Decision | None:
    match fact["event"]:
        case "command_sent":
            names = ("release_bytes", "needed_target_bytes", "max_batch_ratio", "accept_requests", "model_loaded")
            parameters = tuple(sorted((name, fact[name]) for name in names if name in fact))
            key = ("target", "subscriber", "seq", "action", "why")
            return ("sent", *(fact[name] for name in key), parameters)
        case "level_changed":
            return ("level", fact["target"], fact["level"], fact["was"], fact["why"])
        case "command_ended":
            return ("ended", fact["target"], fact["seq"], fact["outcome"], fact["freed_bytes"], fact["took_s"])
        case _:
            return None
