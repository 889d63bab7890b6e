"""edgeguardctl incidents: the list, the story, the page."""

import html.parser
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeguardd.cli.edgeguardctl import main
from edgeguardd.cli.incidentplot import plot
from edgeguardd.core.config import LastResorts, LastResortStep, Policy
from edgeguardd.core.events import AdmitAsked, LastResortEnded, LimitRaised, SampleTaken, TargetDropped
from edgeguardd.core.incidents import MAX_POINTS, MAX_STORY, HowEnded, Incident, Point, incidents, thinned
from edgeguardd.core.model import LastResort, Level, Sample
from edgeguardd.core.replay import recorded
from tests.support.recordings import MIB, NOON_S, Taped, in_utc, incident
from tests.support.script import usage


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    """Times are printed as local ones."""
    with in_utc():
        yield


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Status, standard output, standard error."""
    status = main(["incidents", *argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def found(script: Taped) -> list[Incident]:
    """The incidents of what was taped."""
    return incidents(recorded(script.segments()))


def two() -> Taped:
    """An incident that a trim ends, and a worse one an hour later, which nobody answers."""
    script = incident(Taped())
    script.leave()
    script.pass_time(3600, every=60.0)
    script.need(990)
    script.pass_time(3)
    script.need(100)
    script.pass_time(60)
    return script


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory with two incidents."""
    return two().write(tmp_path / "recordings")


class Strict(html.parser.HTMLParser):
    """Every tag closed in order; what is loaded from elsewhere, and every script, is kept."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.foreign += [f"{name}={value}" for name, value in attrs if name in {"src", "href", "onclick", "onload"}]
        if tag in {"script", "link", "img", "iframe", "object"}:
            self.foreign.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(page: str) -> Strict:
    """The page, parsed; whole, and with nothing from elsewhere."""
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.foreign == []
    assert "url(" not in page
    assert "@import" not in page
    return parser


def test_the_list_has_the_latest_first(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """When, who, how bad, how long, what was asked, and what came of it."""
    status, out, err = run(capsys, "--directory", place)
    assert (status, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split() == ["N", "BEGAN", "TARGET", "WORST", "LASTED", "COMMANDS", "FREED"]
    assert re.match(r"1 +2026-03-01 13:01:\d\d\.\d{3} +llm +critical +", first)
    assert first.split()[-2:] == ["0", "0B"]
    assert second.split()[:5] == ["2", "2026-03-01", "12:00:37.500", "llm", "elevated"]
    assert int(second.split()[-2]) > 3


def test_one_is_told_as_a_story(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line with the seconds since the beginning."""
    status, out, _ = run(capsys, "2", "--directory", place)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith("llm: elevated at worst, ")
    assert lines[1].startswith("   +0.000s  level normal -> elevated: ")
    assert lines[2].startswith("   +0.000s  ask server1 for trim_kv_cache (#1, ")
    assert "subscriber 1 answers #1: done" in out
    assert "restored: subscribers 1" in lines[-1]


