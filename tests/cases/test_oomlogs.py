"""Every collected log comes out as its sidecar says: equal victims, equal figures, and nothing that is not printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.oomlogs import answer

FOLDER = Path(__file__).with_name("oomlogs")
SIDECARS = sorted(FOLDER.glob("*.json"))
# Keys of a sidecar's event that are words for people.
PROSE = {"comm_note"}
# Beside the events: lists in which each row has at least what the sidecar's row has.
LISTS = ("incomplete", "no_victim", "oomd", "systemd", "userspace_kills")
# Beside the events: equal values.
VALUES = ("group", "panic", "reaped_without_victim_line")


def load(sidecar: Path) -> dict[str, Any]:
    """One sidecar."""
    loaded: dict[str, Any] = json.loads(sidecar.read_text())
    return loaded


@pytest.mark.parametrize("sidecar", SIDECARS, ids=lambda path: path.stem)
def test_a_collected_log_gives_what_its_sidecar_expects(sidecar: Path) -> None:
    """null in a sidecar means that the log does not say it: then the key is absent."""
    case, found = load(sidecar), answer(sidecar.with_suffix(".log").read_bytes())
    assert [event["victim_pid"] for event in found["events"]] == [event["victim_pid"] for event in case["events"]]
    for event, expected in zip(found["events"], case["events"], strict=True):
        for key, value in expected.items():
            if key not in PROSE:
                assert event.get(key) == value, key
                assert value is not None or key not in event
    for key in LISTS:
        rows = found.get(key, [])
        if key not in case:
            continue
        assert len(rows) == len(case[key]), key
        for row, expected in zip(rows, case[key], strict=True):
            assert {name: row.get(name) for name in expected} == expected, key
    for key in VALUES:
        if key in case:
            assert found.get(key) == case[key], key
    if "decoded_figures" in case:
        assert found["events"][0]["decoded_figures"] == case["decoded_figures"]


def test_there_are_cases() -> None:
    """An empty folder would make the test above pass for nothing."""
    assert len(SIDECARS) > 30
