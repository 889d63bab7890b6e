"""Runs one command inside a user-mode Linux guest: a real kernel with cgroup v2, no root, no KVM, no disk image.

The guest sees the host's files at their places, except /proc, /sys, /run, /dev, /dev/shm and the cgroup tree, which
are its own. Unix sockets work only there (/run), not on the host's files. One CPU, no PSI, slow system calls.

Must not: know pytest or the project. Upstream: xstate_preload, guest_init. Downstream: host_plugin, demo, __main__.
"""

import contextlib
import dataclasses
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import BinaryIO

from tests.support.uml import preload

MIB = 1024 * 1024
# Enough for two pythons and a test's own tens of MiB; only touched pages cost the host anything.
MEMORY_BYTES = 512 * MIB
# Boot and halt take 2 s on an idle machine; the guest ends itself at its limit, the host ends it this much later.
BOOT_GRACE_S = 30.0
TAIL_LINES = 40
POLL_S = 0.02
INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_init.py")
INSTALL = "`make setup` or apt-get install user-mode-linux"


class GuestError(Exception):
    """A guest cannot be started here; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a guest ended: the command's exit status (negative: by that signal), or else the trouble in a sentence."""

    status: int | None
    trouble: str | None
    console: str
    took_s: float


def binary() -> str | None:
    """The path of linux.uml: $LINUX_UML and nothing else if it is set; None where there is none."""
    named = os.environ.get("LINUX_UML")
    if named is not None:
        return named if os.path.isfile(named) else None
    return shutil.which("linux.uml", path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")


def missing() -> str | None:
    """One line on why no guest can be started on this machine; None if one can be."""
    if binary() is not None:
        return None
    if platform.machine() != "x86_64":
        return f"cannot run user-mode Linux: it exists for x86-64 only, this is {platform.machine()}"
    return f"cannot find linux.uml: {INSTALL}"


def kernel_config() -> str:
    """The guest kernel's build configuration, in the form of /proc/config.gz."""
    linux = binary()
    if linux is None:
        raise GuestError(missing())
    return subprocess.run([linux, "--showconfig"], check=True, capture_output=True, text=True).stdout


class Guest:
    """One guest and its command. `with Guest(...) as guest: guest.wait()`; leaving the block ends what still runs."""

    def __init__(
        self,
        argv: list[str],
        *,
        output: int,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        limit_s: float = 300.0,
    ) -> None:
        """Boot. `output` takes the command's stdout and stderr: a pipe or a file, never a terminal."""
        linux = binary()
        if linux is None:
            raise GuestError(missing())
        self._ended: str | None = None
        self._directory = tempfile.mkdtemp(prefix="edgeguardd-uml-", dir="/tmp")
        try:
            self._write_spec(argv, cwd or os.getcwd(), env, limit_s)
            self._started = time.monotonic()
            self._until = self._started + limit_s + BOOT_GRACE_S
            self._process = self._boot(linux, output, memory_bytes)
        except BaseException:
            shutil.rmtree(self._directory)
            raise

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def running(self) -> bool:
        """Whether the guest still runs. One that is past its limit is ended here."""
        if self._process.returncode is not None:
            return False
        try:
            exited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False  # the output's thread has ended it this moment
        if exited:
            self._kill()
            return False
        if time.monotonic() > self._until:
            self._ended = f"the guest did not halt within {self._until - self._started:.0f} s"
            self._kill()
            return False
        return True

    def wait(self) -> Outcome:
        """Until the guest has halted, or has been ended at its limit."""
        while self.running():
            time.sleep(POLL_S)
        return self.outcome()

    def end(self, why: str) -> None:
        """Kill the guest, if it still runs; `why` becomes its outcome's trouble."""
        if self.running():
            self._ended = why
            self._kill()

    def _kill(self) -> None:
        """The kernel's process with its helpers, which it leaves behind when killed alone. Reaped last: until then its
        number, which is its group's too, belongs to nobody else."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def outcome(self) -> Outcome:
        """How it ended; call when it no longer runs."""
        took_s = time.monotonic() - self._started
        console = self._read("console")
        answer = self._read("status.json")
        if answer:
            told = json.loads(answer)
            return Outcome(told["status"], told["trouble"], console, took_s)
        return Outcome(None, self._ended or trouble_of(console, self._process.returncode), console, took_s)

    def console_tail(self) -> str:
        """The last lines of the guest kernel's console, so far."""
        return "\n".join(self._read("console").splitlines()[-TAIL_LINES:])

    def close(self) -> None:
        """End what still runs and remove the guest's private directory."""
        self.end("ended by the host")
        shutil.rmtree(self._directory, ignore_errors=True)

    def _write_spec(self, argv: list[str], cwd: str, env: dict[str, str] | None, limit_s: float) -> None:
        spec = {"argv": argv, "cwd": cwd, "env": guest_environment(env or {}), "limit_s": limit_s}
        with open(f"{self._directory}/spec.json", "w") as file:
            json.dump(spec, file)
        # A shell in between, because the kernel's own script loader splits an interpreter's path at blanks.
        words = [sys.executable, "-I", "-S", "-B", INIT, self._directory]
        with open(f"{self._directory}/init", "w") as file:
            file.write(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        os.chmod(f"{self._directory}/init", 0o700)

    def _boot(self, linux: str, output: int, memory_bytes: int) -> "subprocess.Popen[bytes]":
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": self._directory}
        environment["TMPDIR"] = memory_directory(memory_bytes) or self._directory
        shim = preload.built()
        if shim is not None:
            # By a name without blanks, which LD_PRELOAD would split at; a checkout may lie anywhere.
            environment["LD_PRELOAD"] = f"{self._directory}/xstate_preload.so"
            os.symlink(shim, environment["LD_PRELOAD"])
        # Each console wants an input descriptor of its own: two on one fail with EALREADY (um_request_irq, 6.1).
        with open("/dev/null", "rb") as no_input, open(f"{self._directory}/console", "wb") as console:
            command = [
                linux,
                f"mem={memory_bytes // MIB}M",
                *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", f"init={self._directory}/init"),
                *("con=null", "con0=fd:0,fd:1", f"con1=fd:{no_input.fileno()},fd:{output}"),
                f"uml_dir={self._directory}",
                *("quiet", "loglevel=4"),
            ]
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(no_input.fileno(), output),
                start_new_session=True,
            )

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._directory}/{name}", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""


