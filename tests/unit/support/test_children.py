"""Programs that tests start, and what becomes of them."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support import children
from tests.support.children import ending
from tests.support.running import REPOSITORY

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
# A shell starts with SIGINT ignored, then Python, which starts a child as tests do: what does that do with SIGINT?
IGNORED = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c"]
ASK = "import signal; print(signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)"


@pytest.mark.parametrize("call", ["", "children.hear_interrupts()"])
def test_children_hear_an_interrupt_where_it_was_ignored(call: str) -> None:
    """Under nohup and in background jobs, which this very program imitates; without the call they would not."""
    program = f"import subprocess, sys; from tests.support import children\n{call}\n"
    program += f"sys.exit(subprocess.run([sys.executable, '-c', {ASK!r}]).returncode)"
    done = subprocess.run([*IGNORED, program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(bool(call))


def test_an_ignored_interrupt_still_does_not_end_the_run_itself() -> None:
    """Ctrl-C in the terminal of a background job is for somebody else."""
    program = "import os, signal; from tests.support import children; children.hear_interrupts()\n"
    program += "os.kill(os.getpid(), signal.SIGINT); print('still here')"
    done = subprocess.run([*IGNORED, program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "still here\n"


def test_what_a_failing_test_started_is_killed() -> None:
    """Neither left behind nor waited for."""
    started = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)

    def fail() -> None:
        with ending(started) as process:
            assert process.stdout is not None
            process.stdout.readline()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert started.returncode == -signal.SIGKILL


def test_what_ended_by_itself_keeps_its_status() -> None:
    """The closing kill changes nothing of it."""
    with ending(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])) as process:
        assert process.wait(60) == 7
    assert process.returncode == 7


def test_a_forgotten_program_is_found_and_killed() -> None:
    """As at the end of a run."""
    before = children.running()
    with ending(subprocess.Popen(SLEEP, stdout=subprocess.PIPE)) as process:
        left = sorted(set(children.running()) - set(before))
        assert left == [process.pid]
        children.kill(left)
        assert process.wait(60) == -signal.SIGKILL
    assert process.pid not in children.running()
    assert os.getpid() not in children.running()
