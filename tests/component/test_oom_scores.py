"""oom_score_adj by rule, with real processes and, where this machine allows it, the kernel's own word of new ones."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edgeguardd.errors import KernelError
from edgeguardd.kernel.procevents import Kind, ProcEvents
from tests.support import storm as storms
from tests.support.documents.pages import blocks, commands
from tests.support.running import REPOSITORY, Daemon
from tests.support.storm import DIFFERS, FITS, Storm
from tests.support.wait import eventually

VALUE = 321
PAGE = "docs/how-to/keep-oom-scores.md"
RULE = f'[[oom_score]]\nname = "fits"\ncomm = "{FITS}"\nvalue = {VALUE}\n'
SLOW = 'oom_score_recheck = "1h"\n'


def told() -> str | None:
    """None where this kernel tells of new processes, else why not."""
    try:
        events = ProcEvents.open()
    except KernelError as error:
        return str(error)
    try:
        poll = select.poll()
        poll.register(events.fd, select.POLLIN)
        while poll.poll(2000):
            if any(event.kind is Kind.ACK and not event.other for event in events.read(64)):
                return None
    finally:
        events.close()
    return "the kernel does not answer: another pid or user namespace than the first"


WHY_NOT = told()
needs_connector = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
pytestmark = pytest.mark.usefixtures("llm")


@pytest.fixture
def storm(place: str) -> Iterator[Storm]:
    """Processes that end with the test."""
    with storms.ready(place) as made:
        yield made


def start(place: str, body: str) -> Daemon:
    return Daemon(place, body, cgroup_root=f"{place}/tree")


def rule_of(daemon: Daemon, name: str = "fits") -> dict[str, object]:
    """A rule's row of /status."""
    (row,) = [row for row in daemon.status()["oom_scores"]["rules"] if row["name"] == name]
    return dict(row)


def test_what_runs_at_the_start_has_its_score_when_the_daemon_is_ready(place: str, storm: Storm) -> None:
    """And a daemon that stops leaves it."""
    fits, differs = storm.survivor(FITS), storm.survivor(DIFFERS)
    with start(place, SLOW + RULE) as daemon:
        assert (storms.score(fits), storms.score(differs)) == (VALUE, 0)
        (said,) = daemon.facts("oom_scores_in_force")
        assert (said["rules"], said["processes"], said["writes"]) == (1, 1, 1)
        assert daemon.metric("edgeguardd_oom_score_in_force", rule="fits") == 1
        assert daemon.metric("edgeguardd_oom_score_writes_total", rule="fits") == 1
    assert storms.score(fits) == VALUE


@needs_connector
def test_a_storm_of_2000_short_processes_leaves_each_survivor_with_its_score(place: str, storm: Storm) -> None:
    """At once, not by looking at all processes: that is an hour away. What does not fit is left alone, or has back
    what it had."""
    with start(place, SLOW + RULE) as daemon:
        storms.blow(storm, 2000, VALUE)
        eventually(lambda: {storms.score(pid) for pid in storm.differing} == {0})
        eventually(lambda: rule_of(daemon)["in_force"] == len(storm.fitting))
        status = daemon.status()["oom_scores"]
        assert (status["told"], status["why"], status["rules"][0]["failures"]) == (True, None, 0)
        storm.end()
        eventually(lambda: rule_of(daemon)["in_force"] == 0)


