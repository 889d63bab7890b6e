"""What several files of component tests stand on."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.support import capi
from tests.support.faketree import FakeCgroup, FakeTree

MIB = 1 << 20


@pytest.fixture
def place() -> Iterator[str]:
    """A directory with a short path: Unix socket paths have room for 107 bytes."""
    path = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def llm(place: str) -> FakeCgroup:
    """A cgroup of 100 of 1000 MiB."""
    os.mkdir(f"{place}/tree")
    cgroup = FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB)
    cgroup.usage(100 * MIB)
    return cgroup


@pytest.fixture(scope="session")
def c_example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C client's example with sanitizers on; its path."""
    return capi.build(str(tmp_path_factory.mktemp("c")), "example.c", capi.SANITIZED)
