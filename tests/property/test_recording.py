"""Any history: its recording replays to the same orders, from each segment on, however it is cut or damaged."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeguardd.core import checkpoint, recording
from edgeguardd.core.config import (
    Config,
    LastResorts,
    LastResortStep,
    Mark,
    Policy,
    SamplingConfig,
    TargetSpec,
)
from edgeguardd.core.events import (
    AckReceived,
    AdmitAsked,
    CgroupAppeared,
    CgroupVanished,
    ConfigReloaded,
    CountersMoved,
    Event,
    KillsNearRemoval,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    MachineSampled,
    ReliefFailed,
    ReportReceived,
    SampleFailed,
    SampleTaken,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.core.model import (
    AckEffect,
    AckStatus,
    Counters,
    LastResort,
    MachineSample,
    Report,
    Role,
    Sample,
)
from edgeguardd.core.recording import RecordingError, Segment
from edgeguardd.core.replay import Changed, Opened, Step, recorded
from tests.support.recordings import Taped
from tests.support.script import EVERYTHING, MIB, usage

NAMES = st.sampled_from(["llm", "llm", "llm", "llm", "vlm", "\udcff/odd"])
SUBSCRIBERS = st.integers(1, 3)
STEP = LastResortStep(LastResort.RECLAIM, hold_off_s=1.0)
POLICIES = st.sampled_from(
    [
        Policy(),
        Policy(elevated=Mark(ratio=0.3), dwell_s=1.0, restore_dwell_s=0.5, settle_s=1.0, static_bytes=200 * MIB),
        Policy(critical=Mark(headroom_bytes=50 * MIB), last_resort=LastResorts((STEP,), (STEP,), (STEP,), (STEP,))),
        Policy(priority=-1, floor_bytes=100 * MIB),
    ]
)
FACTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        lambda name, mib, high, refaults: SampleTaken(
            Sample(
                name,
                (
                    usage(
                        f"/{name}",
                        mib,
                        high,
                        refaulted_bytes=refaults * 4096,
                        mapped_bytes=refaults * MIB,
                        psi_some_us=refaults,
                    ),
                    usage("/", mib + 100, None, 1500),
                ),
            )
        ),
        NAMES,
        st.integers(0, 1100),
        st.sampled_from([None, 900]),
        st.integers(0, 10**6),
    ),
    st.builds(
        lambda name, key, local: CountersMoved(name, f"/{name}" if local else "/", local, Counters(**{key: 1})),
        NAMES,
        st.sampled_from(["low", "high", "max", "oom", "oom_kill"]),
        st.booleans(),
    ),
    st.builds(lambda free: MachineSampled(MachineSample(16 << 30, free << 20, 8 << 30, free)), st.integers(0, 16384)),
    st.builds(
        lambda s, name, actions: SubscriberJoined(s, "s\n\udc80", Role.INFERENCE, name, actions),
        SUBSCRIBERS,
        NAMES,
        st.frozensets(st.sampled_from(sorted(EVERYTHING))),
    ),
    st.builds(SubscriberLeft, SUBSCRIBERS, st.just("gone")),
    st.builds(
        AckReceived, SUBSCRIBERS, st.integers(0, 30), st.sampled_from(AckStatus), st.sampled_from([None, *AckEffect])
    ),
    st.builds(lambda s, size: ReportReceived(s, Report(static_bytes=size)), SUBSCRIBERS, st.integers(0, 2**62)),
    st.builds(AdmitAsked, SUBSCRIBERS, st.sampled_from(["a", "b"]), st.sampled_from([None, 1, 300 * MIB])),
    st.builds(LimitRaised, NAMES, st.just(900 * MIB), st.just(950 * MIB)),
    st.builds(LimitPutBack, NAMES, st.sampled_from(["restored", "changed", "gone", "failed"])),
    st.builds(ReliefFailed, NAMES, st.just("not writable")),
    st.builds(LastResortEnded, NAMES, st.sampled_from(LastResort), st.sampled_from(["done", "failed", "thawed"])),
    st.builds(TargetAdded, NAMES, st.just("/llm"), POLICIES),
    st.builds(TargetDropped, NAMES),
    st.builds(CgroupAppeared, NAMES),
    st.builds(CgroupVanished, NAMES),
    st.builds(SampleFailed, NAMES, st.just("cut")),
    st.builds(KillsNearRemoval, NAMES, st.just("/"), st.integers(1, 2**64 - 1)),
    st.builds(lambda s: ConfigReloaded(Config(sampling=SamplingConfig(fast_s=s))), st.floats(0.01, 1.0)),
)
# A fact, how long it comes after the last one, and whether a segment begins with it.
MOMENT = st.tuples(FACTS, st.floats(0, 3), st.integers(0, 9))
HISTORY = st.lists(MOMENT, max_size=10) | st.lists(MOMENT, min_size=25, max_size=80)


def play(history: list[tuple[Event, float, int]]) -> Taped:
    """The history, taped; timers fire as they do."""
    script = Taped()
    for fact, wait_s, cut in history:
        script.pass_time(wait_s, sample=False)
        if cut == 0:
            script.cut()
        script.do(fact)
    return script


def replayed(segments: list[Segment]) -> list[tuple[float, Event, object]]:
    """What a replay makes of them."""
    return [(step.now, step.event, step.effects) for step in recorded(segments) if isinstance(step, Step)]


@settings(max_examples=200)
@given(HISTORY)
def test_a_replay_gives_the_same_orders_from_every_segment_on(history: list[tuple[Event, float, int]]) -> None:
    """Events, times and effects are those of the run; each later checkpoint equals what the replay has come to."""
    script = play(history)
    segments = script.segments()
    assert replayed(segments) == script.steps
    assert all(item.exact in {None, True} for item in recorded(segments) if isinstance(item, Opened))
    for first in {1, len(segments) // 2, len(segments) - 1} & set(range(1, len(segments))):
        steps = replayed(segments[first:])
        assert steps == script.steps[len(script.steps) - len(steps) :]


@settings(max_examples=200)
@given(HISTORY)
def test_the_state_is_carried_over_whole(history: list[tuple[Event, float, int]]) -> None:
    """Written, read and written again it is the same, bytes and all."""
    script = play(history)
    written = recording._line(checkpoint.encode(script.engine))
    copy = checkpoint.decode(recording._decoded(msgspec.json.Decoder(), written))
    assert recording._line(checkpoint.encode(copy)) == written


@settings(max_examples=150)
@given(HISTORY)
def test_the_same_configuration_gives_the_same_orders(history: list[tuple[Event, float, int]]) -> None:
    """Also with the other engine's own timers and translated acks, when its policies are those of the recording."""
    facts = [step for step in history if not isinstance(step[0], ConfigReloaded | TargetAdded)]
    script = play(facts)
    changed = Changed(script.segments(), script.config)
    steps = [(step.now, step.event, step.effects) for step in changed.steps() if isinstance(step, Step)]
    assert steps == script.steps


