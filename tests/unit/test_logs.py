"""The log: readable or JSON, bounded, safe to print, and never in the daemon's way."""

import fcntl
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from edgeguardd import logs
from edgeguardd.core.config import LogConfig

JSON = LogConfig(format="json", level="debug")
TEXT = LogConfig(format="text", level="debug")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leaves the process's logging as it was found."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    """The JSON lines that were written."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_holds_the_fact_and_its_figures() -> None:
    """Time, severity and event come first, then the fields in the order they were given."""
    stream = io.StringIO()
    logs.configure(JSON, stream)
    logs.get_logger().warning("level_changed", target="llm", level="high", used_ratio=0.5, was=None)
    (line,) = lines_of(stream)
    assert list(line) == ["time", "severity", "event", "target", "level", "used_ratio", "was"]
    assert line["severity"] == "warning"
    assert line["time"].endswith("Z")
    assert (line["level"], line["used_ratio"], line["was"]) == ("high", 0.5, None)


def test_a_text_line_is_readable() -> None:
    """Values with spaces are quoted, others are bare."""
    stream = io.StringIO()
    logs.configure(TEXT, stream)
    logs.get_logger().info("command_sent", target="llm", why='needs "it" now', seq=3, ok=True)
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info    command_sent target=llm why="needs \\"it\\" now" seq=3 ok=true\n'


def test_the_level_filters() -> None:
    """What is below the configured level is not written, and a second configure() changes that."""
    stream = io.StringIO()
    log = logs.get_logger()
    logs.configure(LogConfig(format="json", level="warning"), stream)
    log.info("quiet")
    logs.configure(JSON, stream)
    log.debug("loud")
    assert [line["event"] for line in lines_of(stream)] == ["loud"]


