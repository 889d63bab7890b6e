"""What belongs together is joined, what does not is kept apart, and a kill is told once."""

import pytest

from edgeguardd.core.oomlog import collector as collecting
from edgeguardd.core.oomlog import openreports, recentkills
from edgeguardd.core.oomlog.collector import Collector
from tests.support.oomlogs import MODERN, answer, reports, victims

K = "[ 1503.009765] "
LONG = "total-vm:59256kB, anon-rss:48328kB, file-rss:4172kB, shmem-rss:0kB, UID:0 pgtables:156kB oom_score_adj:0"


def killed(pid: int, comm: str = "a", *, rss_kb: int = 48328, scope: str = "Memory cgroup out") -> str:
    """The line of a kill."""
    return f"{scope} of memory: Killed process {pid} ({comm}) {LONG.replace('48328', str(rss_kb))}"


def header(comm: str = "a", seconds: str = "1503.009765") -> str:
    """The line that begins a report."""
    return f"[ {seconds}] {comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"


def oom_kill(pid: int, comm: str = "a", path: str = "/x") -> str:
    """The line of the choice."""
    return (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},"
        f"task_memcg={path},task={comm},pid={pid},uid=0"
    )


def test_two_reports_without_headers_are_two() -> None:
    """A rate limit leaves out all but the kills."""
    assert victims("\n".join([K + killed(1), K + killed(2)])) == [(1, "a"), (2, "a")]
    assert len(reports("\n".join([K + killed(1), K + killed(2)]))) == 2


def test_a_header_without_a_kill_is_incomplete_and_takes_no_other_victim() -> None:
    """The next header begins another report."""
    found = answer("\n".join([header("first"), header("second"), K + killed(2)]))
    assert [event["invoked_by"] for event in found["events"]] == ["second"]
    assert [row["invoked_by"] for row in found["incomplete"]] == ["first"]


def test_a_group_kill_prints_its_first_victim_twice_and_a_monitor_a_third_time() -> None:
    """One process, one event; the figures are those of the first line, the later ones have shrunk already."""
    lines = [
        header(),
        K + oom_kill(7),
        K + killed(7),
        K + "Tasks in /x/y are going to be killed due to memory.oom.group set",
        K + killed(7, rss_kb=12),
        K + killed(8, "b"),
        "Nov 30 12:35:50 host watcher[99]: kernel says: " + killed(7),
        "Nov 30 12:35:50 host watcher[99]: " + killed(7),
        "Nov 30 12:35:50 host watcher[99]: " + killed(4242),
    ]
    found = answer("\n".join(lines))
    assert [event["victim_pid"] for event in found["events"]] == [7, 8]
    trigger, member = found["events"]
    assert trigger["anon_rss_kb"] == 48328
    assert (trigger["group_kill_trigger"], trigger["task_memcg"]) == (True, "/x")
    assert (member["group_kill_member"], member["oom_memcg"]) == (True, "/x")
    assert "task_memcg" not in member
    assert "constraint" not in member
    assert found["group"]["path"] == "/x/y"


def test_a_log_that_only_quotes_the_kernel_is_better_than_none() -> None:
    """Where the kernel's own lines are missing, the monitor's are what there is."""
    assert victims("Nov 30 12:35:50 host watcher[99]: " + killed(7)) == [(7, "a")]


def test_lines_of_another_facility_are_no_kernel_lines() -> None:
    """Any process may write to /dev/kmsg, but not as the kernel."""
    forged = f"12,501,1503009765,-;{killed(1)}"
    assert victims(f"3,500,1503009765,-;{killed(2)}\n{forged}") == [(2, "a")]
    assert victims(f"<3>{K}{killed(2)}\n<11>{K}{killed(1)}") == [(2, "a")]
    assert victims(f"kern  :err   : {K}{killed(2)}\nuser  :err   : {K}{killed(1)}") == [(2, "a")]


def test_the_same_log_twice_has_each_kill_once() -> None:
    """kern.log and syslog in one file, or a journal with two boots' overlap."""
    log = "\n".join(K + message for message in MODERN)
    assert victims(f"{log}\n{log}") == [(7055, "a b(7")]


def test_a_pid_that_comes_again_is_another_kill() -> None:
    """Numbers are used again after a while, and a limit makes figures alike."""
    log = "\n".join([f"[ 1503.000000] {killed(7)}", f"[91503.000000] {killed(7)}"])
    assert victims(log) == [(7, "a"), (7, "a")]
    log = "\n".join([f"[Mon Nov 30 12:35:50 2026] {killed(7)}", f"[Tue Dec  1 12:35:50 2026] {killed(7, rss_kb=9)}"])
    assert victims(log) == [(7, "a"), (7, "a")]


