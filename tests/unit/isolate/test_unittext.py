"""What one file says, line by line; tests/component/test_systemd_units.py compares with systemd on random bytes."""

import pytest

from edgeguardd.isolate.unittext import MAX_LINE_BYTES, UnitText, parse


def given(data: bytes) -> UnitText:
    """The text of one file."""
    return parse(data, "f")


def pairs(data: bytes) -> list[tuple[str, str]]:
    """Its assignments."""
    return [(one.key, one.value) for one in given(data).assignments]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\r", b"\0", b"\n\0"])
def test_every_end_of_line_ends_a_line(end: bytes) -> None:
    """As in systemd: also a NUL, and an LF and CR in either order count as one."""
    assert pairs(end.join((b"[S]", b"A=1", b"B=2", b""))) == [("A", "1"), ("B", "2")]


def test_a_backslash_joins_lines_and_comments_between_are_left_out() -> None:
    """The joined line has the number of its last one; a blank takes the backslash's place."""
    text = given(b"[S]\nA=1 \\\n# not \\\n ; this\n 2 \\\n3\nB=4\n")
    assert [(one.key, one.value, one.line) for one in text.assignments] == [("A", "1   2  3", 6), ("B", "4", 7)]
    assert text.comments == ((3, "# not \\"), (4, "; this"))


@pytest.mark.parametrize(
    ("data", "value"), [(b"A=1\\ \n", "1\\"), (b"A=1\\\\\n", "1\\\\"), (b"A=1\\\\\\\nx\n", "1\\\\ x")]
)
def test_only_an_unescaped_backslash_at_the_very_end_joins(data: bytes, value: str) -> None:
    """A blank behind it, or another before it, and it is text."""
    assert pairs(b"[S]\n" + data) == [("A", value)]


def test_a_comment_ends_where_its_line_ends_and_none_stands_behind_a_value() -> None:
    """A backslash in a comment joins nothing; a "#" behind a value belongs to it."""
    assert pairs(b"[S]\n# c \\\nA=1 # c\nB=2 ; c\n") == [("A", "1 # c"), ("B", "2 ; c")]


def test_a_byte_order_mark_is_dropped_once() -> None:
    """Wherever it stands first; the second one is part of a key."""
    assert pairs(b"\xef\xbb\xbf[S]\nA=1\n\xef\xbb\xbfB=2\n") == [("A", "1"), ("\ufeffB", "2")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"[S", "invalid section header"),
        (b"[S] # c", "invalid section header"),
        (b"[S'x]", "invalid section header"),
        (b"B=\xe9", "not UTF-8"),
        (b"B=\xef\xbf\xbe", "not valid Unicode"),
        (b"#" * MAX_LINE_BYTES, "1 MiB"),
        (b"B=" + b"x" * (MAX_LINE_BYTES - 4) + b"\\\nxxxx", "1 MiB"),
    ],
)
def test_a_broken_line_ends_the_file(line: bytes, says: str) -> None:
    """What stood before counts, what follows does not."""
    text = given(b"[S]\nA=1\n" + line + b"\nC=3\n")
    assert [one.key for one in text.assignments] == ["A"]
    assert text.broken is not None
    assert says in text.broken.text
    assert text.broken.line in {3, 4}


def test_what_is_no_assignment_is_said_and_skipped() -> None:
    """Outside of a section, without "=", without a key."""
    text = given(b"A=0\n[S]\nfoo\n=x\nA=1\n")
    assert [one.value for one in text.assignments] == ["1"]
    assert [(remark.line, remark.text) for remark in text.remarks] == [
        (1, "assignment outside of a section, ignored"),
        (3, "no '=' in the line, ignored"),
        (4, "no key before '=', ignored"),
    ]


def test_bytes_that_are_not_utf_8_do_no_harm_in_a_comment() -> None:
    """They are shown replaced."""
    text = given(b"[S]\n# caf\xe9\nA=1\n")
    assert (text.broken, text.comments) == (None, ((2, "# caf\ufffd"),))
