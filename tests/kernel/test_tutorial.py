"""docs/tutorial/first-pressure.md as root with a kernel's own cgroup: the same commands as anywhere, for real."""

import os
import sys

import pytest

from tests.support.cgroup import Cgroup
from tests.support.children import ending
from tests.support.documents.reading import follow
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

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


@pytest.mark.cost(20)
def test_the_practice_server_is_a_service_like_any_other(cgroup: Cgroup, run_dir: str) -> None:
    """In a cgroup that somebody else has limited, as a container's: guarded as "self", trimmed, ended by SIGTERM."""
    cgroup.set(max=96 << 20)
    program = [sys.executable, "packaging/examples/practice-server/practice.py", "--service"]
    with Daemon(run_dir, "") as daemon, open(f"{run_dir}/said", "wb") as said:
        environment = {**os.environ, "PYTHONPATH": REPOSITORY, "EDGEGUARDD_SOCKET": daemon.socket_path}
        with ending(cgroup.spawn(program, cwd=REPOSITORY, env=environment, stdout=said, stderr=said)) as server:
            ended = eventually(lambda: daemon.facts("command_ended"), 60, what="it answers a command")
            assert ended[0]["action"] == "trim_kv_cache"
            eventually(lambda: [fact for fact in daemon.facts("command_ended") if fact["outcome"] == "done"], 60)
            server.terminate()
            assert server.wait(60) == 0
    with open(f"{run_dir}/said") as file:
        assert "of 96 MiB" in file.read()
