"""Each rule on units that keep it, break it, and leave it to a person."""

from pathlib import Path

import pytest

from edgeguardd.isolate.findings import Live, Role, Severity, Verdict
from edgeguardd.isolate.judge import Assignments
from edgeguardd.isolate.rules import RULES
from tests.support.unittree import GIB, RUN, judged, loaded, service

PASS, FAIL, UNSET, JUDGE = Verdict.PASS, Verdict.FAIL, Verdict.FAIL_UNSET, Verdict.JUDGEMENT
# Rule, lines in [Service] (and further sections), verdict; None: the rule does not apply.
ROWS = [
    ("memory_max_set", "MemoryMax=1G", PASS),
    ("memory_max_set", "", FAIL),
    ("memory_max_set", "MemoryMax=infinity", FAIL),
    ("memory_max_set", "MemoryLimit=1G", JUDGE),
    ("memory_max_set", "MemoryLimit=1G\nMemorySwapMax=0", FAIL),
    ("memory_high_below_max", "MemoryMax=2G\nMemoryHigh=1G", PASS),
    ("memory_high_below_max", "MemoryMax=1G\nMemoryHigh=1024M", FAIL),
    ("memory_high_below_max", "MemoryMax=1G", UNSET),
    ("memory_high_below_max", "MemoryHigh=1G", JUDGE),
    ("memory_swap_max_set", "MemorySwapMax=0", PASS),
    ("memory_swap_max_set", "MemorySwapMax=infinity", FAIL),
    ("throttling_has_room", "MemorySwapMax=0\nMemoryHigh=900M\nMemoryMax=1G", PASS),
    ("throttling_has_room", "MemorySwapMax=0\nMemoryHigh=1000M\nMemoryMax=1G", FAIL),
    ("throttling_has_room", "MemorySwapMax=0\nMemoryHigh=1000M", FAIL),
    ("throttling_has_room", "MemoryHigh=1000M\nMemoryMax=1G", None),
    ("memory_max_below_ram", "MemoryMax=7G", PASS),
    ("memory_max_below_ram", "MemoryMax=100%", FAIL),
    ("memory_max_below_ram", "", None),
    ("no_tighter_slice", "MemoryMax=1G", PASS),
    ("guarantee_reaches_unit", "MemoryMin=1G", FAIL),
    ("guarantee_reaches_unit", "MemoryMin=1G\nSlice=-.slice", PASS),
    ("guarantee_reaches_unit", "MemoryLow=2G\nMemoryMax=1G\nSlice=-.slice", FAIL),
    ("guarantee_reaches_unit", "MemoryMin=100%\nSlice=-.slice", FAIL),
    ("guarantee_reaches_unit", "", None),
    ("memory_controller_there", "MemoryMax=1G", PASS),
    ("memory_controller_there", "MemoryMax=1G\nDisableControllers=cpu memory", FAIL),
    ("memory_controller_there", "DisableControllers=memory", None),
    ("limits_reach_the_work", "", None),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/docker run --rm -p 8000:8000 image", FAIL),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/docker compose -f x.yml up", FAIL),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/bin/sh -c 'exec /usr/bin/docker run image'", FAIL),
    ("limits_reach_the_work", "ExecStart=\nExecStart=-/usr/bin/sudo docker start -a llm", FAIL),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/docker run --memory=4g image", JUDGE),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/podman run --cgroups=split image", PASS),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/systemd-run /usr/bin/server", FAIL),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/docker ps", None),
    ("limits_reach_the_work", "ExecStart=\nExecStart=/usr/bin/server --image docker run", None),
    ("no_memory_limit_key", "MemoryLimit=1G", FAIL),
    ("no_memory_limit_key", "MemoryMax=1G", None),
    ("managed_oom_is_no_limit", "ManagedOOMMemoryPressure=kill", FAIL),
    ("managed_oom_is_no_limit", "ManagedOOMMemoryPressure=kill\nMemoryMax=1G", PASS),
    ("managed_oom_is_no_limit", "ManagedOOMPreference=omit", JUDGE),
    ("managed_oom_is_no_limit", "", None),
    ("oom_score_adjust_high", "OOMScoreAdjust=500", PASS),
    ("oom_score_adjust_high", "OOMScoreAdjust=499", JUDGE),
    ("oom_score_adjust_high", "OOMScoreAdjust=0", FAIL),
    ("oom_score_adjust_high", "", FAIL),
    ("critical_unit_protected", "", None),
    ("oom_policy_ends_unit", "", PASS),
    ("oom_policy_ends_unit", "OOMPolicy=kill", PASS),
    ("oom_policy_ends_unit", "OOMPolicy=continue", FAIL),
    ("oom_policy_ends_unit", "Delegate=yes", JUDGE),
    ("restart_on_failure_with_sec", "Restart=on-failure\nRestartSec=5", PASS),
    ("restart_on_failure_with_sec", "Restart=on-failure", FAIL),
    ("restart_on_failure_with_sec", "Restart=on-abnormal\nRestartSec=5", FAIL),
    ("restart_on_failure_with_sec", "Restart=always", JUDGE),
    ("restart_is_bounded", "Restart=on-failure", PASS),
    ("restart_is_bounded", "Restart=on-failure\nRestartSec=5", JUDGE),
    ("restart_is_bounded", "Restart=always\n[Unit]\nStartLimitIntervalSec=0", JUDGE),
    ("restart_is_bounded", "Restart=always\nRestartSec=infinity", FAIL),
    ("restart_is_bounded", "", None),
    ("no_new_privileges", "NoNewPrivileges=yes", PASS),
    ("no_new_privileges", "NoNewPrivileges=yes # no", FAIL),
    ("protect_system_strict", "ProtectSystem=strict", PASS),
    ("protect_system_strict", "ProtectSystem=full", FAIL),
    ("capabilities_bounded", "CapabilityBoundingSet=", PASS),
    ("capabilities_bounded", "", FAIL),
    ("capabilities_bounded", "User=llm\nNoNewPrivileges=yes", JUDGE),
    ("write_paths_narrow", "ProtectSystem=strict\nReadWritePaths=-/var/lib/llm", PASS),
    ("write_paths_narrow", "ProtectSystem=strict\nReadWritePaths=/", FAIL),
    ("write_paths_narrow", "ReadWritePaths=/var/lib/llm", JUDGE),
    ("write_paths_narrow", "", None),
    ("sandbox_not_skipped", "", PASS),
    ("sandbox_not_skipped", "ExecStart=\nExecStart=+/usr/bin/server", FAIL),
    ("settings_accepted", "", PASS),
    ("settings_accepted", "MemoryMax=1g", FAIL),
    ("files_in_force", "", None),
    ("kernel_agrees", "", None),
]


