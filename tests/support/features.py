"""Kernel features that tests stand on, and what it means when one is missing.

Missing on a kernel too old for it, or built or booted without it: the test is skipped by name. Missing on a kernel
that should have it: the test fails, for then either the probe or the machine is broken.
Must not: know pytest. Upstream: tests/kernel/conftest.py asks. Downstream: the cgroup tree, /proc, the kernel's config.
"""

import dataclasses
import errno
import gzip
import os
import re
from collections.abc import Callable

from tests.support.cgroup import Cgroup

# A file with the running kernel's build configuration; the harness sets it in user-mode Linux, which ships none.
CONFIG_VARIABLE = "EDGEGUARDD_KERNEL_CONFIG"

Version = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A probe, the first release that has it, and the build option that can leave it out."""

    probe: Callable[[], bool]
    since: Version
    option: str | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Present, or missing with or without an excuse; `reason` is one sentence."""

    present: bool
    excused: bool
    reason: str


def in_cgroup(name: str) -> Callable[[], bool]:
    """A probe: a cgroup below the root has this file, and it can be read (PSI off gives EOPNOTSUPP)."""

    def probe() -> bool:
        with Cgroup.fresh("probe") as cgroup:
            return readable(cgroup.file(name))

    return probe


def with_key(name: str, key: str) -> Callable[[], bool]:
    """A probe: a file of a cgroup prints this key."""

    def probe() -> bool:
        with Cgroup.fresh("probe") as cgroup:
            return readable(cgroup.file(name)) and key in cgroup.keyed(name)

    return probe


def controller(name: str) -> Callable[[], bool]:
    """A probe: cgroups below the root have this controller."""

    def probe() -> bool:
        with Cgroup.fresh("probe") as cgroup:
            return name in cgroup.read("cgroup.controllers").split()

    return probe


def on_path(path: str) -> Callable[[], bool]:
    """A probe: this file exists and can be read."""
    return lambda: readable(path)


def readable(path: str) -> bool:
    """Whether a file can be read; one that may only be written counts as there."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return error.errno in {errno.EACCES, errno.EINVAL} and os.path.exists(path)
    return True


FEATURES = {
    "cgroup.kill": Feature(in_cgroup("cgroup.kill"), (5, 14)),
    "io": Feature(controller("io"), (4, 5), "CONFIG_BLK_CGROUP"),
    "memory.events.local": Feature(in_cgroup("memory.events.local"), (5, 2)),
    "memory.oom.group": Feature(in_cgroup("memory.oom.group"), (4, 19)),
    "memory.peak": Feature(in_cgroup("memory.peak"), (5, 19)),
    "memory.pressure": Feature(in_cgroup("memory.pressure"), (4, 20), "CONFIG_PSI"),
    "memory.reclaim": Feature(in_cgroup("memory.reclaim"), (5, 19)),
    "memory.swap.max": Feature(in_cgroup("memory.swap.max"), (4, 5), "CONFIG_SWAP"),
    "memory.zswap.writeback": Feature(in_cgroup("memory.zswap.writeback"), (6, 8), "CONFIG_ZSWAP"),
    "oom_group_kill": Feature(with_key("memory.events", "oom_group_kill"), (5, 17)),
    "proc_events": Feature(lambda: config_has("CONFIG_PROC_EVENTS") is True, (2, 6), "CONFIG_PROC_EVENTS"),
    "psi": Feature(on_path("/proc/pressure/memory"), (4, 20), "CONFIG_PSI"),
    "sock_throttled": Feature(with_key("memory.events", "sock_throttled"), (6, 19)),
}


def verdict(name: str) -> Verdict:
    """Whether this kernel has a feature. An unknown name is a KeyError: add a row to FEATURES."""
    feature = FEATURES[name]
    if feature.probe():
        return Verdict(True, True, f"{name} is there")
    running, since = version(os.uname().release), f"{feature.since[0]}.{feature.since[1]}"
    if running < feature.since:
        return Verdict(False, True, f"{name} is missing: it came with Linux {since}, this is {os.uname().release}")
    if feature.option and config_has(feature.option) is False:
        return Verdict(False, True, f"{name} is missing: {feature.option} is off in this kernel")
    if feature.option == "CONFIG_PSI" and psi_is_off_at_boot():
        return Verdict(False, True, f"{name} is missing: PSI is built in and not switched on; boot with psi=1")
    return Verdict(
        False, False, f"{name} is missing, though Linux has had it since {since} and this is {os.uname().release}"
    )


def version(release: str) -> Version:
    """(6, 1) of "6.1.176" or "6.18.44-fc"."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        raise ValueError(f"cannot read the kernel release {release!r}")
    return int(found[1]), int(found[2])


def config_has(option: str) -> bool | None:
    """Whether the running kernel was built with an option (built in or module); None if nobody knows."""
    text = config_text()
    return None if text is None else re.search(rf"^{option}=[ym]$", text, re.MULTILINE) is not None


def config_text() -> str | None:
    """The running kernel's build configuration, from wherever it can be found."""
    named = os.environ.get(CONFIG_VARIABLE)
    for path in (named, "/proc/config.gz", f"/boot/config-{os.uname().release}"):
        if path and os.path.exists(path):
            if path.endswith(".gz"):
                with gzip.open(path, "rt") as packed:
                    return packed.read()
            with open(path) as file:
                return file.read()
    return None


def psi_is_off_at_boot() -> bool:
    """Whether PSI is compiled in and disabled, by default or by the command line."""
    with open("/proc/cmdline") as file:
        words = file.read().split()
    said = [word for word in words if word.startswith("psi=")]
    if said:
        return said[-1] in {"psi=0", "psi=off", "psi=n"}
    return config_has("CONFIG_PSI_DEFAULT_DISABLED") is True
