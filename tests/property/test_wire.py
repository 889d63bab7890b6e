"""No bytes crash the protocol."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.client.answers import Answer
from edgeguardd.client.orders import Order
from edgeguardd.client.session import ClientSession
from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.model import AckStatus, Action, Parameters
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

WELCOME = wire.WelcomeLine(1, "e", "llm", "high", 0.5, False, True, 10.0)
GOOD_SERVER_LINES: list[wire.ServerMessage] = [
    WELCOME,
    wire.CommandLine(1, 1, "llm", "reject_requests", Parameters(accept_requests=False), "high", "", 5.0),
    wire.CommandLine(1, 2, "llm", "restore", Parameters(max_batch_ratio=1.0, accept_requests=True), "high", "", 5.0),
    wire.CommandLine(1, 3, "llm", "fly", Parameters(), "sky", "", 5.0),
    wire.Admission(id="r1", granted=True, reason=""),
    wire.Bye(1, "stopping"),
]
good_server_lines = st.sampled_from([wire.encode(message).rstrip(b"\n") for message in GOOD_SERVER_LINES])


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


@given(st.lists(lines | good_server_lines, max_size=10))
def test_no_server_crashes_a_client(said: list[bytes]) -> None:
    """Whatever comes from the socket, the session goes on and answers a ping."""
    session = ClientSession("server", supports=tuple(Action))
    session.connected(0.0)
    session.receive(wire.encode(WELCOME), 0.0)
    session.take_output(0.0)
    for event in session.receive(b"\n".join(said) + b"\n", 1.0):
        if isinstance(event, Order):
            session.begin(event)
            session.complete(event, Answer(AckStatus.DONE))
    session.tick(2.0)
    session.take_output(2.0)
    session.receive(wire.encode(wire.Ping(id="still here")), 3.0)
    assert session.take_output(3.0).endswith(wire.encode(wire.Pong(id="still here")))