@pytest.mark.parametrize(("rule", "lines", "verdict"), ROWS)
def test_a_rule_says_what_it_should(tmp_path: Path, rule: str, lines: str, verdict: Verdict | None) -> None:
    """A verdict that is no pass has a finding with figures, file and line, and a remedy."""
    report = judged(service(tmp_path, lines + "\n"))
    assert report.verdicts.get(rule) == verdict
    findings = [finding for finding in report.findings if finding.rule == rule]
    assert bool(findings) == (verdict not in (None, PASS))
    for finding in findings:
        assert finding.why
        assert finding.remedy
        assert finding.file.startswith(str(tmp_path))
        assert finding.line > 0


def test_every_rule_has_its_rows() -> None:
    """And an id of its own."""
    assert {row[0] for row in ROWS} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_every_rule_names_a_record_that_is_there() -> None:
    """The remedy tells what to do, the record why."""
    for rule in RULES:
        assert (Path(__file__).parents[3] / rule.adr).is_file()
        assert rule.text.endswith(".")
        assert rule.remedy.endswith(".")


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ("MemoryMax=2G\n", FAIL),
        ("MemoryMax=1G\n", PASS),
        ("MemoryHigh=2G\nMemoryMax=1G\n", FAIL),
        ("", JUDGE),
    ],
)
def test_a_slice_may_be_tighter_than_what_is_in_it(tmp_path: Path, limits: str, verdict: Verdict) -> None:
    """Then the unit's own limit never acts; without one, the slice's is shared."""
    files = {
        "a.service": f"[Service]\n{RUN}Slice=llm.slice\n{limits}",
        "llm.slice": "[Slice]\nMemoryMax=1G\nMemoryHigh=1G\n",
    }
    assert judged(loaded(tmp_path, files)).verdicts["no_tighter_slice"] == verdict


def test_a_guarantee_needs_that_of_every_slice(tmp_path: Path) -> None:
    """DefaultMemoryMin= on a slice gives its children one, and itself none."""
    files = {
        "a.service": f"[Service]\n{RUN}Slice=edge-llm.slice\nMemoryMin=1G\n",
        "edge.slice": "[Slice]\nMemoryMin=2G\n",
        "edge-llm.slice": "[Slice]\nMemoryMin=512M\n",
    }
    report = judged(loaded(tmp_path, files))
    why = next(finding.why for finding in report.findings if finding.rule == "guarantee_reaches_unit")
    assert why == "MemoryMin 1G, but edge-llm.slice above it guarantees 512M: that much holds"
    (tmp_path / "edge-llm.slice").write_text("[Slice]\nMemoryMin=1G\n")
    assert judged(loaded(tmp_path, {}, "a.service")).verdicts["guarantee_reaches_unit"] == PASS


