"""What a log style puts around a message: taken off, piece by piece, and kept as far as it says when and who.

Must not: know what a message means. Upstream: nothing. Downstream: sources, collector.
Each piece is matched where the one before ended, so that a line costs one pass. Names of processes come from
strangers: only what stands before the message is ever taken for dress.
"""

import re
from typing import Final

from msgspec import Struct

# The kernel's own facility (RFC 5424, table 1). Whoever writes to /dev/kmsg gets another one (printk.c, devkmsg_write).
KERNEL_FACILITY: Final = 0
FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *("res0", "res1", "res2", "res3", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"),
)
LEVELS: Final = {
    "emerg": 0,
    "panic": 0,
    "alert": 1,
    "crit": 2,
    "err": 3,
    "error": 3,
    "warn": 4,
    "warning": 4,
    "notice": 5,
    "info": 6,
    "debug": 7,
}
KERNEL_NAMES: Final = frozenset({"kernel", "klogd", "unix", "vmunix", "kmsg"})
# First words of kernel messages that look like a program's name before a colon.
MESSAGE_WORDS: Final = frozenset(
    {
        "memory",
        "memory+swap",
        "swap",
        "kmem",
        "oom_reaper",
        "oom-kill",
        "lowmemorykiller",
        "CPU",
        "sysrq",
        "SysRq",
        "Mem-Info",
    }
)
MAX_PIECES: Final = 10


class Line(Struct):
    """One line of a log: its message, and what its dress said.

    `seconds` is kernel time; `stamp` a time that stands where kernel time would (dmesg -T, logcat); `outer` the time of
    whoever stored the line. `fragment`: a piece of a longer line.
    """

    text: str
    seconds: float | None = None
    stamp: str | None = None
    outer: str | None = None
    host: str | None = None
    program: str | None = None
    program_pid: int | None = None
    facility: int | None = None
    level: int | None = None
    seq: int | None = None
    usec: int | None = None
    caller: str | None = None
    tag: str | None = None
    fragment: bool = False
    dressed: bool = False
    decoded: str | None = None

    @property
    def from_kernel(self) -> bool:
        """Whether nothing says that somebody else wrote it: a monitor that quotes the log is no second kill."""
        return self.facility in (None, KERNEL_FACILITY) and (self.program is None or self.program in KERNEL_NAMES)

    @property
    def timestamp(self) -> float | str | None:
        """The kernel's own time, as exactly as the log has it."""
        return self.stamp if self.seconds is None else self.seconds


_QUOTE = re.compile(r"(?:> ?)+|\| |[-*] (?=\[ *\d)")
_KMSG = re.compile(r"(\d{1,4}),(\d{1,20}),(\d{1,20}),([^;]{1,80});")
_WORDS = re.compile(rf"({'|'.join(FACILITIES)}) *: *({'|'.join(LEVELS)}) *: ?")
_RFC5424 = re.compile(
    r"(?:<(\d{1,3})>)?1 (\d{4}-\d\d-\d\dT\S{8,30}|-) (\S{1,255}) (\S{1,48}) (\S{1,128}) \S{1,32} "
    r"(?:-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: |$)\ufeff?"
)
# Copied out of a web page's source it is &lt;3&gt;.
_PRIORITY = re.compile(r"(?:<|&lt;)(\d{1,3})(?:>|&gt;)")
_SECONDS = re.compile(r"\[ *(\d{1,12}\.\d{1,9})(?: *< *\d+\.\d+>)? ?\] ?")
_DELTA = re.compile(r"\[(?:< *\d+\.\d+>| *\+\d+\.\d+)\] ?")
_STAMP = re.compile(r"\[([^\[\]<]{0,40}\d\d:\d\d[^\[\]<]{0,40}?)(?: *< *\d+\.\d+>)?\](?:: ?| ?)")
_CALLER = re.compile(r"\[ *([TC]\d{1,10}(?:@[CU]?\d{1,5})?)\] ?")
# What vendors' kernels print behind the time: Spreadtrum, MediaTek, Samsung.
_VENDOR = re.compile(
    r"c\d{1,3} +\d{1,10} |(?:<\d{1,2}>)?[.-]?\(\d{1,3}\)\[\d{1,10}:[^\]]{1,32}\] ?"
    r"|\[\d{1,3}: *[^\]\[:]{1,32}: *\d{1,10}\] ?"
)
_ISO = re.compile(
    r"(?:[^\W\d_]{2,4} )?"
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:([.,])\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d|[A-Z]{3,4}(?= )))?)(?: |$)"
)
_SYSLOG = re.compile(
    r"(?:[^\W\d_]{2,4}\.? )?"
    r"((?:\d{1,2}月|[^\W\d_][^\W\d_.]{1,11}\.?) {1,2}\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,6})?)"
    r"(?: [A-Z]{3,4}(?= \d{4} ))?(?: \d{4})? "
)
_UNIX = re.compile(r"(\d{10}\.\d{3,6}) ")
_CLOCK = re.compile(r"(\d\d:\d\d:\d\d(?:\.\d{1,6})?) ")
_CRI = re.compile(r"(?:stdout|stderr) [FP] ")
_PROGRAM = re.compile(
    rf"(?:(?!(?:{'|'.join(FACILITIES)})\.)([^\s\[]{{0,254}}[^\s:\[\]]) )?(?:({'|'.join(FACILITIES)})\.([a-z]{{3,7}}) )?"
    r"([^\s\[\]:]{1,64})(?:\[(\d{1,10})\])?:(?: |(?=\[ *\d+\.)|$)"
)
# journalctl -o short-monotonic has the host too.
_PROGRAM_IN_KERNEL_LOG = re.compile(r"(?:([\w.-]{1,255}) )?(?:(kernel)|([\w.@-]{1,64})\[(\d{1,10})\]): ")
_LOGCAT = re.compile(
    r"((?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,6}) +(?:[\w.-]+ +)?(\d+) +(\d+) ([VDIWEF]) ([^:]{0,64}?) *: "
)
_LOGCAT_TIME = re.compile(
    r"(?:((?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,6}) )?([VDIWEF])/([^(]{1,64}?) *\( *(\d+)\): "
)
_COMPOSE = re.compile(r"[\w.-]{1,64} *\| |\[pod/[^\]]{1,300}\] ")
_GREP = re.compile(
    r"(?:[^\s:]{1,255}:)?(?:\d{1,9}[:-])?(?=\[ *\d+\.\d+\]|<\d{1,3}>|\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} [ \d]\d \d\d:)"
)
_EVENT = re.compile(r"\bOOMKilling\b.{0,300}?\b(?=(?:Memory cgroup out|Out) of memory: |Killed process \d)")
# Whatever stands before it: a kernel time to the microsecond, or the kernel's name.
_ANCHOR = re.compile(r"(?:(?<=[\s:|])|^)(?:<\d{1,3}>)?(?=\[ *\d{1,12}\.\d{6}\])|(?:(?<=\s)|^)kernel: ")
_ANCHOR_WITHIN = 300
# What a log that is indented as a whole begins with.
_INDENTED = (_SECONDS, _PRIORITY, _STAMP, _ISO, _SYSLOG, _KMSG, _WORDS)

