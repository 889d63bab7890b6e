"""What several files of kernel unit tests stand on."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    """Each child has been waited for."""
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
