"""Where each key stands, for texts that make counting hard."""

import pytest

from edgeguardd.core.configlines import key_lines

HARD = '''\
# [comment]
"quoted \\u0041.key" = 1 # = 2
a.b . 'c' = [ # one
  1, """
two
""", { x = 1, y = { z = 2 } },
  [],
]
s = "] # \\" = "
m = \'\'\'
[no]
key = 1\'\'\'\'\'
d = 1979-05-27 07:32:00
e = """"five"""""
[t]
k = true
[[arr]]
k = 1

[[arr]]
k = 2
[arr.sub]
k = 3
[[arr.deep]]
[[arr.deep]]
k = 4
'''


def test_strings_arrays_tables_and_dots_are_seen_through() -> None:
    """Every key of a hard text has its own line, nested ones and arrays of tables too."""
    lines = key_lines(HARD)
    assert lines == {
        ("quoted A.key",): 2,
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", "c"): 3,
        ("a", "b", "c", 0): 4,
        ("a", "b", "c", 1): 4,
        ("a", "b", "c", 2): 6,
        ("a", "b", "c", 2, "x"): 6,
        ("a", "b", "c", 2, "y"): 6,
        ("a", "b", "c", 2, "y", "z"): 6,
        ("a", "b", "c", 3): 7,
        ("s",): 9,
        ("m",): 10,
        ("d",): 13,
        ("e",): 14,
        ("t",): 15,
        ("t", "k"): 16,
        ("arr", 0): 17,
        ("arr", 0, "k"): 18,
        ("arr", 1): 20,
        ("arr", 1, "k"): 21,
        ("arr", 1, "sub"): 22,
        ("arr", 1, "sub", "k"): 23,
        ("arr", 1, "deep", 0): 24,
        ("arr", 1, "deep", 1): 25,
        ("arr", 1, "deep", 1, "k"): 26,
    }


@pytest.mark.parametrize("text", ["a = [", "a = {", "a = {b", "[", "[[x]", "= 1", 'a = "', "a = [" * 100_000, "a ="])
def test_text_that_is_no_toml_ends_the_scan_quietly(text: str) -> None:
    """The scan only helps with errors; it never makes one."""
    assert key_lines("ok = 1\n" + text)[("ok",)] == 1
