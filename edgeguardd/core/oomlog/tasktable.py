"""The task dump of an OOM report: its header and rows, read by the names in the header, which differ by version.

Must not: guess a column that neither the header nor the count of figures tells. Upstream: nothing.
Downstream: collector.

    3.10  [ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name
    4.4   [ pid ]   uid  tgid total_vm      rss nr_ptes nr_pmds swapents oom_score_adj name
    4.19  [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
    6.8   [  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name

Vendors and patches add columns. All figures are pages, but pgtables_bytes, and ids.
"""

import re
from typing import Final

from msgspec import Struct

# Without a header: how many figures stand between pid and name, and what they are.
_BY_COUNT: Final = {
    7: ("uid", "tgid", "total_vm", "rss", "", "swapents", "oom_score_adj"),
    8: ("uid", "tgid", "total_vm", "rss", "nr_ptes", "nr_pmds", "swapents", "oom_score_adj"),
    10: (
        *("uid", "tgid", "total_vm", "rss", "rss_anon", "rss_file", "rss_shmem"),
        *("pgtables_bytes", "swapents", "oom_score_adj"),
    ),
}
# What every version prints first.
_ALWAYS: Final = ("uid", "tgid", "total_vm", "rss")
_KNOWN: Final = frozenset().union(*_BY_COUNT.values()) - {""}

_HEAD = re.compile(r"\[ *pid *\] +uid +tgid +total_vm +.*")
_ROW = re.compile(r"\[ *(\d{1,10})\]((?: +-?\d{1,20}){2,16})(?: (.*))?", re.DOTALL)


class Task(Struct, frozen=True):
    """One row. `rss` and `swapents` are pages, `total_vm` too; what the row does not have whole is None."""

    pid: int
    name: str | None
    uid: int | None = None
    tgid: int | None = None
    total_vm: int | None = None
    rss: int | None = None
    rss_anon: int | None = None
    rss_file: int | None = None
    rss_shmem: int | None = None
    nr_ptes: int | None = None
    nr_pmds: int | None = None
    pgtables_bytes: int | None = None
    swapents: int | None = None
    oom_score_adj: int | None = None


def head(text: str) -> tuple[str, ...] | None:
    """The columns between pid and name. A header that is cut gives those that are whole."""
    if not _HEAD.match(text):
        return None
    names = text[text.index("]") + 1 :].split()
    if names[-1] == "name":
        return tuple(names[:-1])
    return tuple(name for name in names if "..." not in name and "…" not in name and name != ">")


def row(text: str, columns: tuple[str, ...] | None) -> Task | None:
    """One row under these columns; None: the header was not seen."""
    found = _ROW.fullmatch(text)
    if found is None:
        return None
    figures = [int(word) for word in found[2].split()]
    name = found[3]
    if columns is None:
        count = max((count for count in _BY_COUNT if count <= len(figures)), default=0)
        columns = _BY_COUNT.get(count, ()) if name is not None else _ALWAYS
        if not columns:
            return None
    if "oom_score_adj" not in columns:
        # The header was cut or folded: what stands under the names that are left is known, the rest is not.
        name, figures = None, figures[: len(columns) + 1]
    elif len(figures) > len(columns):
        # A name that begins with figures of its own.
        name = _name_behind(text, len(columns))
        figures = figures[: len(columns)]
    elif len(figures) < len(columns):
        name = None
    if name is None and figures:
        # The line ends within its figures, perhaps in the middle of one.
        figures.pop()
    named = {column: figure for column, figure in zip(columns, figures, strict=False) if column in _KNOWN}
    return Task(pid=int(found[1]), name=name, **named)


def _name_behind(text: str, count: int) -> str | None:
    """The name behind so many figures: one blank after the last of them."""
    found = re.match(rf"\[ *\d+\](?: +-?\d+){{{count}}} (.*)", text, re.DOTALL)
    return None if found is None else found[1]
