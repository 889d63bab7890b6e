"""The keys of [provision]: what `edgeguardctl provision` sets up. The daemon itself only reads them.

Must not: parse anything itself but amounts, which are systemd's. Upstream: configrows, configkinds, systemdvalues,
provisionspec. Downstream: configtable, configreader.
"""

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from edgeguardd.core import systemdvalues
from edgeguardd.core.configkinds import Kind, boolean, choice, integer, quoted, text
from edgeguardd.core.confignames import check_absolute, check_service, check_unit
from edgeguardd.core.configrows import Row, Section
from edgeguardd.core.provisionspec import Amount, CpuShare, GroupSpec, ProvisionConfig, ServiceSpec, SliceSpec

BACKENDS = ("auto", "systemd", "cgroup")
INFINITY = "infinity"
# As memory.max: nobody means more, and the kernel would take it for no limit.
_MAX_BYTES = 2**63 - 1
_AMOUNT = 'as systemd writes it: bytes, "512M", "1.5G", "75%" of the RAM, or "infinity"'
_MAX_CPUS = 8192
_PERCENT = re.compile(r"(\d{1,7})(?:\.(\d{1,2}))?%", re.ASCII)


def amount(*, infinite: bool = True) -> Kind:
    """An amount of memory as systemd reads it: a number of bytes or a text."""

    def parse(value: object) -> Amount:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_BYTES:
            return Amount(str(value), size_bytes=value)
        if isinstance(value, str):
            word = value.strip()
            if word == INFINITY and infinite:
                return Amount(word)
            if (parts := systemdvalues.share(word)) is not None:
                return Amount(word, parts=parts)
            size_bytes = systemdvalues.size(word)
            if size_bytes is not None and size_bytes <= _MAX_BYTES:
                return Amount(word, size_bytes=size_bytes)
        raise ValueError("it is no amount that systemd reads (no B or iB behind the unit); write " + _AMOUNT[21:])

    accepts = _AMOUNT if infinite else _AMOUNT.replace(', or "infinity"', "").replace('G", "75', 'G", or "75')
    return Kind(accepts, parse, lambda value: quoted(value.text))


def cpu_share() -> Kind:
    """CPU time as percent of one CPU."""

    def parse(value: object) -> CpuShare:
        if isinstance(value, str):
            word = value.strip()
            if word == INFINITY:
                return CpuShare(word)
            found = _PERCENT.fullmatch(word)
            if found is not None:
                parts = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))
                # Below 1 % of 100 ms the kernel's least quota of 1 ms would need another period.
                if 100 <= parts <= _MAX_CPUS * 10_000:
                    return CpuShare(word, parts)
        raise ValueError('it is no share of CPU time; write a percent of one CPU from 1 on, such as "150%"')

    return Kind('a percent of one CPU, such as "150%" for one and a half; or "infinity"', parse, _shown)


def _shown(value: CpuShare) -> str:
    return quoted(value.text)


def check_slice(name: str) -> None:
    """A slice's name."""
    check_unit(name)
    if not name.endswith(".slice") or name.startswith("-") or "--" in name or name.endswith("-.slice"):
        raise ValueError('it is no name of a slice; write one such as "inference.slice"')


def check_provisioned(name: str) -> None:
    """A service's name."""
    try:
        check_service(name)
    except ValueError as error:
        raise ValueError(str(error).replace("can be restarted", "goes here")) from None


_SLICE_NAME: tuple[str, Callable[[str], None]] = ("a .slice", check_slice)

