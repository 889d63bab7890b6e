"""One report in every log style comes out the same; the time is what the style has."""

import json
from collections.abc import Callable, Sequence

import pytest

from tests.support.oomlogs import MODERN, MODERN_EVENT, answer

ISO = "2026-11-30T12:35:50.009765+00:00"
CTIME = "Mon Nov 30 12:35:50 2026"
UPTIME = 1503.009765

# id, the line around a message, timestamp, syslog_time
STYLES: tuple[tuple[str, str, float | str | None, str | None], ...] = (
    ("bare", "%s", None, None),
    ("dmesg", "[ 1503.009765] %s", UPTIME, None),
    ("dmesg -T", f"[{CTIME}] %s", CTIME, None),
    ("dmesg -T in Chinese", "[一 11月 30 12:35:50 2026] %s", "一 11月 30 12:35:50 2026", None),
    ("dmesg -T -d", f"[{CTIME} <    0.378030>] %s", CTIME, None),
    ("dmesg -d", "[ 1503.009765 <    0.378030>] %s", UPTIME, None),
    ("dmesg --time-format delta", "[<    0.378030>] %s", None, None),
    ("dmesg -H", "[  +0.000018] %s", None, None),
    ("dmesg -H, the first of a minute", "[Nov30 12:35] %s", None, None),
    ("dmesg -x", "kern  :err   : [ 1503.009765] %s", UPTIME, None),
    ("dmesg -x -T", f"kern  :err   : [{CTIME}] %s", CTIME, None),
    ("dmesg -r", "<3>[ 1503.009765] %s", UPTIME, None),
    ("dmesg -r -t", "<3>%s", None, None),
    ("dmesg iso", "2026-11-30T12:35:50,009765+00:00 %s", "2026-11-30T12:35:50,009765+00:00", None),
    ("dmesg -x iso", "kern  :err   : 2026-11-30T12:35:50,009765+00:00 %s", "2026-11-30T12:35:50,009765+00:00", None),
    ("dmesg in colour", "\x1b[32m[ 1503.009765] \x1b[0m\x1b[31m%s\x1b[0m", UPTIME, None),
    ("caller", "[ 1503.009765][ T7055] %s", UPTIME, None),
    ("caller, a blank between", "[ 1503.009765] [ T7055] %s", UPTIME, None),
    ("caller, an interrupt", "[ 1503.009765][    C0] %s", UPTIME, None),
    ("caller and processor", "[ 1503.009765][T7055@C2] %s", UPTIME, None),
    ("kmsg", "3,416,1503009765,-;%s", UPTIME, None),
    ("kmsg with caller", "3,416,1503009765,-,caller=T123;%s", UPTIME, None),
    ("MediaTek", "[ 1503.009765]<2>.(2)[7055:a b(7]%s", UPTIME, None),
    ("Samsung", "[ 1503.009765] [2:    kswapd0:  123] %s", UPTIME, None),
    ("Spreadtrum", "[ 1503.009765] c2  7055 %s", UPTIME, None),
    ("journalctl", "Nov 30 12:35:50 host kernel: %s", None, "Nov 30 12:35:50"),
    ("journalctl --no-hostname", "Nov 30 12:35:50 kernel: %s", None, "Nov 30 12:35:50"),
    ("journalctl short-precise", "Nov 30 12:35:50.009765 host kernel: %s", None, "Nov 30 12:35:50.009765"),
    ("journalctl short-iso", "2026-11-30T12:35:50+0000 host kernel: %s", None, "2026-11-30T12:35:50+0000"),
    ("journalctl short-iso-precise", f"{ISO} host kernel: %s", None, ISO),
    ("journalctl short-full", "Mon 2026-11-30 12:35:50 UTC host kernel: %s", None, "2026-11-30 12:35:50 UTC"),
    ("journalctl short-monotonic", "[ 1503.009765] host kernel: %s", UPTIME, None),
    ("journalctl short-delta", "[ 1503.009765 <    0.000018 >] host kernel: %s", None, None),
    ("journalctl short-unix", "1796042150.009765 host kernel: %s", None, "1796042150.009765"),
    ("journalctl cat", "%s", None, None),
    ("journalctl in German", "Nov. 30 12:35:50 host kernel: %s", None, "Nov. 30 12:35:50"),
    ("journalctl in Chinese", "11月 30 12:35:50 host kernel: %s", None, "11月 30 12:35:50"),
    ("journalctl in Russian", "ноя 30 12:35:50 host kernel: %s", None, "ноя 30 12:35:50"),
    ("syslog", "Nov 30 12:35:50 host kernel: [ 1503.009765] %s", UPTIME, None),
    ("syslog without a blank", "Nov 30 12:35:50 host kernel:[ 1503.009765] %s", UPTIME, None),
    ("syslog, hosts by address", "Nov 30 12:35:50 fe80::1 kernel: [ 1503.009765] %s", UPTIME, None),
    ("RFC 3164", "<3>Nov 30 12:35:50 host kernel: [ 1503.009765] %s", UPTIME, None),
    ("RFC 5424", f"<3>1 {ISO} host kernel - - - [ 1503.009765] %s", UPTIME, None),
    ("RFC 5424 with data", f'<3>1 {ISO} host kernel - - [meta@1 a="x\\]y"] %s', None, ISO),
    ("RFC 5424 without priority", f"1 {ISO} host kernel - - - %s", None, ISO),
    ("rsyslog", f"{ISO} host kernel: [ 1503.009765] %s", UPTIME, None),
    ("busybox", "Nov 30 12:35:50 host kern.err kernel: [ 1503.009765] %s", UPTIME, None),
    ("OpenWrt", "Mon Nov 30 12:35:50 2026 kern.err kernel: [ 1503.009765] %s", UPTIME, None),
    ("talosctl dmesg", "kern:     err: [2026-11-30T12:35:50.009765Z]: %s", "2026-11-30T12:35:50.009765Z", None),
    ("logcat -b kernel", "11-30 12:35:50.009     0     0 E         : %s", "11-30 12:35:50.009", None),
    ("logcat brief", "E/        (    0): %s", None, None),
    ("CRI", "2026-11-30T12:35:50.009765123Z stdout F [ 1503.009765] %s", UPTIME, None),
    ("docker logs -t", "2026-11-30T12:35:50.009765123Z %s", None, "2026-11-30T12:35:50.009765123Z"),
    ("docker compose", "node-1  | [ 1503.009765] %s", UPTIME, None),
    ("kubectl --prefix", "[pod/node/shell] [ 1503.009765] %s", UPTIME, None),
    ("a hypervisor's console", "2026-12-04T10:49:30.125Z In(05) vcpu-5 - Guest: <6>[ 1503.009765] %s", UPTIME, None),
    ("a serial console", "[ 1503.009765] %s\r", UPTIME, None),
    ("a serial console's logger", "[2026-11-30 12:35:50] [ 1503.009765] %s", UPTIME, None),
    ("grep -n", "123:[ 1503.009765] %s", UPTIME, None),
    ("grep in files", "/var/log/kern.log.1:Nov 30 12:35:50 host kernel: [ 1503.009765] %s", UPTIME, None),
    ("a list", "- [ 1503.009765] %s", UPTIME, None),
    ("a web page's source", "&lt;3&gt;[ 1503.009765] %s", UPTIME, None),
    ("time of day", "12:35:50 host kernel: %s", None, "12:35:50"),
    ("talosctl dmesg, indented", " kern:     err: [2026-11-30T12:35:50Z]: %s", "2026-11-30T12:35:50Z", None),
    ("a mail", "> [ 1503.009765] %s", UPTIME, None),
    ("a mail's answer", "> > [ 1503.009765] %s", UPTIME, None),
    ("indented", "    [ 1503.009765] %s", UPTIME, None),
)


