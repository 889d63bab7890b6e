"""Lines that were cut in two, put together again: what the kernel prints in pieces, what a mailer or terminal folds.

Must not: join what is whole by itself. Upstream: dress, kernelmessages (what is whole). Downstream: collector.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import structs

from edgeguardd.core.oomlog import kernelmessages as kernel
from edgeguardd.core.oomlog import messages
from edgeguardd.core.oomlog.dress import Line

# The rest of a line is searched for so far: another CPU's lines come between the pieces.
MAX_HELD_LINES: Final = 12
MAX_JOINS: Final = 4
# Indentation of the second line of a record by dmesg, as wide as its times; what a mailer folds has less.
RECORD_INDENT: Final = 8

# Printed piece by piece (pr_cont in mm/oom_kill.c and mm/memcontrol.c), and how the later pieces begin.
_PIECEWISE: Final = ("oom-kill:constraint=", "Task in ", "Tasks in ", "Memory limit reached of cgroup ")
_PIECE: Final = (",", "/", " killed as", " as a result", " are going", "\n")
_SOFT_BREAK = re.compile(r"=([0-9A-F]{2})")


class Halves:
    """Lines in, whole lines out, at most one held back. `holding`: the next line may complete it."""

    def __init__(self) -> None:
        self._held: Line | None = None
        self._waited = 0
        self._joins = 0

    @property
    def holding(self) -> bool:
        """Whether a line is held back."""
        return self._held is not None

    def feed(self, line: Line) -> Iterator[Line]:
        """The lines that are whole now, in order."""
        if self._held is not None:
            if self._join(self._held, line):
                if self._joins >= MAX_JOINS or _complete(kernel.read(self._held.text)):
                    yield from self.end()
                return
            if self._gives_up(self._held, line):
                yield from self.end()
        if line.from_kernel and self._held is None and _is_half(line):
            self._held, self._waited, self._joins = line, 0, 0
        else:
            yield line

    def end(self) -> Iterator[Line]:
        """Nothing more is coming: what is held, as it stands."""
        held, self._held = self._held, None
        if held is not None:
            yield held

    def _join(self, held: Line, line: Line) -> bool:
        """Whether this is the rest of the held line, which then has it."""
        piecewise = held.text.startswith(_PIECEWISE)
        if piecewise and (line.fragment or line.text.startswith(_PIECE)):
            self._keep(structs.replace(held, text=held.text + line.text))
            return True
        text = line.text.lstrip(" ")
        if not text or line.dressed or not (held.dressed or kernel.read(text) is None):
            return False
        if held.text.endswith("="):
            # A mail's quoted-printable line break: the plain text stays as it is.
            rest = held.text[:-1] + text.removesuffix("=")
            self._keep(structs.replace(held, decoded=_SOFT_BREAK.sub(lambda m: chr(int(m[1], 16)), rest)))
            self._joins = MAX_JOINS
            return True
        newline = "\n" if len(line.text) - len(text) >= RECORD_INDENT else ""
        candidate = held.text + newline + text
        if not piecewise and not _better(kernel.read(candidate), kernel.read(held.text)):
            return False
        self._keep(structs.replace(held, text=candidate))
        return True

    def _keep(self, line: Line) -> None:
        self._held = line
        self._joins += 1

    def _gives_up(self, held: Line, line: Line) -> bool:
        """Whether the rest will not come any more: only pieces can have other lines in between."""
        self._waited += 1
        about_oom = line.from_kernel and kernel.read(line.text) is not None
        return not held.text.startswith(_PIECEWISE) or self._waited > MAX_HELD_LINES or about_oom


def _is_half(line: Line) -> bool:
    """Whether the rest of a line may be on the next."""
    if "illed process " in line.text:
        message = kernel.read(line.text)
        return message is None or (isinstance(message, messages.Killed) and not message.whole)
    return line.text.startswith(_PIECEWISE) and not _complete(kernel.read(line.text))


def _complete(message: messages.Message | None) -> bool:
    """Whether nothing is missing at the end of the line."""
    if isinstance(message, messages.OomKill):
        return message.pid is not None
    if isinstance(message, messages.Killed):
        return message.whole
    return message is not None


def _better(joined: messages.Message | None, alone: messages.Message | None) -> bool:
    """Whether two halves together say more than the first one."""
    if not isinstance(joined, messages.Killed) or not isinstance(alone, messages.Killed):
        return joined is not None and alone is None
    if joined.pid != alone.pid:
        return False
    more = len(joined.figures) > len(alone.figures) or (joined.uid, joined.score_adj) != (alone.uid, alone.score_adj)
    return more or (alone.comm is None and joined.comm is not None)
