"""What /metrics says of one daemon: what begins at zero, what stays bounded, what is measured from where."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from edgeguardd.core.config import LastResorts, LastResortStep, Policy
from edgeguardd.core.effects import CommandEnded, Deliver
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    KillsNearRemoval,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    ReliefFailed,
    SampleTaken,
    SubscriberJoined,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.core.model import (
    AckStatus,
    Action,
    Command,
    Counters,
    LastResort,
    Level,
    Outcome,
    Parameters,
    Role,
    Sample,
    Usage,
)
from edgeguardd.exposition import Format
from edgeguardd.kernel.wakeups import Begun, Cause
from edgeguardd.logs import Output
from edgeguardd.metrics import Metrics
from edgeguardd.recorder import Recorder, RecorderStats
from edgeguardd.selfmetrics import Sources
from edgeguardd.series import DEPARTED_VISIBLE_S, MAX_DEPARTED
from edgeguardd.serve.gatestats import GateStats
from edgeguardd.serve.pressurewatch import WatchStats
from edgeguardd.serve.subscriberstats import SubscriberStats

MIB = 1 << 20


class NoRecorder:
    """As much of a recorder as metrics read."""

    stats = RecorderStats()


class Watched:
    """The metrics of an engine, with a clock and a wake-up that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.begun: Begun | None = None
        self.raised_at: dict[str, float] = {}
        self.engine = Engine()
        self.metrics = Metrics(
            Sources(
                engine=self.engine,
                subscribers=SubscriberStats(),
                log=Output(len, lambda _: b""),
                recorder=cast(Recorder, NoRecorder()),
                gate=GateStats(),
                watches=WatchStats(),
                epoch="e" * 32,
                begun=lambda: self.begun,
                raised_at=lambda: self.raised_at,
                clock=lambda: self.now,
            )
        )

    def happens(self, *events: Any) -> None:
        """Through metrics and engine, as in the daemon."""
        for event in events:
            self.metrics.happened(event)
            self.engine.handle(event, self.now)
            if isinstance(event, TargetDropped):
                self.metrics.departed(event.target, self.now)

    def guard(self, target: str = "llm") -> None:
        """A target that is there and was sampled."""
        usage = Usage(f"/{target}", 50 * MIB, 50 * MIB, None, 100 * MIB)
        self.happens(TargetAdded(target, f"/{target}", Policy()), CgroupAppeared(target))
        self.happens(SampleTaken(Sample(target, (usage,))))

    def deliver(self, seq: int, target: str = "llm", action: Action = Action.TRIM_KV_CACHE) -> None:
        """One command goes out."""
        command = Command(seq, target, action, Parameters(release_bytes=MIB), Level.HIGH, "why", 5.0)
        self.metrics.sent(Deliver(1, command))

    def end(self, seq: int, outcome: Outcome, freed_bytes: int | None = None, target: str = "llm") -> None:
        """It has its outcome."""
        self.metrics.ended(CommandEnded(1, seq, target, Action.TRIM_KV_CACHE, outcome, 1.0, None, freed_bytes))

    def families(self, form: Format = Format.TEXT) -> Iterator[Metric]:
        """What a scraper reads, through the format's own parser."""
        text = self.metrics.written(form, self.now).decode()
        return iter((text_families if form is Format.TEXT else openmetrics_families)(text))

    def samples(self, name: str, **labels: str) -> list[float]:
        """The values of the samples with this name and these labels."""
        return [
            sample.value
            for family in self.families()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


@pytest.fixture
def watched() -> Watched:
    """One daemon's metrics."""
    return Watched()


def test_what_alerts_ask_for_begins_at_zero(watched: Watched) -> None:
    """A series that begins with its first count has, to Prometheus, never risen."""
    watched.guard()
    for event in ("high", "max", "oom", "oom_kill"):
        assert watched.samples("edgeguardd_memory_events_total", target="llm", event=event) == [0]
    assert watched.samples("edgeguardd_kills_near_removal_total", target="llm") == [0]
    assert watched.samples("edgeguardd_commands_total") == []
    watched.happens(SubscriberJoined(1, "server", Role.INFERENCE, "llm", frozenset({Action.TRIM_KV_CACHE})))
    for outcome in ("expired", "failed", "ineffective"):
        assert watched.samples("edgeguardd_commands_total", action="trim_kv_cache", outcome=outcome) == [0]
    assert watched.samples("edgeguardd_commands_total", action="restore", outcome="expired") == [0]
    assert watched.samples("edgeguardd_commands_total", action="unload_model") == []


def test_a_last_resort_that_is_configured_begins_at_zero(watched: Watched) -> None:
    """Others have no series."""
    policy = Policy(last_resort=LastResorts(critical=(LastResortStep(LastResort.FREEZE),)))
    watched.happens(TargetAdded("llm", "/llm", policy))
    assert watched.samples("edgeguardd_last_resorts_total", action="freeze", outcome="failed") == [0]
    watched.happens(LastResortEnded("llm", LastResort.FREEZE, "done"))
    assert watched.samples("edgeguardd_last_resorts_total", action="freeze", outcome="done") == [1]
    assert watched.samples("edgeguardd_last_resorts_total", action="kill") == []


def test_observers_begin_nothing(watched: Watched) -> None:
    """They are never asked for anything."""
    watched.guard()
    watched.happens(SubscriberJoined(1, "looker", Role.OBSERVER, None, frozenset()))
    assert watched.samples("edgeguardd_commands_total") == []


def test_counters_go_on_when_the_cgroup_is_made_again(watched: Watched) -> None:
    """Removed and made again, and even dropped and guarded again: never down."""
    watched.guard()
    seen = []
    for _ in range(3):
        watched.happens(CountersMoved("llm", "/llm", local=True, delta=Counters(high=2, oom_kill=1)))
        seen += watched.samples("edgeguardd_memory_events_total", event="oom_kill")
        watched.happens(CgroupVanished("llm"), CgroupAppeared("llm"))
        seen += watched.samples("edgeguardd_memory_events_total", event="oom_kill")
    watched.happens(TargetDropped("llm"))
    seen += watched.samples("edgeguardd_memory_events_total", event="oom_kill")
    watched.guard()
    seen += watched.samples("edgeguardd_memory_events_total", event="oom_kill")
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 3)
    assert watched.samples("edgeguardd_target_appearances_total", target="llm") == [5]


