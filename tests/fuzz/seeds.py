"""What guided fuzzing begins with, besides what is kept: one of each thing that the parts know.

Must not: mutate. Upstream: tests/cases, tests.support. Downstream: guided.
"""

import glob
import json
import os
import zlib
from collections.abc import Callable

from edgeguardd.core.config import Config
from edgeguardd.core.configtext import render
from tests.fuzz.mutate import client_lines, server_lines
from tests.support.ggufs import LLAMA, header, tensor
from tests.support.recordings import Taped
from tests.support.running import REPOSITORY
from tests.support.script import commands

_REQUESTS = (
    b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /admit/direct/llm?bytes=1 HTTP/1.1\r\nHost: 127.0.0.1:9464\r\nContent-Length: 3\r\n\r\nabc",
    b"HEAD /status HTTP/1.0\r\n\r\nGET http://evil.example/status HTTP/1.1\r\nHost: [::1]\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: edgeguardd\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
)
_LIFTED = {
    "target": "llm",
    "boot_id": "b",
    "inode": 3,
    "old_bytes": 1 << 20,
    "raised_bytes": 1 << 21,
    "raised_at": 1.5,
}
_NETLINK = (bytes(range(76)), b"\x0f\x00" + bytes(430), b"6,1234,98765,-;Out of memory: Killed process 1 (a)")


def _files(pattern: str) -> list[bytes]:
    found = []
    for path in sorted(glob.glob(os.path.join(REPOSITORY, pattern), recursive=True)):
        with open(path, "rb") as file:
            found.append(file.read())
    return found


def _tapes() -> list[bytes]:
    """One short run as lines, and packed."""
    tape = Taped()
    tape.join()
    for mib in (100, 700, 850, 990):
        for command in commands(tape.need(mib)):
            tape.ack(command)
    tape.need(100)
    for command in commands(tape.pass_time(30)):
        tape.ack(command)
    tape.cut()
    (packed,) = tape.files
    parts = (["q", 3, 1], ["i", "1" * 30], ["f", "inf"], ["d", "a", ["l", ["s"]]], ["t", ["F"], ["r", 0]])
    small = [
        json.dumps(part).encode() for part in (*parts, ["e", "model.Level", 1], ["o", "commands.Numbers", "last", 0])
    ]
    return [zlib.decompress(packed, wbits=31), packed, *small]


def _headers() -> list[bytes]:
    layers = {**LLAMA, "llama.attention.head_count_kv": (8,) * 32, "a": ["b"]}
    return [header(LLAMA), header(layers), header(LLAMA, tensor(0, (32,), 8), tensor(64, (4, 2), 0)) + bytes(128)]


_FIRST: dict[str, Callable[[], list[bytes]]] = {
    "wire": lambda: [*client_lines(), *server_lines()],
    "config": lambda: [render(Config()).encode(), *_files("packaging/config/*.toml")],
    "kernel": lambda: [*_files("tests/cases/cgroupfiles/*.txt"), *_NETLINK],
    "oomlog": lambda: _files("tests/cases/oomlogs/*.log"),
    "units": lambda: _files("systemd/*.service") + _files("tests/cases/units/*/**/*.service"),
    "http": lambda: list(_REQUESTS),
    "state": lambda: [json.dumps(_LIFTED).encode(), b'{"v":1,"kind":"lifted","key":"/llm","check":"","record":{}}'],
    "recordings": _tapes,
    "gguf": _headers,
}


def of(part: str) -> list[bytes]:
    """The first inputs of a part."""
    return _FIRST[part]()
