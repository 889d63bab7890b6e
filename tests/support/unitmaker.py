"""Random unit files: values, bytes and trees of folders, from pieces that are right, wrong, and nearly right.

The pieces were chosen by what systemd's parsers branch on; a Random with a seed makes the same again.
"""

import os
import random

_NUMBERS = (
    *("0", "1", "2", "10", "010", "0x10", "0b1", "+3", "-1", "1.5", "1.", ".5", "1,5", "1e3", "0.0001", "3", "16"),
    *("18446744073709551615", "18446744073709551616", "99999999999999999999999", "0" * 90 + "5", "1.6666666666666"),
)
_SIZE_UNITS = (
    "",
    "K",
    "M",
    "G",
    "T",
    "P",
    "E",
    "B",
    "k",
    "KB",
    "KiB",
    "%",
    "‰",
    "‱",
    " %",
    "%%",
    " K",
    " M ",
    "G",
    "G",
)
_SIZES = (
    *("", "infinity", "Infinity", "max", "infinity ", "in finity", "50%", "100%", "100.0%", "99.99%", "010%", "0x10%"),
    *("0b1%", "33.3%", "33.33%", "33.333%", "1.%", ".5%", "-1%", "+5%", " 5%", "5 %", "101%", "0%", "0.01%", "10000‱"),
    *("10001‱", "5.5‱", "87.5‰", "87.55‰", "1000‰", '"1G"', "1G # c", "$M", "1G;", "1G\v", "\v1G", "\f2M"),
)
_SPANS = (
    *("", "infinity", "infinity ", " infinity", "Infinity", "infinity5", "5 infinity", "5;", "1min 30s", "1min30s"),
    *("2h 5min 3s", "90s", "3600", "1w 2d", "1500ms", "1500us", "61s 500ms", "59.9s", "0", "0s", "5 5", '"5s"'),
)
_SPAN_NUMBERS = ("0", "1", "2", "5", "10", "1.5", ".5", "5.", "1.2.3", "-1", "+5", "18446744073709", str(2**63), "0x5")
_SPAN_UNITS = (
    *("", "s", "ms", "us", "min", "m", "h", "d", "w", "M", "month", "months", "y", "year", "sec", "seconds", "msec"),
    *("usec", "µs", "μs", "hr", "hours", "minutes", "foo", "S", "Ms", " s", " min", ".5"),
)
_WHOLE = (
    *("0", "500", "0500", "0900", "0x1F4", "0X1f4", "0b11", "0B11", "0o17", "0O17", "-0x10", "-010", "+5", "++5", " 5"),
    *("5 ", "1000", "1001", "-1000", "-1001", "5.0", "", "abc", "0x", "0b", "0b2", "0o9", "2147483648", "1e3", "0b-1"),
    *("500 # x", "9" * 30, "-", "+", "1_000", "٣"),
)
_BOOLEANS = (
    "yes",
    "no",
    "true",
    "TRUE",
    "t",
    "T",
    "y",
    "on",
    "ON",
    "off",
    "0",
    "1",
    "2",
    "01",
    "f",
    "N",
    "enabled",
    "yes;",
)
_WORDS = {
    "OOMScoreAdjust": _WHOLE,
    "Delegate": (
        "yes",
        "no",
        "",
        "memory",
        "memory cpu",
        "memory foo",
        "foo",
        '"memory"',
        "memory\\ cpu",
        '"memory',
        "1",
    ),
    "CapabilityBoundingSet": (
        *("", "~", "CAP_SYS_ADMIN", "~CAP_SYS_ADMIN", "CAP_NET_ADMIN CAP_SYS_ADMIN", "cap_net_raw", "CAP_FOO", "13"),
        *(
            "~cap_kill CAP_CHOWN",
            "~CAP_FOO",
            "SYS_ADMIN",
            '"CAP_KILL"',
            '"CAP_KILL',
            "CAP_KILL ~CAP_CHOWN",
            "~ CAP_KILL",
        ),
    ),
    "ProtectSystem": (
        "strict",
        "full",
        "yes",
        "no",
        "true",
        "Strict",
        "",
        '"full"',
        "1",
        "TRUE",
        "read-only",
        "strict ",
    ),
    "ProtectHome": ("read-only", "tmpfs", "yes", "no", "true", "Yes", "", "strict"),
    "Restart": ("no", "always", "on-failure", "on-success", "on-abnormal", "Always", "", "on_failure", "false"),
    "OOMPolicy": ("stop", "kill", "continue", "Stop", "", "none"),
    "Slice": (
        "a.slice",
        "a-b.slice",
        "-.slice",
        "a",
        "a.service",
        "%p.slice",
        "%i.slice",
        "x@y.slice",
        "",
        "a b.slice",
    ),
    "ManagedOOMSwap": ("auto", "kill", "", "Kill"),
    "ManagedOOMMemoryPressure": ("auto", "kill", "", "yes"),
    "ManagedOOMMemoryPressureLimit": ("60%", "60", "", "100%", "120%", "59.99%", "5‰", "0%", "0.6"),
    "Type": ("simple", "exec", "oneshot", "forking", "notify", "idle", "Simple", ""),
    "DynamicUser": _BOOLEANS,
    "RemainAfterExit": _BOOLEANS,
    "ProtectClock": _BOOLEANS,
    "PrivateDevices": _BOOLEANS,
}
_SIZE_KEYS = ("MemoryMax", "MemoryHigh", "MemorySwapMax", "MemoryMin", "MemoryLow")
_PREFIXES = (*("" for _ in range(8)), "-", "@", "+", "!", "!!", ":", "-@", "@-", "--", "++", "+!", "!!!", "-+!")
_PROGRAMS = (
    *("/usr/bin/true" for _ in range(8)),
    *(
        "true",
        "/usr/bin/",
        "./x",
        '"/usr/bin/true"',
        "/usr//bin/./true",
        "%i",
        "/a/%i",
        '"/a b"',
        "/usr/bin/tr\\x75e",
        "a/b",
    ),
)
_ARGUMENTS = (
    *(
        "a",
        "--b=c",
        '"x y"',
        "'x y'",
        '"',
        "'",
        "\\",
        "\\x41",
        "\\n",
        "\\101",
        "\\u00e9",
        "\\z",
        "a\\ b",
        "%i",
        "%n",
        "%N",
    ),
    *(
        "%p",
        "%%",
        "%z",
        "%I",
        "%j",
        "$A",
        "${B}",
        "*",
        'a"b"c',
        ";",
        "\\;",
        '";"',
        "ü",
        '""',
        "~",
        "(x)",
        "#c",
        "\\400",
    ),
    *("\\x00", "%P", "%f", "%t", "%S", "%C", "%L", "%E", "!", "&", "[", "?", "\\s", '\\"'),
)
_LINES = (
    *(
        b"[Service]",
        b"[Service]",
        b"[Unit]",
        b"[Foo]",
        b"[X-a]",
        b" [Service] ",
        b"[service]",
        b"[Service",
        b"[]",
        b"[",
    ),
    *(
        b"# c",
        b"; c",
        b" # c",
        b"#c \\",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf[Service]",
        b"\xef\xbb\xbf# x",
        b"",
        b"  ",
        b"\t",
    ),
    *(b"foo", b"=x", b"X-Foo=1", b"Foo=1", b"MemoryMax=1G", b"MemoryMax=2G", b"MemoryMax =3G", b" MemoryMax= 4G "),
    *(
        b"MemoryMax=",
        b"MemoryHigh=5M",
        b"MemoryHigh=",
        b"6M",
        b"ExecStart=/bin/a",
        b"ExecStart=/bin/b x",
        b"ExecStart=",
    ),
    *(b"--arg", b'"q', b'q"', b"MemoryMax=1G\x01", b"Description=\xe9", b"Description=\xc3\xa9", b"#\xe9"),
    *(b"Description=\xef\xbf\xbe", b"\x0bMemoryMax=7G", b"MemoryMax=8G\x0c", b"Restart=always", b"RestartSec=5"),
    *(b"OOMScoreAdjust=5", b"[Service]=x", b"[Install]", b"WantedBy=x", b"MemoryMax==1G", b"MemoryMax=9G=", b"[a'b]"),
    *(b"\xc2\xa0MemoryMax=1M", b"\xe2\x80\xa8"),
)
_ENDS = (
    *(b"\n" for _ in range(12)),
    *(b"\r\n", b"\r", b"\n\r", b"\0", b"\n\0", b"\r\n\0", b"\n\r\n", b"\n\n", b"\0\0", b"\\\n", b"\\\n", b" \\\n"),
    *(b"\\\r\n", b"\\ \n", b"\\\\\n", b"\\\\\\\n", b"\n\0\r"),
)
_STEMS = (
    *("a", "a-b", "a-b-c", "b", "b-c", "a--b", "-a", "a-", "a@x", "a@y", "a-b@x", "a-b@x-y", "b@x", "a@", "a-b@", "b@"),
    *("c", "c@", "c@x", "a-b-", "a.b", "a:b"),
)
_NAMES = tuple(f"{s}.{t}" for s in _STEMS for t in ("service", "slice", "socket") if "@" not in s or t != "slice")
_DROP_IN_STEMS = (*_STEMS, "a-@x", "a-@", "a-b-@x", "", "a-@y")
_DROP_INS = ("1.conf", "2.conf", "10.conf", "a.conf", "Z.conf", "x.txt", ".h.conf")


