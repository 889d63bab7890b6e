"""What must hold between configuration values, and what is allowed but worth a warning.

Must not: parse TOML or know lines; a finding names the keys it is about and configreader finds their line.
Upstream: config. Downstream: configreader, `edgeguardctl check-config`.
"""

from itertools import combinations, pairwise

import msgspec
from msgspec import Struct

from edgeguardd.core.config import (
    Config,
    DeviceSpec,
    HttpConfig,
    Ladder,
    LastResorts,
    LastResortStep,
    MachineConfig,
    Mark,
    OomScoreRule,
    Policy,
    SamplingConfig,
    Step,
    TargetSpec,
)
from edgeguardd.core.configplaces import shared_places
from edgeguardd.core.model import Action, LastResort

UNKILLABLE = -1000  # OOM_SCORE_ADJ_MIN, include/uapi/linux/oom.h
LEVELS = ("elevated", "high", "critical", "emergency")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MARKS = LEVELS[:3]
_LASTING = (Action.REDUCE_BATCH, Action.REJECT_REQUESTS, Action.UNLOAD_MODEL)


class Finding(Struct, frozen=True):
    """One fault: `keys` are those it lies between, the one to blame last; `why` is "what is wrong; remedy"."""

    keys: tuple[str, ...]
    why: str


def policy_findings(policy: Policy) -> list[Finding]:
    """Faults between the keys of one policy, its steps excepted."""
    found = [
        Finding((lower, upper), f"level {lower} begins at {_mark(a)} and levels must rise; {_rise_remedy(b)}")
        for lower, upper in combinations(_MARKS, 2)
        if not _rises(a := getattr(policy, lower), b := getattr(policy, upper))
    ]
    lowest = min((mark.ratio for key in _MARKS if (mark := getattr(policy, key)).ratio is not None), default=None)
    if lowest is not None and policy.hysteresis_ratio >= lowest:
        found.append(
            Finding(
                (*_MARKS, "hysteresis"),
                f"no level could ever fall, as the lowest mark is {lowest:g}; write a share below that",
            )
        )
    if policy.lead_floor_s >= policy.lead_ceiling_s:
        why = (
            f"the lead time lies between lead_floor, {policy.lead_floor_s:g} s, and lead_ceiling, "
            f"{policy.lead_ceiling_s:g} s, which are the wrong way round; write a floor below the ceiling"
        )
        found.append(Finding(("lead_floor", "lead_ceiling"), why))
    return found


def ladder_findings(ladder: Ladder) -> list[Finding]:
    """Faults between the rungs of a ladder: it must not get weaker as levels rise."""
    found = [
        Finding((level,), f"{step.action} stands twice in one rung; leave one out")
        for level in LEVELS
        for step in _repeated(getattr(ladder, level))
    ]
    for lower, upper in pairwise(LEVELS):
        for action in _LASTING:
            before, after = _step(getattr(ladder, lower), action), _step(getattr(ladder, upper), action)
            if before and not after:
                why = f"level {lower} asks for {action} and this one would lift it; add it here or take it out there"
                found.append(Finding((lower, upper), why))
            elif before and after and (after.max_batch_ratio or 0) > (before.max_batch_ratio or 0):
                why = (
                    f"level {lower} allows max_batch_ratio {before.max_batch_ratio} and this one more, "
                    f"{after.max_batch_ratio}; write at most as much"
                )
                found.append(Finding((lower, upper), why))
    return found


def resort_findings(resorts: LastResorts) -> list[Finding]:
    """Faults within the steps of one level: the same thing twice, a freeze that never ends."""
    found = []
    for level in LEVELS:
        steps: tuple[LastResortStep, ...] = getattr(resorts, level)
        what = [msgspec.structs.replace(step, hold_off_s=1.0) for step in steps]
        found += [
            Finding((level,), f"the same {step.action} stands there twice; leave one out")
            for number, step in enumerate(what)
            if step in what[:number]
        ]
        found += [
            Finding(
                (level,), f"after {step.hold_off_s:g} s it would freeze again what is frozen; write a longer hold_off"
            )
            for step in steps
            if step.action is LastResort.FREEZE and step.hold_off_s <= step.max_freeze_s
        ]
    return found


def restarts_of_nothing(spec: TargetSpec) -> list[str]:
    """The levels whose last resort restarts the target's own unit, where it has none that can be restarted."""
    if spec.unit is not None and spec.unit.endswith(".service"):
        return []
    return [level for level in LEVELS if _restarts_own_unit(spec.policy.last_resort, level)]


def machine_findings(machine: MachineConfig) -> list[Finding]:
    """Faults between the marks of the machine, which are shares still available: the worse the level, the less."""
    shares = {key: getattr(machine, f"{key}_ratio") for key in _MARKS}
    return [
        Finding(
            (lower, upper),
            f"level {lower} begins at {shares[lower]:g} available and levels must rise; write a smaller share",
        )
        for lower, upper in pairwise(_MARKS)
        if shares[lower] <= shares[upper]
    ]


