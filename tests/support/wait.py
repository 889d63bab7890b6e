"""Waiting for conditions: tests never sleep for a fixed time and hope."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Long enough for user-mode Linux on a busy two-core machine; a passing test never waits for it.
DEADLINE_S = 20.0
POLL_S = 0.005


def eventually(
    condition: Callable[[], T], deadline_s: float = DEADLINE_S, what: str = "", every_s: float = POLL_S
) -> T:
    """The first true value of condition(). Fails with the last value when the deadline passes."""
    until = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}; last value {value!r}")
        time.sleep(every_s)


async def soon(condition: Callable[[], T], deadline_s: float = DEADLINE_S, what: str = "") -> T:
    """As eventually, inside a running event loop."""
    until = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}; last value {value!r}")
        await asyncio.sleep(0.002)
