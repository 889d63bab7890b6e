"""The survival table: what its figures are made of."""

from tests.bench import survival
from tests.demo.contest import DEMONSTRATED, LIMITED, ON_A_SMALL_MACHINE
from tests.demo.load import Tally
from tests.demo.run import Result


def result(name: str, served: int, kills: int = 0, restarts: int = 0) -> Result:
    """One run's outcome."""
    return Result(name, Tally(sent=10, served=served, times_s=[0.1, 0.2]), kills=kills, restarts=restarts)


def test_a_recovery_lasts_until_the_next_answer() -> None:
    """The longest of them counts; an end after which nothing was answered has none."""
    ended = result("none", 5)
    ended.tally.answered_at = [1.0, 4.0, 9.0]
    ended.gone_at = [2.0, 8.5, 10.0]
    assert ended.recovery_s == 2.0
    assert result("none", 5).recovery_s == 0.0


def test_each_row_has_a_cell_for_each_column() -> None:
    """A killed server counts once, whoever killed it, and a run without kills has no recovery."""
    killed = survival.columns(result("earlyoom", 5, restarts=2))
    row = dict(zip(survival.HEAD, killed, strict=True))
    assert (row["kills"], row["hangs"], row["restarts needed"], row["served"]) == ("2", "0", "2", "5")
    assert survival.columns(result("none", 5))[survival.HEAD.index("slowest recovery")] == "-"


def test_what_is_promised_is_of_edgeguardd_against_the_best_of_the_others() -> None:
    """Its kills and time-outs, and by how much another served more: less than nothing when it served the most."""
    results = [result("none", 7, kills=1), result("seed article", 8), result("edgeguardd", 9)]
    assert survival.measured(results) == {
        "survival_kills": 0,
        "survival_restarts": 0,
        "survival_timeouts": 0,
        "survival_served": -1,
    }


def test_a_wait_of_ten_seconds_is_a_hang_once() -> None:
    """However often it is looked at, and until somebody is answered; time-outs meanwhile end nothing."""
    tally = Tally()
    tally.begin(0.0)
    for now in (9.9, 10.0, 11.0, 30.0):
        tally.look(now)
    tally.begin(30.0)
    tally.end(31.0, answered=False)
    assert (tally.hangs, tally.longest_stall_s) == (1, 31.0)
    tally.end(31.0, answered=True)
    tally.begin(31.0)
    tally.look(42.0)
    assert tally.hangs == 2


def test_the_table_says_who_needed_no_restart() -> None:
    """Neither killed nor hung."""
    hung = result("memory.high", 5)
    hung.tally.hangs = 1
    rows = survival.table("T", 1, [result("none", 5, kills=1), hung, result("edgeguardd", 9)], [])
    assert rows.notes == ["Needed no restart: edgeguardd."]
    assert survival.table("T", 1, [hung], []).notes == ["Needed no restart: none."]


def test_all_who_take_part_have_names_of_their_own() -> None:
    """The tables and the command line tell them apart by name, and the demonstration is part of the contest."""
    names = [each.name for each in (*DEMONSTRATED, *LIMITED, *ON_A_SMALL_MACHINE)]
    assert len(set(names)) == len(names)
    assert {each.reaction for each in DEMONSTRATED} <= {each.reaction for each in LIMITED}
