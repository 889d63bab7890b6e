"""Who gives for what several share: a slice's limit, or the whole machine.

Must not: order anything. Upstream: target, machine. Downstream: engine.
The lowest priority gives first, the larger before the smaller, each down to its floor; the next is asked for what is
left, and when the one before is exhausted. At critical everybody is asked.
"""

from collections.abc import Iterable

from edgeguardd.core.ladder import Situation
from edgeguardd.core.limits import mark_level
from edgeguardd.core.machine import MachineGauge
from edgeguardd.core.model import Level
from edgeguardd.core.target import Share, Target

# A sample of another target that is older than this may miss what the shared limit has just met.
STALE_S = 0.25


def share_of(target: Target, targets: Iterable[Target], machine: MachineGauge) -> Share:
    """What this target is asked for beyond its own limit, now."""
    shared = _of_ancestor(target, targets)
    if machine.level is Level.NORMAL:
        return shared
    wanted = give(targets, machine.wanted_bytes).get(target.name)
    if wanted is None:
        return shared
    level, reason = max((machine.level, f"machine: {machine.reason}"), (shared.level, shared.reason))
    return Share(level, reason, max(wanted, shared.wanted_bytes), shared.deferred)


def announced(target: Target, at: Situation, machine: MachineGauge) -> tuple[Level, str]:
    """The level to be announced, and why: of the target's own reading, or of what it is asked for beyond it."""
    gauge = target.gauge
    if at.level > gauge.level:
        return at.level, at.reason
    own_step = gauge.level > target.level or gauge.fell_at == at.now or target.degraded is not None
    if own_step or gauge.level is target.level:
        return gauge.level, gauge.reason
    # Its own level is what it was, and why it once came to that is not why less is asked for now.
    fell = machine.level < target.level
    why = f"machine: {machine.reason}" if fell else "machine: others are asked to give"
    return gauge.level, f"{why}; {gauge.calls}"


def give(targets: Iterable[Target], wanted_bytes: int) -> dict[str, int]:
    """Target name -> the bytes it is asked for. Where nobody can give, the first in order is named, to be heard."""
    ordered = sorted((t for t in targets if t.present and t.sample is not None), key=_order)
    able = [t for t in ordered if t.ledger.subscribers and not t.ledger.exhausted and t.givable_bytes() > 0]
    if not able:
        return {t.name: wanted_bytes for t in ordered[:1]}
    asked: dict[str, int] = {}
    left = wanted_bytes
    for target in able:
        asked[target.name] = min(left, target.givable_bytes())
        left -= asked[target.name]
        if left <= 0:
            break
    return asked


def _of_ancestor(target: Target, targets: Iterable[Target]) -> Share:
    pressure = target.gauge.pressure
    if target.own_limit_binds or pressure is None or target.gauge.called is Level.NORMAL:
        return Share()
    group = [t for t in targets if t.gauge.pressure is not None and t.gauge.pressure.path == pressure.path]
    wanted = target.wanted_bytes()
    if len(group) > 1 and mark_level(target.policy, pressure) < Level.CRITICAL:
        mine = give(group, wanted).get(target.name)
        if mine is None or any(_is_due(other, target) for other in group):
            return Share(deferred=True)
        wanted = mine
    return Share(target.gauge.level, target.gauge.reason, wanted)


def _is_due(other: Target, target: Target) -> bool:
    """Whether another gives before this target, and its last sample is too old to say that it cannot."""
    if _order(other) >= _order(target) or not other.ledger.subscribers or other.ledger.exhausted:
        return False
    return (other.gauge.sampled_at or 0.0) < (target.gauge.sampled_at or 0.0) - STALE_S


def _order(target: Target) -> tuple[int, int]:
    return (target.policy.priority, -(target.gauge.needed_bytes or 0))
