"""The whole machine as a domain of its own: MemAvailable, swap, PSI and devices to one level, and to bytes wanted.

Must not: choose who gives (engine does by priority), read a clock. Upstream: config, model. Downstream: engine, status.
"""

import copy
from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.core.config import DeviceSpec, MachineConfig
from edgeguardd.core.model import DeviceUsage, Level, MachineSample

# Wider than the noise of MemAvailable on a busy machine, in shares of the RAM.
HYSTERESIS_RATIO = 0.02
DWELL_S = 5.0


class MachineGauge(Struct):
    """What is remembered of the machine between samples. wanted_bytes would bring it below its first mark.

    level_at    when the level last changed; None: not since the start
    """

    level: Level = Level.NORMAL
    reason: str = "not sampled yet"
    level_at: float | None = None
    sample: MachineSample | None = None
    sampled_at: float | None = None
    psi_us: int | None = None
    psi_ratio: float | None = None
    wanted_bytes: int = 0
    undercut_since: float | None = None


def observe(gauge: MachineGauge, config: MachineConfig, sample: MachineSample, now: float) -> None:
    """Take one sample: up at once, down one step at a time after the dwell."""
    _learn_psi(gauge, sample, now)
    gauge.sample, gauge.sampled_at = sample, now
    level, reason = max(_calls(gauge, config, sample, 0.0), key=lambda call: call[0], default=(Level.NORMAL, ""))
    held, _ = max(_calls(gauge, config, sample, HYSTERESIS_RATIO), key=lambda call: call[0], default=(level, ""))
    gauge.wanted_bytes = _wanted_bytes(config, sample)
    if level > gauge.level:
        gauge.level, gauge.reason, gauge.level_at, gauge.undercut_since = level, reason, now, None
    elif held >= gauge.level:
        gauge.undercut_since = None
    elif gauge.undercut_since is None:
        gauge.undercut_since = now
    elif now - gauge.undercut_since >= DWELL_S:
        gauge.level = Level(gauge.level - 1)
        gauge.undercut_since = gauge.level_at = now
        gauge.reason = f"above the mark for {DWELL_S:g} s: {reason}"


def rises(gauge: MachineGauge, config: MachineConfig, sample: MachineSample, now: float) -> bool:
    """Whether this sample will raise the level. The gauge stays as it is."""
    after = copy.copy(gauge)
    observe(after, config, sample, now)
    return after.level > gauge.level


def _calls(
    gauge: MachineGauge, config: MachineConfig, sample: MachineSample, slack: float
) -> Iterator[tuple[Level, str]]:
    """The level each rule calls for; `slack` is the hysteresis, in shares."""
    ratio = sample.available_bytes / sample.total_bytes if sample.total_bytes > 0 else 1.0
    mib = 1 << 20
    text = f"{sample.available_bytes / mib:.0f} of {sample.total_bytes / mib:.0f} MiB ({ratio:.0%}) are available"
    available = _below(ratio - slack, config.elevated_ratio, config.high_ratio, config.critical_ratio)
    yield available, text
    if available > Level.NORMAL and _swap_is_full(config, sample):
        yield Level(min(Level.CRITICAL, available + 1)), f"{text}, and swap is nearly full"
    if available > Level.NORMAL and gauge.psi_ratio is not None and gauge.psi_ratio >= config.psi_ratio:
        yield Level.HIGH, f"{text}, and tasks wait for memory {gauge.psi_ratio:.0%} of the time"
    specs = {spec.name: spec for spec in config.devices}
    for device in sample.devices:
        spec = specs.get(device.name)
        if spec is not None and device.total_bytes > 0:
            yield _device_level(spec, device, slack), f"{device.name} has {device.used_bytes / mib:.0f} MiB in use"


def _below(ratio: float, elevated: float, high: float, critical: float) -> Level:
    if ratio <= critical:
        return Level.CRITICAL
    if ratio <= high:
        return Level.HIGH
    return Level.ELEVATED if ratio <= elevated else Level.NORMAL


def _device_level(spec: DeviceSpec, device: DeviceUsage, slack: float) -> Level:
    free = 1.0 - device.used_bytes / device.total_bytes
    return _below(free - slack, 1 - spec.elevated_ratio, 1 - spec.high_ratio, 1 - spec.critical_ratio)


def _swap_is_full(config: MachineConfig, sample: MachineSample) -> bool:
    if not sample.swap_total_bytes or sample.swap_free_bytes is None:
        return False
    return sample.swap_free_bytes < config.swap_free_ratio * sample.swap_total_bytes


def _wanted_bytes(config: MachineConfig, sample: MachineSample) -> int:
    """What has to come back for every rule to be content."""
    goal = int((config.elevated_ratio + HYSTERESIS_RATIO) * sample.total_bytes)
    wanted = max(0, goal - sample.available_bytes)
    specs = {spec.name: spec for spec in config.devices}
    for device in sample.devices:
        spec = specs.get(device.name)
        if spec is not None:
            limit = int((spec.elevated_ratio - HYSTERESIS_RATIO) * device.total_bytes)
            wanted = max(wanted, device.used_bytes - limit)
    return wanted


def _learn_psi(gauge: MachineGauge, sample: MachineSample, now: float) -> None:
    before, after = gauge.psi_us, sample.psi_some_us
    if before is not None and after is not None and gauge.sampled_at is not None and now > gauge.sampled_at:
        gauge.psi_ratio = max(0, after - before) / 1e6 / (now - gauge.sampled_at)
    gauge.psi_us = after
