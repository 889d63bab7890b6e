"""No bytes crash the unit parser or the audit, and its time is linear in them.

EDGEGUARDD_FUZZ_EXAMPLES sets how many examples are tried; the default is small.
"""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeguardd.core import systemdvalues as values
from edgeguardd.isolate import commands, reports, specifiers, unittext, words
from edgeguardd.isolate.rules import RULES
from edgeguardd.isolate.settings import SETTINGS
from edgeguardd.isolate.settingvalues import Place
from edgeguardd.isolate.unitfiles import SearchPath
from tests.support.unittree import judged, loaded

EXAMPLES = int(os.environ.get("EDGEGUARDD_FUZZ_EXAMPLES", "40"))
fuzzed = settings(max_examples=EXAMPLES, deadline=None)

KEYS = st.sampled_from([row.key for row in SETTINGS])
PIECES = st.sampled_from(
    (
        *(
            "1",
            "0",
            "-",
            "+",
            ".",
            "%",
            "‰",
            "‱",
            " ",
            "\t",
            "\v",
            "G",
            "K",
            "E",
            "min",
            "s",
            "infinity",
            "0x",
            "0b",
            "yes",
        ),
        *(
            "~",
            '"',
            "'",
            "\\",
            ";",
            "/",
            "a.slice",
            "CAP_KILL",
            "%n",
            "%I",
            "%%",
            "$",
            "@",
            "!",
            "é",
            "\ud7ff",
            "9" * 400,
        ),
    )
)
VALUES = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=40)
LINES = st.tuples(KEYS, VALUES).map("=".join).map(lambda line: line.encode()) | st.sampled_from(
    (b"[Service]", b"[Unit]", b"[Slice]", b"[", b"# edgeguard: ignore=x", b"\xff", b"\\", b"", b"\xef\xbb\xbf", b"\0")
)
FILES = st.lists(st.tuples(LINES, st.sampled_from((b"\n", b"\r\n", b"\\\n", b"\0"))).map(b"".join), max_size=30).map(
    b"".join
)


@given(st.binary(max_size=400) | FILES)
@fuzzed
def test_any_bytes_are_some_unit(data: bytes) -> None:
    """What is read is read in order, and each line belongs to the file."""
    text = unittext.parse(data, "f")
    lines = [one.line for one in text.assignments]
    assert lines == sorted(lines)
    assert all(one.key for one in text.assignments)
    assert all(remark.line <= len(data) + 1 for remark in text.remarks)


@given(VALUES)
@fuzzed
def test_any_value_is_taken_or_refused(text: str) -> None:
    """Each parser answers or says no in its own way; a number stays in its range."""
    for number in (values.size(text), values.time_span(text)):
        assert number is None or 0 <= number <= values.INFINITE
    for parse in (values.integer, values.share, values.boolean):
        parse(text)
    try:
        words.split(text)
    except words.UnbalancedError:
        assert '"' in text or "'" in text or "\\" in text
    place = Place("a@b.service", 2**33, 4096)
    for row in SETTINGS:
        try:
            row.parse(row.default, text, place)
        except (commands.IgnoredError, commands.RefusedError):
            continue


@given(st.integers(0, 2**62))
@fuzzed
def test_a_span_is_read_as_it_is_shown(span_us: int) -> None:
    """To the microsecond, with the accuracy of one."""
    assert values.time_span(values.shown_span(span_us, 1)) == span_us


@given(FILES, FILES)
@fuzzed
def test_any_files_have_a_report(tmp_path_factory: pytest.TempPathFactory, fragment: bytes, drop_in: bytes) -> None:
    """In each form, from any fragment with any drop-in."""
    place = tmp_path_factory.mktemp("units")
    (place / "a.service.d").mkdir()
    (place / "a.service").write_bytes(b"[Service]\nExecStart=/usr/bin/true\n" + fragment)
    (place / "a.service.d/1.conf").write_bytes(drop_in)
    report = judged(loaded(place, {}))
    json.loads(reports.document([report], single=True))
    json.loads(reports.sarif([report], RULES))
    assert reports.junit([report])
    assert all(line.isprintable() for line in reports.text([report]))


@given(st.lists(st.text(alphabet="ab-@.\\x0", max_size=12), max_size=8))
@fuzzed
def test_any_names_are_looked_for(names: list[str]) -> None:
    """Whatever entries a folder has."""
    for name in names:
        specifiers.expanded("%i%I%j%J%n%N%p%P%f", name + ".service")
    assert SearchPath(("/nonexistent",)).units(("service",)) == []


def seconds(data: bytes, place: Path) -> float:
    """CPU time of a load, the least of three."""
    (place / "a.service").write_bytes(b"[Service]\nExecStart=/usr/bin/true\n" + data)
    least = float("inf")
    for _ in range(3):
        begun = time.process_time()
        loaded(place, {})
        least = min(least, time.process_time() - begun)
    return least


@pytest.mark.parametrize(
    "piece",
    [
        b"MemoryMax=1G\n",
        b"# comment \\\n",
        b"ExecStart=/bin/a \\\n",
        b"ExecStart=/bin/a\n",
        b"ReadWritePaths=/a\n",
        b"DisableControllers=cpu\n",
        b"'",
        b"\\",
        b"RestartSec=" + b"1s " * 2000 + b"\n",
        b"CapabilityBoundingSet=" + b"CAP_KILL " * 800 + b"\n",
        b"ReadWritePaths=" + b"/a " * 2000 + b"\n",
        b"[Service]\n",
        b"Foo=1\n",
        b"\r\n\0",
    ],
)
def test_the_time_is_linear(piece: bytes, tmp_path: Path) -> None:
    """Eight times the bytes take less than forty times the time: a square would take sixty-four."""
    small = piece * (8_000 // len(piece) + 1)
    once, eight = seconds(small, tmp_path), seconds(small * 8, tmp_path)
    assert eight < 40 * max(once, 0.002)
