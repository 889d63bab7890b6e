"""No bytes crash the protocol."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.errors import ProtocolError

TYPES = ["hello", "ack", "report", "admit", "ping", "pong", "welcome", "command", "level", "admission", "error", "bye"]
FIELDS = ["name", "role", "target", "supports", "seq", "status", "effect", "released_bytes", "message", "static_bytes"]
FIELDS += ["finished", "id", "bytes", "tokens", "v", "epoch", "level", "parameters", "reason", "deadline_s", "granted"]

json_like = st.recursive(
    st.sampled_from([b"null", b"1", b"-1", b"1e999", b"NaN", b'"x"', b'"\\ud800"', b"true", b"", b'"done"', b"\xff"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]"),
    max_leaves=5,
)


def _near_message(kind: str, fields: list[tuple[str, bytes]]) -> bytes:
    """Something that looks much like a message."""
    members = [b'"type":"%s"' % kind.encode(), *(b'"%s":%s' % (name.encode(), value) for name, value in fields)]
    return b"{" + b",".join(members) + b"}"


near_messages = st.builds(
    _near_message, st.sampled_from(TYPES), st.lists(st.tuples(st.sampled_from(FIELDS), json_like), max_size=6)
)
lines = st.binary(max_size=200) | near_messages


@given(lines)
def test_any_line_is_a_message_or_a_protocol_error(line: bytes) -> None:
    """Decoding raises ProtocolError with a known code or returns a message that can be sent again."""
    for decode in (wire.decode_client, wire.decode_server):
        code = None
        try:
            message = decode(line)
        except ProtocolError as error:
            code = error.code
        assert code in wire.ERROR_CODES if code else decode(wire.encode(message).rstrip(b"\n")) == message


@given(st.lists(st.binary(max_size=30), max_size=20), st.booleans())
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes], ended: bool) -> None:
    """The lines are those of the whole, wherever the reads cut it."""
    buffer = LineBuffer()
    found = []
    for chunk in chunks:
        buffer.feed(chunk)
        while (line := buffer.next_line()) is not None:
            found.append(line)
    whole = b"".join(chunks)
    if ended:
        buffer.end()
        with contextlib.suppress(ProtocolError):
            while (line := buffer.next_line()) is not None:
                found.append(line)
    expected = whole.split(b"\n")
    if not ended or not expected[-1]:
        expected.pop()
    assert found == expected


@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_any_text_can_be_sent(reason: str, epoch: str, heartbeat_s: float) -> None:
    """What the daemon says is one line of UTF-8, whatever is in it."""
    line = wire.encode(wire.WelcomeLine(1, epoch, reason, "normal", 1.0, True, True, heartbeat_s))
    assert line.count(b"\n") == 1
    line.decode()