_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_ESCAPED_SYSLOG = re.compile(rb"#([0-3][0-7]{2})")
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def undress(raw: str) -> Line:
    """Take off all dress that is known. Bytes that are no UTF-8 are in `raw` as lone surrogates."""
    text = _TERMINAL.sub("", raw) if "\x1b" in raw else raw
    text = text.lstrip("\ufeff")
    line = Line(text)
    at = _skip(_QUOTE, text, 0)
    blanks = len(text) - at - len(text[at:].lstrip(" "))
    if blanks and any(piece.match(text, at + blanks) for piece in _INDENTED):
        at += blanks
    at = _pieces(line, text, at)
    line.text = _decoded(line, text[at:] if line.tag is None else f"{line.tag}: {text[at:]}")
    return line


def _pieces(line: Line, text: str, at: int, *, anchored: bool = False) -> int:
    """Match piece after piece; returns where the message begins. `anchored`: unknown dress was skipped already."""
    start = at
    for _ in range(MAX_PIECES):
        after = _one_piece(line, text, at)
        if after is None:
            break
        at = after
        if line.seq is not None:
            break
    if not anchored and line.seconds is None and line.stamp is None and line.seq is None and line.from_kernel:
        anchor = _ANCHOR.search(text, at, at + _ANCHOR_WITHIN)
        if anchor is not None and anchor.end() > at:
            at = _pieces(line, text, anchor.end(), anchored=True)
        event = _EVENT.search(text, at, at + 2 * _ANCHOR_WITHIN)
        if event is not None:
            at = event.end()
    line.dressed = line.dressed or at > start
    return at


def _one_piece(line: Line, text: str, at: int) -> int | None:
    """The end of the piece that begins at `at`; None: the message begins here."""
    head = text[at : at + 1]
    if head == "[":
        return _bracket(line, text, at)
    if (head in ("<", "&") or head.isdigit()) and (end := _number_first(line, text, at)) is not None:
        return end
    if found := _WORDS.match(text, at):
        line.facility, line.level = FACILITIES.index(found[1]), LEVELS[found[2]]
        return found.end()
    undated = line.outer is None and line.stamp is None and line.seconds is None
    if undated and (end := _date(line, text, at)) is not None:
        return end
    return _writer(line, text, at)


def _number_first(line: Line, text: str, at: int) -> int | None:
    """What begins with a number, or with a priority: kmsg, RFC 5424, logcat, seconds."""
    if line.seq is None and (found := _KMSG.match(text, at)):
        return _kmsg(line, found)
    if found := _RFC5424.match(text, at):
        _set_priority(line, found[1])
        line.outer, line.host, line.program = found[2], found[3], found[4]
        line.program_pid = int(found[5]) if found[5].isascii() and found[5].isdigit() else None
        return found.end()
    if found := _PRIORITY.match(text, at):
        _set_priority(line, found[1])
        return found.end()
    if found := _LOGCAT.match(text, at):
        line.stamp = found[1]
        return _logcat(line, found, found[5], int(found[2]))
    if line.outer is None and (found := _UNIX.match(text, at) or _CLOCK.match(text, at)):
        line.outer = found[1]
        return found.end()
    return None


