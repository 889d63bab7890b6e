"""What holds for every test: the programs it starts hear an interrupt, and none is left when the run is over."""

from typing import Any

import pytest

from tests.support import children


def pytest_configure() -> None:
    """Before the first program is started."""
    children.hear_interrupts()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After everything that tests and plugins close: what is still there was forgotten, and fails the run."""
    left = children.running()
    if left:
        children.kill(left)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nprograms that tests have left running, now killed: {left}")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Any:
    """What a test printed may hold lone surrogates, as names of files do; the way from worker to parent takes UTF-8."""
    report = yield
    return encodable(report)


def encodable(value: Any) -> Any:
    """The same value with every text in it fit for UTF-8; what was not is shown as an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: encodable(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(encodable(held) for held in value)
    return value