def names(chance: random.Random, count: int) -> list[str]:
    """Names of services, some of them instances."""
    kinds = ("u{}.service", "u-v{}.service", "u{}@x-y.service", "u-v{}@a\\x2db.service")
    return [chance.choice(kinds).format(number) for number in range(count)]


def file_of(name: str) -> str:
    """The file that a name stands on."""
    return f"{name.partition('@')[0]}@.service" if "@" in name else name


def service(chance: random.Random) -> str:
    """A service with up to eight settings."""
    lines = ["[Service]"]
    if chance.random() < 0.9:
        lines.append("ExecStart=/usr/bin/true")
    for _ in range(chance.randint(1, 8)):
        key = chance.choice((*_SIZE_KEYS, *_SIZE_KEYS, *_WORDS, "RestartSec", "ExecStart"))
        lines.append(f"{key}={_value(chance, key)}")
    return "\n".join(lines) + "\n"


def raw(chance: random.Random) -> bytes:
    """The bytes of a file."""
    data = b"[Service]\nExecStart=/bin/true\n" if chance.random() < 0.8 else b""
    for _ in range(chance.randint(1, 14)):
        data += chance.choice(_LINES) + chance.choice(_ENDS)
    if chance.random() < 0.3:
        data += chance.choice(_LINES)
    return data + (b"\\" if chance.random() < 0.05 else b"")


