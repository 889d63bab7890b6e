"""Lines to messages and back."""

import pytest

from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.model import AckEffect, AckStatus, Action, Level, Parameters, Role
from edgeguardd.errors import ProtocolError

CLIENT_MESSAGES = [
    wire.Hello(name="llama", role=Role.INFERENCE, target="self", supports=("trim_kv_cache",)),
    wire.Hello(name="watch", role=Role.OBSERVER),
    wire.Ack(seq=7, status=AckStatus.DONE, effect=AckEffect.RELEASED, released_bytes=1 << 30),
    wire.Ack(seq=7, status=AckStatus.FAILED, message="MemoryError"),
    wire.ReportLine(kv_bytes=5, running=2, finished=("a", "b")),
    wire.Admit(id="r1", tokens=100),
    wire.Ping(id="x"),
    wire.Pong(),
]

SERVER_MESSAGES = [
    wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, 10.0),
    wire.CommandLine(1, 3, "llm", Action.TRIM_KV_CACHE, Parameters(release_bytes=9), "high", "why", 5.0),
    wire.LevelLine(1, "llm", "high", "normal", "why"),
    wire.Admission(id="r1", granted=False, reason="no room", retry_after_s=2.0),
    wire.ErrorLine(1, "bad_json", "cannot"),
    wire.Bye(1, "stopping"),
]


def code_of(line: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        wire.decode_client(line)
    assert str(caught.value).startswith("cannot ")
    return caught.value.code


@pytest.mark.parametrize("message", CLIENT_MESSAGES)
def test_what_a_client_says_arrives_as_it_was_said(message: wire.ClientMessage) -> None:
    """Encoding and decoding a client's message gives the same message, on one line."""
    line = wire.encode(message)
    assert line.count(b"\n") == 1
    assert wire.decode_client(line) == message


@pytest.mark.parametrize("message", SERVER_MESSAGES)
def test_what_a_server_says_arrives_as_it_was_said(message: wire.ServerMessage) -> None:
    """Encoding and decoding a server's message gives the same message, on one line."""
    line = wire.encode(message)
    assert line.count(b"\n") == 1
    assert wire.decode_server(line) == message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b'{"type":"ping"', "bad_json"),
        (b"\x00\xff\xfe", "bad_json"),
        (b'{"type":"ping"} {"type":"ping"}', "bad_json"),
        (b'\xef\xbb\xbf{"type":"ping"}', "bad_json"),
        (b'{"type":"ping","id":"\xff"}', "bad_json"),
        (b'{"type":"ping","id":"\\ud800"}', "bad_json"),
        (b'{"type":"admit","id":"a","bytes":NaN}', "bad_json"),
        (b'{"type":"ping","x":' + b"[" * 60_000, "bad_json"),
        (b'{"type":"ping","x":' + b'{"a":' * 10_000, "bad_json"),
        (b"null", "bad_message"),
        (b"[1,2]", "bad_message"),
        (b"{}", "bad_message"),
        (b'{"type":7}', "bad_message"),
        (b'{"type":"hello"}', "bad_message"),
        (b'{"type":"hello","name":""}', "bad_message"),
        (b'{"type":"hello","name":"a\\u001b[2J"}', "bad_message"),
        (b'{"type":"hello","name":"a\\n"}', "bad_message"),
        (b'{"type":"hello","name":"' + b"n" * 129 + b'"}', "bad_message"),
        (b'{"type":"hello","name":"a","role":"king"}', "bad_message"),
        (b'{"type":"hello","name":"a","supports":[1]}', "bad_message"),
        (b'{"type":"ack","seq":-1,"status":"done"}', "bad_message"),
        (b'{"type":"ack","seq":1.5,"status":"done"}', "bad_message"),
        (b'{"type":"ack","seq":true,"status":"done"}', "bad_message"),
        (b'{"type":"ack","seq":1e400,"status":"done"}', "bad_message"),
        (b'{"type":"ack","seq":99999999999999999999999,"status":"done"}', "bad_message"),
        (b'{"type":"ack","seq":1,"status":"perhaps"}', "bad_message"),
        (b'{"type":"ack","seq":1,"status":"done","released_bytes":-5}', "bad_message"),
        (b'{"type":"ack","seq":1,"status":"done","message":"' + b"m" * 4097 + b'"}', "bad_message"),
        (b'{"type":"report","running":-1}', "bad_message"),
        (b'{"type":"report","finished":[' + b",".join([b'"a"'] * 257) + b"]}", "bad_message"),
        (b'{"type":"ping","v":-1}', "bad_message"),
        (b'{"type":"tell me"}', "unknown_type"),
        (b'{"type":"welcome","v":1}', "unknown_type"),
        (b'{"type":"hello","v":2}', "unsupported_version"),
        (b'{"type":"something new","v":2}', "unsupported_version"),
        (b'{"type":"hello","name":"a","v":2}', "unsupported_version"),
        (b" " * (wire.MAX_LINE_BYTES + 1), "line_too_long"),
    ],
)
def test_a_faulty_line_has_its_code(line: bytes, code: str) -> None:
    """Whatever is wrong with a line, the sender is told by a stable code."""
    assert code_of(line) == code


