"""What the audit sees of the machine: cgroups, processes, and the running systemd; each as a stand-in."""

from pathlib import Path

import pytest

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate import livecgroup, systemdshow
from tests.support.unittree import GIB, RUN, loaded, service


def test_a_running_unit_is_looked_at_where_systemd_puts_it(tmp_path: Path) -> None:
    """Below the slices of its name; files that a kernel does not have are left out."""
    unit = loaded(tmp_path / "units", {"a.service": f"[Service]\n{RUN}Slice=edge-llm.slice\n"})
    cgroup = tmp_path / "cgroup/edge.slice/edge-llm.slice/a.service"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "cgroup.controllers").write_text("cpu memory\n")
    (cgroup / "cgroup.procs").write_text("7\n8\n")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/oom_score_adj").write_text("-500\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nSwapTotal: 0 kB\n")
    found = livecgroup.look(unit, str(tmp_path / "cgroup"), str(tmp_path / "proc"))
    assert found is not None
    assert (found.cgroup, dict(found.files)) == ("/edge.slice/edge-llm.slice/a.service", {"memory.max": "max\n"})
    assert (found.controllers, dict(found.scores), found.has_swap) == (frozenset(("cpu", "memory")), {7: -500}, False)
    assert livecgroup.memory_bytes(str(tmp_path / "proc")) == 8 * GIB


def test_a_unit_that_does_not_run_has_nothing_to_compare(tmp_path: Path) -> None:
    """Neither has one that is not loaded."""
    assert livecgroup.look(service(tmp_path, ""), str(tmp_path)) is None
    assert livecgroup.look(loaded(tmp_path, {}, "b.service"), str(tmp_path)) is None
    assert livecgroup.memory_bytes(str(tmp_path)) is None


ANSWER = (
    "MemoryMax=$MAX\nMemoryHigh=infinity\nMemoryMin=0\nNoNewPrivileges=yes\nProtectSystem=strict\nRestart=on-failure\n"
    "RestartUSec=1min 30s\nOOMPolicy=continue\nSlice=system.slice\nLoadState=loaded"
)
SYSTEMCTL = f"""#!/bin/sh
case "$1" in
--version) echo "systemd 257 (257.8-1)"; exit;;
show) echo "{ANSWER}"; exit;;
esac
exit 1
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, first in PATH."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("MAX", str(GIB))
    return program


def test_the_running_systemd_counts_before_the_files(tmp_path: Path, systemctl: Path) -> None:
    """What it has is judged; where that is not what the files say, that is told. Defaults are no difference."""
    lines = ("MemoryMax=2G", "Restart=on-failure", "RestartSec=90", "NoNewPrivileges=yes", "ProtectSystem=strict")
    unit = service(tmp_path, "\n".join(lines) + "\n")
    shown = systemdshow.show("a.service", user=False)
    assert shown is not None
    unit, other = systemdshow.in_force(unit, shown)
    assert other == [f"MemoryMax is {GIB} in systemd"]
    assert unit.values["OOMPolicy"] == "continue"
    assert (unit.values["MemoryMax"], unit.values["MemoryHigh"], unit.values["MemoryMin"]) == (GIB, INFINITE, None)
    assert systemdshow.version() == 257


def test_without_a_running_systemd_there_is_no_answer(
    tmp_path: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed, failing, or it has not loaded the unit."""
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    assert systemdshow.show("a.service", user=True) is None
    systemctl.write_text("#!/bin/sh\necho LoadState=not-found\n")
    assert systemdshow.show("a.service", user=False) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert systemdshow.version() is None


def test_what_cannot_be_read_is_left_out() -> None:
    """As "[not set]" of some keys."""
    assert systemdshow.parsed({"MemoryMax": "[not set]", "Restart": "", "NoNewPrivileges": "?"}) == {}
