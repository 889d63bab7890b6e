"""What doctor says of machines of many kinds: from their files to each verdict and remedy."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from edgeguardd.isolate.doctor import checks, gather
from edgeguardd.isolate.doctor.boards import PLACES, boot_with, switched_off
from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import Attempt, DaemonFacts, Facts, Swap
from tests.support import machines
from tests.support.machines import DEBIAN_12, MACHINES, machine

GRUB = 'in /etc/default/grub and run "update-grub", then reboot'
OLD_KERNEL = ("kernel features", "WARN", "use a kernel from 5.19 on")
NVMAP = ("gpu memory", "WARN", 'add [[machine.device]] with name = "gpu" and kind = "nvmap"')
UNIFY = "systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"

# Machine -> all that is not OK: the check, the verdict, and words of the remedy.
EXPECTED: dict[str, list[tuple[str, str, str]]] = {
    "debian 12": [],
    "ubuntu 22.04 with systemd-oomd": [
        OLD_KERNEL,
        ("rival daemons", "WARN", "ManagedOOMPreference=avoid"),
    ],
    "raspberry pi os": [
        ("memory controller", "FAIL", "append cgroup_enable=memory to the one line of /boot/firmware/cmdline.txt"),
        ("PSI", "WARN", "append psi=1 to the one line of /boot/firmware/cmdline.txt, then reboot"),
        ("swap", "WARN", "swapoff /var/swap"),
        ("board", "FAIL", "append cgroup_enable=memory to the one line of /boot/firmware/cmdline.txt, then reboot"),
    ],
    "raspberry pi, enabled too early": [
        ("memory controller", "FAIL", "cgroup_enable=memory"),
        ("board", "FAIL", "move cgroup_enable=memory to the end"),
    ],
    "raspberry pi, enabled": [],
    "jetpack 5": [
        ("cgroup mode", "FAIL", f"add {UNIFY} to the line APPEND (or append) in /boot/extlinux/extlinux.conf"),
        ("memory controller", "FAIL", UNIFY),
        ("PSI", "WARN", "CONFIG_PSI=y"),
        ("board", "FAIL", "or move to JetPack 6"),
        ("gpu memory", "WARN", "mount -t debugfs none /sys/kernel/debug"),
    ],
    "jetpack 6": [OLD_KERNEL, NVMAP],
    "rk3588, vendor kernel without memcg": [
        ("memory controller", "FAIL", "install a kernel with CONFIG_MEMCG=y"),
        ("PSI", "WARN", "CONFIG_PSI=y"),
        ("board", "FAIL", "Armbian's or the mainline one"),
    ],
    "rk3588, psi off": [
        ("PSI", "WARN", "add psi=1 to extraargs= in /boot/armbianEnv.txt, then reboot"),
        ("zram", "WARN", "zram-size = ram / 2"),
    ],
    "container, controller not delegated": [
        ("memory controller", "FAIL", "have the controller delegated"),
    ],
    "nothing mounted": [
        ("cgroup mode", "FAIL", "mount -t cgroup2 none /sys/fs/cgroup"),
        ("memory controller", "FAIL", "see cgroup mode"),
    ],
    "memory not enabled at the root": [
        ("delegation", "FAIL", "echo +memory > /sys/fs/cgroup/cgroup.subtree_control"),
    ],
    "very old": [
        ("kernel", "FAIL", "use a kernel from 5.14 on"),
        ("cgroup mode", "FAIL", UNIFY),
        ("memory controller", "FAIL", "see cgroup mode"),
        ("PSI", "WARN", "CONFIG_PSI=y"),
        ("systemd", "FAIL", "use a system with systemd from 243 on"),
    ],
    "killers everywhere": [
        ("swap", "WARN", "swapoff /dev/mmcblk0p3"),
        ("swap", "WARN", "find who uses it"),
        ("oom killer", "WARN", "sysctl -w vm.panic_on_oom=0"),
        ("oom killer", "WARN", "sysctl -w vm.oom_kill_allocating_task=0"),
        ("oom killer", "WARN", "sysctl -w vm.overcommit_memory=0"),
        ("inotify", "WARN", "fs.inotify.max_user_instances=128"),
        ("rival daemons", "WARN", "EARLYOOM_ARGS of /etc/default/earlyoom"),
        ("rival daemons", "WARN", "/etc/nohang/nohang.conf"),
        ("rival daemons", "WARN", "/etc/oomd/oomd.json"),
        ("rival daemons", "WARN", "oom_score_adj"),
    ],
}


def not_ok(findings: list[Finding]) -> list[tuple[str, str, str]]:
    """What is to be done, without the sentences about what is wrong."""
    return [(f.check, str(f.verdict), f.remedy or "") for f in findings if f.verdict is not Verdict.OK]


@pytest.mark.parametrize("name", MACHINES)
def test_each_kind_of_machine_gets_its_verdicts_and_its_own_remedies(name: str, tmp_path: Path) -> None:
    """Nothing is missed, nothing else is complained about, and each complaint says what to do on this very machine."""
    findings = checks.examine(gather.gather(machines.write(MACHINES[name], tmp_path)))
    found, expected = not_ok(findings), EXPECTED[name]
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for (_, _, remedy), (check, _, words) in zip(found, expected, strict=True):
        assert words in remedy, check
    assert all(finding.says for finding in findings)


def test_every_machine_is_expected() -> None:
    """A machine without expectations would be no test."""
    assert MACHINES.keys() == EXPECTED.keys()


def test_only_what_decides_about_memory_is_kept_of_the_command_line(tmp_path: Path) -> None:
    """It may hold secrets, and `--json` is pasted into reports."""
    facts = gather.gather(machines.write(MACHINES["raspberry pi os"], tmp_path))
    assert facts.boot_options == ("cgroup_disable=memory",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("proc/self/limits", "Max open files\n"),
        ("proc/self/limits", "Max open files x unlimited\n"),
        ("proc/swaps", machines.SWAPS + "/a file " + "9" * 5000 + " 0 0\n/b\n"),
        ("proc/self/status", "Uid:\nCapEff:\n"),
        ("proc/self/status", "Uid: 0 " + "9" * 5000 + "\nCapEff: x\n"),
        ("proc/sys/kernel/osrelease", "9" * 5000 + ".1"),
        ("proc/sys/vm/panic_on_oom", "9" * 5000),
        ("etc/nv_tegra_release", "# R"),
        ("etc/nv_tegra_release/a", "a directory"),
        ("proc/config.gz", gzip.compress(b"CONFIG_PSI=y\n" * 1_000_000)),
    ],
)
def test_figures_that_are_none_are_unknown(name: str, content: str | bytes, tmp_path: Path) -> None:
    """Numbers without end, lines without words, archives that unpack to much."""
    tree: dict[str, str | bytes] = {**DEBIAN_12, name: content}
    assert checks.examine(gather.gather(machines.write(tree, tmp_path)))


def test_a_kernel_without_sysctl_still_says_what_it_is(tmp_path: Path) -> None:
    """/proc/version has it as well."""
    root = machines.write(DEBIAN_12 | {"proc/version": "Linux version 6.1.90 (gcc 12.2.0) #2\n"}, tmp_path)
    (tmp_path / "proc/sys/kernel/osrelease").unlink()
    assert gather.gather(root).release == "6.1.90"


def test_the_kernels_own_configuration_is_preferred(tmp_path: Path) -> None:
    """/proc/config.gz is of the running kernel; the file in /boot may be of another build."""
    tree = machine("6.1.0") | {"boot/config-6.1.0": "CONFIG_PSI=n\n"}
    root = machines.write(tree, tmp_path)
    assert gather.gather(root).build_options == {"CONFIG_PSI": "n"}
    machines.write({"proc/config.gz": gzip.compress(b"# x\nCONFIG_PSI=y\nCONFIG_NET=y\n")}, tmp_path)
    assert gather.gather(root).build_options == {"CONFIG_PSI": "y"}


def test_where_nothing_can_be_read_nothing_is_claimed(tmp_path: Path) -> None:
    """An empty directory is a machine of which nothing is known: no crash, and no OK for what was not seen."""
    facts = gather.gather(str(tmp_path))
    verdicts = {finding.check: finding.verdict for finding in checks.examine(facts)}
    assert verdicts["kernel"] is Verdict.WARN
    assert verdicts["cgroup mode"] is Verdict.FAIL
    assert verdicts["swap"] is Verdict.WARN
    assert verdicts["rival daemons"] is Verdict.WARN
    assert "oom killer" not in verdicts


FILES = sorted({name for tree in MACHINES.values() for name in tree if not name.endswith("/.keep")})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    damages=st.dictionaries(st.sampled_from(FILES), st.tuples(st.integers(0, 80), st.binary(max_size=60)), max_size=6)
)
def test_no_bytes_in_any_file_crash_it(damages: dict[str, tuple[int, bytes]], tmp_path: Path) -> None:
    """Kernels, firmware and copies of machines hold what they hold: cut anywhere, and then anything."""
    changes = {name: DEBIAN_12.get(name, "").encode()[:kept] + noise for name, (kept, noise) in damages.items()}
    root = machines.write({**DEBIAN_12, **changes}, tmp_path)
    for finding in checks.examine(gather.gather(root)):
        assert finding.says
    for name in changes:
        (tmp_path / name).unlink()


GOOD = {
    "release": "6.1.0",
    "cgroup2": ("/sys/fs/cgroup",),
    "tree": "/sys/fs/cgroup",
    "controllers": ("memory",),
    "enabled": ("memory",),
    "psi": "on",
    "swaps": (),
    "systemd": 252,
    "running": (),
    "user": 0,
    "capabilities": frozenset(range(41)),
    "sysctls": {"vm/panic_on_oom": 0},
}
FINE = DaemonFacts("http://127.0.0.1:9464/", version="1.0", healthy=True, ready=True, socket="/run/s")


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        (
            {"sample_files": frozenset(machines.NEW_FILES), "build_options": {"CONFIG_MEMCG": "y"}},
            "kernel features",
            "WARN",
            "CONFIG_PROC_EVENTS=y",
        ),
        (
            {"read_events": Attempt("/e", "permission denied"), "user": 1000},
            "may read memory.events",
            "FAIL",
            "as root",
        ),
        ({"read_events": Attempt("/e")}, "may read memory.events", "OK", ""),
        ({"write_high": Attempt("/h", "read-only file system")}, "may write memory.high", "WARN", "ReadWritePaths="),
        ({"write_high": Attempt("/h", "permission denied")}, "may write memory.high", "WARN", "without a sandbox"),
        (
            {"kernel_log": Attempt("/dev/kmsg", "operation not permitted")},
            "may read the kernel log",
            "WARN",
            "CAP_SYSLOG",
        ),
        (
            {"state_directory": Attempt("/s", "no")},
            "may write the state directory",
            "WARN",
            "StateDirectory=edgeguardd",
        ),
        ({"score": Attempt("/p", "permission denied")}, "may write oom_score_adj", "WARN", "without a sandbox"),
        ({"capabilities": frozenset({1})}, "may lower oom_score_adj", "WARN", "CAP_SYS_RESOURCE"),
        ({"open_files": 256}, "open files", "WARN", "LimitNOFILE="),
        ({"hides_processes": True, "user": 1000}, "rival daemons", "OK", ""),
        ({"systemd": 240}, "systemd", "WARN", "from 243 on"),
        ({"systemd": None}, "systemd", "WARN", "systemctl --version"),
        ({"release": "4.14.0"}, "kernel", "WARN", "from 5.14 on"),
        ({"swaps": (Swap("/dev/sda2", "partition", 9, 0),)}, "swap", "WARN", "swapoff /dev/sda2"),
        ({"swaps": (Swap("/dev/nvme0n1p3", "partition", 9, 0),)}, "swap", "OK", ""),
        ({"swaps": (Swap("/swapfile", "file", 9, 0),)}, "swap", "OK", ""),
        (
            {"swaps": (Swap("/swapfile", "file", 9, 0),), "sample": "/a", "sample_files": frozenset({"memory.events"})},
            "swap accounting",
            "WARN",
            "swapaccount=1",
        ),
        (
            {"boot_options": ("cgroup_disable=memory",), "controllers": ()},
            "memory controller",
            "FAIL",
            "remove cgroup_d",
        ),
        ({"memory_on": False, "controllers": ()}, "memory controller", "FAIL", "remove cgroup_disable=memory"),
        ({"l4t": "R32", "systemd": 237}, "board", "WARN", "use JetPack 6"),
        ({"l4t": "R36", "devices": ("nvmap",)}, "gpu memory", "OK", ""),
        ({"enabled": ()}, "delegation", "FAIL", "DefaultMemoryAccounting=yes"),
        ({"tree": "/srv/practice", "controllers": (), "enabled": ()}, "cgroup mode", "FAIL", "cgroup_root"),
        ({"daemon": FINE}, "daemon health", "OK", ""),
        ({"daemon": FINE}, "daemon socket", "OK", ""),
        ({"daemon": DaemonFacts(off=True)}, "daemon health", "OK", ""),
        ({"daemon": structs.replace(FINE, healthy=False, health_text="old")}, "daemon health", "FAIL", "journalctl"),
        ({"daemon": structs.replace(FINE, ready=False)}, "daemon health", "WARN", "wait"),
        ({"daemon": DaemonFacts(http_fault="connection refused")}, "daemon health", "WARN", "start it"),
        ({"daemon": DaemonFacts(socket_fault="permission denied")}, "daemon socket", "WARN", "[socket] group"),
        ({"daemon": DaemonFacts(socket_fault="no such file")}, "daemon socket", "WARN", "[socket] path"),
    ],
)
def test_each_fact_has_its_verdict(changes: dict[str, object], check: str, verdict: str, words: str) -> None:
    """One fact at a time, on a machine that is fine otherwise."""
    found = [f for f in checks.examine(Facts(**{**GOOD, **changes})) if f.check == check]  # type: ignore[arg-type]
    assert [str(finding.verdict) for finding in found] == [verdict]
    assert words in (found[0].remedy or "")
    assert (found[0].remedy is None) == (verdict == "OK")


def test_a_practice_tree_is_said_once() -> None:
    """Nothing else follows from what is not in it."""
    found = checks.examine(Facts(**{**GOOD, "tree": "/srv/practice", "controllers": None}))  # type: ignore[arg-type]
    assert [finding.check for finding in found if finding.verdict is Verdict.FAIL] == ["cgroup mode"]


def test_a_machine_that_is_fine_is_fine() -> None:
    """The table above changes one fact of it."""
    findings = checks.examine(Facts(**GOOD))  # type: ignore[arg-type]
    assert not_ok(findings) == []
    assert checks.worst(findings) is Verdict.OK


def test_the_worst_verdict_is_fail() -> None:
    """FAIL over WARN over OK."""
    rows = [Finding("a", verdict, "x") for verdict in (Verdict.WARN, Verdict.OK, Verdict.FAIL)]
    assert [checks.worst(rows[:n]) for n in range(4)] == [Verdict.OK, Verdict.WARN, Verdict.WARN, Verdict.FAIL]


@pytest.mark.parametrize("place", PLACES)
def test_boot_options_are_told_with_the_file_of_this_machine(place: str) -> None:
    """The file that there is, and the words; after it a reboot."""
    told = boot_with(Facts(boot_files=(place,)), "psi=1")
    assert place in told
    assert "psi=1" in told
    assert told.endswith(", then reboot")


@pytest.mark.parametrize(
    ("options", "off"),
    [
        ((), False),
        (("cgroup_disable=memory",), True),
        (("cgroup_disable=rdma,memory",), True),
        (("cgroup_disable=rdma",), False),
        (("cgroup_disable=memory", "cgroup_enable=memory"), False),
        (("cgroup_enable=memory", "cgroup_disable=memory"), True),
        (("cgroup_disable=memory", "cgroup_no_v1=memory"), True),
    ],
)
def test_the_last_word_about_the_controller_counts(options: tuple[str, ...], off: bool) -> None:
    """As the kernel reads its command line, from left to right."""
    assert switched_off(options) is off
