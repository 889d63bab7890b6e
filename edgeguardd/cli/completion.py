"""Completion of both commands' words in bash, zsh and fish, made by shtab from the argument parsers.

Must not: be imported by a command: shtab is a tool of the development environment. Upstream: the argument parsers.
Downstream: reference; packaging/completion, which the package installs.
"""

import argparse
from collections.abc import Iterator

import shtab

from edgeguardd.cli import edgeguardctl, edgeguardd

# Where each shell looks for it is in packaging/debian/rules.
FILES = {"bash": "{}.bash", "zsh": "_{}", "fish": "{}.fish"}
# What a value is, by how the help calls it.
KINDS = {"FILE": shtab.FILE, "UNIT|FILE": shtab.FILE, "PATH": shtab.FILE, "DIR": shtab.DIRECTORY}


def pages() -> dict[str, str]:
    """The text of each file by its name."""
    made = {}
    for program, parser in (("edgeguardctl", edgeguardctl.parser()), ("edgeguardd", edgeguardd.parser())):
        for action in actions(parser):
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            if metavar in KINDS:
                action.complete = KINDS[metavar]  # type: ignore[attr-defined]  # where shtab looks for it
        for shell, name in FILES.items():
            made[name.format(program)] = shtab.complete(parser, shell=shell, root_prefix=program)
    return made


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)
