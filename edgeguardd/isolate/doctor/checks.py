"""Whether a machine is fit for edgeguardd: what was read of it -> findings, each with its remedy.

Must not: read (gather does), print. Upstream: facts, boards, rivals. Downstream: cli.doctor.
A lack that nothing can be guarded with is FAIL; one that makes guarding coarser, slower or riskier is WARN.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from edgeguardd.isolate.doctor import boards, health, rights, rivals
from edgeguardd.isolate.doctor.boards import UNIFIED, Board, boot_with, switched_off
from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import Facts, Swap

# cgroup v2 has the memory controller since 4.5; PSI came with 4.20 (kernel/cgroup, kernel/sched/psi.c).
LEAST_KERNEL = (4, 5)
PSI_KERNEL = (4, 20)
# MemoryHigh= since 231, OOMPolicy= since 243 (systemd's NEWS).
LEAST_SYSTEMD = 231
GOOD_SYSTEMD = 243

# A file of a cgroup that newer kernels have -> since when, and what is worse without it.
FEATURES = (
    ("memory.events.local", "5.2", "an ancestor's own limit is not told from those below it"),
    ("cgroup.freeze", "5.2", "the last resort cannot freeze"),
    ("cgroup.kill", "5.14", "the last resort kills process by process"),
    ("memory.reclaim", "5.19", "the last resort cannot reclaim"),
)
SLOW_SWAP = ("/dev/mmcblk", "/dev/sd")
NEARLY_FULL_RATIO = 0.9


def examine(facts: Facts) -> list[Finding]:
    """Every check, in the order in which things stand on each other."""
    checks: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
        _kernel,
        _cgroup,
        _controller,
        _delegation,
        _features,
        _psi,
        _swap,
        _oom_killer,
        _systemd,
        rights.findings,
        boards.findings,
        rivals.findings,
        health.findings,
    )
    return [finding for check in checks for finding in check(facts)]


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict of all."""
    return max((finding.verdict for finding in findings), key=list(Verdict).index, default=Verdict.OK)


# The kernel and its cgroups


def _kernel(facts: Facts) -> Iterator[Finding]:
    found = re.match(r"(\d{1,6})\.(\d{1,6})", facts.release or "")
    if found is None:
        yield Finding("kernel", Verdict.WARN, "its release is not known", "mount procfs on /proc")
        return
    version = (int(found[1]), int(found[2]))
    if version < LEAST_KERNEL:
        remedy = "use a kernel from 5.14 on"
        yield Finding("kernel", Verdict.FAIL, f"Linux {facts.release} has no cgroup v2 memory controller", remedy)
    elif version < PSI_KERNEL:
        says = f"Linux {facts.release} works, but knows neither PSI nor memory.events.local"
        yield Finding("kernel", Verdict.WARN, says, "use a kernel from 5.14 on")
    else:
        yield Finding("kernel", Verdict.OK, f"Linux {facts.release}")


def _is_plain(facts: Facts) -> bool:
    """Whether the configured tree is one of plain files, as the practice server makes: then no kernel is behind it."""
    tree = facts.tree
    return tree is not None and not any(f"{tree}/".startswith(f"{mount.rstrip('/')}/") for mount in facts.cgroup2)


def _cgroup(facts: Facts) -> Iterator[Finding]:
    unify = boot_with(facts, UNIFIED)
    if _is_plain(facts):
        says = (
            f"{facts.tree} (cgroup_root) is no cgroup v2 tree: good to practise on, and nothing real is guarded there"
        )
        yield Finding("cgroup mode", Verdict.FAIL, says, "take cgroup_root out of the configuration, and ask again")
    elif facts.memory_v1:
        mode = "hybrid, the memory controller on cgroup v1" if facts.cgroup2 else "cgroup v1"
        says = f"this machine runs {mode} ({facts.memory_v1[0]}), which tells nobody about memory.events"
        yield Finding("cgroup mode", Verdict.FAIL, says, unify)
    elif facts.cgroup2:
        writable = "" if facts.tree_writable else ", read-only here"
        yield Finding("cgroup mode", Verdict.OK, f"cgroup v2 on {facts.tree or facts.cgroup2[0]}{writable}")
    elif facts.systemd:
        yield Finding("cgroup mode", Verdict.FAIL, "no cgroup tree is mounted", unify)
    else:
        remedy = "mount it: mount -t cgroup2 none /sys/fs/cgroup (OpenRC: rc_cgroup_mode=unified in /etc/rc.conf)"
        yield Finding("cgroup mode", Verdict.FAIL, "no cgroup v2 tree is mounted", remedy)


