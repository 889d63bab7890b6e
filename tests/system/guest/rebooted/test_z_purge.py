"""The end: after everything that was done with the package, a purge leaves the box as it was before."""

import os

from tests.system.guest import box, leavings
from tests.system.guest.box import run


def test_the_service_is_up_after_a_reboot() -> None:
    """Without anybody's doing, with its socket."""
    box.installed()
    assert box.show("ActiveState") == "active"
    assert box.show("ActiveState", "edgeguardd.socket") == "active"


def test_removing_keeps_the_configuration_and_purging_leaves_nothing() -> None:
    """Files, user, group, units, runtime and state directories."""
    listed = [path for path in run("dpkg", "-L", "edgeguardd").splitlines() if os.path.isfile(path)]
    run("dpkg", "--remove", "edgeguardd")
    assert os.path.exists(box.CONFIG)
    assert not os.path.exists("/usr/bin/edgeguardd")
    run("dpkg", "--purge", "edgeguardd")
    assert [path for path in listed if os.path.lexists(path)] == []
    assert box.show("LoadState") == "not-found"
    left = [name for name in leavings.new() if "/eg-" not in name]
    assert left == []
    print(f"of {len(listed)} files nothing is left, nor of user, group, units, /run and /var/lib")