def test_a_slice_has_rules_on_memory_and_none_on_programs(tmp_path: Path) -> None:
    """It runs nothing."""
    report = judged(loaded(tmp_path, {"llm.slice": "[Slice]\nMemoryMax=6G\nMemoryHigh=5G\n"}, "llm.slice"))
    assert report.verdicts["memory_max_set"] == PASS
    assert "oom_score_adjust_high" not in report.verdicts
    assert "OOMScoreAdjust" not in report.effective


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ("OOMScoreAdjust=-500\nMemoryMin=64M\nRestart=always\n", PASS),
        ("OOMScoreAdjust=-1000\nMemoryMin=64M\nRestart=always\n", JUDGE),
        ("OOMScoreAdjust=500\nMemoryMin=64M\nRestart=always\n", FAIL),
        ("OOMScoreAdjust=-500\nRestart=always\n", FAIL),
    ],
)
def test_what_must_live_is_judged_by_other_rules(tmp_path: Path, lines: str, verdict: Verdict) -> None:
    """By its role: a score below zero is right there."""
    report = judged(service(tmp_path, lines), Assignments((("a*", Role.CRITICAL),)))
    assert report.role is Role.CRITICAL
    assert report.verdicts["critical_unit_protected"] == verdict
    assert "oom_score_adjust_high" not in report.verdicts


def test_a_role_is_guessed_only_for_all_units(tmp_path: Path) -> None:
    """By name or program; what nothing is known of is not asked for a high score."""
    unit = service(tmp_path, "")
    assert judged(unit).role is Role.INFERENCE
    assert judged(unit, Assignments(guess=True)).role is Role.OTHER
    assert "oom_score_adjust_high" not in judged(unit, Assignments(guess=True)).verdicts
    serving = service(tmp_path / "b", "ExecStart=\nExecStart=/opt/llama.cpp/llama-server\n")
    assert judged(serving, Assignments(guess=True)).role is Role.INFERENCE


def test_what_a_distribution_has_left_without_limits_is_no_error(tmp_path: Path) -> None:
    """Eighty units of a box that nobody has limited are notes; an inference server without limits, limits that
    contradict each other, and a severity of one's own are what they were."""
    others, bare = Assignments(guess=True), service(tmp_path, "ExecStart=\nExecStart=/usr/bin/systemctl start x\n")
    found = {one.rule: one.severity for one in judged(bare, others).findings}
    limits = ("memory_max_set", "memory_high_below_max", "memory_swap_max_set", "limits_reach_the_work")
    assert [found[rule] for rule in limits] == [Severity.NOTE] * 4
    assert not judged(bare, others).broken(Severity.ERROR)
    assert judged(bare).broken(Severity.ERROR)
    wrong = judged(service(tmp_path / "b", "MemoryHigh=2G\nMemoryMax=1G\n"), others)
    assert wrong.broken(Severity.ERROR)
    own = Assignments(guess=True, severities={"memory_max_set": Severity.ERROR})
    assert judged(bare, own).broken(Severity.ERROR)


@pytest.mark.parametrize(
    ("name", "role"), [("edgeguardd.service", Role.CRITICAL), ("edgeguardd-bridge@llama.service", Role.OTHER)]
)
def test_the_guard_is_no_inference_server(name: str, role: Role, tmp_path: Path) -> None:
    """It has to live, and a bridge serves nothing, though it has a server's name; a [[role]] may say otherwise."""
    unit = loaded(tmp_path, {name: f"[Service]\n{RUN}"}, name)
    assert judged(unit).role is role
    assert judged(unit, Assignments(guess=True)).role is role
    assert judged(unit, Assignments((("edge*", Role.INFERENCE),))).role is Role.INFERENCE


