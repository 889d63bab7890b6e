"""What `make system` shows, point by point, and which tests in the guest show it: the summary at the end of the output.

Must not: decide what passes (the tests do). Upstream: __main__. Downstream: the lines that pytest writes in the guest.
"""

import re
from collections.abc import Mapping

PASSED = "PASSED"
POINTS = (
    (
        "start and READY",
        ("installs_without_a_network", "ready_is_said", "status_says_the_worst_level", "up_after_a_reboot"),
    ),
    ("scrape by a real Prometheus", ("prometheus_scrapes_it",)),
    ("MemoryHigh/MemoryMax under real pressure, with PSI; commands and acks", ("real_pressure_is_answered",)),
    ("reload, good and bad", ("reload_takes_a_good", "reload_refuses_a_bad")),
    ("restart of the target under load", ("target_is_restarted_under_load",)),
    (
        "restart of the daemon under load",
        ("daemon_is_restarted_under_load", "restart_under_load_forgets", "no_command_was_lost"),
    ),
    ("kill -9 while a limit is lifted", ("kill_9_while_a_limit_is_lifted",)),
    ("the watchdog bites a stopped daemon", ("watchdog_bites",)),
    ("socket activation", ("subscribers_activate",)),
    ("upgrade from the previous build under load", ("upgrade_from_the_previous_build", "no_command_was_lost")),
    ("killed at MemoryMax, back, and the neighbours never noticed", ("killed_at_memory_max",)),
    (
        "drop-ins, bridge, sd-event services, systemd-oomd beside it",
        ("monitor_only", "bridge_unit", "sd_event", "systemd_oomd"),
    ),
    (
        "oom_score_adj by rule",
        ("storm_of", "commands_of_the_page", "units_and_programs", "without_the_drop_in", "without_the_cap"),
    ),
    ("waiting under a limit is measured", ("delays_under_a_limit",)),
    (
        "provision: set, proved, rebooted, undone",
        (
            "refused_and_nothing",
            "read_back",
            "over_the_new",
            "overrides",
            "past_systemd",
            "after_a_reboot",
            "undo_leaves",
            "runtime_is",
        ),
    ),
    ("systemd-analyze verify and security", ("analyze_verify", "analyze_security", "stays_open_has_its_reason")),
    ("purge leaves nothing", ("purging_leaves_nothing",)),
)
_LINE = re.compile(r"^\S+\.py::(test_\w+)(?:\[\S*\])? (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)


def outcomes(text: str) -> dict[str, str]:
    """Test -> how it ended, the worst of its parameters; from what pytest -v writes."""
    found: dict[str, str] = {}
    for name, outcome in _LINE.findall(text):
        if found.get(name, PASSED) == PASSED:
            found[name] = outcome
    return found


def summary(found: Mapping[str, str]) -> list[str]:
    """One line a point, in the order of the table; nothing of those of which no test ran."""
    lines = []
    for point, words in POINTS:
        ended = [found[name] for word in words for name in matching(word, found)]
        if ended:
            worst = next((outcome for outcome in ("ERROR", "FAILED", "SKIPPED") if outcome in ended), PASSED)
            lines.append(f"{worst:8}{point}")
    return lines


def matching(word: str, found: Mapping[str, str]) -> list[str]:
    """The tests that have these words in their name."""
    return [name for name in found if word in name]
