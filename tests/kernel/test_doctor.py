"""What doctor says of the kernel at hand, against what that kernel does."""

import json
import os

import pytest

from edgeguardd.cli import edgeguardctl
from edgeguardd.isolate.doctor import gather
from tests.support.cgroup import ROOT, Cgroup


def test_doctor_sees_what_this_kernel_has(cgroup: Cgroup, capsys: pytest.CaptureFixture[str]) -> None:
    """These tests run on it, so it is fit; what its cgroups lack is missed, and what they have is not."""
    status = edgeguardctl.main(["doctor", "--json", "--http", "127.0.0.1:1", "--socket", "/run/nobody"])
    told = json.loads(capsys.readouterr().out)
    verdicts = {row["check"]: row["verdict"] for row in told["findings"]}
    assert told["facts"]["release"] == os.uname().release
    fit = (
        "kernel",
        "cgroup mode",
        "memory controller",
        "delegation",
        "may read memory.events",
        "may write memory.high",
    )
    assert {check: verdicts.get(check) for check in fit} == dict.fromkeys(fit, "OK")
    assert verdicts["daemon health"] == "WARN"
    assert status == (1 if "FAIL" in verdicts.values() else 0)
    assert told["facts"]["tree"] == ROOT
    assert "memory.events" in told["facts"]["sample_files"]
    features = {"memory.events.local", "cgroup.freeze", "cgroup.kill", "memory.reclaim"}
    warned = [row for row in told["findings"] if row["check"] == "kernel features" and row["verdict"] == "WARN"]
    missed = {row["says"].split()[0] for row in warned} & features
    assert missed == {name for name in features if not os.path.exists(cgroup.file(name))}
    assert (verdicts["PSI"] == "OK") == os.path.exists("/proc/pressure/memory")


def test_a_limit_is_not_touched_by_asking_whether_it_could_be(cgroup: Cgroup) -> None:
    """Files are opened for writing, and nothing is written."""
    cgroup.write("memory.high", 64 << 20)
    before = cgroup.read("memory.high"), cgroup.read("memory.events")
    facts = gather.gather()
    assert facts.write_high is not None
    assert (cgroup.read("memory.high"), cgroup.read("memory.events")) == before