def test_units_that_are_no_servers_are_judged_less_severely(tmp_path: Path) -> None:
    """How a distribution sandboxes and restarts its own is worth a note; what is wrong in a file stays an error."""
    unit = service(tmp_path, "MemoryHigh=1G\nMemoryMax=x\n")
    found = {one.rule: one.severity for one in judged(unit, Assignments(guess=True)).findings}
    sandbox = ("no_new_privileges", "protect_system_strict", "restart_on_failure_with_sec")
    assert [found[rule] for rule in sandbox] == [Severity.NOTE] * 3
    assert found["memory_max_set"] is Severity.WARNING
    assert found["settings_accepted"] is Severity.ERROR
    servers = {one.rule: one.severity for one in judged(unit).findings}
    assert [servers[rule] for rule in sandbox] == [Severity.WARNING] * 3
    assert servers["memory_max_set"] is Severity.ERROR


def test_an_ignore_with_a_reason_takes_one_rule_out(tmp_path: Path) -> None:
    """The verdict stays; the finding shows the reason and does not count. A drop-in can say it too."""
    unit = service(
        tmp_path,
        "MemoryMax=1G\nMemoryHigh=900M\nOOMScoreAdjust=500\n# edgeguard: ignore=memory_swap_max_set zram is meant\n",
    )
    report = judged(unit)
    finding = next(one for one in report.findings if one.rule == "memory_swap_max_set")
    assert (report.verdicts["memory_swap_max_set"], finding.ignored) == (FAIL, "zram is meant")
    assert not report.broken(Severity.ERROR)
    assert report.broken(Severity.WARNING)


@pytest.mark.parametrize(
    ("comment", "says"),
    [
        ("# edgeguard: ignore=memory_max_set", "no reason given"),
        ("; edgeguard: ignore=memory_max why not", "there is no such rule"),
        ("# edgeguard: skip everything", "cannot read the edgeguard comment"),
    ],
)
def test_an_ignore_that_says_too_little_is_an_error_and_ignores_nothing(
    tmp_path: Path, comment: str, says: str
) -> None:
    """With the line it stands on."""
    report = judged(service(tmp_path, comment + "\n"))
    wrong = next(finding for finding in report.findings if finding.rule == "ignore_is_valid")
    assert says in wrong.why
    assert (wrong.line, wrong.severity) == (3, Severity.ERROR)
    assert next(one for one in report.findings if one.rule == "memory_max_set").ignored is None


def live(**files: str) -> Live:
    """A running unit's cgroup."""
    there = {name.replace("_", ".", 1).replace("swap_max", "swap.max"): text for name, text in files.items()}
    return Live("/system.slice/a.service", there, frozenset(("memory", "pids")), {7: 500})


def test_the_kernel_may_have_something_else(tmp_path: Path) -> None:
    """Values are compared in whole pages; a page of rounding is no difference."""
    unit = service(tmp_path, "MemoryMax=1000000001\nMemoryHigh=900M\nOOMScoreAdjust=500\n")
    good = live(memory_max="999997440\n", memory_high=f"{900 * 2**20}\n", memory_min="0\n", memory_swap_max="max\n")
    assert judged(unit, live=good).verdicts["kernel_agrees"] == PASS
    report = judged(unit, live=live(memory_max="max\n", memory_high="garbage"))
    why = next(finding.why for finding in report.findings if finding.rule == "kernel_agrees")
    assert why.startswith("/system.slice/a.service: memory.high is garbage, MemoryHigh 900M; memory.max is max")
    other = Live("/a", {}, frozenset(("memory",)), {7: -1000})
    assert judged(unit, live=other).verdicts["kernel_agrees"] == JUDGE


def test_a_controller_that_is_off_makes_all_limits_nothing(tmp_path: Path) -> None:
    """As on boards whose kernel has it switched off."""
    off = Live("/a", {}, frozenset(("cpu",)), {})
    verdicts = judged(service(tmp_path, "MemoryMax=1G\n"), live=off).verdicts
    assert verdicts["memory_controller_there"] == FAIL
    assert "kernel_agrees" not in verdicts


def test_what_systemd_has_but_the_files_do_not_is_an_error(tmp_path: Path) -> None:
    """No daemon-reload since the last change, or a set-property."""
    unit = service(tmp_path, "")
    assert judged(unit, differs=()).verdicts["files_in_force"] == PASS
    report = judged(unit, differs=("MemoryMax is infinity in systemd",))
    assert (report.verdicts["files_in_force"], report.source) == (FAIL, "systemd")


def test_without_swap_on_the_machine_a_unit_without_a_limit_on_it_has_none(tmp_path: Path) -> None:
    """The room between MemoryHigh= and MemoryMax= counts then too."""
    there = Live("/a", {}, None, {}, has_swap=False)
    unit = service(tmp_path, f"MemoryHigh={GIB - 1}\nMemoryMax={GIB}\n")
    assert judged(unit, live=there).verdicts["throttling_has_room"] == FAIL