def test_a_neighbours_counts_are_not_the_targets(watched: Watched) -> None:
    """What an ancestor counted may be anybody's."""
    watched.guard()
    watched.happens(CountersMoved("llm", "/", local=False, delta=Counters(oom_kill=1)))
    watched.happens(KillsNearRemoval("llm", "/", 2))
    assert watched.samples("edgeguardd_memory_events_total", event="oom_kill") == [0]
    assert watched.samples("edgeguardd_kills_near_removal_total") == [2]


@pytest.mark.parametrize("form", Format)
def test_a_thousand_targets_come_and_go_and_leave_nothing(watched: Watched, form: Format) -> None:
    """Whatever was counted of them: while they come, no more than the bound; after five minutes, what was before."""
    watched.guard("stays")
    before = len(watched.metrics.written(form, watched.now).splitlines())
    most = 0
    for number in range(1000):
        name = f"pods:/kubepods/pod{number}"
        watched.guard(name)
        watched.happens(SubscriberJoined(number, "server", Role.INFERENCE, name, frozenset(Action)))
        watched.happens(CountersMoved(name, name, local=True, delta=Counters(oom_kill=1)))
        watched.deliver(1, name)
        watched.end(1, Outcome.DONE, MIB, name)
        watched.happens(LimitRaised(name, 1, 2), LimitPutBack(name, "restored"), ReliefFailed(name, "no"))
        watched.happens(LastResortEnded(name, LastResort.RECLAIM, "done"), TargetDropped(name))
        if number % 250 == 249:
            most = max(most, len(watched.metrics.written(form, watched.now).splitlines()))
    assert most <= before + MAX_DEPARTED * 10 + 100
    watched.now += DEPARTED_VISIBLE_S
    after = watched.metrics.written(form, watched.now)
    assert b"kubepods" not in after
    # The histograms, and the families of the first command and of the first relief, are what is new.
    assert len(after.splitlines()) <= before + 60


