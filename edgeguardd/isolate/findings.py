"""The words of an audit: rules, verdicts, what a rule is asked about, and what it answers.

Must not: know a rule. Upstream: unit. Downstream: memorychecks, servicechecks, rules, judge, reports.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from edgeguardd.isolate.unit import Machine, Unit


class Verdict(StrEnum):
    """What a rule says of a unit."""

    PASS = "pass"  # noqa: S105  a word, no secret
    FAIL = "fail"
    FAIL_UNSET = "fail_unset"  # a value that the rule compares is missing
    JUDGEMENT = "judgement"  # the rule's text does not decide


class Severity(StrEnum):
    """How bad a failure is; SARIF has the same three."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Role(StrEnum):
    """What a unit is for: it may be killed first, or it must live, or neither is said."""

    INFERENCE = "inference"
    CRITICAL = "critical"
    OTHER = "other"


class Live(Struct, frozen=True):
    """What the kernel has for a running unit: file name -> its text; `controllers` None when that cannot be read."""

    cgroup: str
    files: Mapping[str, str]
    controllers: frozenset[str] | None
    scores: Mapping[int, int]
    has_swap: bool | None = None


class Subject(Struct, frozen=True):
    """What a rule is asked about."""

    unit: Unit
    shown: Mapping[str, Any]
    machine: Machine
    role: Role = Role.INFERENCE
    live: Live | None = None
    differs: tuple[str, ...] | None = None  # from the files, in the running systemd; None: it was not asked


class Answer(Struct, frozen=True):
    """A verdict, and the figures that made it. `key`: the setting it stands on, for file and line."""

    verdict: Verdict
    why: str
    key: str = ""


class Rule(Struct, frozen=True):
    """One rule. `check` answers None where the rule does not apply to the unit.

    elsewhere: the severity for units that are no inference servers; None: the same.
    unlimited: that for a unit of the role `other` that nobody has limited: distributions set none.
    """

    id: str
    severity: Severity
    text: str
    remedy: str
    adr: str
    check: Callable[[Subject], Answer | None]
    kinds: tuple[str, ...] = ("service",)
    roles: tuple[Role, ...] = tuple(Role)
    elsewhere: Severity | None = None
    unlimited: Severity | None = None


def passed(why: str, key: str = "") -> Answer:
    """The rule is kept."""
    return Answer(Verdict.PASS, why, key)


def failed(why: str, key: str = "") -> Answer:
    """The rule is broken."""
    return Answer(Verdict.FAIL, why, key)


def unset(why: str, key: str = "") -> Answer:
    """Nothing is set to compare."""
    return Answer(Verdict.FAIL_UNSET, why, key)


def judge(why: str, key: str = "") -> Answer:
    """A person has to decide."""
    return Answer(Verdict.JUDGEMENT, why, key)