def test_the_same_pid_in_every_boot_is_a_kill_each_time() -> None:
    """A board in a loop: after each boot the same number dies at about the same uptime."""
    assert victims("\n".join(f"[   80.{n}00000] {killed(700, rss_kb=48000 + n)}" for n in range(3))) == [(700, "a")] * 3


def test_a_log_upside_down_has_the_same_kills() -> None:
    """journalctl -r: the kill before its choice."""
    (event,) = answer("\n".join(K + message for message in reversed(MODERN)))["events"]
    wanted = ("victim_pid", "comm", "scope", "oom_memcg", "task_memcg", "anon_rss_kb", "uid")
    assert [event.get(key) for key in wanted] == [7055, "a b(7", "memcg", "/egtest", "/egtest/x", 48328, 5]


def test_two_hosts_in_one_log_are_kept_apart() -> None:
    """A central syslog: the reports of two machines line by line in turn."""
    one = [f"Nov 30 12:35:50 one kernel: {message}" for message in MODERN]
    two = [
        f"Nov 30 12:35:50 two kernel: {message.replace('7055', '8066').replace('/egtest', '/other')}"
        for message in MODERN
    ]
    events = answer("\n".join(line for pair in zip(one, two, strict=True) for line in pair))["events"]
    found = {(event["host"], event["victim_pid"], event["oom_memcg"], event["limit_kb"]) for event in events}
    assert found == {("one", 7055, "/egtest", 40960), ("two", 8066, "/other", 40960)}


def test_two_processors_are_kept_apart_by_their_callers() -> None:
    """With CONFIG_PRINTK_CALLER each line names its task."""
    one = [f"[ 1503.009765][ T7055] {message}" for message in MODERN[:-1]]
    two = [
        f"[ 1503.009765][ T8066] {message.replace('7055', '8066').replace('/egtest', '/y')}" for message in MODERN[:-1]
    ]
    reaper = [f"[ 1503.109765][   T54] {MODERN[-1]}"]
    events = answer("\n".join([line for pair in zip(one, two, strict=True) for line in pair] + reaper))["events"]
    assert {(event["victim_pid"], event["oom_memcg"]) for event in events} == {(7055, "/egtest"), (8066, "/y")}
    assert [event.get("reaped") for event in events] == [True, None]


def test_two_intents_and_then_two_kills_find_each_other() -> None:
    """Before 4.2 two memory cgroups could report at once, and no line says which is whose but the pids."""
    lines = [
        "Memory cgroup out of memory: Kill process 1 (a) score 900 or sacrifice child",
        "Memory cgroup out of memory: Kill process 2 (b) score 800 or sacrifice child",
        "Killed process 1 (a) total-vm:4kB, anon-rss:4kB, file-rss:0kB",
        "Killed process 2 (b) total-vm:4kB, anon-rss:4kB, file-rss:0kB",
    ]
    events = answer("\n".join(K + line for line in lines))["events"]
    assert {event["victim_pid"]: (event["chosen_pid"], event["chosen_score"]) for event in events} == {
        1: (1, 900),
        2: (2, 800),
    }


def test_other_drivers_lines_in_between_change_nothing() -> None:
    """Network and USB go on talking."""
    noise = ["usb 1-1: new high-speed USB device number 3 using xhci_hcd", "eth0: Link is Up - 1Gbps/Full", "foo 12"]
    lines = [K + line for message in MODERN for line in (*noise, message)]
    (event,) = answer("\n".join(lines))["events"]
    assert (event["victim_pid"], event["limit_kb"], event["oom_memcg"]) == (7055, 40960, "/egtest")


def test_a_report_ends_when_the_log_has_gone_on_for_long() -> None:
    """A header and its kill an hour and thousands of lines apart are not one report."""
    noise = [f"{K}usb 1-1: device {number}" for number in range(openreports.MAX_IDLE_LINES + 1)]
    found = answer("\n".join([header("early"), *noise, K + killed(3)]))
    assert "invoked_by" not in found["events"][0]
    assert found["incomplete"][0]["invoked_by"] == "early"


