"""What torture found, as tables: for people on a terminal, and for docs/explanation/reliability.md. Pure.

Must not: run anything. Upstream: parts, as the plain objects that guests pass out. Downstream: __main__.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.torture.bounded import Done

Row = dict[str, Any]

MIB = 1 << 20
FIRST_ROUNDS = 3
# What the allocator's ups and downs may come to.
ALLOWED_KIB_A_ROUND = 16

ALL = "### All of it"
BEGIN = "<!-- torture: begin -->"
END = "<!-- torture: end -->"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, which reads on a terminal too."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([row(head), row(["-" * width for width in widths]), *(row(cells) for cells in rows)])


def faults(verdicts: Sequence[Row], sites: Row) -> str:
    """Per kind of fault: rounds, what was seen of it, and what the oracle said."""
    kinds = sorted({verdict["kind"] for verdict in verdicts})
    rows = []
    for kind in kinds:
        mine = [verdict for verdict in verdicts if verdict["kind"] == kind]
        effects = sum(verdict["effects"] for verdict in mine)
        struck = sum(verdict["effects"] > 0 for verdict in mine)
        wrong = sum(bool(verdict["wrong"]) for verdict in mine)
        probes = [verdict["probe_s"] for verdict in mine if verdict["probe_s"] is not None]
        rows.append([kind, str(len(mine)), f"{struck}", f"{effects}", f"{len(mine) - wrong}", f"{wrong}", ms(probes)])
    wrong = sum(bool(verdict["wrong"]) for verdict in verdicts)
    rows.append(
        [
            "all",
            str(len(verdicts)),
            str(sum(verdict["effects"] > 0 for verdict in verdicts)),
            str(sum(verdict["effects"] for verdict in verdicts)),
            str(len(verdicts) - wrong),
            str(wrong),
            ms([verdict["probe_s"] for verdict in verdicts if verdict["probe_s"] is not None]),
        ]
    )
    head = ["fault", "rounds", "struck", "effects", "right", "wrong", "next clean crossing told after"]
    lines = [
        table(head, rows),
        "",
        "The last column counts from the order to grow: that the server grows is in it.",
        "",
    ]
    if sites:
        lines.append(
            f"{sites['called']} of {sites['known']} calls into the kernel were made, {sites['failed']} were failed, "
            f"{sites['failures']} times in all."
        )
    return "\n".join(lines)


def memory(verdicts: Sequence[Row]) -> tuple[bool, str]:
    """Whether resident memory grows from round to round of one run of the daemon, and by how much.

    A run is one process of one guest; the first rounds of each, in which it does everything for the first time, are
    left out.
    """
    runs: dict[tuple[int, int], list[int]] = {}
    for verdict in verdicts:
        runs.setdefault((verdict["guest"], verdict["pid"]), []).append(verdict["resident_bytes"])
    steps = [
        (after - before) / 1024
        for sizes in runs.values()
        for before, after in zip(sizes[FIRST_ROUNDS:], sizes[FIRST_ROUNDS + 1 :], strict=False)
    ]
    if len(steps) < 3:
        return True, "Too few rounds of one run of the daemon to say whether its memory grows."
    mean = statistics.fmean(steps)
    within = 1.96 * statistics.stdev(steps) / math.sqrt(len(steps))
    most = max(verdict["resident_bytes"] for verdict in verdicts) / MIB
    text = (
        f"Resident memory: {mean:+.0f} ± {within:.0f} KiB a round (95 %, {len(steps)} rounds), at most {most:.1f} MiB."
    )
    return mean - within <= ALLOWED_KIB_A_ROUND, text


def findings(verdicts: Sequence[Row]) -> str:
    """Each wrong round with the oracle's sentences, and how to have it again."""
    lines = []
    for verdict in verdicts:
        for check, sentences in verdict["wrong"].items():
            lines.append(f"{verdict['text']}\n  {check}:")
            lines += [f"    {sentence}" for sentence in sorted(set(sentences))]
    return "\n".join(lines)


def calls(cases: Sequence[Row]) -> str:
    """Every call into the kernel failed in turn, by module: how many there are, and what was left of failing them."""
    modules: dict[str, list[Row]] = {}
    for case in cases:
        module, colon, _ = case["site"].partition(":")
        modules.setdefault(module.removeprefix("edgeguardd.") if colon else "libraries", []).append(case)
    rows = [_calls_row(module, mine) for module, mine in sorted(modules.items())]
    head = ["calls of", "calls", "failed", "times", "started all the same", "ended in a sentence", "wrong"]
    return table(head, [*rows, _calls_row("all", cases)])


def _calls_row(name: str, cases: Sequence[Row]) -> list[str]:
    starts = [case for case in cases if case["at_start"]]
    return [
        name,
        str(len({case["site"] for case in cases})),
        str(len({case["site"] for case in cases if case["hits"]})),
        str(sum(case["hits"] for case in cases)),
        str(sum(not case["died"] for case in starts)),
        str(sum(case["died"] for case in starts)),
        str(sum(bool(case["wrong"]) for case in cases)),
    ]


