"""What holds for every test: the programs it starts hear an interrupt, and none is left when the run is over."""

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
