"""What `edgeguardctl provision` set up before the reboot is there after it, and can be undone."""

import os
import subprocess

MIB = 1 << 20
CONFIG = "/etc/edgeguardd/provision-test.toml"
UNIT = "eg-llama.service"
DROP_INS = [
    f"/etc/systemd/system/{name}.d/zz-edgeguardd-provision.conf" for name in (UNIT, "eg.slice", "eg-inference.slice")
]


def run(*argv: str) -> str:
    """Standard output of a command that has to work."""
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def provision(*words: str) -> str:
    """It has to work."""
    done = subprocess.run(
        ["edgeguardctl", "provision", "--config", CONFIG, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def kernel(name: str, unit: str = UNIT) -> str | None:
    """A file of the unit's cgroup; None: its cgroup has no such file."""
    path = run("systemctl", "show", "--property=ControlGroup", "--value", unit).strip()
    if not os.path.exists(f"/sys/fs/cgroup{path}/{name}"):
        return None
    with open(f"/sys/fs/cgroup{path}/{name}") as file:
        return file.read().strip()


def test_it_is_still_there_after_a_reboot() -> None:
    """In the kernel, with the service in its slice, and nothing to change."""
    assert (kernel("memory.max"), kernel("memory.high")) == (str(400 * MIB), str(300 * MIB))
    assert kernel("memory.max", "eg-inference.slice") == str(1400 * MIB)
    assert "nothing to change" in provision()


def test_undo_leaves_nothing_behind() -> None:
    """Drop-ins are gone, what runs has no limits, a second undo has nothing to do."""
    assert "until `systemctl restart eg-llama.service`; then in system.slice" in provision("--undo")
    assert [path for path in DROP_INS if os.path.exists(path) or os.path.exists(os.path.dirname(path))] == []
    # A service in a slice that is not its own any more: systemd takes the controllers away with the limits.
    assert kernel("memory.max") in (None, "max")
    run("systemctl", "restart", UNIT)
    assert (kernel("memory.max"), kernel("memory.high"), kernel("memory.oom.group")) == ("max", "max", "0")
    assert provision("--undo") == "nothing to put back\n"


def test_runtime_is_until_the_next_boot() -> None:
    """Drop-ins under /run; undo finds them too."""
    provision("--runtime")
    path = f"/run/systemd/system/{UNIT}.d/zz-edgeguardd-provision.conf"
    assert os.path.exists(path)
    assert not os.path.exists(DROP_INS[0])
    assert kernel("memory.max") == str(400 * MIB)
    with open(path, "a") as file:
        file.write("# mine now\n")
    assert "was changed by somebody since: left alone" in provision("--undo")
    assert os.path.exists(path)
    os.unlink(path)
    run("systemctl", "daemon-reload")