def test_every_code_is_in_the_table() -> None:
    """The codes that decoding raises are documented ones."""
    for line in (b"{", b"{}", b'{"type":"x"}', b'{"type":"x","v":9}', b" " * 70_000):
        assert code_of(line) in wire.ERROR_CODES


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (b'{"type":"hello","name":"x","role":"inferenc"}', "`$.role`; write one of inference, observer"),
        (b'{"type":"ack","seq":1,"status":"ok"}', "`$.status`; write one of accepted, done, failed, unsupported"),
        (b'{"type":"ack","seq":1,"status":"done","effect":"\\n"}', "`$.effect`; write one of none, logical, released"),
        (b'{"type":"helo"}', "`$.type`; write one of hello, ack, report, admit, ping, pong"),
        (
            b'{"type":"ack","seq":1,"status":"' + b"x" * 1000 + b'"}',
            "xxx…; write one of accepted, done, failed, unsupported",
        ),
    ],
)
def test_a_word_that_is_none_of_a_few_is_answered_with_them(line: bytes, end: str) -> None:
    """Whoever misspells one need not look them up."""
    with pytest.raises(ProtocolError) as caught:
        wire.decode_client(line)
    assert str(caught.value).endswith(end)


def test_a_name_that_cannot_be_printed_is_refused_in_words() -> None:
    """Not with the pattern that it does not match."""
    with pytest.raises(ProtocolError, match=r"message: Expected `str` without control characters - at `\$\.name`$"):
        wire.decode_client(b'{"type":"hello","name":"a\\nb"}')


def test_a_huge_fault_is_answered_briefly() -> None:
    """An error does not repeat 60 KB of nonsense."""
    with pytest.raises(ProtocolError) as caught:
        wire.decode_client(b'{"type":"' + b"z" * 60_000 + b'"}')
    assert len(str(caught.value)) < 300


def test_unknown_fields_are_ignored() -> None:
    """A newer peer may say more than this version knows."""
    assert wire.decode_client(b'{"type":"ping","id":"1","mood":{"deep":[1]}}') == wire.Ping(id="1")


def test_a_missing_version_is_version_one() -> None:
    """A line typed by hand needs no v."""
    assert wire.decode_client(b' {"type":"hello","name":"me"} \r') == wire.Hello(name="me")


def test_an_action_of_a_later_version_can_be_read() -> None:
    """A client has to know the seq of a command it does not understand, to ack it as unsupported."""
    line = wire.encode(wire.CommandLine(1, 3, "t", "move_to_disk", Parameters(), "high", "why", 5.0))
    message = wire.decode_server(line)
    assert isinstance(message, wire.CommandLine)
    assert message.action == "move_to_disk"


def test_a_text_that_utf8_cannot_say_is_still_said() -> None:
    """A lone surrogate (an undecodable file name) becomes a question mark instead of an exception."""
    assert wire.decode_server(wire.encode(wire.ErrorLine(1, "x", "a\udc80b"))) == wire.ErrorLine(1, "x", "a?b")


