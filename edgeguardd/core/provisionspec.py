"""What isolation a configuration asks for: slices and services with their limits, guarantees and weights.

Must not: know this machine; shares stay shares here. Upstream: nothing. Downstream: core.config, configprovision,
isolate.provisionwanted.
"""

from msgspec import Struct


class Amount(Struct, frozen=True):
    """An amount of memory as systemd reads it: `text` as it was written, and one of bytes and parts of 10,000.

    Neither: infinity, which is no limit.
    """

    text: str
    size_bytes: int | None = None
    parts: int | None = None


class CpuShare(Struct, frozen=True):
    """How much CPU time: `text` as it was written ("150%"), parts of 10,000 of one CPU; None: infinity."""

    text: str
    parts: int | None = None


class GroupSpec(Struct, frozen=True, kw_only=True):
    """The settings that slices and services share; None is left as it is."""

    name: str
    memory_min: Amount | None = None
    memory_low: Amount | None = None
    memory_high: Amount | None = None
    memory_max: Amount | None = None
    swap_max: Amount | None = None
    oom_group: bool | None = None
    cpu_weight: int | None = None
    cpu_max: CpuShare | None = None


class SliceSpec(GroupSpec, frozen=True, kw_only=True):
    """One [[provision.slice]]."""


class ServiceSpec(GroupSpec, frozen=True, kw_only=True):
    """One [[provision.service]]. `slice`: the slice it is to run in; None leaves it where it is."""

    slice: str | None = None
    oom_score_adjust: int | None = None


class ProvisionConfig(Struct, frozen=True):
    """[provision], and what it sets up. backend: auto, systemd or cgroup.

    `reserve`: RAM that guarantees and limits together leave to the kernel and to all that is not named.
    """

    backend: str = "auto"
    # What a small Debian without any server takes, kernel included (110 to 180 MiB measured), and some.
    reserve: Amount = Amount("256M", size_bytes=256 << 20)
    overcommit: bool = False
    # Not the daemon's own: that one may belong to its user, and root shall not act on what a user wrote.
    state_directory: str = "/var/lib/edgeguardctl"
    slices: tuple[SliceSpec, ...] = ()
    services: tuple[ServiceSpec, ...] = ()
