"""Command lines of Exec settings."""

import pytest

from edgeguardd.isolate import commands


def lines(value: str) -> list[str]:
    """What is run, without specifiers to resolve."""
    return [command.line() for command in commands.parse(value, lambda text: text)]


def test_a_program_that_cannot_be_read_ends_the_assignment() -> None:
    """As systemd 252 has it: the commands before an open quote are run, and the unit is loaded."""
    assert lines("/bin/true a ; '") == ["/bin/true a"]
    assert lines("/bin/true a ; /bin/false b ; 'x") == ["/bin/true a", "/bin/false b"]


def test_an_open_quote_elsewhere_costs_the_assignment_or_the_unit() -> None:
    """In the first program the assignment is left out; among arguments the unit is refused."""
    with pytest.raises(commands.IgnoredError):
        lines("'")
    with pytest.raises(commands.RefusedError):
        lines("/bin/true '")
    with pytest.raises(commands.RefusedError):
        lines("/bin/true ; /bin/false 'a")
