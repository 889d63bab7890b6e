"""The page that `edgeguardctl status` prints."""

import json
from typing import Any

import pytest

from edgeguardd.cli import daemonlink
from edgeguardd.cli.status import page
from edgeguardd.errors import EdgeguardError
from tests.support.fakedaemon import STATUS


def paged(**changes: Any) -> str:
    """The page for the usual answer with some parts changed."""
    return "\n".join(page(daemonlink.decoded(json.dumps({**STATUS, **changes}).encode())))


def test_a_target_under_pressure_is_told_with_its_figures_and_why() -> None:
    """Level, memory, limit, what is in force, what is waited for, and the last outcome with bytes really freed."""
    lines = paged().splitlines()
    assert lines[0] == (
        "edgeguardd 0.1.0, up 62s, ready, worst level high, configuration /etc/edgeguardd/edgeguardd.toml"
    )
    assert lines[1] == "machine normal: 5.0G of 8.0G available, gpu 1.0G of 4.0G in use"
    assert lines[3].split() == ["TARGET", "LEVEL", "NEEDED", "LIMIT", "USED", "GROWABLE", "GROWTH", "AGE"]
    assert lines[4].split() == [
        "llm",
        "high",
        "850.0M",
        "1.0G",
        "high",
        "83%",
        "83%",
        "5.0M/s",
        "50ms",
    ]
    assert lines[5:12] == [
        "  batch at most 50%",
        "  high since 12s ago: needed 850.0 MiB is 83% of the range",
        "  now: needed 849.0 MiB is 83% of the range",
        "  2 processes killed by the kernel so far",
        "  waiting 200ms for #7 trim_kv_cache (accepted by subscriber 1)",
        "  memory.high is lifted for a trim",
        "  last resort freeze thawed 9.0s ago: 2 processes",
    ]
    assert lines[12] == "USED: NEEDED of LIMIT. GROWABLE: in use of what can grow, from rest to LIMIT."
    assert lines[15].split() == ["1", "server", "inference", "llm", "42", "0", "12s", "0"]
    assert lines[16] == "  supports trim_kv_cache"
    assert lines[19].split() == ["6", "llm", "trim_kv_cache", "done", "50ms", "1.0M", "512.0K", "12s", "1"]
    assert lines[20] == "  said: dropped 3 slots"
    assert all(len(line) <= 80 for line in lines[1:])


def test_used_is_of_the_limit_and_what_can_grow_has_a_column_of_its_own() -> None:
    """A server of 900 MiB at rest under 1 GiB has used a third of what can grow, and 91 % of its limit."""
    changes = {"needed_bytes": 930 * 2**20, "used_ratio": 0.3333, "limit_path": "/inference.slice"}
    lines = paged(targets=[{**STATUS["targets"][0], **changes}]).splitlines()
    assert lines[4].split()[5:7] == ["91%", "33%"]
    assert "  the limit is memory.high of /inference.slice" in lines


def test_a_level_from_before_the_start_has_no_age() -> None:
    """A daemon that goes on where one before it ended does not know since when; nor does an older one say."""
    target = {**STATUS["targets"][0], "level_age_s": None, "calls": None}
    assert "  high from before the start on: needed 850.0 MiB is 83% of the range" in paged(targets=[target])


def test_a_daemon_that_sees_nothing_any_more_says_so() -> None:
    """Its figures are not to be trusted, and neither is a target that nobody serves left without a word."""
    text = paged(stale_s=30.0, subscribers=[], targets=[{**STATUS["targets"][0], "watchers": 1}])
    assert "  1 program told of its pressure, without an answer" in text
    assert text.splitlines()[1] == "the last sample is 30s old: the daemon sees nothing any more"
    assert "  nobody subscribed: nobody can be asked" in text


def test_whom_the_kernel_killed_is_told() -> None:
    """With why, and what to change."""
    log = {
        "readable": True,
        "reports": 2,
        "victims": 2,
        "last_report": {"target": "llm", "comm": "server", "why": "memory.max of /llm was met", "remedy": "raise it"},
    }
    assert paged(kernel_log=log).splitlines()[1] == (
        "OOM reports of the kernel so far: 2; the last killed server of llm: memory.max of /llm was met; raise it"
    )


def test_a_machine_under_pressure_is_told_with_why() -> None:
    """And one that cannot be read, and nothing of one that is not."""
    sample = {"total_bytes": 2**33, "available_bytes": 2**29}
    text = paged(machine={"level": "critical", "reason": "512.0 MiB is 6%", "level_age_s": 3, "sample": sample})
    assert text.splitlines()[1] == ("machine critical: 512.0M of 8.0G available, since 3.0s ago: 512.0 MiB is 6%")
    assert paged(machine={"degraded": "cannot read /proc/meminfo"}).splitlines()[1] == (
        "machine: cannot be read: cannot read /proc/meminfo"
    )
    assert "machine" not in paged(machine={"enabled": False})


def test_an_idle_daemon_says_what_is_missing() -> None:
    """Empty tables would leave a beginner alone."""
    text = paged(targets=[], subscribers=[], last_commands=[], ready=False, config={"path": None})
    assert "not ready" in text
    assert "configuration defaults" in text
    assert "No targets: " in text
    assert "No subscribers: nobody can be asked for memory." in text
    assert "No commands have ended yet." in text


def test_a_target_that_is_not_there_yet_has_no_figures() -> None:
    """Unknown is shown as unknown, not as zero."""
    text = paged(targets=[{"name": "later", "path": "/later", "present": False}])
    assert text.splitlines()[4].split() == ["later", "normal", "-", "none", "-", "-", "-", "-"]
    assert "  no such cgroup yet" in text


def test_names_from_peers_cannot_act_on_the_terminal() -> None:
    """A subscriber chooses its name; the page spells out what is not printable."""
    hostile = "\x1b[2J\n\u202ex"
    text = paged(
        subscribers=[{"subscriber": 1, "name": hostile, "role": hostile, "supports": [hostile]}],
        last_commands=[{"seq": 1, "target": hostile, "action": hostile, "outcome": hostile, "took_s": 1}],
    )
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"version": 1}', b"\xff", b"[" * 100_000, b"null"])
def test_an_answer_that_is_no_status_is_one_sentence(body: bytes) -> None:
    """Another program on that port, or another version, is no traceback."""
    with pytest.raises(EdgeguardError, match=r"cannot read the daemon's status: .*; is it edgeguardd"):
        daemonlink.decoded(body)


def test_fields_of_a_newer_daemon_are_ignored() -> None:
    """edgeguardctl may be older than the daemon."""
    assert "llm" in paged(new_field={"x": 1})