@needs_connector
def test_a_process_that_runs_another_program_has_its_own_score_back(place: str, storm: Storm) -> None:
    """A rule is for the program that it names, not for what that starts: a child inherits the score, and sheds it."""
    program = storm.program(DIFFERS, "sleep")
    shell = storm.program(FITS, "sh")
    with start(place, SLOW + RULE) as daemon:
        running = subprocess.Popen([shell, "-c", f"read go; {program} 600 & echo $!; read end; kill $!"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert running.stdin is not None
        assert running.stdout is not None
        eventually(lambda: storms.score(running.pid) == VALUE)
        running.stdin.write("go\n")
        running.stdin.flush()
        child = int(running.stdout.readline())
        eventually(lambda: storms.score(child) == 0, what="the child has what its parent had before")
        assert storms.score(running.pid) == VALUE
        running.communicate("end\n", timeout=30)
        assert daemon.facts("oom_score_corrected") == []


def test_what_something_else_changes_is_put_right_at_the_next_look(place: str, storm: Storm) -> None:
    """With a line that says what it was, and a count."""
    pid = storm.survivor(FITS)
    with start(place, "oom_score_recheck = 1\n" + RULE) as daemon:
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("700")
        eventually(lambda: storms.score(pid) == VALUE)
        (said,) = eventually(lambda: daemon.facts("oom_score_corrected"))
        assert (said["rule"], said["pid"], said["was"], said["value"]) == ("fits", pid, 700, VALUE)
        assert rule_of(daemon)["corrections"] == 1


def test_a_reload_puts_other_rules_in_force(place: str, storm: Storm) -> None:
    """What fits a rule no longer has back what it had; what fits a new one has its score."""
    fits, differs = storm.survivor(FITS), storm.survivor(DIFFERS)
    with start(place, SLOW + RULE) as daemon:
        assert storms.score(fits) == VALUE
        daemon.write_config(SLOW + f'[[oom_score]]\nname = "other"\ncomm = "{DIFFERS}"\nvalue = 500\n')
        daemon.hang_up()
        eventually(lambda: (storms.score(fits), storms.score(differs)) == (0, 500))
        daemon.write_config("")
        daemon.hang_up()
        eventually(lambda: storms.score(differs) == 0)
        eventually(lambda: daemon.status()["oom_scores"] == {"told": False, "why": None, "overruns": 0, "rules": []})


def test_without_rules_nothing_is_asked_of_the_kernel(place: str) -> None:
    """No socket, no look at /proc, no module of pyroute2."""
    with start(place, "") as daemon:
        links = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon.pid}/fd")]
        inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
        with open("/proc/net/netlink") as file:
            assert not inodes & {line.split()[-1] for line in file}
        with open(f"/proc/{daemon.pid}/maps") as file:
            assert "pyroute2" not in file.read()


def waited(daemon: Daemon, delay: str) -> float | None:
    return daemon.metric("edgeguardd_delay_seconds_total", target="llm", delay=delay)


@needs_connector  # both take CAP_NET_ADMIN
def test_delays_of_the_main_process_are_counters(place: str) -> None:
    """Of the target's oldest process, all its threads; asked of the kernel, in a thread that is not the loop's."""
    body = '[[target]]\nname = "llm"\npath = "/llm"\n[delays]\nenabled = true\ninterval = 1\n'
    with open(f"{place}/tree/llm/cgroup.procs", "w") as file:
        file.write(f"{os.getpid()}\n")
    with start(place, body) as daemon:
        eventually(lambda: waited(daemon, "reclaim") is not None)
        assert None not in {waited(daemon, "thrashing"), waited(daemon, "swap_in")}
        assert all("task_delayacct" in said["why"] for said in daemon.facts("delays_unread"))
        assert daemon.facts("defect") == []


def test_the_page_is_right(place: str, storm: Storm) -> None:
    """Its rules are a configuration, and its commands say what it says."""
    block, delays = (block.text for block in blocks(PAGE, "toml"))
    assert {"edgeguardctl check-config", "edgeguardctl status"} <= {command.text for command in commands(PAGE)}
    storm.survivor(FITS)
    with start(place, f"{block}{RULE}{delays}") as daemon:
        checked = run("check-config", daemon.config_path)
        assert "ok" in checked
        assert "never decides" not in checked
        (head, *rows) = run("status", "--http", daemon.http.removeprefix("http://")).split("OOM SCORE")[1].splitlines()
        assert head.split() == ["VALUE", "IN", "FORCE", "WRITTEN", "CORRECTED", "FAILED"]
        assert [row.split()[:3] for row in rows if row.split()[0] == "fits"] == [["fits", str(VALUE), "1"]]
        assert {row.split()[0] for row in rows} >= {"llm", "control", "pods", "fits"}


def run(*argv: str) -> str:
    """What edgeguardctl prints."""
    program = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *argv]
    return subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60).stdout