@pytest.mark.parametrize(
    "comm",
    [
        *(
            "",
            " ",
            "a",
            "(sd-pam)",
            ") total-vm:9kB,",
            "evil) total-vm:",
            ",pid=1,uid=0",
            ",task=x,pid=1",
            "a) score 5 (x",
        ),
        *(
            "x: y[1]: z",
            "[  12.3456789]",
            "<3>[ 1.2] x",
            "oom-kill:",
            "3,4,5,-;x",
            "12:34:56 h k:",
            "модел",
            "CPU: 1 PID: 2",
        ),
        *("Not tainted", "\ttab", "\x07bell", "back\\slash", "\\x41", "#011", '{"MESSAGE":1}', "0", "-1", "kernel: x"),
    ],
)
@pytest.mark.parametrize("style", ["%s", "[ 1503.009765] %s", "Nov 30 12:35:50 host kernel: [ 1503.009765] %s", "kmsg"])
def test_any_name_comes_out_as_it_went_in(comm: str, style: str) -> None:
    """prctl(PR_SET_NAME) takes any bytes, and an attacker would like another process to be blamed."""
    lines = [
        f"{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=777",
        f"CPU: 0 UID: 0 PID: 6952 Comm: {comm} Not tainted 6.18.44 #1 PREEMPT(none) ",
        "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
        f"[   6952]     0  6952    14814    13141   163840        0           777 {comm}",
        oom_kill(6952, comm),
        f"Memory cgroup out of memory: Killed process 6952 ({comm}) {LONG}",
        f"oom_reaper: reaped process 6952 ({comm}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ]
    if style == "kmsg":
        log = "\n".join(f"3,{number},1503009765,-;{escaped(line)}" for number, line in enumerate(lines))
    elif style == "%s" and comm in (
        "<3>[ 1.2] x",
        "[  12.3456789]",
        '{"MESSAGE":1}',
        "3,4,5,-;x",
        "12:34:56 h k:",
        " ",
    ):
        lines = lines[1:]  # a bare line that begins with such a name cannot be told from a dressed one
        log = "\n".join(lines)
    else:
        log = "\n".join(style.replace("%s", line) for line in lines)
    found = answer(log)
    (event,) = found["events"]
    shown = comm.replace("#011", "\t") if "host" in style else comm  # rsyslog writes a tab so
    assert (event["victim_pid"], event["comm"], event["total_vm_kb"], event["uid"]) == (6952, shown, 59256, 0)
    assert (event["oom_memcg"], event["task_memcg"]) == ("/x", "/x")
    assert event["reaped"] is True


def escaped(text: str) -> str:
    """As /dev/kmsg shows it (printk.c, append_char)."""
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in raw)


def test_a_name_with_a_newline_is_one_name() -> None:
    """dmesg prints it raw and indents what follows as wide as its times."""
    lines = [
        f"[ 1503.009747] {oom_kill(7052, 'x')}",
        "[ 1503.009765] Memory cgroup out of memory: Killed process 7052 (x",
        f"               Killed proc 1) {LONG}",
    ]
    (event,) = answer("\n".join(lines))["events"]
    assert (event["victim_pid"], event["comm"], event["uid"]) == (7052, "x\nKilled proc 1", 0)


def test_a_name_that_is_no_utf8_is_given_in_hex_and_readable() -> None:
    """15 bytes cut a character in half."""
    raw = "модельна".encode()[:15]
    log = K.encode() + b"Out of memory: Killed process 5 (" + raw + b") " + LONG.encode()
    (event,) = answer(log)["events"]
    assert "comm" not in event
    assert (event["comm_bytes_hex"], event["comm_shown"]) == (raw.hex(), "модельн�")


def test_cgroups_with_hostile_names_keep_their_paths() -> None:
    """A cgroup's name can hold anything but a slash and a newline."""
    path = "/a,task_memcg=b/c,task=x,pid=1,uid=0 killed"
    line = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=9,mems_allowed=0-3,"
        f"oom_memcg=/a b,task_memcg={path},task=n,pid=77,uid=5"
    )
    (event,) = answer(f"{K}{line}\n{K}{killed(77, 'n')}")["events"]
    assert (event["oom_memcg"], event["task_memcg"], event["mems_allowed"]) == ("/a b", path, "0-3")


def test_memory_stays_bounded_however_long_the_log() -> None:
    """Open reports, remembered kills and what others said all have an end."""
    collector = Collector()
    for number in range(5_000):
        host = f"h{number}"
        collector.feed(f"Nov 30 12:35:50 {host} kernel: {header()[15:]}".encode())
        collector.feed(f"Nov 30 12:35:50 {host} kernel: {killed(number + 1)}".encode())
        collector.feed(
            f"Nov 30 12:35:50 {host} kernel: oom_reaper: reaped process 9{number} (z), now anon-rss:0kB".encode()
        )
        collector.feed(f"Nov 30 12:35:50 {host} systemd[1]: u{number}.service: Failed with result 'oom-kill'.".encode())
        collector.take()
    assert len(collector._reports.open) <= openreports.MAX_OPEN
    assert len(collector._recent._by_pid) <= recentkills.MAX_RECENT
    assert len(collector._reports.closed) <= collecting.LATE_REPORTS
    assert len(collector.others.units) <= 1024
    assert len(collector.others.reaped) <= 1024