def _controller(facts: Facts) -> Iterator[Finding]:
    if _is_plain(facts):
        return
    if facts.controllers is not None and "memory" in facts.controllers:
        yield Finding("memory controller", Verdict.OK, f"{facts.tree} has {', '.join(facts.controllers)}")
        return
    says, remedy = _why_no_controller(facts)
    yield Finding("memory controller", Verdict.FAIL, says, remedy)


def _why_no_controller(facts: Facts) -> tuple[str, str]:  # noqa: PLR0911  one row a reason
    """The first reason that holds, and what to do about it."""
    if switched_off(facts.boot_options) or facts.memory_on is False:
        says = "the kernel has the memory controller, and it is switched off at boot"
        if boards.board(facts) is Board.PI:
            return says, boot_with(facts, "cgroup_enable=memory")
        return says, "remove cgroup_disable=memory from the kernel command line, then reboot" + _off_place(facts)
    if facts.memory_v1:
        says = "cgroup v1 has taken the memory controller, and it can be in one tree only"
        return says, boot_with(facts, UNIFIED)
    if (facts.build_options or {"CONFIG_MEMCG": "y"}).get("CONFIG_MEMCG") != "y":
        return f"the kernel {facts.release} is built without CONFIG_MEMCG", "install a kernel with CONFIG_MEMCG=y"
    if facts.container is not None:
        says = "this container was given no memory controller"
        return says, "have the controller delegated to it, run the daemon on the host, or bind-mount /sys/fs/cgroup"
    if not facts.cgroup2:
        return "there is no cgroup v2 tree that could have it", "see cgroup mode"
    says = f"{facts.tree or facts.cgroup2[0]} has no memory controller"
    return says, "install a kernel with CONFIG_MEMCG=y (zgrep MEMCG /proc/config.gz tells)"


def _off_place(facts: Facts) -> str:
    return f" (it is set in {facts.boot_files[0]}, or by the firmware)" if facts.boot_files else ""


def _delegation(facts: Facts) -> Iterator[Finding]:
    """Whether cgroups below the root have memory files, so that there is something to guard."""
    if _is_plain(facts) or facts.controllers is None or "memory" not in facts.controllers:
        return
    if facts.enabled is not None and "memory" in facts.enabled:
        example = f", such as {facts.sample}" if facts.sample else ""
        yield Finding("delegation", Verdict.OK, f"cgroups below {facts.tree} have memory files{example}")
        return
    remedy = f"echo +memory > {facts.tree}/cgroup.subtree_control"
    if facts.systemd:
        remedy = (
            "set DefaultMemoryAccounting=yes in [Manager] of /etc/systemd/system.conf, then systemctl daemon-reexec"
        )
    says = f"no cgroup below {facts.tree} has memory files, so nothing can be guarded"
    yield Finding("delegation", Verdict.FAIL, says, remedy)


def _features(facts: Facts) -> Iterator[Finding]:
    if not facts.sample_files:
        return
    missing = [(name, since, worse) for name, since, worse in FEATURES if name not in facts.sample_files]
    for name, since, worse in missing:
        yield Finding("kernel features", Verdict.WARN, f"{name} is missing: {worse}", f"use a kernel from {since} on")
    if (facts.build_options or {"CONFIG_PROC_EVENTS": "y"}).get("CONFIG_PROC_EVENTS") != "y":
        says = "CONFIG_PROC_EVENTS is missing: new processes are found by looking, not at once"
        yield Finding("kernel features", Verdict.WARN, says, "use a kernel with CONFIG_PROC_EVENTS=y")
    elif not missing:
        yield Finding("kernel features", Verdict.OK, ", ".join(name for name, _, _ in FEATURES))
    if facts.swaps and "memory.swap.max" not in facts.sample_files:
        says = "there is swap, and cgroups have no memory.swap.max: a guarded server swaps without a limit"
        remedy = boot_with(facts, "swapaccount=1") + " (kernels built without CONFIG_MEMCG_SWAP need a new kernel)"
        yield Finding("swap accounting", Verdict.WARN, says, remedy)


def _psi(facts: Facts) -> Iterator[Finding]:
    if facts.psi == "on":
        yield Finding("PSI", Verdict.OK, "the kernel tells how long tasks wait for memory")
    elif facts.psi == "off":
        says = "pressure stall information is built in and switched off; levels come from bytes and growth alone"
        yield Finding("PSI", Verdict.WARN, says, boot_with(facts, "psi=1"))
    elif (facts.build_options or {}).get("CONFIG_PSI") == "y":
        says = "there is no /proc/pressure/memory; levels come from bytes and growth alone"
        yield Finding("PSI", Verdict.WARN, says, boot_with(facts, "psi=1"))
    else:
        says = "this kernel has no pressure stall information; levels come from bytes and growth alone"
        yield Finding("PSI", Verdict.WARN, says, "use a kernel with CONFIG_PSI=y, if PSI is wanted")


