"""The log parser against anything: no bytes crash it, the bytes' number alone is what its time depends on.

EDGEGUARDD_FUZZ_EXAMPLES sets how many logs are tried (`make fuzz-files` tries for long); the default is small.
"""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgeguardd.core.oomlog.collector import Collector
from tests.support.oomlogs import MODERN, answer, text

EXAMPLES = int(os.environ.get("EDGEGUARDD_FUZZ_EXAMPLES", "60"))
ROUNDS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
CASES = sorted((Path(__file__).parent.parent / "cases" / "oomlogs").glob("*.log"))
LINES = [line for path in CASES for line in path.read_bytes().split(b"\n")]
WORDS = (
    *(
        "Killed process ",
        "Kill process ",
        " invoked oom-killer: ",
        "oom-kill:constraint=",
        ",task=",
        ",pid=1,uid=0",
        "(",
        ")",
    ),
    *(
        " total-vm:",
        "kB",
        "Memory cgroup out of memory: ",
        "Out of memory: ",
        "memory: usage 1kB, limit 1kB, failcnt 1",
        "\n",
    ),
    *(
        "[ 1.000000] ",
        "<3>",
        "3,1,1,-;",
        "Nov 30 12:35:50 h kernel: ",
        "{",
        "}",
        '"',
        "MESSAGE=",
        "__CURSOR=",
        "\\x0a",
        "#012",
    ),
    *(
        "[ pid ]   uid  tgid total_vm      rss",
        "[ 1] 1 1 1 1 1 1 1 1 a",
        "=",
        "> ",
        "\r",
        "\x1b[1m",
        "lowmemorykiller: Killing '",
    ),
    *(
        "oom_reaper: reaped process 1 (a)",
        "Tasks in /x are going to be killed due to memory.oom.group set",
        "Task in ",
        "/",
    ),
)
NAMES = st.binary(max_size=15).filter(lambda name: b"\0" not in name and b"\n" not in name)


@ROUNDS
@given(st.binary(max_size=4000))
def test_no_bytes_crash_the_parser(log: bytes) -> None:
    """Whatever they are, there is an answer, and it is JSON."""
    assert isinstance(answer(log)["events"], list)
    assert isinstance(text(log), str)


@ROUNDS
@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join))
def test_no_mixture_of_its_own_words_crashes_the_parser(log: str) -> None:
    """Words of reports in any order, which get further into the readers than bytes do."""
    found = answer(log)
    assert all(event["victim_pid"] >= 0 for event in found["events"])
    assert isinstance(text(log), str)


