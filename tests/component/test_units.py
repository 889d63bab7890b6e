"""The units in systemd/, judged by systemd's own tools where they are installed."""

import os
import re
import shutil
import subprocess

import pytest

from edgeguardd.core.config import SocketConfig

UNITS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "systemd")

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze on files alone."""
    argv = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@needs_systemd_analyze
@pytest.mark.parametrize("name", ["edgeguardd.service"])
def test_what_a_service_may_do_is_little(name: str) -> None:
    """Exposure at most 2.0 of 10, and each item that is left has its reason in the unit."""
    judged = analyze("security", "--offline=true", f"{UNITS}/{name}").stdout
    found = re.search(r"exposure level for \S+: ([0-9.]+)", judged)
    assert found is not None, judged
    assert float(found[1]) <= 2.0, judged


@needs_systemd_analyze
@pytest.mark.parametrize(
    "name",
    [
        *("edgeguardd.service", "edgeguardd.socket", "edgeguardd-pressure.socket", "edgeguardd-bridge@.service"),
        *("inference.slice", "protected.slice"),
    ],
)
def test_systemd_knows_every_word(name: str, tmp_path: "os.PathLike[str]") -> None:
    """No unknown key, no bad value: systemd would ignore it and go on without the limit."""
    for file in os.listdir(UNITS):
        if os.path.isfile(f"{UNITS}/{file}"):
            with open(f"{UNITS}/{file}") as given, open(os.path.join(tmp_path, file), "w") as placed:
                # The programs are not installed here.
                placed.write(
                    re.sub(r"^(Exec\w+=)/usr/bin/edgeguard\w+", r"\1/bin/true", given.read(), flags=re.MULTILINE)
                )
    verified = analyze("verify", "--man=no", os.path.join(tmp_path, name.replace("@.", "@x.") if "@" in name else name))
    ours = [line for line in verified.stderr.splitlines() if str(tmp_path) in line]
    assert ours == [], verified.stderr


def test_the_socket_is_where_clients_look_for_it() -> None:
    """The unit, the daemon's default and the documentation agree."""
    with open(f"{UNITS}/edgeguardd.socket") as file:
        assert f"ListenStream={SocketConfig().path}\n" in file.read()
