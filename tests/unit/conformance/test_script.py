"""Transcripts: what their lines stand for, and that they are the protocol's."""

import msgspec
import pytest

from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.script import Give, Want, bytes_of
from edgeguardd.core import wire


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ü", "plain ü".encode()),
        ("a@fill:10@ü", b"axxxxxxx" + "ü".encode()),
        ("@byte:ff@@byte:00@", b"\xff\x00"),
        ("<@nest:3@>", b"<[[[]]]>"),
        ("@byte:41@@fill:4@@nest:1@", b"Ax[]"),
        ("mail@example.org", b"mail@example.org"),
    ],
)
def test_placeholders_stand_for_bytes(text: str, expected: bytes) -> None:
    """Each once or many times; everything else is UTF-8."""
    assert bytes_of(text) == expected


def test_names_are_unique_and_rules_are_sentences() -> None:
    """--only takes a name; a rule is printed under a case that failed."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.rule.endswith(".") for case in CASES)


def test_what_a_client_is_to_say_is_what_a_server_takes() -> None:
    """No case asks for what the daemon would answer with an error."""
    wants = [step.fields for case in CASES for step in case.steps if isinstance(step, Want)]
    for fields in wants:
        complete = {"name": "server", **fields} if fields["type"] == "hello" else fields
        wire.decode_client(msgspec.json.encode(complete))
    assert len(wants) > 80


def test_every_case_begins_with_hello_and_long_lines_are_as_long_as_they_may_be() -> None:
    """Whoever has not said hello is told nothing."""
    for case in CASES:
        said = next(step for step in case.steps if isinstance(step, Want))
        assert said.fields["type"] == "hello"
    (long_line,) = [case for case in CASES if case.name == "long-line"]
    filled = [step.text for step in long_line.steps if isinstance(step, Give) and "@fill" in step.text]
    assert {len(bytes_of(text)) for text in filled} == {wire.MAX_LINE_BYTES}
