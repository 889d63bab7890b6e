"""Which board a machine is, where its kernel parameters are set, and what is peculiar about its memory.

Must not: read (gather does), repeat what checks finds on every machine. Upstream: facts. Downstream: checks.
"""

import enum
from collections.abc import Iterator

from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import Facts


class Board(enum.Enum):
    """The boards whose peculiarities are known."""

    PI = "Raspberry Pi"
    JETSON = "NVIDIA Jetson"
    ROCKCHIP = "Rockchip"
    OTHER = "other"


UNIFIED = "systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"

# NVIDIA's releases of Jetson Linux: JetPack, and whether its Ubuntu boots into cgroup v2 by itself (systemd of 20.04 is
# built for the hybrid hierarchy, that of 22.04 for v2).
JETPACKS = {
    "R32": ("JetPack 4", False),
    "R35": ("JetPack 5", False),
    "R36": ("JetPack 6", True),
    "R38": ("JetPack 7", True),
}

# File -> what to do in it, so that {options} stand on the kernel command line.
PLACES = {
    "/boot/firmware/cmdline.txt": "append {options} to the one line of /boot/firmware/cmdline.txt",
    "/boot/cmdline.txt": "append {options} to the one line of /boot/cmdline.txt",
    "/boot/armbianEnv.txt": "add {options} to extraargs= in /boot/armbianEnv.txt",
    "/boot/orangepiEnv.txt": "add {options} to extraargs= in /boot/orangepiEnv.txt",
    "/boot/extlinux/extlinux.conf": "add {options} to the line APPEND (or append) in /boot/extlinux/extlinux.conf",
    "/boot/firmware/extlinux/extlinux.conf": "add {options} to append in /boot/firmware/extlinux/extlinux.conf",
    "/etc/default/u-boot": 'add {options} to U_BOOT_PARAMETERS in /etc/default/u-boot and run "u-boot-update"',
    "/etc/default/grub": 'add {options} to GRUB_CMDLINE_LINUX in /etc/default/grub and run "update-grub"',
}


def board(facts: Facts) -> Board:
    """By what the device tree says."""
    names = (facts.board or "", *facts.compatible)
    if any(name.startswith(("Raspberry Pi", "raspberrypi,")) for name in names):
        return Board.PI
    if facts.l4t is not None or any(name.startswith("nvidia,tegra") for name in names):
        return Board.JETSON
    if any(name.startswith("rockchip,") for name in names):
        return Board.ROCKCHIP
    return Board.OTHER


def boot_with(facts: Facts, options: str) -> str:
    """The remedy that puts words on the kernel command line of this very machine."""
    for path, sentence in PLACES.items():
        if path in facts.boot_files:
            return f"{sentence.format(options=options)}, then reboot"
    if facts.container is not None:
        return f"have the host booted with {options} on its kernel command line"
    return f"put {options} on the kernel command line (in the boot loader's configuration), then reboot"


def findings(facts: Facts) -> Iterator[Finding]:
    """What is peculiar about this board; nothing for one that is not known."""
    match board(facts):
        case Board.PI:
            yield from _pi(facts)
        case Board.JETSON:
            yield from _jetson(facts)
        case Board.ROCKCHIP:
            yield from _rockchip(facts)
        case Board.OTHER:
            return


def _name(facts: Facts) -> str:
    return facts.board or board(facts).value


def _pi(facts: Facts) -> Iterator[Finding]:
    """The firmware puts cgroup_disable=memory in front of cmdline.txt (raspberrypi/linux #6439, #6980)."""
    options = facts.boot_options
    if not switched_off(options):
        yield Finding("board", Verdict.OK, f"{_name(facts)}: the kernel command line leaves the memory controller on")
        return
    if any(word.startswith("cgroup_enable=") for word in options):
        yield Finding(
            "board",
            Verdict.FAIL,
            f"{_name(facts)}: cgroup_disable=memory comes after cgroup_enable=memory, and the last word counts",
            "move cgroup_enable=memory to the end of the one line of cmdline.txt, remove any cgroup_disable=memory "
            "there, then reboot",
        )
        return
    yield Finding(
        "board",
        Verdict.FAIL,
        f"{_name(facts)}: its firmware boots the kernel with cgroup_disable=memory",
        boot_with(facts, "cgroup_enable=memory"),
    )


def _jetson(facts: Facts) -> Iterator[Finding]:
    jetpack, unified = JETPACKS.get(facts.l4t or "", (None, True))
    release = f" ({facts.l4t}, {jetpack})" if jetpack else ""
    name = _name(facts) + release
    if not unified and facts.memory_v1:
        yield Finding(
            "board",
            Verdict.FAIL,
            f"{name}: this release boots with the memory controller on cgroup v1",
            boot_with(facts, UNIFIED) + "; or move to JetPack 6",
        )
    elif facts.l4t == "R32":
        yield Finding("board", Verdict.WARN, f"{name}: its kernel 4.9 has no PSI and few cgroup files", "use JetPack 6")
    else:
        yield Finding("board", Verdict.OK, f"{name}: nothing in its way to cgroup v2")
    yield _unified_memory(facts, name)


def _unified_memory(facts: Facts, name: str) -> Finding:
    """CPU and GPU share the RAM; what the GPU takes may be charged to no cgroup, by driver release."""
    if "nvmap" in facts.devices:
        return Finding("gpu memory", Verdict.OK, f"{name}: the configuration watches NvMap")
    remedy = 'add [[machine.device]] with name = "gpu" and kind = "nvmap" to the configuration'
    if facts.nvmap is None:
        remedy = "run as root with debugfs mounted (mount -t debugfs none /sys/kernel/debug), then " + remedy
    says = "the GPU takes from the same RAM, and what it takes may be charged to no cgroup"
    return Finding("gpu memory", Verdict.WARN, f"{name}: {says}", remedy)


def _rockchip(facts: Facts) -> Iterator[Finding]:
    vendor = any(word in (facts.release or "") for word in ("rockchip", "rk35", "vendor", "-rk"))
    if vendor and (facts.build_options or {}).get("CONFIG_MEMCG", "y") != "y":
        yield Finding(
            "board",
            Verdict.FAIL,
            f"{_name(facts)}: the vendor's kernel {facts.release} is built without CONFIG_MEMCG",
            "install a kernel with CONFIG_MEMCG=y and CONFIG_PSI=y: Armbian's or the mainline one, or build the "
            "vendor's with them",
        )
    else:
        yield Finding("board", Verdict.OK, f"{_name(facts)}: kernel {facts.release}")
    yield Finding(
        "npu memory",
        Verdict.OK,
        f"{_name(facts)}: what the NPU's driver takes of the RAM is charged to no cgroup; the machine's own marks "
        "(MemAvailable) see it",
    )


def switched_off(options: tuple[str, ...]) -> bool:
    """Whether the kernel command line switches the memory controller off. Read from left to right; the last counts."""
    off = False
    for word in options:
        name, _, value = word.partition("=")
        if "memory" in value.split(","):
            off = name == "cgroup_disable" or (off and name != "cgroup_enable")
    return off