def run(
    argv: list[str],
    *,
    to: BinaryIO,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    limit_s: float = 300.0,
) -> Outcome:
    """Run a command in a guest and stream its output into `to` as it comes."""
    reader, writer = os.pipe()
    try:
        with Guest(argv, output=writer, cwd=cwd, env=env, memory_bytes=memory_bytes, limit_s=limit_s) as guest:
            os.close(writer)
            writer = -1
            pump = threading.Thread(target=copy, args=(reader, to, guest), daemon=True)
            pump.start()
            outcome = guest.wait()
        pump.join()
        return outcome
    finally:
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)


def copy(source: int, to: BinaryIO, guest: Guest) -> None:
    """Everything from a pipe until its last writer is gone, flushed piece by piece. No reader, no guest."""
    try:
        while piece := os.read(source, 65536):
            to.write(piece)
            to.flush()
    except BrokenPipeError:
        guest.end("nobody reads its output any more")


def guest_environment(extra: dict[str, str]) -> dict[str, str]:
    """The host's variables without those that name places or terminals the guest does not have."""
    dropped = ("LD_PRELOAD", "TMPDIR", "TMP", "TEMP", "TERM", "COLUMNS", "LINES", "NOTIFY_SOCKET", "XDG_RUNTIME_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {"PATH": "/usr/bin:/bin", "HOME": "/root", "TERM": "dumb", "NO_COLOR": "1", **kept, **extra}


def memory_directory(memory_bytes: int) -> str | None:
    """Where the guest's memory file may lie: /dev/shm if it has the room (containers often give it 64 MiB)."""
    try:
        room = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return None
    roomy = room.f_bavail * room.f_frsize > memory_bytes + 64 * MIB
    return "/dev/shm" if roomy and not room.f_flag & os.ST_NOEXEC else None


def trouble_of(console: str, returncode: int) -> str:
    """What a guest died of, from its console; the register-state panic comes with its remedy."""
    if preload.SYMPTOM in console:
        return f"the guest kernel panicked ({preload.SYMPTOM}): {preload.REMEDY}"
    for line in console.splitlines():
        if "Kernel panic" in line:
            return f"the guest kernel panicked: {line.split('Kernel panic - not syncing: ')[-1].strip()}"
    return f"the guest died without a word (linux.uml exit status {returncode})"