def deaths(rows: Sequence[Row]) -> str:
    """The points at which the daemon was killed, and what was left of it."""
    passed = [row["point"] for row in rows if not row["met"]]
    lines = [
        table(
            ["points of death", "died there", "whole after the next start", "wrong"],
            [[str(len(rows)), str(len(rows) - len(passed)), str(_whole(rows)), str(len(rows) - _whole(rows))]],
        )
    ]
    if passed:
        lines.append(f"Not come to on plain files: {', '.join(passed)}. The rounds of faults come to them.")
    wrong = "\n".join(f"{row['point']}\n    {text}" for row in rows for text in sorted(set(row["wrong"])))
    return "\n\n".join([*lines, *([f"```text\n{wrong}\n```"] if wrong else [])])


def _whole(rows: Sequence[Row]) -> int:
    return sum(not row["wrong"] for row in rows)


def calls_wrong(cases: Sequence[Row]) -> str:
    """Each case that left something, with what it left; of a traceback, which names files of this machine, the end."""
    return "\n".join(
        f"{case['text']}\n    {sentence}" for case in cases for sentence in dict.fromkeys(map(_briefly, case["wrong"]))
    )


def _briefly(sentence: str) -> str:
    if "Traceback" not in sentence:
        return sentence
    return f"{sentence.partition('Traceback')[0]}{sentence.strip().splitlines()[-1].strip()}"


def soak(growth: Row) -> str:
    """What grew, if anything."""
    resident, blocks, descriptors = growth["resident_kib"], growth["blocks"], growth["descriptors"]
    rows = [
        ["simulated", f"{growth['hours']:.1f} h: {growth['acts']} acts, {growth['commands']} commands"],
        ["resident memory", f"{growth['first_bytes'] / MIB:.1f} MiB, at the end {growth['last_bytes'] / MIB:.1f} MiB"],
        ["growth of resident memory", f"{resident[0]:+.1f} ± {resident[1]:.1f} KiB a simulated hour (95 %)"],
        ["what eight hours add at most", f"{growth['most_kib']:.0f} KiB, allowed {growth['allowed_kib']} KiB"],
        ["growth of blocks in use", f"{blocks[0]:+.0f} ± {blocks[1]:.0f} a simulated hour (95 %)"],
        ["what eight hours add at most", f"{growth['most_blocks']:.0f} blocks, allowed {growth['allowed_blocks']}"],
        ["growth of descriptors", f"{descriptors[0]:+.2f} ± {descriptors[1]:.2f} a simulated hour (95 %)"],
        ["descriptors more than before, at rest", f"{growth['left_open']:+d}"],
        ["defects", str(growth["defects"])],
    ]
    return table(["what", "figure"], rows)


def strain(rows: Sequence[Row]) -> str:
    """The daemon itself under pressure: how long a command took."""
    head = ["the daemon", "kills", "told", "median", "p99", "worst", "meanwhile"]
    cells = [
        [
            row["name"],
            str(len(row["delays_s"]) + row["lost"]),
            str(len(row["delays_s"])),
            ms_of(_percentile(row["delays_s"], 0.5)),
            ms_of(_percentile(row["delays_s"], 0.99)),
            ms_of(max(row["delays_s"], default=math.nan)),
            row["evidence"],
        ]
        for row in rows
    ]
    return table(head, cells)


def summary(done: Sequence[Done], budgets: Mapping[str, str]) -> str:
    """Each part, what has to be so, what came of it, and how long it took."""
    rows = [
        [one.name, budgets[one.name], "met" if one.right else "MISSED", _minutes(one.took_s), _minutes(one.limit_s)]
        for one in done
    ]
    return table(["part", "budget", "verdict", "took", "at most"], rows)


def dated(section: str, evidence: str) -> str:
    """A section with when and on what it was measured, below its heading."""
    heading, _, text = section.partition("\n\n")
    return f"{heading}\n\n{evidence}\n\n{text}"


def document(text: str, sections: Mapping[str, str]) -> str:
    """The page with these sections replaced; those of parts that were not run stay as they are."""
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {_heading(section): section.strip() for section in re.split(r"^(?=### )", old, flags=re.MULTILINE)}
    kept |= {_heading(section): section.strip() for section in sections.values()}
    first = sorted(kept, key=lambda heading: heading != ALL)
    inside = "\n\n".join(kept[heading] for heading in first if kept[heading])
    return f"{before}{BEGIN}\n\n{inside}\n\n{END}{after}"


def _heading(section: str) -> str:
    return section.strip().partition("\n")[0]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def ms(values: Sequence[float]) -> str:
    """The middle and the worst of a series of seconds."""
    return f"{ms_of(_percentile(values, 0.5))}, worst {ms_of(max(values))}" if values else "-"


def ms_of(seconds: float) -> str:
    """Seconds in milliseconds."""
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.0f} ms"


def _percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan
