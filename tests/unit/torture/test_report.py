"""What torture found becomes tables, and they take their place in the page."""

from tests.torture import report

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


def test_the_page_keeps_what_is_around_the_section() -> None:
    """Only what stands between the marks is replaced, again and again."""
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.document(page, "new")
    assert once == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.document(once, "new") == once
