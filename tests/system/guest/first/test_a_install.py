"""Installing: the package brings everything, the service starts and says so."""

import glob
import subprocess


def run(*argv: str) -> str:
    """Standard output of a command that has to work."""
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_package_installs_without_a_network() -> None:
    """No download, no question; the service is up when dpkg returns."""
    (package,) = glob.glob("edgeguardd_*.deb")
    run("dpkg", "-i", package)
    shown = dict(
        line.split("=", 1) for line in run("systemctl", "show", "edgeguardd.service").splitlines() if "=" in line
    )
    assert shown["ActiveState"] == "active"
    assert shown["Type"] == "notify"
    assert shown["StatusText"]
    print(shown["StatusText"])