# Swap, and who kills


def _swap(facts: Facts) -> Iterator[Finding]:
    if facts.swaps is None:
        yield Finding("swap", Verdict.WARN, "/proc/swaps cannot be read", "mount procfs on /proc")
        return
    if not facts.swaps:
        says = "none: nothing blurs the limits, and memory that is not given back in time is killed for at once"
        yield Finding("swap", Verdict.OK, says)
        return
    for swap in facts.swaps:
        yield _one_swap(swap, facts)
    size_kb, used_kb = sum(swap.size_kb for swap in facts.swaps), sum(swap.used_kb for swap in facts.swaps)
    if size_kb and used_kb >= NEARLY_FULL_RATIO * size_kb:
        says = f"{used_kb * 100 // size_kb}% of it is in use"
        yield Finding(
            "swap", Verdict.WARN, says, "find who uses it (smem, or VmSwap in /proc/PID/status), or make more"
        )


def _one_swap(swap: Swap, facts: Facts) -> Finding:
    size = f"{swap.name}, {swap.size_kb // 1024} MiB"
    if swap.name.startswith("/dev/zram"):
        if facts.memory_kb and swap.size_kb > facts.memory_kb:
            says = f"{size}, is larger than the RAM that it compresses into; a server can fill both"
            return Finding(
                "zram", Verdict.WARN, says, "make it half of the RAM (zram-size = ram / 2 in zram-generator.conf)"
            )
        return Finding("zram", Verdict.OK, f"{size}: swapping takes RAM itself, and is counted with the machine's swap")
    slow = swap.name.startswith(SLOW_SWAP) or (swap.kind == "file" and boards.board(facts) is not Board.OTHER)
    if slow:
        says = (
            f"{size}: on a disk or card of this kind a swapping server stands still for minutes, and a card wears out"
        )
        remedy = (
            f"swapoff {swap.name}, remove it from /etc/fstab (Raspberry Pi OS: systemctl disable --now "
            "dphys-swapfile), and use zram instead: apt-get install systemd-zram-generator"
        )
        return Finding("swap", Verdict.WARN, says, remedy)
    return Finding("swap", Verdict.OK, f"{size}; MemorySwapMax= bounds what a guarded server may take of it")


def _oom_killer(facts: Facts) -> Iterator[Finding]:
    found = False
    for name, bad, says in (
        ("vm/panic_on_oom", (1, 2), "an out-of-memory panics the machine instead of killing one process"),
        ("vm/oom_kill_allocating_task", (1,), "the kernel kills whoever asks next, whatever oom_score_adj says"),
        ("vm/overcommit_memory", (2,), "servers that reserve more than they use fail to start or to allocate"),
    ):
        value = facts.sysctls.get(name)
        if value in bad:
            found = True
            key = name.replace("/", ".")
            remedy = f"sysctl -w {key}=0, and {key} = 0 in a file of /etc/sysctl.d"
            yield Finding("oom killer", Verdict.WARN, f"{key} is {value}: {says}", remedy)
    if not found and facts.sysctls:
        yield Finding("oom killer", Verdict.OK, "kills by oom_score, no panic, no strict overcommit")


def _systemd(facts: Facts) -> Iterator[Finding]:
    if facts.systemd == 0:
        says = "does not run here: name targets by cgroup path, and let edgeguardctl provision make the cgroups itself"
        yield Finding("systemd", Verdict.OK, says)
    elif facts.systemd is None:
        yield Finding("systemd", Verdict.WARN, "runs here; its version is not known", "see: systemctl --version")
    elif facts.systemd < LEAST_SYSTEMD:
        says = f"{facts.systemd} knows no MemoryHigh= and ignores it in units"
        yield Finding("systemd", Verdict.FAIL, says, f"use a system with systemd from {GOOD_SYSTEMD} on")
    elif facts.systemd < GOOD_SYSTEMD:
        says = f"{facts.systemd} ignores OOMPolicy= in units"
        yield Finding("systemd", Verdict.WARN, says, f"use a system with systemd from {GOOD_SYSTEMD} on")
    else:
        yield Finding("systemd", Verdict.OK, str(facts.systemd))