@pytest.mark.parametrize(("style", "timestamp", "syslog_time"), [row[1:] for row in STYLES], ids=[s[0] for s in STYLES])
def test_a_report_reads_the_same_in_every_style(
    style: str, timestamp: float | str | None, syslog_time: str | None
) -> None:
    """All that the kernel printed, and the time as far as the style has it."""
    found = answer("\n".join(style.replace("%s", message) for message in MODERN))
    assert sorted(found) == ["events"]
    (event,) = found["events"]
    assert MODERN_EVENT.items() <= event.items()
    assert event.get("timestamp") == timestamp
    assert event.get("syslog_time") == syslog_time


def journal_record(message: str) -> dict[str, object]:
    """As journald keeps a kernel message."""
    return {
        "__REALTIME_TIMESTAMP": "1796042150009765",
        "_TRANSPORT": "kernel",
        "PRIORITY": "3",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "MESSAGE": message,
        "_SOURCE_MONOTONIC_TIMESTAMP": "1503009765",
    }


def journal_json(messages: Sequence[str]) -> str:
    """journalctl -o json."""
    return "\n".join(json.dumps(journal_record(message)) for message in messages)


def journal_sse(messages: Sequence[str]) -> str:
    """journalctl -o json-sse."""
    return "\n\n".join("data: " + json.dumps(journal_record(message)) for message in messages)


def journal_pretty(messages: Sequence[str]) -> str:
    """journalctl -o json-pretty."""
    rows = [json.dumps(journal_record(message), indent=8) for message in messages]
    return "\n".join(row.replace('": "', '" : "') for row in rows)


