"""The guests themselves: what comes out of them when all goes well, and when it does not."""

import io
import os
import platform
import subprocess
import sys

import pytest

from tests.support.uml import runner

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="user-mode Linux exists for x86-64 only")

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
CONFTEST = """
import os
from tests.support.uml import host_plugin

def pytest_configure(config):
    if host_plugin.IN_GUEST_VARIABLE not in os.environ:
        here = os.path.join(str(config.rootpath), "kernel")
        config.pluginmanager.register(host_plugin.KernelInGuests(config, here))
"""
GOOD = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="because")
def test_skips(): pass

def test_fails():
    print("said before")
    assert open("/sys/fs/cgroup/cgroup.controllers").read() == "none"

@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown broke")

def test_errs(broken): pass

@pytest.mark.parametrize("word", ["a b", "[ü]"])
def test_odd_names(word): pass
"""
PANIC = """
def test_before(): pass

def test_panic():
    open("/proc/sys/kernel/sysrq", "w").write("1")
    open("/proc/sysrq-trigger", "w").write("c")

def test_after(): pass
"""
HANG = """
import signal, time

def test_hang():
    time.sleep(600)
"""


def pytest_on(directory: str, files: dict[str, str], *options: str, **environment: str) -> str:
    """Run pytest on a small suite whose kernel/ directory runs in guests; its output and exit status."""
    os.mkdir(f"{directory}/kernel")
    named = {"pytest.ini": "[pytest]\ntimeout = 120\n", "conftest.py": CONFTEST}
    named |= {f"kernel/{name}": text for name, text in files.items()}
    for name, text in named.items():
        with open(f"{directory}/{name}", "w") as file:
            file.write(text)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": CHECKOUT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}\n"


@pytest.fixture
def suite(tmp_path: object) -> str:
    """An empty directory for a suite, on a file system that guests see too."""
    return str(tmp_path)


def test_output_and_status_come_out_of_a_guest() -> None:
    """Standard output and error arrive unchanged, line ends too, and so does the exit status."""
    sink = io.BytesIO()
    outcome = runner.run(["sh", "-c", "echo out; echo err >&2; exit 7"], to=sink)
    assert (outcome.status, outcome.trouble) == (7, None)
    assert sink.getvalue() == b"out\nerr\n"


def test_a_command_that_does_not_end_is_ended() -> None:
    """The guest halts at the limit and says so; no process of it is left."""
    outcome = runner.run(["sleep", "600"], to=io.BytesIO(), limit_s=1.0)
    assert outcome.status is None
    assert outcome.trouble == "the command did not end within 1 s"


def test_a_missing_linux_uml_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, and what to install."""
    monkeypatch.setattr(runner, "binary", lambda: None)
    with pytest.raises(runner.GuestError, match=r"cannot find linux\.uml: .*apt-get install user-mode-linux"):
        runner.run(["true"], to=io.BytesIO())


def test_the_register_panic_comes_with_its_remedy() -> None:
    """The one panic that a compiler cures names the packages."""
    console = "userspace - ptrace set fp regs failed, errno = 14\nKernel panic - not syncing: Attempted to kill init!"
    assert "apt-get install gcc libc6-dev" in runner.trouble_of(console, -6)


def test_results_of_a_guest_are_ordinary_results(suite: str) -> None:
    """Passes, skips, failures with captured output, teardown errors and odd names, as if run here."""
    said = pytest_on(suite, {"test_good.py": GOOD})
    assert "test_good.py::test_passes PASSED" in said
    assert "test_good.py::test_skips SKIPPED (because)" in said
    assert "test_good.py::test_fails FAILED" in said
    assert "Captured stdout call" in said
    assert "said before" in said
    assert "RuntimeError: teardown broke" in said
    assert "1 failed, 4 passed, 1 skipped, 1 error" in said
    assert "exit status 1" in said


def test_selection_happens_before_a_guest_is_started(suite: str) -> None:
    """-k leaves one test; it alone runs, and the run is green."""
    said = pytest_on(suite, {"test_good.py": GOOD, "test_panic.py": PANIC}, "-k", "test_passes")
    assert "1 passed, 8 deselected" in said
    assert "exit status 0" in said


def test_a_panic_fails_the_running_test_and_all_that_follow(suite: str) -> None:
    """What had run keeps its result, other guests are not touched, and the failure shows the panic."""
    said = pytest_on(suite, {"test_good.py": GOOD, "test_panic.py": PANIC}, "-k", "passes or before or panic or after")
    assert "test_good.py::test_passes PASSED" in said
    assert "test_panic.py::test_before PASSED" in said
    assert "test_panic.py::test_panic FAILED" in said
    assert "test_panic.py::test_after FAILED" in said
    assert "test_panic was running: the guest kernel panicked: sysrq triggered crash" in said
    assert "test_after has no report: the guest kernel panicked" in said
    assert "guest's console" in said


def test_a_guest_that_hangs_is_ended_at_its_limit(suite: str) -> None:
    """The whole run has a limit of its own, beside pytest-timeout inside."""
    said = pytest_on(suite, {"test_hang.py": HANG}, EDGEGUARDD_KERNEL_LIMIT_S="6")
    assert "test_hang was running: the command did not end within 6 s" in said
    assert "exit status 1" in said


def test_without_linux_uml_kernel_tests_fail_and_say_what_to_install(suite: str) -> None:
    """A suite that ran no kernel test must not be green."""
    said = pytest_on(suite, {"test_good.py": GOOD}, "-k", "passes", LINUX_UML="/nowhere")
    assert "cannot find linux.uml" in said
    assert "exit status 1" in said