def test_texts_in_lists_are_said_as_well() -> None:
    """A request's id that UTF-8 cannot say does not take the others of its list with it."""
    line = wire.encode(wire.ReportLine(finished=("a\udc80b", "c")))
    assert wire.decode_client(line) == wire.ReportLine(finished=("a?b", "c"))


def test_levels_are_spelled_in_lower_case() -> None:
    """The words of the protocol and the levels are one to one; others are refused, long ones cut."""
    assert [wire.level_of(level.word) for level in Level] == list(Level)
    with pytest.raises(ProtocolError) as caught:
        wire.level_of("catastrophic" * 10)
    assert caught.value.code == "bad_message"
    assert str(caught.value) == "cannot read level 'catastrophiccatastrophiccatastro': not a level of v1"


@pytest.mark.parametrize(
    ("code", "closes"), [("bad_json", False), ("line_too_long", True), ("of a later version", False)]
)
def test_an_error_says_whether_the_connection_ends(code: str, closes: bool) -> None:
    """As the table has it; a code that this version does not know ends nothing."""
    assert wire.closes(code) is closes


def test_a_line_of_the_greatest_length_is_read() -> None:
    """The limit itself is allowed."""
    line = b'{"type":"ping","id":"1"}'
    assert wire.decode_client(line.ljust(wire.MAX_LINE_BYTES)) == wire.Ping(id="1")


def test_the_faults_of_a_line_are_told() -> None:
    """Where the JSON ends being JSON; and no list of words where there is none to choose from."""
    with pytest.raises(ProtocolError, match="as JSON: Input data was truncated"):
        wire.decode_client(b"{")
    with pytest.raises(ProtocolError) as caught:
        wire.decode_client(b'{"type":"ping","v":-1}')
    assert str(caught.value).endswith("`$.v`")


def lines_of(buffer: LineBuffer) -> list[bytes]:
    found = []
    while (line := buffer.next_line()) is not None:
        found.append(line)
    return found


def test_lines_come_out_whole_however_they_arrive() -> None:
    """Lines cut anywhere and glued together come out as they were sent."""
    buffer = LineBuffer()
    found = []
    for byte in b"one\n\ntwo\nthr":
        buffer.feed(bytes([byte]))
        found += lines_of(buffer)
    assert found == [b"one", b"", b"two"]
    buffer.end()
    assert lines_of(buffer) == [b"thr"]


def test_the_longest_line_fits_and_one_byte_more_does_not() -> None:
    """The limit counts the line without its newline."""
    buffer = LineBuffer()
    buffer.feed(b"x" * wire.MAX_LINE_BYTES + b"\n" + b"y" * (wire.MAX_LINE_BYTES + 1) + b"\nafter\n")
    assert buffer.next_line() == b"x" * wire.MAX_LINE_BYTES
    with pytest.raises(ProtocolError):
        buffer.next_line()
    assert lines_of(buffer) == [b"after"]


def test_an_endless_line_is_reported_once_and_takes_no_memory() -> None:
    """A line that does not end is refused when it is too long, not when it ends; the next one is read."""
    buffer = LineBuffer()
    refused = 0
    for _ in range(100):
        buffer.feed(b"z" * 10_000)
        try:
            assert buffer.next_line() is None
        except ProtocolError:
            refused += 1
        assert len(buffer._bytes) <= wire.MAX_LINE_BYTES + 10_000
    buffer.feed(b"z\nnext\n")
    assert refused == 1
    assert lines_of(buffer) == [b"next"]


def test_what_an_error_repeats_of_a_line_can_be_printed() -> None:
    """The peer's own text comes back escaped: whoever prints the error prints no control character of a stranger's."""
    for line in (b'{"type":"t\\rget\\u001b[2J"}', b'{"type":"hello","name":"n","role":"\\u001b]0;x\\u0007"}'):
        with pytest.raises(ProtocolError) as refused:
            wire.decode_client(line)
        assert str(refused.value).isprintable()