def test_figures_story_and_curve_as_json(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs, and for plots of one's own."""
    listed = json.loads(run(capsys, "--directory", place, "--json")[1])
    assert [one["number"] for one in listed] == [1, 2]
    assert listed[1]["start_s"] == NOON_S + 37.5
    assert listed[1]["how_ended"] == "normal"
    whole = json.loads(run(capsys, "2", "--directory", place, "--json")[1])
    assert {name: whole[name] for name in listed[1]} == listed[1]
    assert whole["curve"][0]["needed_bytes"] >= 300 * MIB
    assert whole["curve"][0]["limit_bytes"] == 1000 * MIB
    assert [word for _, word in whole["levels"]] == ["elevated", "normal"]
    assert {told["kind"] for told in whole["story"]} >= {"level", "command", "outcome", "fact"}


def test_the_page_stands_by_itself(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file: no script, nothing loaded, a picture with curve, marks, levels and commands, and the story below."""
    path = tmp_path / "page.html"
    assert run(capsys, "2", "--directory", place, "--html", str(path))[0] == 0
    page = path.read_text()
    texts = checked(page).texts
    assert page == run(capsys, "2", "--directory", place, "--html", "-")[1]
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    for css in ("needed", "mark limit", "mark elevated", "level-elevated", "bar outcome-done", "ack"):
        assert f'class="{css}"' in page
    assert any("limit 1000M" in text for text in texts)
    assert any("#1 trim_kv_cache" in text for text in texts)
    assert any("level normal -> elevated" in text for text in texts)


def test_everything_drawn_is_inside_the_picture(place: str) -> None:
    """No coordinate outside the view box, whatever the amounts."""
    for one in found(two()):
        svg = plot(one)
        box = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
        assert box is not None
        width, height = map(float, box.groups())
        for name, most in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            assert all(0 <= float(value) <= most for value in re.findall(rf' {name}="([-\d.]+)"', svg))
        points = re.search(r'<polyline class="needed" points="([^"]+)"', svg)
        assert points is not None
        for pair in points[1].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=a>', "\x1b[2J\u202e&"])
def test_names_from_peers_are_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscriber chooses its name and its messages; neither page nor terminal obeys them."""
    script = Taped()
    script.join()
    script.target.ledger.subscribers[1].name = name
    script.cut()
    script.need(700)
    place = script.write(tmp_path / "r")
    checked(run(capsys, "1", "--directory", place, "--html", "-")[1])
    out = run(capsys, "1", "--directory", place)[1]
    assert all(line.isprintable() for line in out.splitlines())


def test_what_the_recording_does_not_have_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An incident that had begun before, and one that goes on when the recording ends."""
    script = Taped()
    script.need(700)
    script.cut(complete=False)
    script.need(710)
    script.files = script.files[1:]
    place = script.write(tmp_path / "r")
    out = run(capsys, "--directory", place)[1]
    assert "began before the recording, not over when the recording ends" in out
    page = run(capsys, "1", "--directory", place, "--html", "-")[1]
    assert "It had begun before the recording. It was not over when the recording ends." in page
    checked(page)


def test_no_incident_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And asking for one is one sentence."""
    script = Taped()
    script.need(10)
    place = script.write(tmp_path / "r")
    assert run(capsys, "--directory", place)[1] == "No incident: no target was above normal in these recordings.\n"
    status, _, err = run(capsys, "1", "--directory", place)
    assert status == 1
    assert "cannot tell incident 1: there is none" in err


def test_a_page_needs_a_number_and_a_place(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is 2, a file that cannot be written is 1."""
    with pytest.raises(SystemExit) as caught:
        main(["incidents", "--html", "x.html", "--directory", place])
    assert caught.value.code == 2
    status, _, err = run(capsys, "1", "--directory", place, "--html", str(tmp_path / "no" / "x.html"))
    assert status == 1
    assert "cannot write " in err


# Which incidents there are


def test_a_gap_ends_one_and_begins_another() -> None:
    """Nothing is made up about the time in between."""
    script = Taped()
    script.need(700)
    script.cut(complete=False)
    script.pass_time(100, sample=False)
    script.need(700)
    script.need(100)
    script.pass_time(20)
    first, second = found(script)
    assert (first.how_ended, first.duration_s) == (HowEnded.RECORDING_ENDS, 0.0)
    assert (second.began_before, second.how_ended) == (True, HowEnded.NORMAL)


def test_a_boundary_between_segments_does_not() -> None:
    """The ring's files are none of the story."""
    script = Taped()
    script.need(700)
    script.cut()
    script.need(720)
    script.cut()
    script.need(100)
    script.pass_time(20)
    (one,) = found(script)
    assert (one.began_before, one.how_ended, one.worst) == (False, HowEnded.NORMAL, Level.ELEVATED)


def test_a_target_that_is_dropped_ends_its_incident() -> None:
    """By a reload, or with its last subscriber."""
    script = Taped()
    script.need(700)
    script.do(TargetDropped("llm"))
    (one,) = found(script)
    assert one.how_ended is HowEnded.DROPPED


def test_bytes_that_two_commands_saw_leave_are_counted_once() -> None:
    """For the first that ends; what leaves after that is the other's."""
    script = Taped()
    script.join(1)
    script.join(2)
    script.need(700)
    orders = [step for _, _, effects in script.steps for step in effects if type(step).__name__ == "Deliver"]
    script.now += 0.1
    script.need(500)
    for order in orders:
        script.ack(order.command, subscriber=order.subscriber)  # type: ignore[union-attr]
    (one,) = found(script)
    assert one.commands == 2
    assert one.freed_bytes == 200 * MIB


def test_bytes_that_leave_one_after_another_are_all_counted() -> None:
    """Two commands at once, of which each brought some."""
    script = Taped()
    script.join(1)
    script.join(2)
    script.need(700)
    orders = [step for _, _, effects in script.steps for step in effects if type(step).__name__ == "Deliver"]
    for order, needed in zip(orders, (650, 620), strict=True):
        script.now += 0.1
        script.need(needed)
        script.ack(order.command, subscriber=order.subscriber)  # type: ignore[union-attr]
    assert found(script)[0].freed_bytes == 80 * MIB


def test_what_led_to_it_is_on_the_curve() -> None:
    """Twenty seconds before, and what follows until it is settled."""
    (one,) = found(incident(Taped()))
    assert one.curve[0].wall_s == pytest.approx(one.start_s - 20, abs=0.6)
    assert one.curve[-1].wall_s > one.end_s + 10
    assert one.story[-1].wall_s > one.end_s


def test_requests_are_counted_not_told() -> None:
    """Ten a second would bury the story."""
    script = Taped()
    script.join()
    script.need(950)
    told = len(found(script)[0].story)
    for number in range(50):
        script.do(AdmitAsked(1, str(number), bytes=500 * MIB))
    (one,) = found(script)
    assert (one.granted, one.refused) == (0, 50)
    assert len(one.story) == told


def test_relief_and_last_resorts_are_signs_in_the_picture() -> None:
    """What the daemon did itself is seen at a glance."""
    script = Taped(Policy(last_resort=LastResorts(critical=(LastResortStep(LastResort.RECLAIM),))))
    script.do(SampleTaken(Sample("llm", (usage("/llm", 100, 900, 1000),))))
    script.join()
    script.do(SampleTaken(Sample("llm", (usage("/llm", 880, 900, 1000),))))
    script.do(LimitRaised("llm", 900 * MIB, 980 * MIB))
    script.leave()
    script.do(SampleTaken(Sample("llm", (usage("/llm", 890, 980, 1000),))))
    script.do(LastResortEnded("llm", LastResort.RECLAIM, "done"))
    script.move(max=2)
    (one,) = found(script)
    assert one.last_resorts == 1
    svg = plot(one)
    for css in ("sign-relief", "sign-resort", "sign-kernel"):
        assert f'class="{css}"' in svg


def test_a_long_incident_stays_a_page() -> None:
    """A day at ten samples a second: points and story are bounded, peaks are kept."""
    script = Taped()
    script.need(700)
    for number in range(3 * MAX_POINTS):
        script.now += 0.1
        script.need(999 if number == 5000 else 700 + number % 7)
        if number % 3 == 0:
            script.move(high=1)
    (one,) = found(script)
    assert len(one.curve) <= MAX_POINTS
    assert max(point.needed_bytes for point in one.curve) == 999 * MIB
    assert len(one.story) == MAX_STORY
    assert one.untold > 0


def test_thinning_keeps_the_higher_of_two() -> None:
    """And the last of an odd number."""
    curve = [Point(float(at), needed, 0) for at, needed in enumerate((5, 9, 4, 3, 8))]
    assert [point.needed_bytes for point in thinned(curve)] == [9, 4, 8]


def test_a_target_without_a_limit_has_a_curve_too(tmp_path: Path) -> None:
    """Kills count there as well."""
    script = Taped()
    script.need(100, max_mib=None)
    script.move(oom_kill=1)
    script.need(120, max_mib=None)
    (one,) = found(script)
    assert one.worst is Level.EMERGENCY
    assert one.curve[-1].limit_bytes is None
    checked(f"<html>{plot(one)}</html>")
