"""Names of found targets: whatever cgroups are called, no two share a name and each can be said."""

from hypothesis import example, given
from hypothesis import strategies as st

from edgeguardd.core import wire
from edgeguardd.kernel.names import found_name

LONG = "/a.slice/" + "0123456789abcdef" * 12 + ".scope"

# What a file name may hold, and what the parts of a path look like when they are made to be mistaken for each other.
NAMES = st.text(st.sampled_from("ab~\\x01\x01\n\udcff\u202e…é"), min_size=1, max_size=12) | st.text(min_size=1)
PATHS = st.lists(NAMES, min_size=1, max_size=30).map(lambda names: "/" + "/".join(names))


@given(PATHS, PATHS)
@example("/a\x01b", "/a\\x01b")
@example(LONG, LONG.replace("f0", "f1"))
@example("/a\x01b", found_name("/a\x01b"))
@example(LONG, found_name(LONG))
def test_two_cgroups_never_share_a_name_and_each_can_be_said(one: str, other: str) -> None:
    """Whatever their names hold, also when one is made to look like the other's; a hello takes each."""
    names = [found_name(path, "g" * 64 + ":") for path in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert name.isprintable()
        line = wire.encode(wire.Hello(name="x", target=name))
        assert wire.decode_client(line.rstrip(b"\n")) == wire.Hello(name="x", target=name)
