"""What several files of component tests stand on and is made once."""

import pytest

from tests.support import capi


@pytest.fixture(scope="session")
def c_example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C client's example with sanitizers on; its path."""
    return capi.build(str(tmp_path_factory.mktemp("c")), "example.c", capi.SANITIZED)
