"""Machines of many kinds as little trees of the files that `edgeguardctl doctor` reads.

Must not: be right in more than what is read of them. Upstream: doctor's tests. Sources: boot messages and listings that
people have posted of such machines, cut to what matters (raspberrypi/linux #6439 and #6980 for the Pi).
"""

import os
from collections.abc import Mapping
from pathlib import Path

V2 = "24 20 0:21 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V2_READ_ONLY = "24 20 0:21 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "24 20 0:21 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    "30 20 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
)
CGROUPS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t70\t1\nmemory\t0\t70\t{}\npids\t0\t70\t1\n"
PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
NEW_FILES = ("memory.events.local", "cgroup.freeze", "cgroup.kill", "memory.reclaim", "memory.swap.max")
OLD_FILES = ("memory.events.local", "cgroup.freeze", "memory.swap.max")
ROOT_CAPABILITIES = "000001ffffffffff"
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"


def machine(
    release: str,
    *,
    mounts: str = V2,
    controllers: str = "cpu memory pids",
    enabled: str = "cpu memory pids",
    files: tuple[str, ...] = NEW_FILES,
    systemd: int | None = 252,
    psi: str | None = PSI,
    swaps: str = "",
    processes: tuple[str, ...] = ("systemd",),
    more: Mapping[str, str] = {},
) -> dict[str, str]:
    """Path -> content. `more`: further files, or other contents of those that each machine has."""
    tree = {
        "proc/sys/kernel/osrelease": release + "\n",
        "proc/cmdline": "console=tty1 root=/dev/x token=secret\n",
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "0::/system.slice/ssh.service\n",
        "proc/self/status": f"Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t{ROOT_CAPABILITIES}\n",
        "proc/self/limits": "Limit Soft Hard Units\nMax open files            1024         524288         files\n",
        "proc/self/oom_score_adj": "0\n",
        "proc/cgroups": CGROUPS.format(1),
        "proc/meminfo": "MemTotal:        8000000 kB\nMemFree:         4000000 kB\n",
        "proc/swaps": SWAPS + swaps,
        "proc/sys/vm/panic_on_oom": "0\n",
        "proc/sys/vm/oom_kill_allocating_task": "0\n",
        "proc/sys/vm/overcommit_memory": "0\n",
        "proc/sys/fs/inotify/max_user_instances": "128\n",
        "dev/kmsg": "",
        "var/lib/edgeguardd/.keep": "",
        **{f"proc/{pid}/comm": name[:15] + "\n" for pid, name in enumerate(processes, 1)},
    }
    if psi is not None:
        tree["proc/pressure/memory"] = psi
    if systemd is not None:
        tree["run/systemd/system/.keep"] = ""
        tree[f"usr/lib/systemd/libsystemd-shared-{systemd}.so"] = ""
    if "unified" not in mounts:
        tree["sys/fs/cgroup/cgroup.controllers"] = controllers + "\n"
        tree["sys/fs/cgroup/cgroup.subtree_control"] = enabled + "\n"
        if "memory" in enabled:
            cgroup = "sys/fs/cgroup/system.slice/ssh.service"
            tree |= {f"{cgroup}/{name}": "0\n" for name in ("memory.events", "memory.high", *files)}
    else:
        tree["sys/fs/cgroup/unified/cgroup.controllers"] = "\n"
    return tree | dict(more)


def device_tree(model: str, *compatible: str) -> dict[str, str]:
    """What a board's firmware says it is."""
    return {"proc/device-tree/model": model + "\0", "proc/device-tree/compatible": "\0".join(compatible) + "\0"}


PI_5 = device_tree("Raspberry Pi 5 Model B Rev 1.0", "raspberrypi,5-model-b", "brcm,bcm2712")
ORIN = device_tree("NVIDIA Jetson AGX Orin Developer Kit", "nvidia,p3737-0000+p3701-0000", "nvidia,tegra234")
ROCK_5B = device_tree("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588")
PI_BOOT = {"boot/firmware/cmdline.txt": "console=tty1\n"}
PI_OFF = "reboot=w coherent_pool=1M cgroup_disable=memory numa=fake=8 console=tty1 root=PARTUUID=1-02{}\n"
JETSON_BOOT = {"boot/extlinux/extlinux.conf": "LABEL primary\n      APPEND ${cbootargs}\n"}