_SHARED = (
    Row("memory_min", "memory_min", amount(), "Guaranteed: never reclaimed. Only as far as the slice above has it."),
    Row("memory_low", "memory_low", amount(), "Reclaimed only when nothing unprotected is left."),
    Row("memory_high", "memory_high", amount(), "Above this the kernel throttles and reclaims."),
    Row("memory_max", "memory_max", amount(), "Above this the kernel kills."),
    Row("swap_max", "swap_max", amount(), "How much of it may be in swap; 0 keeps it out of swap."),
    Row(
        "oom_group",
        "oom_group",
        boolean(),
        "Whether all of its processes are killed when one is; with systemd for services alone (OOMPolicy=kill).",
    ),
    Row("cpu_weight", "cpu_weight", integer(1, 10000), "Share of CPU time under contention; 100 is everybody's."),
    Row("cpu_max", "cpu_max", cpu_share(), "CPU time at most."),
)

PROVISION = Section(
    "provision",
    ProvisionConfig,
    "What `edgeguardctl provision` sets up; the daemon itself changes none of it. Keys that are not given stay as they "
    "are.",
    (
        Row(
            "backend",
            "backend",
            choice(*BACKENDS),
            "systemd: drop-ins and systemctl; cgroup: the cgroup tree itself, for machines and containers without "
            "systemd; auto: systemd where it runs.",
        ),
        Row(
            "reserve",
            "reserve",
            amount(infinite=False),
            "RAM that limits and guarantees together have to leave to the kernel and to all that is not named here.",
        ),
        Row(
            "overcommit",
            "overcommit",
            boolean(),
            "Whether the limits together may be more than the RAM; guarantees never may.",
        ),
        Row(
            "state_directory",
            "state_directory",
            text("an absolute path", check_absolute),
            "Where what was there before is written down, for --undo; it has to be root's alone.",
        ),
    ),
)

SLICE = Section(
    "provision.slice",
    SliceSpec,
    "One [[provision.slice]] each: a cgroup that holds others, and bounds them together.",
    (
        Row(
            "name",
            "name",
            text("the name of a .slice", check_slice),
            'The slice. "a-b.slice" lies in "a.slice", as in systemd.',
        ),
        *_SHARED,
    ),
    many=True,
)

SERVICE = Section(
    "provision.service",
    ServiceSpec,
    "One [[provision.service]] each.",
    (
        Row("name", "name", text("the name of a .service", check_provisioned), "The service."),
        Row(
            "slice",
            "slice",
            text("the name of a .slice", check_slice),
            "The slice it runs in, from its next start on; where it is now when not given.",
        ),
        *_SHARED,
        Row(
            "oom_score_adjust",
            "oom_score_adjust",
            integer(-1000, 1000),
            "Whom the kernel kills first, from its next start on; with systemd alone.",
        ),
    ),
    many=True,
)

# Values that show the form of keys which have no default.
SAMPLES: dict[str, dict[str, Any]] = {
    "provision.slice": {
        "name": '"inference.slice"',
        "memory_min": '"256M"',
        "memory_low": '"512M"',
        "memory_high": '"65%"',
        "memory_max": '"75%"',
        "swap_max": "0",
        "oom_group": "false",
        "cpu_weight": "100",
        "cpu_max": '"300%"',
    },
    "provision.service": {
        "name": '"llama-server.service"',
        "slice": '"inference.slice"',
        "memory_min": '"64M"',
        "memory_low": '"128M"',
        "memory_high": '"5G"',
        "memory_max": '"6G"',
        "swap_max": "0",
        "oom_group": "true",
        "cpu_weight": "100",
        "cpu_max": '"300%"',
        "oom_score_adjust": "500",
    },
}


class Fault(Struct, frozen=True):
    """One fault between entries: of the slice or service `kind` number `number`, at `key`."""

    kind: str
    number: int
    key: str
    value: str
    why: str


def faults(config: ProvisionConfig) -> list[Fault]:
    """What no machine could make right: the same name twice."""
    found = []
    groups: tuple[tuple[str, tuple[GroupSpec, ...]], ...] = (("slice", config.slices), ("service", config.services))
    for kind, specs in groups:
        names = [spec.name for spec in specs]
        found += [
            Fault(kind, number, "name", name, f"it has a [[provision.{kind}]] already; put both into one")
            for number, name in enumerate(names)
            if name in names[:number]
        ]
    return found