@pytest.mark.parametrize("config", [JSON, TEXT])
def test_text_from_peers_cannot_act_on_a_terminal_or_forge_a_line(config: LogConfig) -> None:
    """Control characters, line ends and bidirectional overrides are spelled out, in keys too."""
    stream = io.StringIO()
    logs.configure(config, stream)
    logs.get_logger().info("joined", name="\x1b]0;x\x07\n2030 info forged \u202e\x9b\ud800", **{"k\n": "v"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert "\\x1b]0;x\\x07\\n2030 info forged" in text.replace("\\\\", "\\")


def test_a_line_is_bounded_whatever_is_in_it() -> None:
    """Huge values, many values and long tracebacks end in one line of at most PIPE_BUF bytes that is still JSON."""
    stream = io.StringIO()
    logs.configure(JSON, stream)
    logs.get_logger().info(
        "big", text="ü" * 100_000, many=["x" * 1000] * 1000, **{f"k{i}": "y" * 500 for i in range(90)}
    )
    text = stream.getvalue()
    assert len(text.encode()) <= logs.MAX_LINE_BYTES
    assert json.loads(text)["event"] == "big"


def test_a_traceback_is_kept_at_its_end() -> None:
    """A defect is logged with the frames nearest to it."""
    stream = io.StringIO()
    logs.configure(JSON, stream)

    def deep(depth: int) -> None:
        if depth == 0:
            raise ZeroDivisionError("the cause\x1b[0m")
        deep(depth - 1)

    try:
        deep(100)
    except ZeroDivisionError as error:
        logs.get_logger().error("defect", exc_info=error)
        logs.get_logger().error("defect", exc_info=True)
    logs.get_logger().error("no_defect", exc_info=None)
    first, second, third = lines_of(stream)
    assert first["exception"].endswith("ZeroDivisionError: the cause\\x1b[0m")
    assert second["exception"] == first["exception"]
    assert "exception" not in third


class Hostile:
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError


def test_no_value_makes_logging_raise() -> None:
    """Objects that cannot be printed, endless numbers and reserved names still give a line."""
    stream = io.StringIO()
    output = logs.configure(JSON, stream)
    logs.get_logger().info(
        "odd", a=Hostile(), b=10**5000, c=float("nan"), d={"x": 1}, e={1}, f=b"\0", time=1, severity=2
    )
    (line,) = lines_of(stream)
    assert line["a"] == "<unprintable Hostile>"
    assert line["c"] == "nan"
    assert line["e"] == ["1"]
    assert (line["time_"], line["severity_"]) == (1, 2)
    assert line["severity"] == "info"
    assert output.dropped_lines == 0


def test_a_defect_of_the_log_itself_is_counted_and_survived() -> None:
    """Whatever goes wrong between the call and the stream, the caller goes on."""

    def broken(record: logs.Record) -> bytes:
        raise RuntimeError

    output = logs.configure(JSON, io.StringIO())
    output._render = broken
    logs.get_logger().info("lost")
    assert output.dropped_lines == 1


def test_a_full_pipe_drops_lines_and_says_so_later() -> None:
    """Nobody reads standard error: the daemon goes on, and the first line that fits tells how many are missing."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "w") as writer:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        output = logs.configure(JSON, writer)
        for number in range(100):
            logs.get_logger().info(f"fact_{number}", text="x" * 400)
        assert os.get_blocking(writing)  # the other users of this pipe are not touched
        written = reader.read(65536).decode().splitlines()
        assert output.dropped_lines == 100 - len(written)
        logs.get_logger().info("again")
        assert json.loads(reader.read(65536))["dropped_before"] == 100 - len(written)
        logs.get_logger().info("and_again")
        assert "dropped_before" not in json.loads(reader.read(65536))


def test_a_reader_that_is_gone_costs_only_the_lines() -> None:
    """EPIPE is counted and raises nothing."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as writer:
        output = logs.configure(JSON, writer)
        logs.get_logger().info("unheard")
        assert output.dropped_lines == 1


def test_a_full_disk_costs_only_the_lines() -> None:
    """ENOSPC is counted and raises nothing."""
    with open("/dev/full", "w") as full:
        output = logs.configure(JSON, full)
        logs.get_logger().info("unheard")
        assert output.dropped_lines == 1


def test_a_closed_stream_costs_only_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon started without standard error at all logs into nothing."""
    stream = io.StringIO()
    output = logs.configure(JSON, stream)
    stream.close()
    logs.get_logger().info("unheard")
    assert output.dropped_lines == 1
    monkeypatch.setattr(sys, "stderr", None)
    output = logs.configure(LogConfig())
    logs.get_logger().info("unheard")
    assert output.dropped_lines == 1


def test_a_torn_line_is_ended_before_the_next() -> None:
    """When only a part of a line was taken, the next one starts on a line of its own."""
    written: list[bytes] = []

    def write(line: bytes) -> int:
        written.append(line[:5] if not written else line)
        return len(written[-1])

    output = logs.Output(write, logs._json_line)
    output.line("info", {"event": "a"})
    output.line("info", {"event": "b"})
    assert output.dropped_lines == 1
    assert written[1].startswith(b'\n{"time"')
    assert json.loads(written[1])["dropped_before"] == 1


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def flooded() -> tuple[logs.Output, Clock, list[dict[str, Any]]]:
    """An output by a clock of its own, and what it wrote."""
    clock = Clock()
    written: list[dict[str, Any]] = []

    def write(line: bytes) -> int:
        written.append(json.loads(line))
        return len(line)

    return logs.Output(write, logs._json_line, clock), clock, written


def test_a_flood_of_one_event_is_cut_and_counted() -> None:
    """Each event about each target has its share of ten seconds; the rest is one line with a count."""
    output, clock, written = flooded()
    for _ in range(1000):
        output.line("info", {"event": "command_sent", "target": "a"})
    output.line("info", {"event": "command_sent", "target": "b"})
    assert len(written) == logs.LINES_PER_WINDOW + 1
    assert output.suppressed_lines == 1000 - logs.LINES_PER_WINDOW
    clock.now = logs.WINDOW_S
    output.line("info", {"event": "other"})
    told, other = written[-2:]
    assert (told["event"], told["of"], told["target"]) == ("lines_suppressed", "command_sent", "a")
    assert told["lines"] == 1000 - logs.LINES_PER_WINDOW
    assert other["event"] == "other"


def test_a_new_window_is_a_new_share() -> None:
    """After the window the event is written again, and nothing is told that was not suppressed."""
    output, clock, written = flooded()
    output.line("info", {"event": "a"})
    clock.now = logs.WINDOW_S
    output.line("info", {"event": "a"})
    assert [line["event"] for line in written] == ["a", "a"]


def test_the_memory_of_floods_is_bounded() -> None:
    """Endless different targets share one last window."""
    output, _, written = flooded()
    for number in range(logs.MAX_WINDOWS + 1000):
        output.line("info", {"event": "a", "target": str(number)})
    assert len(output._windows) == logs.MAX_WINDOWS + 1
    assert len(written) == logs.MAX_WINDOWS + logs.LINES_PER_WINDOW


def test_libraries_log_into_the_same_lines() -> None:
    """asyncio's own complaints are not lost on another stream, even badly formatted ones."""
    stream = io.StringIO()
    logs.configure(JSON, stream)
    logging.getLogger("asyncio").error("task %s was lost", "x")
    logging.getLogger("asyncio").warning("%d", "no number")
    logging.getLogger("asyncio").info("chatter")
    first, second = lines_of(stream)
    assert (first["event"], first["logger"], first["message"]) == ("library_message", "asyncio", "task x was lost")
    assert first["severity"] == "error"
    assert second["message"] == "<unprintable _Message>"


@pytest.mark.parametrize(("matches", "first"), [(True, "{"), (False, "2")])
def test_auto_writes_json_exactly_under_journald(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matches: bool, first: str
) -> None:
    """JOURNAL_STREAM is inherited by children whose standard error goes elsewhere, so the inode decides."""
    with open(tmp_path / "log", "w+") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + (0 if matches else 1)}")
        logs.configure(LogConfig(), stream)
        logs.get_logger().info("started")
        stream.seek(0)
        assert stream.read().startswith(first)


def imported_by(*arguments: str) -> set[str]:
    """The names of all modules that a Python process with these arguments imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import edgeguardd.logs"), ("-m", "edgeguardd", "run", "--help"), ("-c", "import edgeguardd.systemd")],
)
def test_the_daemon_imports_nothing_that_only_the_terminal_uses(arguments: tuple[str, ...]) -> None:
    """rich and pyroute2 cost 20 MiB that a box under pressure does not have."""
    names = imported_by(*arguments)
    assert "argparse" in names or "structlog" in names or "sdnotify" in names
    assert not {name for name in names if name.split(".")[0] in {"rich", "pyroute2", "pygments"}}


def test_rich_can_be_imported_after_the_log() -> None:
    """The trick that keeps rich out leaves nothing behind for programs that want it."""
    subprocess.run([sys.executable, "-c", "import edgeguardd.logs, rich.live"], check=True, timeout=60)