@ROUNDS
@given(st.lists(st.sampled_from(LINES), max_size=80), st.randoms(use_true_random=False))
def test_no_mixture_of_real_lines_crashes_the_parser_or_doubles_a_kill(lines: list[bytes], random: object) -> None:
    """Real logs cut, shuffled and cut short: within one answer no report names a process twice."""
    log = b"\n".join(line[: len(line) - random.randrange(1 + len(line) // 4)] for line in lines)  # type: ignore[attr-defined]
    collector = Collector()
    for line in log.split(b"\n"):
        collector.feed(line)
    for report in collector.end():
        pids = [victim.pid for victim in report.victims]
        assert len(set(pids)) == len(pids)


@ROUNDS
@given(NAMES, st.integers(1, 4_194_304), st.sampled_from(["", "[ 1503.009765] ", "kmsg"]))
def test_any_name_is_read_back(name: bytes, pid: int, style: str) -> None:
    """The kernel's line with any name in it gives the pid and the figures that the kernel wrote, and the name."""
    line = (
        b"Memory cgroup out of memory: Killed process %d (%s) total-vm:59256kB, anon-rss:48328kB, file-rss:4172kB, "
        b"shmem-rss:0kB, UID:5 pgtables:156kB oom_score_adj:777" % (pid, name)
    )
    if style == "kmsg":
        shown = b"".join(b"%c" % b if 32 <= b < 127 and b != 92 else b"\\x%02x" % b for b in line)
        line = b"3,1,1503009765,-;" + shown
    else:
        # A terminal's bytes are dress, and dmesg itself writes what it cannot print as \xNN.
        assume(not set(name) & {0x0D, 0x1B} and b"\\x" not in name)
        line = style.encode() + line
    (event,) = answer(line)["events"]
    found = event["comm"].encode() if "comm" in event else bytes.fromhex(event["comm_bytes_hex"])
    assert (event["victim_pid"], found, event["total_vm_kb"], event["uid"]) == (pid, name, 59256, 5)


@ROUNDS
@given(st.integers(0, len("\n".join(MODERN))))
def test_a_report_cut_anywhere_invents_nothing(length: int) -> None:
    """Of a log that ends anywhere, each figure is absent or right, the last one aside: a cut number looks like one."""
    whole = answer("\n".join(MODERN))["events"][0]
    cut = answer("\n".join(MODERN)[:length])["events"]
    assert len(cut) <= 1
    for event in cut:
        exact = {
            key: value for key, value in event.items() if key not in ("verdict", "victim_pid", "oom_score_adj", "uid")
        }
        marks = {"killed_line_missing", "page_kb"}
        wrong = {key: value for key, value in exact.items() if key not in marks and whole.get(key) != value}
        assert not {key for key in wrong if key not in ("comm", "task_memcg", "oom_memcg")}, wrong


ADVERSARIAL = (
    *(b"oom", b"[", b"[  ", b"Killed process 1 (", b"oom-kill:constraint=,task=", b"Memory cgroup stats for /:"),
    *(b"Task in / killed as a result of limit of /", b" invoked oom-killer: ", b'{"a":', b"> ", b"<3>", b"[ 1.2] "),
    *(b"1,2,3,-;", b"oom \\x0a", b"oom kernel: ", b"oom_reaper: reaped process 1 (", b"lowmemorykiller: Killing '"),
    *(b"OOMKilling ", b"[ 1] 2 3 4 5 ", b"\x1b[31moom ", b"oom\r", b"oom \x1b]", b"Nov 30 12:35:50 ", b"oom #012"),
    *(b'oom sending SIGTERM to process 1 "', b"Killing process 'oom ", b"x.service: Failed with result 'oom-kill' "),
)


@pytest.mark.parametrize("line_bytes", [200, 20_000])
@pytest.mark.parametrize("piece", ADVERSARIAL, ids=lambda piece: repr(piece)[2:-1])
def test_time_grows_with_the_bytes_and_no_faster(piece: bytes, line_bytes: int) -> None:
    """Lines made to make a reader go back and forth cost a few times what plain ones cost, whatever their length.

    EDGEGUARDD_OOM_MIB makes the logs larger (50 for the whole check). Time is the processor's, in units of reading a
    real log of the same size on the same machine.
    """
    size = int(float(os.environ.get("EDGEGUARDD_OOM_MIB", "0.12")) * (1 << 20))
    line = (piece * (line_bytes // len(piece) + 1))[:line_bytes] + b"\n"
    assert cost_s(line * (size // len(line) + 1)) <= 12 * plain_s(size) + 0.02


def test_twice_the_log_takes_twice_the_time() -> None:
    """A real report again and again: four times the size, less than eight times the time."""
    size = int(float(os.environ.get("EDGEGUARDD_OOM_MIB", "1")) * (1 << 20))
    assert cost_s(real_log(size)) <= 8 * cost_s(real_log(size // 4)) + 0.05


def real_log(size: int) -> bytes:
    """So many bytes of reports, each about another process."""
    made, pid, length = [], 10_000, 0
    while length < size:
        lines = [f"[ {pid}.009765] {message.replace('7055', str(pid))}" for message in MODERN]
        made.append("\n".join(lines))
        length += len(made[-1]) + 1
        pid += 1
    return "\n".join(made).encode()


def plain_s(size: int) -> float:
    """What a real log of this size costs, measured once."""
    if size not in PLAIN_S:
        PLAIN_S[size] = cost_s(real_log(size))
    return PLAIN_S[size]


PLAIN_S: dict[int, float] = {}


def cost_s(log: bytes) -> float:
    """Processor time of reading it, the least of two."""
    return min(_cost_once_s(log) for _ in range(2))


def _cost_once_s(log: bytes) -> float:
    start = time.process_time()
    collector = Collector()
    for line in log.split(b"\n"):
        collector.feed(line)
        collector.take()
    collector.end()
    return time.process_time() - start