def test_series_that_nobody_counted_in_end_with_their_target(watched: Watched) -> None:
    """Of a target that is gone, only what happened is of interest."""
    watched.guard()
    watched.happens(CountersMoved("llm", "/llm", local=True, delta=Counters(oom_kill=1)), TargetDropped("llm"))
    assert watched.samples("edgeguardd_memory_events_total", target="llm") == [1]
    assert watched.samples("edgeguardd_kills_near_removal_total", target="llm") == []
    assert watched.samples("edgeguardd_target_level", target="llm") == []


def test_what_is_counted_of_a_target_that_was_never_guarded_goes_too(watched: Watched) -> None:
    """A limit that the run before had lifted is put back; its target is not configured any more."""
    watched.happens(LimitPutBack("old", "restored"))
    assert watched.samples("edgeguardd_reliefs_total", target="old", outcome="restored") == [1]
    watched.now += DEPARTED_VISIBLE_S
    assert watched.samples("edgeguardd_reliefs_total", target="old") == []


def test_a_forgotten_target_is_told_to_who_else_counts_it(watched: Watched) -> None:
    """So that nothing of it stays in another collector."""
    forgotten: list[str] = []
    watched.metrics.on_forget = forgotten.append
    watched.guard()
    watched.happens(TargetDropped("llm"))
    watched.now += DEPARTED_VISIBLE_S
    watched.samples("edgeguardd_target_level")
    assert forgotten == ["llm"]


def test_the_way_of_a_command_is_measured_in_three_parts(watched: Watched) -> None:
    """From the wake-up to the hand-over, from there to the ack, from there to the end that saw bytes leave."""
    watched.guard()
    watched.begun = Begun(Cause.COUNTER, watched.now)
    watched.now += 0.004
    watched.deliver(1)
    watched.begun = None
    watched.now += 0.2
    watched.metrics.acked("llm", AckReceived(1, 1, AckStatus.ACCEPTED))
    watched.now += 0.8
    watched.metrics.acked("llm", AckReceived(1, 1, AckStatus.DONE))
    watched.now += 0.03
    watched.end(1, Outcome.DONE, freed_bytes=MIB)
    assert watched.samples("edgeguardd_wakeup_to_deliver_seconds_sum", cause="counter") == [pytest.approx(0.004)]
    assert watched.samples("edgeguardd_deliver_to_ack_seconds_sum", status="accepted") == [pytest.approx(0.2)]
    assert watched.samples("edgeguardd_deliver_to_ack_seconds_sum", action="trim_kv_cache", status="done") == [
        pytest.approx(1.0)
    ]
    assert watched.samples("edgeguardd_ack_to_freed_seconds_sum", action="trim_kv_cache") == [pytest.approx(0.03)]


@pytest.mark.parametrize(
    ("outcome", "freed_bytes"),
    [(Outcome.INEFFECTIVE, 0), (Outcome.EXPIRED, MIB), (Outcome.DONE, 0), (Outcome.DONE, None)],
)
def test_bytes_that_did_not_leave_took_no_time(watched: Watched, outcome: Outcome, freed_bytes: int | None) -> None:
    """Only a command that is done, and seen to have freed something, ends the third part."""
    watched.guard()
    watched.deliver(1)
    watched.metrics.acked("llm", AckReceived(1, 1, AckStatus.DONE))
    watched.end(1, outcome, freed_bytes)
    assert sum(watched.samples("edgeguardd_ack_to_freed_seconds_count")) == 0


def test_only_the_first_answer_of_whoever_was_asked_counts(watched: Watched) -> None:
    """Repeats, answers to nothing, and answers of others measure nothing."""
    watched.guard()
    watched.deliver(1)
    for ack in (
        AckReceived(2, 1, AckStatus.DONE),
        AckReceived(1, 7, AckStatus.DONE),
        AckReceived(1, 1, AckStatus.DONE),
        AckReceived(1, 1, AckStatus.DONE),
        AckReceived(1, 1, AckStatus.ACCEPTED),
    ):
        watched.metrics.acked("llm", ack)
    watched.metrics.acked("other", AckReceived(1, 1, AckStatus.DONE))
    assert sum(watched.samples("edgeguardd_deliver_to_ack_seconds_count")) == 1