def device_findings(device: DeviceSpec) -> list[Finding]:
    """Faults between the keys of one device."""
    shares = {key: getattr(device, f"{key}_ratio") for key in _MARKS}
    found = [
        Finding(
            (lower, upper),
            f"level {lower} begins at {shares[lower]:g} in use and levels must rise; write a larger share",
        )
        for lower, upper in pairwise(_MARKS)
        if shares[lower] >= shares[upper]
    ]
    if device.kind != "file" and device.path is not None:
        found.append(Finding(("path",), f"it is for kind file alone, and this is {device.kind}; leave it out"))
    if device.kind != "nvml" and device.index:
        found.append(Finding(("index",), f"it is for kind nvml alone, and this is {device.kind}; leave it out"))
    return found


def score_findings(rule: OomScoreRule) -> list[Finding]:
    """Faults between the keys of one rule of oom_score_adj."""
    if rule.value != UNKILLABLE or rule.allow_unkillable:
        return []
    why = (
        "the kernel could then kill anything but this, and a leak in it takes the machine; write -999, or "
        "allow_unkillable = true beside it if that is meant"
    )
    return [Finding(("value",), why)]


def sampling_findings(sampling: SamplingConfig) -> list[Finding]:
    """Faults between the sampling intervals."""
    if sampling.fast_s <= sampling.slow_s:
        return []
    return [Finding(("slow", "fast"), f"it is slower than slow, {sampling.slow_s:g} s; write at most that")]


def warnings(config: Config) -> list[str]:
    """What works but is probably not meant, one sentence each."""
    found = []
    if config.socket.mode & 0o002:
        found.append("socket.mode lets every user of the machine connect; take the last digit down to 0")
    if config.http.enabled and config.http.address not in LOOPBACK:
        found.append(_reachable(config.http))
    if config.gate.agent_port is not None and config.gate.agent_address not in LOOPBACK:
        found.append(f"gate.agent_address {config.gate.agent_address} is not loopback: the network can read levels")
    found += [
        f"pressure_watch.mode of {watch.path} lets every user of the machine connect; take the last digit down to 0"
        for watch in config.pressure_watches
        if watch.mode & 0o002
    ]
    if not config.targets and not config.self_targets:
        found.append("nothing is guarded: there is no [[target]] and self_targets is false")
    if config.socket.stall_s > config.socket.heartbeat_s * 3:
        found.append("socket.stall is longer than three heartbeats, so the heartbeat ends a stalled peer first")
    found += [
        f'target "{spec.name}" has an empty ladder: its subscribers are told levels but asked for nothing'
        for spec in config.targets
        if not any(getattr(spec.policy.ladder, level) for level in LEVELS)
    ]
    if config.self_targets:
        found += [
            f"defaults.last_resort.{level} restarts the target's unit, and a cgroup guarded for its subscriber has none"
            for level in LEVELS
            if _restarts_own_unit(config.defaults.last_resort, level)
        ]
    if config.machine.devices and not config.machine.enabled:
        found.append("machine.enabled is false, so that no device is read either")
    found += [
        f'oom_score "{rule.name}" protects by comm alone, a name that any process can take; add unit, cgroup or exe'
        for rule in config.oom_scores
        if rule.value < 0 and rule.unit is rule.cgroup is rule.exe is None
    ]
    found += _hidden_rules(config.oom_scores)
    return found + shared_places(config.targets)


def _reachable(http: HttpConfig) -> str:
    said = f"http.address {http.address} is not loopback: the network can read /status and /metrics"
    if http.hosts:
        return said
    return f"{said}, by address alone, as hosts is empty; whoever asks by a name gets 421 until hosts has that name"


def _hidden_rules(rules: tuple[OomScoreRule, ...]) -> list[str]:
    """Rules that can never decide, as one before them asks for nothing that they do not ask for."""
    keys = ("unit", "cgroup", "exe", "comm")
    asked = [{(key, value) for key in keys if (value := getattr(rule, key)) is not None} for rule in rules]
    return [
        f'oom_score "{rules[later].name}" never decides: "{rules[earlier].name}" before it fits all of its processes; '
        "write it first"
        for earlier, later in combinations(range(len(rules)), 2)
        if asked[earlier] <= asked[later]
    ]


def _restarts_own_unit(resorts: LastResorts, level: str) -> bool:
    return any(step.action is LastResort.RESTART and step.unit is None for step in getattr(resorts, level))


def _rises(lower: Mark, upper: Mark) -> bool:
    """Whether `upper` begins later; marks of different kinds cannot be compared and pass."""
    if lower.ratio is not None and upper.ratio is not None:
        return lower.ratio < upper.ratio
    if lower.headroom_bytes is not None and upper.headroom_bytes is not None:
        return lower.headroom_bytes > upper.headroom_bytes
    return True


def _mark(mark: Mark) -> str:
    return f"{mark.headroom_bytes} bytes of headroom" if mark.ratio is None else f"{mark.ratio:g}"


def _rise_remedy(mark: Mark) -> str:
    return "write less headroom" if mark.ratio is None else "write a larger share"


def _step(rung: tuple[Step, ...], action: Action) -> Step | None:
    return next((step for step in rung if step.action is action), None)


def _repeated(rung: tuple[Step, ...]) -> list[Step]:
    return [step for number, step in enumerate(rung) if _step(rung[:number], step.action)]