def journal_bytes(messages: Sequence[str]) -> str:
    """journalctl -o json for a message that is no UTF-8."""
    rows = [{**journal_record(message), "MESSAGE": list(message.encode())} for message in messages]
    return "\n".join(json.dumps(row) for row in rows)


def journal_export(messages: Sequence[str]) -> str:
    """journalctl -o export."""
    records = []
    for message in messages:
        fields = [f"{key}={value}" for key, value in journal_record(message).items()]
        records.append("\n".join(["__CURSOR=s=0123456789abcdef;i=1", *fields, ""]))
    return "\n".join(records)


def journal_verbose(messages: Sequence[str]) -> str:
    """journalctl -o verbose."""
    records = []
    for message in messages:
        fields = [f"    {key}={value}" for key, value in journal_record(message).items()]
        records.append("\n".join(["Mon 2026-11-30 12:35:50.009765 UTC [s=0123456789abcdef;i=1;b=2]", *fields]))
    return "\n".join(records)


def dmesg_json(messages: Sequence[str]) -> str:
    """dmesg -J."""
    rows = [f'"pri": 3,\n"time":  1503.009765,\n"msg": {json.dumps(message)}' for message in messages]
    return '{\n   "dmesg": [\n      {\n' + "\n      },{\n".join(rows) + "\n      }\n   ]\n}\n"


def dmesg_json_in_one_line(messages: Sequence[str]) -> str:
    """dmesg -J through jq -c."""
    return json.dumps({"dmesg": [{"pri": 3, "time": UPTIME, "msg": message} for message in messages]})


def docker_json(messages: Sequence[str]) -> str:
    """Docker's json-file of a container that prints the kernel's log."""
    rows = [{"log": f"[ 1503.009765] {message}\n", "stream": "stdout", "time": ISO} for message in messages]
    return "\n".join(json.dumps(row) for row in rows)


def cloud_json(messages: Sequence[str]) -> str:
    """A cloud's log."""
    rows = [{"jsonPayload": {"message": f"[ 1503.009765] {message}"}, "severity": "ERROR"} for message in messages]
    return "\n".join(json.dumps(row) for row in rows)


STRUCTURED = (
    *(journal_json, journal_sse, journal_pretty, journal_bytes, journal_export, journal_verbose),
    *(dmesg_json, dmesg_json_in_one_line, docker_json, cloud_json),
)


@pytest.mark.parametrize("write", STRUCTURED, ids=lambda write: write.__name__)
def test_a_report_reads_the_same_in_structured_logs(write: Callable[[Sequence[str]], str]) -> None:
    """With the kernel's own time, which journals and dmesg keep."""
    found = answer(write(MODERN))
    assert sorted(found) == ["events"]
    (event,) = found["events"]
    assert MODERN_EVENT.items() <= event.items()
    assert event["timestamp"] == UPTIME


def test_a_log_with_carriage_returns_alone_is_read() -> None:
    """Some terminals' captures have no newline at all."""
    assert MODERN_EVENT.items() <= answer("\r".join(MODERN))["events"][0].items()


def test_fragments_of_a_line_are_joined() -> None:
    """The kernel prints the oom-kill line piece by piece (pr_cont); another processor can get in between."""
    kill = next(message for message in MODERN if message.startswith("oom-kill:"))
    first, second, third = kill.index(",cpuset="), kill.index(",oom_memcg="), kill.index(",task=")
    pieces = [kill[:first], kill[first:second], kill[second:third], kill[third:]]
    lines = []
    for message in MODERN:
        if message != kill:
            lines.append(f"[ 1503.009765] {message}")
            continue
        lines += [f"[ 1503.009765] {pieces[0]}", "[ 1503.009770] usb 1-1: new device"]
        lines += [f"[ 1503.009771] {pieces[1]}", f"[ 1503.009771] {pieces[2]}", "[ 1503.009772] eth0: link up"]
        lines += [f"[ 1503.009773] {pieces[3]}"]
    (event,) = answer("\n".join(lines))["events"]
    assert MODERN_EVENT.items() <= event.items()


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_a_folded_log_keeps_its_figures(width: int) -> None:
    """A mailer or a terminal has folded the lines at some column: the rest of a line has no time."""
    lines = []
    for message in MODERN:
        line = f"[ 1503.009765] {message}"
        lines += [f"> {line[at : at + width]}" for at in range(0, len(line), width)]
    (event,) = answer("\n".join(lines))["events"]
    wanted = ("victim_pid", "comm", "total_vm_kb", "anon_rss_kb", "file_rss_kb", "shmem_rss_kb", "uid", "oom_score_adj")
    assert {key: event.get(key) for key in wanted} == {key: MODERN_EVENT[key] for key in wanted}
