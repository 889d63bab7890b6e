"""The argument parser of both commands: errors where they belong, with the nearest name; examples below each help.

Must not: know a command. Upstream: argparse, cli.examples. Downstream: edgeguardctl, edgeguardd.
"""

import argparse
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from edgeguardd.cli import examples
from edgeguardd.core.text import printable

MAX_SHOWN_CHARS = 80


class Parser(argparse.ArgumentParser):
    """As argparse's; parsers of commands below it are of this kind as well."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What argparse does, but what nobody knows ends here: the parser above would show its own usage for it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return found, unknown

    def format_help(self) -> str:
        """The help with the command's examples at its end."""
        shown = [f"  {line}\n      {what}\n" for line, what in examples.of(self.prog)]
        return super().format_help() + ("\nexamples:\n" + "".join(shown) if shown else "")

    def error(self, message: str) -> NoReturn:
        """As argparse; where it names no remedy itself, where there is one."""
        super().error(message if "cannot " in message else f"{message}; see {self.prog} --help")

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        first = unknown[0]
        shown = printable(first, MAX_SHOWN_CHARS)
        if not first.startswith("-"):
            self.error(f"cannot use '{shown}': it is one argument too many; see {self.prog} --help")
        names = [name for action in self._actions for name in action.option_strings]
        self.error(f"cannot use '{shown}': no such option{_meant(first.partition('=')[0], names)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's check of a closed set; for a command, the nearest one is named instead of all of them."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            shown = printable(str(value), MAX_SHOWN_CHARS)
            near = _meant(str(value), action.choices)
            raise argparse.ArgumentError(None, f"cannot use '{shown}': no such {str(action.metavar).lower()}{near}")
        super()._check_value(action, value)


def _meant(word: str, names: Iterable[str] | Collection[str]) -> str:
    """The remedy: what was probably meant, else where all names are."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else "; see --help"
