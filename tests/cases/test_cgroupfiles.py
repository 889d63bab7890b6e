"""Every collected cgroup, PSI and /proc file comes out as its sidecar says, through the table behind `parse`."""

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.core import kernelfmt
from edgeguardd.core.kernelkinds import KINDS, kind_of, read_error
from edgeguardd.core.model import Counters
from edgeguardd.errors import FormatError

FOLDER = Path(__file__).with_name("cgroupfiles")
SIDECARS = sorted(FOLDER.glob("*.json"))
SAID_IN_WORDS = {
    # expected key -> what our representation of that sentence is
    "delta_rule": "kernelfmt.delta: test_a_counter_that_went_back_belongs_to_a_new_cgroup",
    "previous": "the reading before, for delta_rule",
    "no_crash": "true by getting here",
    "keys_with_unit": "without_unit lists the others",
    "has": "these keys are in the outcome",
    "swap_used_must_not_be_negative": "swap_used is unknown (null) or not negative",
}


def parsed(kind: str, data: bytes) -> dict[str, Any]:
    """The outcome as `parse` prints it, errors included."""
    row = kind_of(kind)
    assert row is not None, f"no such kind: {kind}"
    try:
        return KINDS[row](data)
    except FormatError as error:
        return {"error": True, "message": str(error)}


def load(sidecar: Path) -> dict[str, Any]:
    """One sidecar."""
    loaded: dict[str, Any] = json.loads(sidecar.read_text())
    return loaded


@pytest.mark.parametrize("sidecar", [path for path in SIDECARS if "read_error" not in load(path)], ids=lambda p: p.stem)
def test_a_collected_file_gives_what_its_sidecar_expects(sidecar: Path) -> None:
    """Each expected key has the expected value. "implausible…" is shown as null and in the list `implausible`."""
    case = load(sidecar)
    outcome = parsed(case["kind"], sidecar.with_suffix(".txt").read_bytes())
    for key, expected in case["expected"].items():
        if key in SAID_IN_WORDS:
            continue
        assert key in outcome, f"{key} is not in the outcome"
        if isinstance(expected, str) and expected.startswith("implausible"):
            assert outcome[key] is None
            assert key in outcome["implausible"]
        else:
            assert outcome[key] == expected, key
    if "swap_used_must_not_be_negative" in case["expected"]:
        assert outcome["swap_used"] is None or outcome["swap_used"] >= 0
    assert set(case["expected"].get("has", ())) <= set(outcome)
    if case["expected"].get("keys_with_unit") == "all but HugePages_*":
        assert outcome["without_unit"] == [key for key in outcome if key.startswith("HugePages_")]
    if "previous" in case["expected"]:
        new, old = Counters(**outcome), Counters(**case["expected"]["previous"])
        assert kernelfmt.delta(new, old) == new


@pytest.mark.parametrize("sidecar", [path for path in SIDECARS if "read_error" in load(path)], ids=lambda p: p.stem)
def test_a_collected_read_error_means_what_its_sidecar_expects(sidecar: Path) -> None:
    """A file that cannot be read means a missing feature or a removed cgroup, as its errno and kind say."""
    case = load(sidecar)
    name = re.match(r"E[A-Z]+", case["read_error"])
    assert name is not None
    kind = kind_of(case["kind"])
    assert kind is not None
    outcome = read_error(kind, getattr(errno, name[0]))
    assert outcome is not None
    assert case["expected"].items() <= outcome.items()


def test_there_are_cases() -> None:
    """An empty folder would make the tests above pass for nothing."""
    assert len(SIDECARS) > 40
