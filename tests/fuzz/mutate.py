"""Lines that are nearly right: valid ones of the protocol with seeded damage.

Must not: know who reads them. Upstream: core.wire. Downstream: the other modules here.
"""

import random
import typing

from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.script import CONTRACT_REASON, Give, bytes_of
from edgeguardd.core import wire
from edgeguardd.core.model import AckEffect, AckStatus, Action, Parameters, Role

CLIENT_LINES: tuple[wire.ClientMessage, ...] = (
    wire.Hello("server", target="llm", supports=tuple(Action)),
    wire.Hello("watcher", role=Role.OBSERVER),
    wire.Ack(1, AckStatus.ACCEPTED),
    wire.Ack(1, AckStatus.DONE, effect=AckEffect.RELEASED, released_bytes=2**40, message="dropped 3 of 8 slots"),
    wire.Ack(7, AckStatus.FAILED, message='Grüße, "記憶體"\\🧠'),
    wire.ReportLine(static_bytes=10**9, kv_bytes=2**30, running=3, waiting=0, finished=("r1", "r2")),
    wire.Admit("r1", bytes=2**30),
    wire.Admit("r2", tokens=4096),
    wire.Ping(id="p"),
    wire.Pong(id="p"),
)
_SERVER_LINES: tuple[wire.ServerMessage, ...] = (
    wire.WelcomeLine(1, "e1", "llm", "critical", 0.25, False, True, 10.0),
    wire.CommandLine(1, 3, "llm", Action.TRIM_KV_CACHE, Parameters(release_bytes=2**30), "high", "because", 5.0),
    wire.CommandLine(1, 4, "llm", Action.REDUCE_BATCH, Parameters(max_batch_ratio=0.5), "high", "because", 5.0),
    wire.CommandLine(1, 5, "llm", Action.RESTORE, Parameters(1, 2, 1.0, True, True), "normal", "因為", 5.0),
    wire.LevelLine(1, "llm", "high", "normal", "because"),
    wire.Admission("r1", False, "no room", retry_after_s=1.5),
    wire.ErrorLine(1, "unknown_seq", "cannot take the ack"),
    wire.Bye(1, "stopping"),
    wire.Ping(id="p"),
)

# What parsers trip over.
TOKENS = (
    *(b"null", b"true", b"false", b"{}", b"[]", b'""', b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\"),
    *(b"0", b"-1", b"-0", b"00", b"1e999", b"-1e999", b"1e-999", b"0.1", b"1.", b".5", b"+1", b"NaN", b"Infinity"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1" * 400),
    *(b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xa8", b"\x1b[2J", b"\r", b"\t"),
    *(b"\\u0000", b"\\ud800", b"\\udc00\\ud800", b"\\ud83e\\udde0", b"\\x", b"\\u12", b"\\"),
    *(b"[" * 200, b"{" * 200, b'{"a":' * 200, b"[" * 200 + b"]" * 200, b"x" * 5000, b'"' + b"\\n" * 2000 + b'"'),
    *(name.encode() for name in ("type", "seq", "hello", "ack", "command", "welcome", "unload_model", "supports")),
)
_NAMES = tuple(
    b'"%s"' % name.encode() for name in ("type", "v", "id", "seq", "status", "target", "parameters", "action", "reason")
)
# What is JSON, and often not what was expected there.
_VALUES = (
    *(b"null", b"true", b"false", b"{}", b"[]", b'""', b"0", b"-1", b"1", b"2", b"0.5", b"1e3", b"1e308", b"-0.0"),
    *(b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b'["a","b"]', b'{"a":[{}]}', b'"\\u0000"'),
    *(
        b'"llm"',
        b'"self"',
        b'"done"',
        b'"accepted"',
        b'"observer"',
        b'"trim_kv_cache"',
        b'"restore"',
        b'"level"',
        b'"p"',
    ),
    *(b'"' + b"x" * 129 + b'"', b'"' + b"x" * 5000 + b'"', b"[" * 100 + b"]" * 100, '"ü\u2028記🧠"'.encode()),
)
_LONG = b'{"type":"ping","id":"' + b"x" * 70_000
_MIXED_LENGTH = 300


def server_lines() -> tuple[bytes, ...]:
    """What a daemon says, and what the transcripts say of it; not what tells a program to take its time."""
    given = (bytes_of(s.text) for c in CASES for s in c.steps if isinstance(s, Give) and CONTRACT_REASON not in s.text)
    return (*map(_spelled, _SERVER_LINES), *(line for line in given if 0 < len(line) <= _MIXED_LENGTH))


def client_lines() -> tuple[bytes, ...]:
    """What a client says."""
    return tuple(map(_spelled, CLIENT_LINES))


class Mutator:
    """Gives lines without their newline, for ever; the same ones for the same seed."""

    def __init__(self, corpus: typing.Sequence[bytes], seed: int) -> None:
        self._corpus = corpus
        self._random = random.Random(seed)  # noqa: S311 - to be the same again, not to be secret

    def line(self) -> bytes:
        """One line."""
        chance = self._random.random
        line = bytearray(self._pick(self._corpus))
        if chance() < 0.0005:
            line += _LONG
        damage = self._exchange if chance() < 0.5 else self._damage
        for _ in range(1 + int(chance() * 3)):
            damage(line, int(chance() * (len(line) + 1)), int(chance() * 7))
        return bytes(line).replace(b"\n", b" ")

    def damaged(self) -> bytes:
        """One input with up to eight damages, newlines and all."""
        chance = self._random.random
        data = bytearray(self._pick(self._corpus))
        for _ in range(1 + int(chance() * 8)):
            damage = self._exchange if chance() < 0.2 else self._damage
            damage(data, int(chance() * (len(data) + 1)), int(chance() * 7))
        return bytes(data)

    def _exchange(self, line: bytearray, at: int, kind: int) -> None:
        """Another value in a field, or another name for it: still JSON, most of the time."""
        colon = line.find(b":", at)
        if colon < 0:
            return
        end = min((i for i in (line.find(b",", colon), line.find(b"}", colon)) if i >= 0), default=len(line))
        if kind == 0:
            line[colon:end] = b""
        elif kind == 1:
            line[end:end] = b"," + self._pick(_NAMES) + b":" + self._pick(_VALUES)
        else:
            line[colon + 1 : end] = self._pick(_VALUES)

    def _damage(self, line: bytearray, at: int, kind: int) -> None:
        chance = self._random.random
        if kind == 0 and at < len(line):
            line[at] ^= 1 << int(chance() * 8)
        elif kind == 1:
            del line[at : at + 1 + int(chance() * 8)]
        elif kind == 2:
            line[at:at] = self._pick(TOKENS)
        elif kind == 3:
            line[at : at + 1 + int(chance() * 12)] = self._pick(TOKENS)
        elif kind == 4:
            line[at:at] = line[at : at + 1 + int(chance() * 40)]
        elif kind == 5:
            other = self._pick(self._corpus)
            line[at:] = other[int(chance() * len(other)) :]
        else:
            line[at:at] = bytes((int(chance() * 256),))

    def _pick(self, choices: typing.Sequence[bytes]) -> bytes:
        return choices[int(self._random.random() * len(choices))]


def _spelled(message: wire.ClientMessage | wire.ServerMessage) -> bytes:
    return wire.encode(message).rstrip(b"\n")
