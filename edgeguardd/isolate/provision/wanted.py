"""The configuration on a machine of a certain size -> the groups that are wanted, with figures as the kernel has them.

Must not: look at the machine. Upstream: core.provisionspec, model. Downstream: run, cli.provision.
"""

from collections.abc import Iterator

from edgeguardd.core import systemdvalues
from edgeguardd.core.provisionspec import Amount, CpuShare, GroupSpec, ProvisionConfig, ServiceSpec
from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate import unitnames
from edgeguardd.isolate.provision.model import (
    CPU_MAX,
    CPU_WEIGHT,
    HIGH,
    LOW,
    MAX,
    MIN,
    OOM_GROUP,
    PROPERTIES,
    SWAP_MAX,
    Group,
    Machine,
)

_AMOUNTS = (
    *((MIN, "memory_min"), (LOW, "memory_low"), (HIGH, "memory_high"), (MAX, "memory_max"), (SWAP_MAX, "swap_max")),
)
_PERIOD_US = 100_000  # cpu.max's own default, and systemd's


def groups(config: ProvisionConfig, machine: Machine) -> tuple[Group, ...]:
    """All of them, slices from the root down, then services."""
    slices = sorted(config.slices, key=lambda spec: (spec.name.count("-"), spec.name))
    return tuple(_group(spec, machine) for spec in (*slices, *config.services))


def resolve(amount: Amount, machine: Machine) -> int:
    """Bytes in whole pages, rounded down as the kernel does (page_counter_memparse); INFINITE for no limit."""
    if amount.parts is not None:
        return systemdvalues.share_of(amount.parts, machine.memory_bytes, machine.page_bytes)
    if amount.size_bytes is None:
        return INFINITE
    return amount.size_bytes // machine.page_bytes * machine.page_bytes


def slices_above(name: str) -> tuple[str, ...]:
    """The slices that a slice lies in, outermost first, without the root."""
    found: list[str] = []
    above = unitnames.slice_above(name)
    while above is not None and above != unitnames.ROOT_SLICE:
        found.insert(0, above)
        above = unitnames.slice_above(above)
    return tuple(found)


def _group(spec: GroupSpec, machine: Machine) -> Group:
    values = dict(_values(spec, machine))
    lines = tuple(_lines(spec))
    if not isinstance(spec, ServiceSpec):
        return Group(spec.name, slices_above(spec.name), values, lines)
    above = () if spec.slice is None else (*slices_above(spec.slice), spec.slice)
    return Group(spec.name, above, values, lines, moves=spec.slice is not None)


def _values(spec: GroupSpec, machine: Machine) -> Iterator[tuple[str, int]]:
    for file, field in _AMOUNTS:
        amount: Amount | None = getattr(spec, field)
        if amount is not None:
            yield file, resolve(amount, machine)
    if spec.oom_group is not None:
        yield OOM_GROUP, int(spec.oom_group)
    if spec.cpu_weight is not None:
        yield CPU_WEIGHT, spec.cpu_weight
    if spec.cpu_max is not None:
        yield CPU_MAX, _quota_us(spec.cpu_max)


def _quota_us(share: CpuShare) -> int:
    return INFINITE if share.parts is None else share.parts * _PERIOD_US // 10_000


def _lines(spec: GroupSpec) -> Iterator[tuple[str, str]]:
    """The drop-in's lines: amounts as they were written, so that a share stays one when RAM is added."""
    if isinstance(spec, ServiceSpec) and spec.slice is not None:
        yield "Slice", spec.slice
    for file, field in _AMOUNTS:
        amount: Amount | None = getattr(spec, field)
        if amount is not None:
            yield PROPERTIES[file], amount.text
    if spec.cpu_weight is not None:
        yield "CPUWeight", str(spec.cpu_weight)
    if spec.cpu_max is not None:
        # An empty value is how systemd writes "no quota".
        yield "CPUQuota", "" if spec.cpu_max.parts is None else spec.cpu_max.text
    if isinstance(spec, ServiceSpec):
        if spec.oom_group is not None:
            yield "OOMPolicy", "kill" if spec.oom_group else "stop"
        if spec.oom_score_adjust is not None:
            yield "OOMScoreAdjust", str(spec.oom_score_adjust)
