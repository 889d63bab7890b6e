"""The kinds of values: what they read, and that what they write reads back."""

import pytest

from edgeguardd.core import configkinds as kinds


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [(1, 1), ("1", 1), ("512M", 2**29), ("1.5G", 3 * 2**29), ("2 KiB", 2048), ("1.5GiB", 3 * 2**29), ("0.5T", 2**39)],
)
def test_sizes_are_read_as_systemd_writes_them(written: object, bytes_: int) -> None:
    """Base 1024, fractions allowed, plain numbers are bytes."""
    assert kinds.size().parse(written) == bytes_


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *[("6GB", "6G"), ("256MB", "256M"), ("1.5gb", "1.5G"), ("512m", "512M"), ("10 kib", "10K"), ("7B", "7")],
        *[("1.5GIB", "1.5G"), ("6 bytes", "6")],
    ],
)
def test_a_size_that_somebody_may_read_otherwise_is_refused(written: str, meant: str) -> None:
    """ "GB" is base 1000 for some and "m" is milli: what is probably meant is told, and not guessed."""
    with pytest.raises(ValueError, match=f'KiB, MiB, GiB, TiB.* of base 1024; write "{meant}" if that is meant'):
        kinds.size().parse(written)


@pytest.mark.parametrize("written", ["G", "lots", "1 GG", "-1G", "1e3", "", [], None, True, 0, -5, 2**63])
def test_what_is_no_size_is_refused_with_an_example(written: object) -> None:
    """Without a guess where there is nothing to guess from."""
    with pytest.raises(ValueError, match=r'; write "512M" or "1\.5G"'):
        kinds.size().parse(written)


@pytest.mark.parametrize(("value", "why"), [(99999, "out of bounds"), (-1, "out of bounds"), ("80", "a whole number")])
def test_a_number_beyond_its_bounds_is_told_so(value: object, why: str) -> None:
    """99999 is a whole number: what is wrong with it as a port is its size."""
    with pytest.raises(ValueError, match=f"it (is|must be) {why}; write .* from 0 to 65535"):
        kinds.integer(0, 65535).parse(value)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (5, 5.0),
        (0.25, 0.25),
        ("500ms", 0.5),
        ("300ms", 0.3),
        ("2min", 120.0),
        ("1min 30s", 90.0),
        ("1h", 3600.0),
        ("20us", 2e-5),
    ],
)
def test_durations_are_seconds_or_have_a_unit(written: object, seconds: float) -> None:
    """A unit is never guessed: bare numbers are seconds, bare texts are refused."""
    assert kinds.duration(3600.0).parse(written) == seconds


@pytest.mark.parametrize("value", [1, 1023, 2**10, 3 * 2**29, 2**40, 2**63 - 1])
def test_a_size_reads_back(value: int) -> None:
    """What is shown means exactly the same bytes."""
    assert kinds.size().parse(kinds.show_size(value).strip('"')) == value or str(value) == kinds.show_size(value)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1, '"100ms"'), (5.0, '"5s"'), (120.0, '"2min"'), (3600.0, '"1h"'), (0.12345, "0.12345")]
)
def test_a_duration_is_shown_with_the_unit_that_loses_nothing(seconds: float, text: str) -> None:
    """Readable where it can be, exact always."""
    assert kinds.show_duration(seconds) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.6, '"60%"'), (0.025, '"2.5%"'), (1.0, '"100%"'), (1 / 3, repr(1 / 3))])
def test_a_share_is_shown_as_percent_where_that_loses_nothing(ratio: float, text: str) -> None:
    """Readable where it can be, exact always."""
    assert kinds.show_share(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("a\x1b[31m\n", '"a\\x1b[31m\\n"'),
        ("x" * 100, '"' + "x" * 59 + '…"'),
        ([1], "[…]"),
        ({}, "{…}"),
        (1.5, "1.5"),
    ],
)
def test_any_value_can_be_shown(value: object, text: str) -> None:
    """An error message is short and safe to print whatever the file held."""
    assert kinds.shown(value) == text


def test_a_number_too_long_to_print_is_told_by_its_bits() -> None:
    """Python refuses to print thousands of digits; an error message must not fail on that."""
    assert kinds.shown(16**5000) == "(a number of 20001 bits)"
