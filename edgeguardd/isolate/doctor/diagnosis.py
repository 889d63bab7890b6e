"""One result of a check, and its verdict.

Must not: check. Upstream: nothing. Downstream: checks, boards, rivals, cli.doctor.
"""

import enum

from msgspec import Struct


class Verdict(enum.StrEnum):
    """From fine to unusable."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(Struct, frozen=True):
    """What was checked, how it stands, and the exact remedy where it does not stand well."""

    check: str
    verdict: Verdict
    says: str
    remedy: str | None = None
