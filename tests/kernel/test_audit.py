"""What the audit compares is what a real kernel keeps: whole pages, "max" for what is beyond all."""

from pathlib import Path

from edgeguardd.isolate import livecgroup
from edgeguardd.isolate.findings import Verdict
from tests.support.cgroup import Cgroup
from tests.support.unittree import RUN, judged, loaded

LINES = {
    "MemoryMax": ("memory.max", "1000000001"),
    "MemoryHigh": ("memory.high", "900000001"),
    "MemoryMin": ("memory.min", "4097"),
    "MemoryLow": ("memory.low", "9223372036854775807"),
}


def test_a_units_limits_are_those_of_its_cgroup(cgroup: Cgroup, tmp_path: Path) -> None:
    """Rounded as the kernel rounds; what somebody writes past systemd is seen."""
    lines = "".join(f"{key}={value}\n" for key, (_, value) in LINES.items())
    unit = loaded(tmp_path, {"a.service": f"[Service]\n{RUN}{lines}"})
    with cgroup.child("system.slice") as slice_above, slice_above.child("a.service") as own:
        for file, value in LINES.values():
            own.write(file, value)
        live = livecgroup.look(unit, cgroup.path)
        assert live is not None
        assert live.controllers is not None
        assert "memory" in live.controllers
        assert live.files["memory.max"].strip() == str(1000000001 // 4096 * 4096)
        report = judged(unit, live=live)
        assert report.verdicts["kernel_agrees"] == Verdict.PASS, [f.why for f in report.findings]
        own.write("memory.max", "max")
        assert judged(unit, live=livecgroup.look(unit, cgroup.path)).verdicts["kernel_agrees"] == Verdict.FAIL
