"""The installed units, as systemd-analyze of this release sees them."""

import json
import re
import subprocess

import pytest

from tests.system.guest import box
from tests.system.guest.box import run

UNITS = (
    "edgeguardd.service",
    "edgeguardd.socket",
    "edgeguardd-pressure.socket",
    "edgeguardd-bridge@llama.service",
    "inference.slice",
    "protected.slice",
)
SERVICES = ("edgeguardd.service", "edgeguardd-bridge@llama.service")
MOST_EXPOSURE = 2.0


@pytest.fixture(autouse=True)
def installed() -> None:
    """For tests that are run by themselves."""
    box.installed()


def test_systemd_analyze_verify_has_nothing_to_say() -> None:
    """Of any unit."""
    argv = ["systemd-analyze", "verify", "--man=no", *UNITS]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", SERVICES)
def test_systemd_analyze_security_finds_little_exposed(unit: str) -> None:
    """At most 2.0."""
    shown = run("systemd-analyze", "security", "--no-pager", unit)
    (line,) = re.findall(r"Overall exposure level for .*: ([0-9.]+) .*", shown)
    print(f"{unit}: exposure {line}")
    assert float(line) <= MOST_EXPOSURE


@pytest.mark.parametrize("unit", SERVICES)
def test_each_item_that_stays_open_has_its_reason_in_the_unit(unit: str) -> None:
    """By name, in a comment."""
    with open(f"/lib/systemd/system/{re.sub('@.*[.]', '@.', unit)}") as file:
        reasons = "".join(line for line in file if line.startswith("#"))
    items = json.loads(run("systemd-analyze", "security", "--json=short", unit))
    left = {item["name"].split("=")[0].split("/")[0] + "=" for item in items if item["set"] is False}
    print(f"{unit}: {', '.join(sorted(left))}")
    assert [name for name in sorted(left) if name not in reasons] == []
