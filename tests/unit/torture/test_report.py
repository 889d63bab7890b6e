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
