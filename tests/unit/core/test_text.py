"""Text from strangers, made safe to print."""

import pytest

from edgeguardd.core.text import printable


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain ü € 模型", "plain ü € 模型"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("", ""),
    ],
)
def test_nothing_a_terminal_could_act_on_remains(text: str, safe: str) -> None:
    """Escapes, line breaks, bidirectional overrides and lone surrogates are spelled out."""
    assert printable(text, 100) == safe


@pytest.mark.parametrize("text", ["x" * 11, "\x1b" * 11, "x" * 10_000_000, "\ud800" * 3])
def test_the_length_is_bounded_after_escaping(text: str) -> None:
    """No text makes a line long, and a cut one shows that it was cut."""
    assert len(printable(text, 10)) == 10
    assert printable(text, 10).endswith("…")


def test_a_text_that_fits_is_not_cut() -> None:
    """Exactly the allowed length is allowed."""
    assert printable("x" * 10, 10) == "x" * 10