@settings(max_examples=150)
@given(HISTORY, POLICIES, st.integers(0, 3))
def test_any_other_configuration_can_be_tried(
    history: list[tuple[Event, float, int]], policy: Policy, first: int
) -> None:
    """No history and no place to begin makes it fail, and no event is seen before its time."""
    script = play(history)
    changed = Changed(script.segments()[first:], Config(targets=(TargetSpec("llm", path="/llm", policy=policy),)))
    steps = [step for step in changed.steps() if isinstance(step, Step)]
    assert all(step.defect is None for step in steps)
    assert [step.now for step in steps] == sorted(step.now for step in steps)


@settings(max_examples=100)
@given(HISTORY, st.floats(0, 1), st.booleans(), st.binary(min_size=1, max_size=4))
def test_a_damaged_file_gives_what_comes_before_the_damage(
    history: list[tuple[Event, float, int]], where: float, cut: bool, rubbish: bytes
) -> None:
    """Cut anywhere, or overwritten anywhere: what was read is what was recorded, or the file is refused in words."""
    script = play(history)
    content = script.files[0]
    place = int(where * len(content))
    broken = content[:place] if cut else content[:place] + rubbish + content[place + len(rubbish) :]
    try:
        segment = Segment(broken, "broken")
        records = [record for record in segment.events() if not isinstance(record, recording.Clock)]
    except RecordingError:
        return
    whole = [(now, event) for now, event, _ in script.steps]
    # Every event was flushed by itself: none that reached the file as a whole is lost.
    safe = sum(1 for file, size in script.ends if file == 0 and size <= place)
    assert records[:safe] == whole[:safe]
    if cut:
        # The last bytes of a flush say no more than that it is one.
        assert records == whole[: len(records)]
        assert len(records) in {safe, safe + 1}


@given(st.binary(max_size=300))
def test_any_other_file_is_refused_in_words(content: bytes) -> None:
    """No bytes make the reader fail otherwise."""
    with pytest.raises(RecordingError, match=r"^cannot read x: "):
        list(Segment(content, "x").events())


def test_another_process_replays_to_the_same_orders(tmp_path: object) -> None:
    """Nothing hangs on the order of a set or a dict's hash seed."""
    script = Taped()
    for number in range(1, 4):
        script.join(number)
    script.need(300)
    script.pass_time(20)
    script.ramp(990, 40)
    script.cut()
    script.need(100)
    script.pass_time(60)
    directory = script.write(f"{tmp_path}/r")
    program = (
        "import os,sys,hashlib\n"
        "from edgeguardd.core.recording import Segment\n"
        "from edgeguardd.core.replay import recorded\n"
        "d = sys.argv[1]\n"
        "files = [Segment(open(os.path.join(d, n), 'rb').read(), n) for n in sorted(os.listdir(d))]\n"
        "text = ''.join(repr(getattr(item, 'effects', getattr(item, 'exact', 0))) for item in recorded(files))\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), 'False' in text.split('[')[0])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, directory],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
