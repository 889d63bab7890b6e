"""Enemies in the directories that the daemon and its command read and write: links, FIFOs, bombs, forged classes."""

import gzip
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import zlib

import pytest

from edgeguardd.core.recording import MAX_LINE_BYTES, Packer, RecordingError, Segment
from tests.support import guarded
from tests.support.faketree import FakeTree
from tests.support.recordings import Taped
from tests.support.running import REPOSITORY, Daemon
from tests.support.unprivileged import NOBODY
from tests.support.wait import DEADLINE_S, eventually

NAME = f"lifted-{hashlib.sha256(b'/llm').hexdigest()[:32]}.json"
SOMEBODYS = '{"v":1,"kind":"lifted","key":"/llm","check":"no","record":{}}\n'
# Python with its modules takes 40 MiB; what a file says may take its longest line a few times over.
MOST_BYTES = 400 << 20


@pytest.fixture
def prepared(place: str) -> tuple[str, str]:
    """A place with a tree, an empty state directory, and a file of somebody else's; the place and that file."""
    os.mkdir(f"{place}/tree")
    FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1 << 30)
    os.mkdir(f"{place}/state", 0o700)
    os.mkdir(f"{place}/state/recordings", 0o700)
    victim = f"{place}/victim"
    with open(victim, "w") as file:
        file.write(SOMEBODYS)
    os.chmod(victim, 0o640)
    return place, victim


def put(what: str, at: str, victim: str) -> None:
    """Something that is no record, where one is looked for."""
    match what:
        case "symlink":
            os.symlink(victim, at)
        case "hard link":
            os.link(victim, at)
        case "fifo":
            os.mkfifo(at)
        case "directory":
            os.mkdir(at)
        case "dangling":
            os.symlink(f"{at}/nowhere", at)
        case _:
            raise ValueError(what)


@pytest.mark.parametrize("what", ["symlink", "hard link", "fifo", "directory", "dangling"])
def test_nothing_is_followed_out_of_the_state_directory(prepared: tuple[str, str], what: str) -> None:
    """The daemon starts, works and stops; the file that a link leads to has its bytes and its mode; nothing hangs."""
    place, victim = prepared
    for at in (
        NAME,
        f".{NAME}.new",
        "recordings/recording-00000001.jsonl.gz",
        "recordings/recording-00000002.jsonl.gz",
    ):
        put(what, f"{place}/state/{at}", victim)
    with Daemon(place, guarded.TARGET, cgroup_root=f"{place}/tree") as daemon:
        daemon.killed = True  # what was put there is no recording of this run
        assert daemon.get("/readyz") == "ready\n"
        eventually(lambda: daemon.status()["targets"][0]["present"])
    with open(victim) as file:
        assert file.read() == SOMEBODYS
    assert os.stat(victim).st_mode & 0o777 == 0o640
    if what == "fifo":
        assert ctl("replay", f"{place}/state").returncode in (0, 1)  # and does not wait for it


@pytest.mark.parametrize("what", ["symlink", "fifo", "directory", "hard link"])
def test_what_stands_in_the_place_of_the_socket_stays(prepared: tuple[str, str], what: str) -> None:
    """The daemon says so and ends; nothing is removed, followed or waited for."""
    place, victim = prepared
    put(what, f"{place}/s", victim)
    daemon = Daemon(place, guarded.TARGET, cgroup_root=f"{place}/tree", start=False)
    daemon.start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(DEADLINE_S) != 0
    assert "cannot " in daemon.log_text()
    assert "Traceback" not in daemon.log_text()
    assert os.path.lexists(f"{place}/s")
    with open(victim) as file:
        assert file.read() == SOMEBODYS


@pytest.mark.parametrize("what", ["fifo", "directory", "dangling"])
def test_a_configuration_that_is_no_file_is_said(prepared: tuple[str, str], what: str) -> None:
    """At the start, and by check-config: one sentence, no waiting."""
    place, victim = prepared
    put(what, f"{place}/config", victim)
    said = ctl("check-config", f"{place}/config")
    assert said.returncode == 1
    assert "cannot read" in said.stdout