def test_a_command_that_follows_from_an_answer_is_no_reaction_to_the_kernel(watched: Watched) -> None:
    """It is counted as sent, and its time begins with nothing that could be measured."""
    watched.guard()
    watched.deliver(1)
    assert watched.samples("edgeguardd_commands_sent_total") == [1]
    assert sum(watched.samples("edgeguardd_wakeup_to_deliver_seconds_count")) == 0


@pytest.mark.parametrize(("target", "named"), [("llm", True), ("n" * 200, False)])
def test_exemplars_name_the_command_and_the_run(watched: Watched, target: str, named: bool) -> None:
    """On histograms and on the counters of commands, within the 128 characters that OpenMetrics allows."""
    watched.begun = Begun(Cause.COUNTER, watched.now)
    watched.guard(target)
    watched.deliver(41, target)
    watched.metrics.acked(target, AckReceived(1, 41, AckStatus.DONE))
    watched.end(41, Outcome.DONE, MIB, target)
    found = {
        family.name: sample.exemplar.labels
        for family in watched.families(Format.OPENMETRICS)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert set(found) == {
        "edgeguardd_wakeup_to_deliver_seconds",
        "edgeguardd_deliver_to_ack_seconds",
        "edgeguardd_ack_to_freed_seconds",
        "edgeguardd_commands_sent",
        "edgeguardd_commands",
        "edgeguardd_freed_bytes",
    }
    expected = {"epoch": "e" * 32, "seq": "41"} | ({"target": target} if named else {})
    assert all(labels == expected for labels in found.values())


def test_a_lifted_limit_shows_since_when(watched: Watched) -> None:
    """As the shell that lifted it says; and what became of each is counted."""
    watched.guard()
    assert watched.samples("edgeguardd_target_relief_seconds") == [0]
    watched.raised_at["llm"] = watched.now
    watched.now += 12
    assert watched.samples("edgeguardd_target_relief_seconds") == [12]
    assert watched.samples("edgeguardd_target_relief") == [1]
    watched.happens(LimitRaised("llm", 1, 2), LimitPutBack("llm", "failed"), LimitPutBack("llm", "restored"))
    for outcome in ("raised", "failed", "restored"):
        assert watched.samples("edgeguardd_reliefs_total", outcome=outcome) == [1]


def test_throttling_without_progress_is_a_livelock_after_its_time(watched: Watched) -> None:
    """The seconds show from the first; the flag after the time that the policy gives."""
    high = CountersMoved("llm", "/llm", local=True, delta=Counters(high=1))
    usage = Usage("/llm", 99 * MIB, 99 * MIB, 100 * MIB, 200 * MIB)
    watched.guard()
    since = watched.now
    while watched.now < since + 6:
        watched.happens(SampleTaken(Sample("llm", (usage,))), high)
        if watched.now == since + 1:
            assert watched.samples("edgeguardd_target_throttled_seconds") == [1]
            assert watched.samples("edgeguardd_target_livelock") == [0]
        watched.now += 0.5
    assert watched.samples("edgeguardd_target_livelock") == [1]


def test_marks_are_there_while_a_limit_binds(watched: Watched) -> None:
    """One series a level; without a limit none."""
    watched.guard()
    marks = [watched.samples("edgeguardd_target_mark_bytes", mark=mark)[0] for mark in ("elevated", "high", "critical")]
    assert marks == [60 * MIB, 80 * MIB, 92 * MIB]
    watched.happens(SampleTaken(Sample("llm", (Usage("/llm", 1, 1, None, None),))))
    assert watched.samples("edgeguardd_target_mark_bytes") == []


def test_the_last_reload_shows_whether_it_was_taken(watched: Watched) -> None:
    """1 from the start, 0 after a rejected one, 1 again."""
    name = "edgeguardd_config_last_reload_successful"
    seen = watched.samples(name)
    for applied in (False, True):
        watched.metrics.reloaded(applied=applied)
        seen += watched.samples(name)
    assert seen == [1, 0, 1]
