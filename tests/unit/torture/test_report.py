"""What torture found becomes tables, and they take their place in the page."""

from tests.torture import report
from tests.torture.bounded import Done

VERDICT = {"kind": "disk full", "effects": 2, "wrong": {}, "probe_s": 0.25, "text": "round 3: disk full"}


def test_a_table_counts_rounds_effects_and_verdicts() -> None:
    """By kind, and all together."""
    wrong = {**VERDICT, "wrong": {"limits": ["memory.high is 5"]}, "probe_s": None}
    lines = report.faults([VERDICT, wrong], {}).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "disk full",
        "2",
        "2",
        "4",
        "1",
        "1",
        "250 ms, worst 250 ms",
    ]
    assert lines[3].startswith("| all")
    assert "round 3: disk full\n  limits:\n    memory.high is 5" in report.findings([VERDICT, wrong])


def test_the_page_keeps_what_is_around_the_sections_and_parts_that_were_not_run() -> None:
    """A section takes the place of the one with its heading, again and again; how all of it went stands first."""
    page = f"before\n{report.BEGIN}\n\n### Soak\n\nold\n\n### Fuzz\n\nold too\n\n{report.END}\nafter\n"
    sections = {
        "soak": "### Soak\n\nnew",
        "strain": "### Under pressure itself\n\nfast",
        "all": f"{report.ALL}\n\nfine",
    }
    once = report.document(page, sections)
    inside = f"{report.ALL}\n\nfine\n\n### Soak\n\nnew\n\n### Fuzz\n\nold too\n\n### Under pressure itself\n\nfast"
    assert once == f"before\n{report.BEGIN}\n\n{inside}\n\n{report.END}\nafter\n"
    assert report.document(once, sections) == once
    assert report.dated("### Soak\n\nnew", "today.") == "### Soak\n\ntoday.\n\nnew"


def test_a_budget_is_met_or_missed() -> None:
    """Each part's by itself."""
    done = [Done("soak", True, "", 660.0, 780.0), Done("fuzz", False, "", 60.0, 90.0)]
    lines = report.summary(done, {"soak": "flat", "fuzz": "no crash"}).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["soak", "flat", "met", "11.0 min", "13.0 min"]
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["fuzz", "no crash", "MISSED", "1.0 min", "1.5 min"]


def test_memory_that_grows_from_round_to_round_is_told() -> None:
    """Within one run of the daemon; a start begins anew, and ups and downs are no growth."""

    def rounds(kib_a_round: int) -> list[report.Row]:
        sizes = [31_000_000 + 1024 * (kib_a_round * number + 30 * (number % 3)) for number in range(40)]
        return [{"guest": 0, "pid": 7 + number // 20, "resident_bytes": size} for number, size in enumerate(sizes)]

    assert report.memory(rounds(0))[0]
    flat, text = report.memory(rounds(100))
    assert not flat
    assert text.startswith("Resident memory: +99 ± 15 KiB a round")
    assert report.memory(rounds(100)[:4])[0]


def test_a_traceback_is_its_last_line() -> None:
    """What it names besides are files of the machine that it was made on."""
    trace = 'a defect: _save: Traceback (most recent call last):\n  File "/home/x/y.py", line 1\nOSError: no memory\n'
    case = {"text": "os.fstat failing", "wrong": [trace, "two limits are left"]}
    assert report.calls_wrong([case]) == (
        "os.fstat failing\n    a defect: _save: OSError: no memory\nos.fstat failing\n    two limits are left"
    )