def _date(line: Line, text: str, at: int) -> int | None:
    """When, as one of many writes it; or what stands before that: a container's name, a file's."""
    if found := _ISO.match(text, at):
        # dmesg --time-format iso writes a comma; everybody else a point.
        if found[2] == ",":
            line.stamp = found[1]
        else:
            line.outer = found[1]
        return found.end()
    if found := _SYSLOG.match(text, at):
        line.outer = found[1]
        return found.end()
    if found := _LOGCAT_TIME.match(text, at):
        line.stamp = found[1]
        return _logcat(line, found, found[3], int(found[4]))
    if (found := _COMPOSE.match(text, at)) or ((found := _GREP.match(text, at)) and found.end() > at):
        return found.end()
    return None


def _writer(line: Line, text: str, at: int) -> int | None:
    """Which host and program, or what a vendor's kernel puts there."""
    if line.program is None and line.outer is not None:
        if found := _CRI.match(text, at):
            return found.end()
        if (found := _PROGRAM.match(text, at)) and (found[1] is not None or found[4] not in MESSAGE_WORDS):
            line.host, line.program = found[1], found[4]
            line.program_pid = int(found[5]) if found[5] else None
            if found[2]:
                line.facility, line.level = FACILITIES.index(found[2]), LEVELS.get(found[3])
            return found.end()
    if line.program is None and (found := _PROGRAM_IN_KERNEL_LOG.match(text, at)):
        line.host, line.program = line.host or found[1], found[2] or found[3]
        line.program_pid = int(found[4]) if found[4] else None
        return found.end()
    if line.seconds is not None and line.caller is None and (found := _VENDOR.match(text, at)):
        return found.end()
    return None


def _bracket(line: Line, text: str, at: int) -> int | None:
    if line.seconds is None and (found := _SECONDS.match(text, at)):
        line.seconds = float(found[1])
        return found.end()
    if found := _DELTA.match(text, at):
        return found.end()
    if line.caller is None and (found := _CALLER.match(text, at)):
        line.caller = found[1]
        return found.end()
    if line.stamp is None and line.seconds is None and (found := _STAMP.match(text, at)):
        # dmesg -H and -e give the minute now and then, and the distance otherwise: no time to rely on.
        if found[1].count(":") > 1:
            line.stamp = found[1].strip()
        return found.end()
    if (found := _COMPOSE.match(text, at)) or (line.seconds is not None and (found := _VENDOR.match(text, at))):
        return found.end()
    return None


def _kmsg(line: Line, found: re.Match[str]) -> int:
    priority = int(found[1])
    line.facility, line.level = priority >> 3, priority & 7
    line.seq, line.usec = int(found[2]), int(found[3])
    line.seconds = line.usec / 1_000_000
    flags = found[4].split(",")
    line.fragment = flags[0] in ("c", "+")
    for flag in flags[1:]:
        if flag.startswith("caller="):
            line.caller = flag[7:]
    line.dressed = True
    written_by = _PROGRAM_IN_KERNEL_LOG.match(found.string, found.end()) if line.facility != KERNEL_FACILITY else None
    if written_by is None:
        return found.end()
    line.program, line.program_pid = written_by[2] or written_by[3], int(written_by[4] or 0)
    return written_by.end()


def _logcat(line: Line, found: re.Match[str], tag: str, pid: int) -> int:
    """A tag is the program, but lowmemorykiller's messages are known with it in front."""
    if tag == "lowmemorykiller":
        line.tag = tag
    elif tag and pid:
        line.program, line.program_pid = tag, pid
    return found.end()


def _set_priority(line: Line, number: str | None) -> None:
    if number is not None:
        line.facility, line.level = int(number) >> 3, int(number) & 7


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _decoded(line: Line, text: str) -> str:
    """The message with the escapes of its style undone.

    /dev/kmsg escapes the backslash too, so all of its escapes are its own (printk.c, append_char); dmesg and journalctl
    escape only what cannot be printed, so that `\\x2d` in a unit's name is not theirs; rsyslog writes #012.
    """
    if "\\x" in text:
        raw = text.encode("utf-8", "surrogateescape")
        whole = line.seq is not None
        text = _ESCAPED.sub(lambda m: _byte(m[0], int(m[1], 16), whole), raw).decode("utf-8", "surrogateescape")
    if line.outer is not None and "#" in text:
        raw = text.encode("utf-8", "surrogateescape")
        text = _ESCAPED_SYSLOG.sub(lambda m: _byte(m[0], int(m[1], 8), False), raw).decode("utf-8", "surrogateescape")
    return text


def _byte(escape: bytes, value: int, whole: bool) -> bytes:
    return bytes((value,)) if whole or value < 0x20 or value >= 0x7F else escape