DEBIAN_12 = machine("6.1.0-18-amd64", more={"etc/default/grub": "GRUB_CMDLINE_LINUX=\n"})

# Name -> files.
MACHINES: dict[str, dict[str, str]] = {
    "debian 12": DEBIAN_12,
    "ubuntu 22.04 with systemd-oomd": machine(
        "5.15.0-91-generic", systemd=249, files=(*OLD_FILES, "cgroup.kill"), processes=("systemd", "systemd-oomd")
    ),
    "raspberry pi os": machine(
        "6.12.34+rpt-rpi-2712",
        controllers="cpuset cpu io pids",
        enabled="cpuset cpu io pids",
        psi=None,
        swaps="/var/swap file 524272 0 -2\n",
        more={
            "proc/cmdline": PI_OFF.format(""),
            "proc/cgroups": CGROUPS.replace("memory\t0\t70\t{}\n", ""),
            "proc/config.gz": "not gzip",
            "boot/config-6.12.34+rpt-rpi-2712": "CONFIG_PSI=y\nCONFIG_MEMCG=y\nCONFIG_PROC_EVENTS=y\n",
        },
    )
    | PI_5
    | PI_BOOT,
    "raspberry pi, enabled too early": machine(
        "6.12.34+rpt-rpi-2712",
        controllers="cpu pids",
        enabled="cpu pids",
        more={"proc/cmdline": "cgroup_enable=memory console=tty1 cgroup_disable=memory\n"},
    )
    | PI_5
    | PI_BOOT,
    "raspberry pi, enabled": machine(
        "6.12.34+rpt-rpi-2712", more={"proc/cmdline": PI_OFF.format(" cgroup_enable=memory psi=1")}
    )
    | PI_5
    | PI_BOOT,
    "jetpack 5": machine(
        "5.10.104-tegra",
        mounts=HYBRID,
        systemd=245,
        psi=None,
        swaps="/dev/zram0 partition 1000000 0 5\n",
        more={"etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref\n"},
    )
    | ORIN
    | JETSON_BOOT,
    "jetpack 6": machine(
        "5.15.136-tegra",
        systemd=249,
        files=(*OLD_FILES, "cgroup.kill"),
        more={
            "etc/nv_tegra_release": "# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic\n",
            "sys/kernel/debug/nvmap/iovmm/clients": "CLIENT PROCESS PID SIZE\ntotal 805068K\n",
        },
    )
    | ORIN
    | JETSON_BOOT,
    "rk3588, vendor kernel without memcg": machine(
        "5.10.110-rockchip-rk3588",
        controllers="cpu pids",
        enabled="cpu pids",
        psi=None,
        more={
            "proc/cgroups": CGROUPS.replace("memory\t0\t70\t{}\n", ""),
            "boot/config-5.10.110-rockchip-rk3588": "# CONFIG_MEMCG is not set\nCONFIG_ZRAM=m\n",
        },
    )
    | ROCK_5B
    | {"boot/armbianEnv.txt": "extraargs=\n"},
    "rk3588, psi off": machine("6.1.75-vendor-rk35xx", psi="", swaps="/dev/zram0 partition 9000000 100 5\n")
    | ROCK_5B
    | {"boot/armbianEnv.txt": "extraargs=\n"},
    "container, controller not delegated": machine(
        "6.1.0-18-amd64", mounts=V2_READ_ONLY, controllers="", enabled="", systemd=None, more={"run/.containerenv": ""}
    ),
    "nothing mounted": machine("6.6.31-0-lts", mounts="", systemd=None),
    "memory not enabled at the root": machine("6.6.31-0-lts", enabled="cpu pids", systemd=None),
    "very old": machine("4.4.38-tegra", mounts="", systemd=229, psi=None),
    "killers everywhere": machine(
        "6.1.0-18-amd64",
        swaps="/dev/mmcblk0p3 partition 1000000 950000 -2\n",
        processes=("systemd", "earlyoom", "nohang", "oomd", "lmkd"),
        more={
            "proc/sys/vm/panic_on_oom": "1\n",
            "proc/sys/vm/oom_kill_allocating_task": "1\n",
            "proc/sys/vm/overcommit_memory": "2\n",
            "proc/sys/fs/inotify/max_user_instances": "2\n",
        },
    ),
}


def write(tree: Mapping[str, str | bytes], root: Path) -> str:
    """Put a machine's files below a directory; returns it."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        assert os.path.exists(path)
    return str(root)
