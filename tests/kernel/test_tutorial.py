"""docs/tutorial/first-pressure.md as root with a kernel's own cgroup: the same commands as anywhere, for real."""

import os

import pytest

from tests.support.documents.reading import follow

CGROUP = "/sys/fs/cgroup/edgeguardd-practice"


@pytest.mark.cost(25)
@pytest.mark.timeout(240)
def test_the_tutorial_is_as_it_says(run_dir: str) -> None:
    """The kernel kills the one alone and counts for the guarded one, which leaves no cgroup behind."""
    # How it is looked at does not hang on the kernel, and each look takes seconds in a guest.
    follow("docs/tutorial/first-pressure.md", run_dir, leave_out=("watch", "curl", "incidents"))
    with open(f"{run_dir}/home/practice.toml") as file:
        assert 'cgroup_root = "/sys/fs/cgroup"' in file.read()
    assert not os.path.exists(CGROUP)
