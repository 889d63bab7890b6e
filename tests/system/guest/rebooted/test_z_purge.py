"""The end: after everything that was done with the package, a purge leaves the box as it was before."""

import glob
import os

from tests.system.guest import box, leavings
from tests.system.guest.box import run

# Made by the tests of the boot before, which hold a unit and its configuration over the reboot.
MINE = "/etc/edgeguardd/provision-test.toml"
UNIT = "eg-llama.service"
DROP_INS = (
    "/etc/systemd/system/*.d/zz-edgeguardd-provision.conf",
    "/run/systemd/system/*.d/zz-edgeguardd-provision.conf",
)


def test_the_service_is_up_after_a_reboot() -> None:
    """Without anybody's doing, with its socket."""
    box.installed()
    assert box.show("ActiveState") == "active"
    assert box.show("ActiveState", "edgeguardd.socket") == "active"


def drop_ins() -> list[str]:
    """What `edgeguardctl provision` has written for units, as it is now."""
    return [path for pattern in DROP_INS for path in glob.glob(pattern)]


def test_removing_keeps_the_configuration_and_purging_leaves_nothing() -> None:
    """Files, user, group, units, runtime and state directories, and limits that `provision` set: these are said."""
    run("edgeguardctl", "provision", "--config", MINE)
    limit = box.kernel("memory.max", UNIT)
    listed = [path for path in run("dpkg", "-L", "edgeguardd").splitlines() if os.path.isfile(path)]
    assert limit != "max"
    run("dpkg", "--remove", "edgeguardd")
    assert os.path.exists(box.CONFIG)
    assert not os.path.exists("/usr/bin/edgeguardd")
    set_before = drop_ins()
    assert len(set_before) == 3
    assert box.kernel("memory.max", UNIT) == limit
    said = run("dpkg", "--purge", "edgeguardd")
    print(said)
    assert [path for path in set_before if f"removing {path}" not in said] == []
    assert box.kernel("memory.max", UNIT) == "max"
    assert [path for path in listed if os.path.lexists(path)] == []
    assert box.show("LoadState") == "not-found"
    # What an administrator has put beside the configuration is kept, and said.
    assert f"left alone, because the package did not bring it: {MINE}" in said
    os.unlink(MINE)
    os.rmdir(os.path.dirname(MINE))
    run("systemctl", "disable", "--now", UNIT)
    os.unlink(f"/etc/systemd/system/{UNIT}")
    assert leavings.new() == []
    print(f"of {len(listed)} files nothing is left, nor of user, group, units, limits, /run and /var/lib")
