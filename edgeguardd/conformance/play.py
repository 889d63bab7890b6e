"""Plays cases against a program and says how each went.

Must not: print. Upstream: stage, outcome. Downstream: cli.conformance.
"""

import concurrent.futures
import threading
import time
from collections.abc import Iterator, Sequence

from edgeguardd.conformance.outcome import Outcome, Result
from edgeguardd.conformance.peer import Fault
from edgeguardd.conformance.script import Case, lines_of
from edgeguardd.conformance.stage import NotApplicable, Stage


def play_all(
    cases: Sequence[Case], argv: Sequence[str], *, timeout_s: float, strict: bool, jobs: int
) -> Iterator[Result]:
    """The results in the order of the cases, each as soon as it is there; `jobs` are played at once.

    Raises EdgeguardError when the program cannot be started.
    """
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            running = [pool.submit(_play, case, argv, timeout_s, strict, stop) for case in cases]
            for future in running:
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _play(case: Case, argv: Sequence[str], timeout_s: float, strict: bool, stop: threading.Event) -> Result:
    began = time.monotonic()
    heard: list[str] = []
    outcome, why = Outcome.PASSED, ""
    if case.needs_contract and not strict:
        outcome, why = Outcome.LEFT_OUT, "it needs a program that keeps the test contract"
    else:
        with Stage(case, argv, timeout_s, strict=strict, stop=stop) as stage:
            heard = stage.heard
            try:
                stage.play()
            except Fault as fault:
                outcome, why = Outcome.FAILED, str(fault)
            except NotApplicable as reason:
                outcome, why = Outcome.LEFT_OUT, str(reason)
    return Result(case.name, case.rule, outcome, why, time.monotonic() - began, lines_of(case), heard)
