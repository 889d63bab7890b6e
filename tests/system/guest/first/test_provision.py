"""`edgeguardctl provision` under a real systemd: refuse, apply, prove, repeat, force. The next boot looks on."""

import os
import subprocess

import pytest

from tests.system.guest import box

MIB = 1 << 20
CONFIG = "/etc/edgeguardd/provision-test.toml"
UNIT = "eg-llama.service"
SERVICE = f"/etc/systemd/system/{UNIT}"
DROP_IN = f"{SERVICE}.d/zz-edgeguardd-provision.conf"
TEXT = """
[provision]
backend = "systemd"

[[provision.slice]]
name = "eg-inference.slice"
memory_high = "60%"
memory_max = "1400M"
cpu_weight = 50

[[provision.slice]]
name = "eg.slice"
memory_max = "75%"

[[provision.service]]
name = "eg-llama.service"
slice = "eg-inference.slice"
memory_high = "300M"
memory_max = "400M"
swap_max = 0
oom_group = true
cpu_max = "150%"
oom_score_adjust = 500
"""
# 60 MiB that cannot be dropped.
HOLD = "import time; held = bytearray(b'x') * (60 << 20); time.sleep(1000000)"


def run(*argv: str) -> str:
    """Standard output of a command that has to work."""
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def provision(text: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """With this configuration."""
    with open(CONFIG, "w") as file:
        file.write(text)
    argv = ["edgeguardctl", "provision", "--config", CONFIG, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    print(done.stdout, done.stderr)
    return done


def show(key: str, unit: str = UNIT) -> str:
    """One property."""
    return run("systemctl", "show", f"--property={key}", "--value", unit).strip()


def kernel(name: str, unit: str = UNIT) -> str:
    """A file of the unit's cgroup."""
    with open(f"/sys/fs/cgroup{show('ControlGroup', unit)}/{name}") as file:
        return file.read().strip()


@pytest.fixture(scope="module", autouse=True)
def service() -> None:
    """A server that holds memory, also after the next boot."""
    box.installed()
    with open(SERVICE, "w") as file:
        file.write(f'[Service]\nExecStart=/usr/bin/python3 -c "{HOLD}"\n[Install]\nWantedBy=multi-user.target\n')
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", UNIT)


def test_what_cannot_work_is_refused_and_nothing_is_written() -> None:
    """All reasons at once."""
    wrong = TEXT.replace("swap_max = 0", 'swap_max = "1G"').replace('"400M"', '"300M"')
    wrong = wrong.replace('name = "eg.slice"', 'name = "eg.slice"\noom_group = true\nmemory_min = "64G"')
    wrong += '[[provision.service]]\nname = "eg-nobody.service"\nmemory_max = "1M"\n'
    refused = provision(wrong)
    assert refused.returncode == 1
    for sentence in (
        "cannot provision eg-nobody.service: systemd knows no such unit",
        "cannot provision eg.slice: systemd has no oom_group for slices",
        "cannot set memory_high of eg-llama.service to 300M: it never acts",
        "cannot limit the swap of eg-llama.service to 1G: this machine has none",
        "cannot guarantee eg.slice 64G",
    ):
        assert sentence in refused.stderr
    assert not os.path.exists(DROP_IN)


def test_it_is_set_through_systemd_and_read_back_from_the_kernel() -> None:
    """At once for what runs; the slice from the next start on. A second run changes nothing."""
    shown = provision(TEXT, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "+ MemoryMax=400M" in shown.stdout
    assert not os.path.exists(DROP_IN)
    done = provision(TEXT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs in /system.slice/eg-llama.service until" in done.stdout
    assert (kernel("memory.max"), kernel("memory.high")) == (str(400 * MIB), str(300 * MIB))
    assert kernel("cpu.max") == "150000 100000"
    assert kernel("memory.max", "eg-inference.slice") == str(1400 * MIB)
    assert kernel("cpu.weight", "eg-inference.slice") == "50"
    assert show("MemoryMax", "eg.slice") == kernel("memory.max", "eg.slice")
    assert "nothing to change" in provision(TEXT).stdout
    run("systemctl", "restart", UNIT)
    assert show("ControlGroup") == "/eg.slice/eg-inference.slice/eg-llama.service"
    assert (kernel("memory.max"), kernel("memory.oom.group")) == (str(400 * MIB), "1")
    with open(f"/proc/{show('MainPID')}/oom_score_adj") as file:
        assert file.read() == "500\n"
    again = provision(TEXT)
    assert (again.returncode, again.stdout.count("\n")) == (0, 1)


def test_a_process_over_the_new_limit_is_not_killed() -> None:
    """Refused; with --force given up, when reclaim brings nothing, and all as it was."""
    lower = TEXT.replace('"300M"', '"30M"').replace('"400M"', '"40M"')
    pid = show("MainPID")
    refused = provision(lower)
    assert refused.returncode == 1
    assert "cannot set memory_max of eg-llama.service to 40M: it uses" in refused.stderr
    forced = provision(lower, "--force", "--wait", "3")
    assert forced.returncode == 1
    assert "rolled back" in forced.stderr
    assert (kernel("memory.max"), kernel("memory.high")) == (str(400 * MIB), str(300 * MIB))
    assert show("MainPID") == pid
    assert not os.path.exists(f"/run/systemd/system.control/{UNIT}.d")


def test_what_overrides_it_is_named() -> None:
    """A setting that comes later than ours is found out, and nothing is half done."""
    with open(f"{SERVICE}.d/zzz-mine.conf", "w") as file:
        file.write("[Service]\nMemoryMax=900M\n")
    run("systemctl", "daemon-reload")
    refused = provision(TEXT)
    assert refused.returncode == 1
    assert f"systemd says 943718400, not 419430400; {SERVICE}.d/zzz-mine.conf sets it" in refused.stderr
    os.unlink(f"{SERVICE}.d/zzz-mine.conf")
    assert provision(TEXT).returncode == 0
    assert kernel("memory.max") == str(400 * MIB)


def test_what_was_written_past_systemd_is_put_right() -> None:
    """Somebody's echo into the cgroup, and a `systemctl set-property`, which the next reload would undo anyhow."""
    run("systemctl", "set-property", "--runtime", UNIT, "CPUQuota=90%")
    with open(f"/sys/fs/cgroup{show('ControlGroup')}/memory.high", "w") as file:
        file.write("max")
    done = provision(TEXT)
    assert (done.returncode, done.stderr) == (0, "")
    assert (kernel("memory.high"), kernel("cpu.max")) == (str(300 * MIB), "150000 100000")
    assert not os.path.exists(f"/run/systemd/system.control/{UNIT}.d/50-MemoryHigh.conf")
