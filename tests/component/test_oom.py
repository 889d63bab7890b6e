"""edgeguardctl oom as a process: what it reads, what it prints, and what it says when it cannot."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.cli.edgeguardctl import main
from edgeguardd.errors import EdgeguardError
from edgeguardd.kernel.kmsg import Kmsg
from tests.support.children import ending
from tests.support.documents.pages import commands
from tests.support.oomlogs import MODERN, MODERN_EVENT
from tests.support.wait import eventually

REPOSITORY = Path(__file__).parent.parent.parent
LOG = "\n".join(f"[ 1503.009765] {message}" for message in MODERN).encode()


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the command prints when all is well."""
    assert main(["oom", *argv]) == 0
    return capsys.readouterr().out


def read(capsys: pytest.CaptureFixture[str], data: bytes, tmp_path: Path) -> dict[str, Any]:
    """The JSON of a file that holds this."""
    path = tmp_path / "log"
    path.write_bytes(data)
    found: dict[str, Any] = json.loads(printed(capsys, "--json", str(path)))
    return found


@pytest.mark.parametrize(
    "pack",
    [
        *(bytes, gzip.compress, bz2.compress, lzma.compress, lambda log: log.decode().encode("utf-16")),
        *(lambda log: b"\xef\xbb\xbf" + log, lambda log: log.replace(b"\n", b"\r\n")),
    ],
    ids=["plain", "gzip", "bzip2", "xz", "UTF-16", "byte order mark", "CRLF"],
)
def test_a_file_is_read_however_it_is_packed(pack: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rotated logs are packed, and PowerShell writes UTF-16."""
    (event,) = read(capsys, pack(LOG), tmp_path)["events"]
    assert MODERN_EVENT.items() <= event.items()
    assert event["timestamp"] == 1503.009765


def test_standard_input_is_read(tmp_path: Path) -> None:
    """As journalctl -k | edgeguardctl oom - is."""
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "oom", "-", "--json"]
    done = subprocess.run(argv, input=LOG, capture_output=True, check=True, cwd=REPOSITORY, timeout=60)
    assert len(json.loads(done.stdout)["events"]) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"LPKSHHRH" + bytes(100), "journalctl"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstdcat"),
        (gzip.compress(LOG)[:40], "whole"),
        (b"\x1f\x8b" + bytes(100), "whole"),
        (lzma.compress(LOG)[:40], "whole"),
    ],
    ids=["journal", "zstd", "cut gzip", "broken gzip", "cut xz"],
)
def test_what_cannot_be_read_is_one_sentence(
    data: bytes, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the file and what to do."""
    path = tmp_path / "log"
    path.write_bytes(data)
    assert main(["oom", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"edgeguardctl: cannot read {path}: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["missing", "."])
def test_no_file_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A name that is none, or a directory."""
    assert main(["oom", str(tmp_path / name)]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_an_empty_log_has_no_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And says so."""
    assert read(capsys, b"", tmp_path) == {"events": []}
    assert printed(capsys, str(tmp_path / "log")) == "No OOM report in this log.\n"


def test_people_get_a_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Who, whose limit, who used what, why, and what to change."""
    (tmp_path / "log").write_bytes(LOG)
    out = printed(capsys, str(tmp_path / "log"))
    for words in (
        "a b(7 (7055)",
        "47.2 MiB anonymous",
        "40.0 MiB",
        "/egtest",
        "Whose limit:",
        "Why this victim:",
        "pause",
    ):
        assert words in out
    assert "What to change:  Raise the limit of /egtest" in out
    assert "oom_score_adj 777 counted as 31.1 MiB more" in out


def test_a_name_does_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Escapes in a name come out as text, in both outputs."""
    log = LOG.replace(b"a b(7", b"a\\x1b[2J")
    raw = b"\n".join(b"3,%d,1503009765,-;%s" % (n, line[15:]) for n, line in enumerate(log.split(b"\n")))
    (tmp_path / "log").write_bytes(raw)
    assert "\x1b" not in printed(capsys, str(tmp_path / "log"))
    assert json.loads(printed(capsys, "--json", str(tmp_path / "log")))["events"][0]["comm"] == "a\x1b[2J"


def test_a_line_without_an_end_is_not_held_in_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three megabytes without a newline: cut, and the next line is read."""
    found = read(capsys, b"oom" * (1 << 20) + b"\n" + LOG, tmp_path)
    assert len(found["events"]) == 1


def test_following_a_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """--follow is for the running kernel."""
    with pytest.raises(SystemExit) as caught:
        main(["oom", "--follow", "file"])
    assert caught.value.code == 2


def how_to_commands() -> list[str]:
    """The commands of docs/how-to/read-an-oom-report.md."""
    return [command.text for command in commands("docs/how-to/read-an-oom-report.md")]


def test_the_how_to_has_commands() -> None:
    """Else the next test runs none."""
    assert len(how_to_commands()) == 5


@pytest.mark.parametrize("command", how_to_commands())
def test_each_command_of_the_how_to_works(command: str, tmp_path: Path) -> None:
    """As printed, but for journalctl, in whose place a log is piped; --follow goes on until it is interrupted."""
    (tmp_path / "kern.log").write_bytes(LOG)
    words = command.rpartition("| ")[2].split()
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    if "--follow" not in words and words[-1] != "oom":
        done = subprocess.run(
            argv, check=False, input=LOG, capture_output=True, cwd=tmp_path, env=environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert b"/egtest" in done.stdout
        return
    started = subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with ending(started) as process:
        if "--follow" in words and readable_kernel_log():
            eventually(lambda: "/dev/kmsg" in open_files(process.pid), what="it reads the kernel's log")
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert process.returncode in ((0, 130) if readable_kernel_log() else (1,)), errors


def test_the_drop_in_of_the_how_to_is_the_shipped_one() -> None:
    """Comments aside, the page prints the file."""
    page = (REPOSITORY / "docs/how-to/read-an-oom-report.md").read_text()
    printed_lines = page.partition("```ini\n")[2].partition("```")[0].splitlines()
    shipped = (REPOSITORY / "systemd/drop-ins/kernel-log.conf").read_text().splitlines()
    assert [line for line in printed_lines if line[0] != "#"] == [line for line in shipped if line[0] != "#"]


def readable_kernel_log() -> bool:
    """Whether this user may read it here."""
    try:
        Kmsg.open().close()
    except EdgeguardError:
        return False
    return True


def open_files(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
