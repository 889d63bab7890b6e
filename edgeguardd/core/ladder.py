"""What a rung of the ladder asks for: steps to absolute parameters.

Must not: keep state, decide when. Upstream: config, model. Downstream: ledger.
"""

from typing import assert_never

from msgspec import Struct

from edgeguardd.core.config import Step
from edgeguardd.core.model import Action, InForce, Level, Parameters

LASTING = frozenset({Action.REDUCE_BATCH, Action.REJECT_REQUESTS, Action.UNLOAD_MODEL})

# A restore takes the place of the restrictions still on their way, and a restriction that of a restore.
VOIDED_BY = {Action.RESTORE: LASTING} | {action: frozenset({Action.RESTORE}) for action in LASTING}


class Situation(Struct, frozen=True):
    """What policy says of the target at this moment; handed into every call of the ledger.

    pressing       needed bytes stand at or above a mark, or something else still calls for memory
    needed_bytes   of the target's own cgroup
    limit_bytes    the limit that binds
    release_bytes  what the target should give back now; 0: nothing
    room_bytes     what may still be taken below the critical mark; None: nothing limits it
    request_bytes  what one more request needs; None: not known
    """

    now: float
    level: Level
    reason: str
    pressing: bool = False
    needed_bytes: int | None = None
    limit_bytes: int | None = None
    release_bytes: int = 0
    room_bytes: int | None = None
    request_bytes: int | None = None


def restrictions(rung: tuple[Step, ...]) -> InForce:
    """The lasting restrictions of a rung."""
    actions = {step.action for step in rung}
    ratio = min((step.max_batch_ratio or 0.0 for step in rung if step.action is Action.REDUCE_BATCH), default=1.0)
    return InForce(ratio, Action.REJECT_REQUESTS not in actions, Action.UNLOAD_MODEL not in actions)


def parameters_of(step: Step, at: Situation) -> Parameters:
    """What one step asks for now. A trim asks for the bytes that bring the target to its goal."""
    match step.action:
        case Action.TRIM_KV_CACHE:
            if at.needed_bytes is None:
                return Parameters()
            return Parameters(
                release_bytes=at.release_bytes, needed_target_bytes=max(0, at.needed_bytes - at.release_bytes)
            )
        case Action.REDUCE_BATCH:
            return Parameters(max_batch_ratio=step.max_batch_ratio)
        case Action.REJECT_REQUESTS:
            return Parameters(accept_requests=False)
        case Action.UNLOAD_MODEL:
            return Parameters(model_loaded=False)
        case Action.RESTORE:
            return Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True)
        case _:
            assert_never(step.action)
