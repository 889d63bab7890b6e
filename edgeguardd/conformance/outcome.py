"""How a case went, as values.

Must not: import what plays it. Upstream: nothing. Downstream: play, cli.conformance.
"""

import enum

from msgspec import Struct


class Outcome(enum.StrEnum):
    """How a case went."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


class Result(Struct, frozen=True):
    """One case and its outcome; `why` says what was wrong, or why it was left out; `heard` is what was really said."""

    name: str
    rule: str
    outcome: Outcome
    why: str
    took_s: float
    wanted: list[str]
    heard: list[str]
