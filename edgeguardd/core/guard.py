"""What is guarded, and each look at it: memory to level, level to the ledger, and what follows from the commands.

Must not: decide what policy (levels) or ledger (commands) decides, know subscribers beyond the ledger's. Upstream:
policy, ledger, sharing, relief, resort. Downstream: subscribers, engine.
"""

from edgeguardd.core import limits, resort
from edgeguardd.core import machine as machines
from edgeguardd.core import policy as policies
from edgeguardd.core.config import MachineConfig, SamplingConfig
from edgeguardd.core.effects import (
    AnnounceLevel,
    Effect,
    Fact,
    Note,
    PutBackLimit,
    SampleEvery,
    SetTimer,
    SignalPressure,
)
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    MachineSampled,
    SampleFailed,
    SampleTaken,
)
from edgeguardd.core.hint import MACHINE_REPEAT_S, Hint
from edgeguardd.core.ladder import Situation
from edgeguardd.core.model import Level, Sample
from edgeguardd.core.relief import Phase, Relief
from edgeguardd.core.sharing import announced, share_of
from edgeguardd.core.target import Target


class Guard:
    """All targets and the machine. `sampling` and `machine_config` may be replaced at any time."""

    def __init__(self, sampling: SamplingConfig, machine_config: MachineConfig) -> None:
        self.targets: dict[str, Target] = {}
        self.machine = machines.MachineGauge()
        self.sampling = sampling
        self.machine_config = machine_config
        self._machine_hint = Hint()

    def worst_level(self) -> Level:
        """The highest level of all targets and of the machine: what systemd's status line says."""
        return max((target.level for target in self.targets.values()), default=self.machine.level)

    # Facts from the kernel

    def sampled(self, event: SampleTaken, now: float, out: list[Effect]) -> None:
        """Figures were read."""
        target = self.targets.get(event.sample.target)
        if target is None:
            return
        if target.degraded is not None:
            target.degraded = None
            out.append(Note("info", "target_readable_again", {"target": target.name}))
        own, *ancestors = event.sample.usages
        target.sample = Sample(target.name, (target.relief.judged(own), *ancestors))
        self.judge(target, now, out)

    def counted(self, event: CountersMoved, now: float, out: list[Effect]) -> None:
        """memory.events moved."""
        target = self.targets.get(event.target)
        if target is None:
            return
        # A kill counts also where the figures could not be read.
        sample = target.sample or Sample(target.name, ())
        ignored = policies.count(target.gauge, target.policy, target.given_static_bytes, sample, event, now)
        if ignored is None:
            self._follow(target, now, out)
        elif not target.recycling_noted:
            target.recycling_noted = True
            out.append(Note("info", "counters_without_pressure", {"target": target.name, "reason": ignored}))

    def machine_sampled(self, event: MachineSampled, now: float, out: list[Effect]) -> None:
        """The whole machine was looked at."""
        was = self.machine.level
        machines.observe(self.machine, self.machine_config, event.sample, now)
        level = self.machine.level
        if level is not was:
            fields: dict[str, Fact] = {"level": level.word, "was": was.word, "why": self.machine.reason}
            out.append(Note("warning" if level > was else "info", "machine_level_changed", fields))
        if self._machine_hint.due(level, MACHINE_REPEAT_S, now):
            out.append(SignalPressure(None))
        if level > Level.NORMAL or level is not was:
            for target in self.targets.values():
                self._follow(target, now, out)

    def degraded(self, event: SampleFailed, now: float, out: list[Effect]) -> None:
        """Figures could not be read."""
        target = self.targets.get(event.target)
        if target is not None and target.degraded != event.reason:
            target.degraded = event.reason
            out.append(Note("warning", "target_degraded", {"target": target.name, "reason": event.reason}))
            out.append(SetTimer(f"blind:{target.name}", now + target.policy.dwell_s))

    def appeared(self, event: CgroupAppeared, out: list[Effect]) -> None:
        """There is a cgroup under the target's path."""
        target = self.targets.get(event.target)
        if target is not None:
            target.present = True
            out.append(Note("info", "cgroup_appeared", {"target": target.name, "path": target.path}))

    def vanished(self, event: CgroupVanished, now: float, out: list[Effect]) -> None:
        """There is none any more: nothing that was known of it holds."""
        target = self.targets.get(event.target)
        if target is None:
            return
        out.append(Note("info", "cgroup_vanished", {"target": target.name, "path": target.path}))
        target.present = False
        # What its trims took is still true of the next server under this name.
        target.gauge = policies.Gauge(
            reason="its cgroup is gone, or has no memory controller any more", lead=target.gauge.lead
        )
        target.sample = target.degraded = target.interval_s = None
        was, target.level, target.reason = target.level, Level.NORMAL, target.gauge.reason
        if was is not Level.NORMAL:
            target.level_at = now
            out.append(AnnounceLevel(target.name, Level.NORMAL, was, target.reason))
        target.ledger.reset(target.situation(now), out)
        self.give_up_relief(target, out)
        resort.reset(target)

    # From a look at memory to orders

    def judge(self, target: Target, now: float, out: list[Effect]) -> None:
        """Look at the last sample again, as the rules are now."""
        if target.sample is not None:
            target.observe(target.sample, now)
            self._follow(target, now, out)

    def _follow(self, target: Target, now: float, out: list[Effect]) -> None:
        """After each look at memory: say the level, let the ledger act, choose how soon to look again."""
        share = share_of(target, self.targets.values(), self.machine)
        if share.deferred:
            self._look_at_others(target, out)
        at = target.situation(now, share)
        level, reason = announced(target, at, self.machine)
        if level is not target.level:
            out.append(AnnounceLevel(target.name, level, target.level, reason))
            target.level, target.reason, target.level_at = level, reason, now
            if level is Level.NORMAL:
                target.recycling_noted = False
        self._note_limits(target, out)
        target.ledger.follow(at, out)
        if target.hint.due(target.hint_level(at), target.policy.repeat_s, now):
            out.append(SignalPressure(target.name))
        self.after(target, at, out)
        interval_s = policies.sampling_interval(target.gauge, target.policy, self.sampling)
        if interval_s != target.interval_s:
            target.interval_s = interval_s
            out.append(SampleEvery(target.name, interval_s))

    def after(self, target: Target, at: Situation, out: list[Effect]) -> None:
        """What follows from the state of the commands: a floor learned, a limit lifted or put back, the last resort."""
        if target.ledger.floor_bytes is not None:
            policies.learn_floor(target.gauge, target.ledger.floor_bytes)
            target.ledger.floor_bytes = None
        own = None if target.sample is None else target.sample.usages[0]
        target.relief.follow(target.name, target.policy, own, target.ledger.commands.trimming, out)
        resort.follow(target, at, out)

    def age(self, target: Target, now: float, out: list[Effect]) -> None:
        """While nothing can be read, a level that only counters called for falls back to what was last seen."""
        if target.degraded is not None:
            policies.age(target.gauge)
            self._follow(target, now, out)
            out.append(SetTimer(f"blind:{target.name}", now + target.policy.dwell_s))

    # Helpers

    def situation(self, target: Target, now: float) -> Situation:
        """What policy says of the target now, with what is asked of it for others."""
        return target.situation(now, share_of(target, self.targets.values(), self.machine))

    def give_up_relief(self, target: Target, out: list[Effect]) -> None:
        """What is guarded no longer is not lifted any more."""
        if target.relief.phase not in (Phase.RESTING, Phase.UNAVAILABLE):
            out.append(PutBackLimit(target.name))
        target.relief = Relief()

    def _look_at_others(self, target: Target, out: list[Effect]) -> None:
        """A shared limit binds, and another gives first: its figures have to be as fresh as this target's."""
        fast_s = self.sampling.fast_s
        for other in self.targets.values():
            if other is not target and other.limit_path == target.limit_path and other.interval_s != fast_s:
                other.interval_s = fast_s
                out.append(SampleEvery(other.name, other.interval_s))

    def _note_limits(self, target: Target, out: list[Effect]) -> None:
        """Say once what the figures do not allow: no limit, static bytes beyond it, a mark that is met at rest."""
        pressure, static = target.gauge.pressure, target.given_static_bytes
        seen = (None if pressure is None else pressure.limit_bytes, static)
        if target.sample is None or target.limits_noted == seen:
            return
        target.limits_noted = seen
        fields: dict[str, Fact] = {"target": target.name, "limit_bytes": seen[0], "static_bytes": static}
        if pressure is None:
            out.append(Note("warning", "no_limit", {"target": target.name, "judged_by": "the machine alone"}))
        elif static is not None and static >= pressure.limit_bytes:
            out.append(Note("warning", "static_over_limit", {**fields, "judged_by": "the plain share"}))
        elif limits.unmeetable(target.policy, pressure):
            out.append(Note("warning", "marks_below_rest", fields))
