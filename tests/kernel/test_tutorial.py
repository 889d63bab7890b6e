"""docs/tutorial/first-pressure.md as root with a kernel's own cgroup: the same commands as anywhere, for real."""

import os

import pytest

from tests.support.documents.reading import follow

CGROUP = "/sys/fs/cgroup/edgeguardd-practice"


@pytest.mark.cost(40)
@pytest.mark.timeout(240)
def test_the_tutorial_is_as_it_says(run_dir: str) -> None:
    """The server lives in a cgroup whose figures are the kernel's, and leaves none behind."""
    # How it is looked at does not hang on the kernel, that it kills is shown elsewhere, and each program that is
    # started takes seconds in a guest.
    follow("docs/tutorial/first-pressure.md", run_dir, leave_out=("--alone", "watch", "curl", "incidents", "mine.py"))
    with open(f"{run_dir}/home/practice.toml") as file:
        assert 'cgroup_root = "/sys/fs/cgroup"' in file.read()
    assert not os.path.exists(CGROUP)
