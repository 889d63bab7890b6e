"""Names of units, specifiers, and words: the small grammars of systemd."""

import pytest

from edgeguardd.isolate import commands, specifiers, words
from edgeguardd.isolate import unitnames as names


@pytest.mark.parametrize("name", ["a.service", "a@b.service", "a@.service", "-.slice", "a\\x2db.mount", "a:b.timer"])
def test_a_valid_name(name: str) -> None:
    """Types of systemd, its characters."""
    assert names.valid(name)


@pytest.mark.parametrize(
    "name", ["a", ".service", "a.conf", "a b.service", "@x.service", "a/b.service", "ä.service", "a" * 250 + ".service"]
)
def test_an_invalid_name(name: str) -> None:
    """No type, no stem, other characters, too long."""
    assert not names.valid(name)


@pytest.mark.parametrize(
    ("name", "directories"),
    [
        ("a.service", ["a.service.d"]),
        ("a-b-c.service", ["a-b-c.service.d", "a-b-.service.d", "a-.service.d"]),
        ("a--b.service", ["a--b.service.d", "a--.service.d", "a-.service.d"]),
        ("-a.service", ["-a.service.d"]),
        (
            "a-b@x.service",
            ["a-b@x.service.d", "a-b@.service.d", "a-.service.d", "a-@x.service.d", "a-@.service.d"],
        ),
    ],
)
def test_drop_ins_are_looked_for_from_the_special_to_the_general(name: str, directories: list[str]) -> None:
    """Template, prefixes cut at dashes; an instance keeps its instance on the way."""
    assert names.drop_in_directories(name) == directories


def test_slices_lie_in_the_slices_that_their_names_say() -> None:
    """Up to the root slice, which lies in none."""
    assert names.slice_above("a-b-c.slice") == "a-b.slice"
    assert names.slice_above("a.slice") == "-.slice"
    assert names.slice_above("-.slice") is None
    assert [names.valid_slice(name) for name in ("a-b.slice", "-.slice", "a--b.slice", "-a.slice", "a@b.slice")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_instances_share_a_slice_of_their_template() -> None:
    """With the dashes of its name escaped, so that they are no levels."""
    assert names.default_slice("my-llm@gpu0.service", user=False) == "system-my\\x2dllm.slice"
    assert names.default_slice("a.service", user=True) == "app.slice"


@pytest.mark.parametrize(
    ("text", "put_in"),
    [
        ("%n %N %p %i %j", "a-b@x-y.service a-b@x-y a-b x-y b"),
        ("%P %I %f", "a/b x/y /x/y"),
        ("%% %t %S %h", "% /run /var/lib /root"),
        ("%H %m %b", "%H %m %b"),
        ("100%", "100%"),
        ("%!", "%!"),
    ],
)
def test_specifiers_of_the_unit_are_put_in(text: str, put_in: str) -> None:
    """Those of the machine stay, as does a percent sign before anything else."""
    assert specifiers.expanded(text, "a-b@x-y.service") == put_in


@pytest.mark.parametrize(("text", "name"), [("%z", "a.service"), ("%I", "a@\\q.service")])
def test_what_no_specifier_stands_for_cannot_be_resolved(text: str, name: str) -> None:
    """systemd refuses the command then."""
    assert specifiers.expanded(text, name) is None


def lines(value: str) -> list[str]:
    """Command lines as systemd shows them."""
    return [command.line() for command in commands.parse(value, lambda text: text)]


def test_a_command_line_is_split_quoted_and_joined_as_systemd_shows_it() -> None:
    """Quotes and escapes resolved, a lone ";" begins another command, "\\;" is one."""
    assert lines("/a 'x y' \"b\\tc\" \\; ; /b") == ['/a "x y" "b\\tc" ";"', "/b"]
    assert lines("/a \\z \\") == ['/a "\\\\z" "\\\\"']
    assert lines("@/a name x") == ["name x"]


@pytest.mark.parametrize("value", ["x/y", "/a/", "", '/a "open', "@/a", "/a \\\"b'"])
def test_what_systemd_refuses_is_refused_unless_a_dash_forgives_it(value: str) -> None:
    """The whole unit is not loaded, but for "-"."""
    if value:
        with pytest.raises(commands.RefusedError):
            lines(value)
    assert lines("-" + value) == []


def test_words_keep_what_an_open_quote_follows_if_asked_to() -> None:
    """Lists of capabilities do; others are ignored as a whole."""
    assert words.split("a 'b c' d\\ e") == ["a", "b c", "d e"]
    assert words.split('a "b', tolerant=True) == ["a"]
    with pytest.raises(words.UnbalancedError):
        words.split('a "b')