def test_a_state_directory_of_somebody_else_is_not_believed(prepared: tuple[str, str]) -> None:
    """Whoever could write records could have limits written: nothing is taken from there, and that is said."""
    if os.geteuid() != 0:
        pytest.skip("another user's directory can only be made by root")
    place, _ = prepared
    shutil.rmtree(f"{place}/state")
    os.mkdir(f"{place}/state", 0o700)
    os.chown(f"{place}/state", NOBODY, NOBODY)
    with Daemon(place, guarded.TARGET, cgroup_root=f"{place}/tree") as daemon:
        daemon.killed = True  # nor is anything recorded
        assert daemon.get("/readyz") == "ready\n"
        assert any(f"belongs to uid {NOBODY}" in fact["why"] for fact in daemon.facts("works_in_part"))


# Recordings that others hand over


def ctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """One command."""
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, check=False, timeout=60)


def bomb(line: bytes) -> bytes:
    """Two longest lines' worth of this in some kilobytes."""
    packer = zlib.compressobj(1, wbits=31)
    return (
        b"".join(packer.compress(line * (1 << 16)) for _ in range(2 * MAX_LINE_BYTES // len(line) >> 16))
        + packer.flush()
    )


@pytest.mark.parametrize("line", [b"\0" * 16, b'{"type":', b"[1.0,[[],"], ids=["zeros", "objects", "lists"])
def test_a_recording_that_unpacks_without_end_takes_little(place: str, line: bytes) -> None:
    """It is none, and is told so within bounds of memory: reading ends where the longest line would."""
    path = f"{place}/recording-00000001.jsonl.gz"
    with open(path, "wb") as file:
        file.write(bomb(line))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ended = ctl("replay", path)
    assert ended.returncode == 1
    assert "cannot read" in ended.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, MOST_BYTES >> 10)


@pytest.mark.parametrize(
    "name",
    [
        *("engine.Engine.__init__", "os.system", "config.os", "builtins.eval", "..kernel.cgroupfs.Node"),
        *("model.Sample.__class__", "wire.json", "effects.assert_never", "checkpoint._Reader", "text.printable"),
    ],
)
def test_a_checkpoint_makes_nothing_but_values_of_the_engine(name: str) -> None:
    """Another class than one of the engine's own is refused, whatever it is called, and nothing of it is run."""
    tape = Taped()
    tape.need(100)
    tape.cut()
    header, checkpoint, *_ = gzip.decompress(tape.files[0]).split(b"\n")
    state = json.loads(checkpoint)
    state["state"] = ["o", name, "argument", "touch forged"]
    packer = Packer()
    segment = Segment(packer.add(header + b"\n" + json.dumps(state).encode() + b"\n") + packer.end(), "f")
    with pytest.raises(RecordingError, match="cannot begin with f"):
        segment.engine()


@pytest.mark.parametrize(
    "state",
    [
        ["q", 2**63],
        ["i", "9" * 5000],
        ["r", 10**9],
        ["F", ["d"]],
        ["s", ["l", ["l"]]],
        ["e", "model.Level", 99],
        [],
        None,
    ],
)
def test_a_checkpoint_that_is_none_is_one_sentence(state: object) -> None:
    """Numbers beyond the machine's, what cannot be in a set, references to nothing: no traceback."""
    tape = Taped()
    tape.need(100)
    tape.cut()
    header = gzip.decompress(tape.files[0]).split(b"\n")[0]
    packer = Packer()
    line = json.dumps({"type": "checkpoint", "state": state}).encode()
    segment = Segment(packer.add(header + b"\n" + line + b"\n") + packer.end(), "f")
    with pytest.raises(RecordingError, match="cannot begin with f"):
        segment.engine()


def test_what_a_recording_says_acts_on_no_terminal(place: str) -> None:
    """Names and sentences in it are printed as text, and the page of an incident has no script but its own."""
    tape = Taped(version="\x1b[2J</title><script>alert(1)</script>")
    tape.join()
    tape.need(990)
    tape.cut()
    path = tape.write(f"{place}/recordings")
    for arguments in (("replay", path), ("incidents", "--directory", path)):
        ended = ctl(*arguments)
        assert all(line.isprintable() for line in (ended.stdout + ended.stderr).splitlines())
    page = ctl("incidents", "1", "--directory", path, "--html", "-").stdout
    assert "Content-Security-Policy" in page
    assert "<script" not in page
