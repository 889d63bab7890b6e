"""A second daemon, or put-back, beside one that runs: what the first has lifted and written down stays as it is."""

import glob
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

TARGET = """
[[target]]
name = "llm"
path = "/llm"
[sampling]
fast = 0.05
slow = 0.1
"""
HELLO = {"name": "test", "target": "llm"}
# Lifted it has as many digits: a write to a plain file leaves what stands behind.
HIGH = 40 * MIB


class Lifted:
    """A daemon that has lifted memory.high for a trim that lasts."""

    def __init__(self, daemon: Daemon, cgroup: FakeCgroup) -> None:
        self.daemon = daemon
        self._high = Path(cgroup.path, "memory.high")
        eventually(lambda: self.limit() > HIGH, what="the limit is lifted")
        self.before = self.now()

    def limit(self) -> int:
        return int(self._high.read_text())

    def now(self) -> tuple[int, dict[str, bytes]]:
        """The limit, and what is written down about it."""
        files = glob.glob(f"{self.daemon.state_directory}/lifted-*")
        return self.limit(), {file: Path(file).read_bytes() for file in files}


@pytest.fixture
def tight(place: str) -> FakeCgroup:
    """A cgroup that is about to cross its memory.high."""
    os.mkdir(f"{place}/tree")
    cgroup = FakeTree(f"{place}/tree").cgroup("/llm", high_bytes=HIGH, max_bytes=60 * MIB)
    cgroup.usage(5 * MIB)
    return cgroup


@contextmanager
def lifting(place: str, cgroup: FakeCgroup) -> Iterator[Lifted]:
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon:
        with Subscriber(daemon.socket_path, HELLO, ack="accepted") as server:
            server.wait_for("welcome")
            cgroup.usage(39 * MIB)
            lifted = Lifted(daemon, cgroup)
            assert len(lifted.before[1]) == 1
            yield lifted
        daemon.stop()
        assert lifted.now() == (HIGH, {})


def edgeguardd(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgeguardd", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_second_run_with_the_same_configuration_ends_and_touches_nothing(place: str, tight: FakeCgroup) -> None:
    """One clear sentence, exit status 1; the limit stays lifted and its record stays."""
    with lifting(place, tight) as first:
        second = edgeguardd("run", "--config", first.daemon.config_path)
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert line.startswith(
            f"edgeguardd: cannot listen on {first.daemon.socket_path}: another process listens there, "
        )
        assert f" with pid {first.daemon.pid}; stop it (is edgeguardd running already?)" in line
        assert second.stdout == ""
        assert first.now() == first.before
        assert first.daemon.listens()


def test_a_second_daemon_on_the_same_state_recovers_nothing_and_lifts_nothing(place: str, tight: FakeCgroup) -> None:
    """It guards, says once that the state is another's, and neither puts back nor lifts, at its start or its end."""
    with lifting(place, tight) as first:
        directory = f"{place}/second"
        os.mkdir(directory)
        tree = FakeTree(
            f"{place}/second",
        )
        own = tree.cgroup("/llm", high_bytes=HIGH, max_bytes=60 * MIB)
        second = Daemon(directory, TARGET, cgroup_root=directory, start=False)
        second.state_directory = first.daemon.state_directory
        second.write_config(TARGET)
        second.start()
        try:
            assert first.now() == first.before
            with Subscriber(second.socket_path, HELLO, ack="accepted") as server:
                server.wait_for("welcome")
                own.usage(39 * MIB)
                eventually(lambda: second.facts("no_relief") != [], what="the second one cannot lift")
            assert Path(own.path, "memory.high").read_text().strip() == str(HIGH)
            said = [fact["why"] for fact in second.facts("works_in_part") if "another edgeguardd" in fact["why"]]
            assert len(said) == 1
        finally:
            assert second.stop() == 0
        assert first.now() == first.before


def test_put_back_beside_a_running_daemon_is_refused(place: str, tight: FakeCgroup) -> None:
    """One sentence, exit status 1, nothing touched; once that daemon was killed, it is put back."""
    with lifting(place, tight) as first:
        words = ("put-back", "--config", first.daemon.config_path)
        refused = edgeguardd(*words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("edgeguardd: cannot put back what is lifted or frozen: another edgeguardd")
        assert len(refused.stderr.splitlines()) == 1
        assert first.now() == first.before
        first.daemon.kill()
        done = edgeguardd(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert first.now() == (HIGH, {})
