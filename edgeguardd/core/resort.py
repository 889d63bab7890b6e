"""The last resort: what the daemon does itself when nobody answers or nothing helps. Off unless configured.

Must not: do it (the shell does). Upstream: target, config, effects. Downstream: engine.
One step at a time, in the order of the level's list, each with its own hold-off; the outcome of one is awaited before
the next, and is logged as it was, not as it was meant.
"""

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.effects import CancelTimer, Effect, RunLastResort, SetTimer, Thaw
from edgeguardd.core.events import LastResortEnded
from edgeguardd.core.ladder import Situation
from edgeguardd.core.model import LastResort, Level
from edgeguardd.core.target import Target


def follow(target: Target, at: Situation, out: list[Effect]) -> None:
    """Run the next step that is due, if nobody can give anything and memory is still called for."""
    if target.resorting or at.level is Level.NORMAL or not target.ledger.helpless():
        return
    if not at.pressing and at.level < Level.EMERGENCY:
        return
    for place, step in enumerate(target.policy.last_resort.steps(at.level)):
        last = target.resorted_at.get((at.level, place))
        if last is None or at.now - last >= step.hold_off_s:
            target.resorted_at[at.level, place] = at.now
            target.resorting = True
            out.append(RunLastResort(target.name, step, _reclaim_bytes(step, at)))
            return


def ended(target: Target, event: LastResortEnded, now: float, out: list[Effect]) -> None:
    """A step has its outcome. A freeze ends by a timer of its own; the shell thaws as well, should this be lost."""
    target.resorting = False
    if event.action is LastResort.FREEZE and event.outcome == "done":
        out.append(SetTimer(f"thaw:{target.name}", now + _max_freeze_s(target)))
    elif event.outcome == "thawed":
        out.append(CancelTimer(f"thaw:{target.name}"))


def thaw(target: Target, out: list[Effect]) -> None:
    """The longest time of a freeze is over."""
    out.append(Thaw(target.name))


def reset(target: Target) -> None:
    """The cgroup is gone, and with it whatever was being done to it. The hold-offs stay: a restart is not undone."""
    target.resorting = False


def _reclaim_bytes(step: LastResortStep, at: Situation) -> int | None:
    return at.release_bytes if step.action is LastResort.RECLAIM else None


def _max_freeze_s(target: Target) -> float:
    lists = target.policy.last_resort
    steps = [s for level in Level for s in lists.steps(level) if s.action is LastResort.FREEZE]
    return min((step.max_freeze_s for step in steps), default=0.0)