def tree(chance: random.Random, place: str) -> tuple[str, ...]:
    """Three folders with units, links, masks and drop-ins; each drop-in sets another value."""
    folders = tuple(f"{place}/{name}" for name in ("etc", "run", "lib"))
    for folder in folders:
        os.mkdir(folder)
    for number in range(chance.randint(2, 8)):
        _fragment(chance, folders, chance.choice(_NAMES), number)
    for number in range(chance.randint(0, 14)):
        _drop_in(chance, folders, 100 + number)
    return folders


def asked(chance: random.Random) -> list[str]:
    """Twelve names that a tree may have."""
    return chance.sample([name for name in _NAMES if "@." not in name], 12)


def _value(chance: random.Random, key: str) -> str:
    if key in _SIZE_KEYS:
        return _pile(chance, _SIZES, _NUMBERS, _SIZE_UNITS)
    if key == "RestartSec":
        return _pile(chance, _SPANS, _SPAN_NUMBERS, _SPAN_UNITS)
    if key == "ExecStart":
        words = (chance.choice(_ARGUMENTS) for _ in range(chance.randint(0, 5)))
        return " ".join((chance.choice(_PREFIXES) + chance.choice(_PROGRAMS), *words))
    return chance.choice(_WORDS[key])


def _pile(chance: random.Random, whole: tuple[str, ...], numbers: tuple[str, ...], units: tuple[str, ...]) -> str:
    """A value as a whole, or up to three numbers with units."""
    if chance.random() < 0.25:
        return chance.choice(whole)
    parts = range(chance.choice((1, 1, 2, 3)))
    return "".join(chance.choice(numbers) + chance.choice(units) + chance.choice(("", " ", "\t", ";")) for _ in parts)


def _fragment(chance: random.Random, folders: tuple[str, ...], name: str, number: int) -> None:
    path = f"{chance.choice(folders)}/{name}"
    kind = name.rpartition(".")[2]
    if os.path.lexists(path):
        return
    dice = chance.random()
    if dice < 0.55:
        run = {"service": "ExecStart=/usr/bin/true\n", "slice": "", "socket": "ListenStream=/run/x\n"}[kind]
        _write(path, _body(chance, kind, number) + run)
    elif dice < 0.62:
        os.symlink("/dev/null", path)
    elif dice < 0.68:
        _write(path, "")
    elif dice < 0.96:
        other = chance.choice([one for one in _NAMES if one.endswith(kind)] if chance.random() < 0.9 else _NAMES)
        beside = f"../{os.path.basename(chance.choice(folders))}/{other}"
        os.symlink(chance.choice((other, beside, f"{os.path.dirname(path)}/{other}")), path)
    else:
        os.symlink("/nonexistent/unit", path)


def _drop_in(chance: random.Random, folders: tuple[str, ...], number: int) -> None:
    kind = chance.choice(("service", "service", "service", "slice", "socket"))
    stem = chance.choice(_DROP_IN_STEMS)
    folder = f"{chance.choice(folders)}/{stem}{'.' if stem else ''}{kind}.d"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{chance.choice(_DROP_INS)}"
    if os.path.lexists(path):
        return
    dice = chance.random()
    if dice < 0.85:
        _write(path, _body(chance, kind, number))
    elif dice < 0.95:
        _write(path, "")
    else:
        os.symlink(chance.choice(("/dev/null", "/nonexistent/drop-in")), path)


def _body(chance: random.Random, kind: str, number: int) -> str:
    key = chance.choice(("MemoryMax", "MemoryHigh", "MemorySwapMax"))
    return f"[{kind.capitalize()}]\n{key}={number + 1}M\n"


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
