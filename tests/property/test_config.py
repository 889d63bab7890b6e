"""Any text is a configuration or a ConfigError; any configuration that is written reads back."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeguardd.core import configpolicy
from edgeguardd.core import configtable as table
from edgeguardd.core.config import (
    Config,
    DelaysConfig,
    DeviceSpec,
    GateConfig,
    HttpConfig,
    Ladder,
    LastResorts,
    LastResortStep,
    LogConfig,
    MachineConfig,
    Mark,
    OomScoreRule,
    Policy,
    RecorderConfig,
    SamplingConfig,
    SocketConfig,
    Step,
    TargetSpec,
    WatchSpec,
)
from edgeguardd.core.configlines import key_lines
from edgeguardd.core.confignames import check_address
from edgeguardd.core.configparse import parse, read
from edgeguardd.core.configtext import render
from edgeguardd.core.model import Action, LastResort
from edgeguardd.errors import ConfigError

SECTIONS = (*table.SECTIONS, configpolicy.STEP, configpolicy.RESORT_STEP)
KEYS = sorted({row.key for section in SECTIONS for row in section.rows})
HEADERS = [
    *("[socket]", "[http]", "[sampling]", "[machine]", "[[machine.device]]", "[recorder]", "[defaults]"),
    *("[gate]", "[[pressure_watch]]", "[[oom_score]]", "[delays]"),
    *("[defaults.ladder]", "[defaults.last_resort]", "[[target]]", "[target.ladder]", "[target.last_resort]"),
]
SCALARS = st.one_of(
    st.sampled_from(["true", "nan", "-inf", "0x" + "f" * 40, "1e400", "1979-05-27", '"60%"', '"512M"', '"5s"', '"/a"']),
    st.sampled_from(['"trim_kv_cache"', '"reduce_batch"', "{headroom = 1}", '{action = "reduce_batch"}', '"""\n"""']),
    st.sampled_from(
        ['"restart"', '{action = "restart"}', '{action = "signal", signal = "SIGHUP"}', '"nvml"', '"file"']
    ),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(st.characters(codec="utf-8")).map(lambda text: f"'{text}'"),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3).map(lambda items: f"[{', '.join(items)}]"))
LINES = st.one_of(
    st.sampled_from(HEADERS),
    st.tuples(st.sampled_from(KEYS), VALUES).map(" = ".join),
    st.text(st.characters(codec="utf-8"), max_size=10),
)


def read_or_refuse(text: str | bytes) -> None:
    """Reads a text; only ConfigError may come out, with sentences of one line."""
    try:
        read(text, "f")
    except ConfigError as error:
        assert error.problems  # noqa: PT017
        assert all("\n" not in problem and problem.isprintable() for problem in error.problems)  # noqa: PT017


@given(st.one_of(st.text(), st.binary()))
def test_no_text_crashes_the_reader(text: str | bytes) -> None:
    """Whatever the file holds, the worst is a ConfigError."""
    read_or_refuse(text)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_no_wrong_value_in_the_right_place_crashes_the_reader(text: str) -> None:
    """Known keys with values of any type are taken or refused, never a traceback."""
    read_or_refuse(text)


NAMES = ["oom_score", "delays", "socket", "http", "machine", "recorder", "kernel_log", "defaults", "target"]
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYS, *NAMES, "ladder", "last_resort", "device"]), inner, max_size=4),
    ),
)


@given(st.dictionaries(st.sampled_from([*KEYS, *NAMES]), TREES, max_size=5))
def test_no_tree_crashes_the_parser(tree: dict[str, Any]) -> None:
    """A tree of any shape under known names is taken or refused."""
    try:
        parse(tree)
    except ConfigError as error:
        assert error.problems  # noqa: PT017


seconds = st.floats(0.1, 3600.0)
sizes = st.integers(1, 2**63 - 1)


shares = st.floats(0.001, 1.0)


def _can_be_bound(address: str) -> bool:
    try:
        check_address(address)
    except ValueError:
        return False
    return True


addresses = st.ip_addresses().map(str).filter(_can_be_bound)
services = st.sampled_from(["a.service", "llama@main.service"])


@st.composite
def resorts(draw: st.DrawFn) -> LastResorts:
    """Last resorts that restart named units only, as any target may have them."""
    reclaim = LastResortStep(LastResort.RECLAIM, draw(seconds))
    freeze_s = draw(st.floats(0.1, 1800.0))
    freeze = LastResortStep(LastResort.FREEZE, freeze_s * 2, max_freeze_s=freeze_s)
    signal = LastResortStep(LastResort.SIGNAL, draw(seconds), signal=draw(st.sampled_from(["SIGTERM", "SIGUSR1"])))
    restart = LastResortStep(LastResort.RESTART, draw(seconds), unit=draw(services))
    kill = LastResortStep(LastResort.KILL)
    return LastResorts((reclaim,), (), (freeze, reclaim), tuple(draw(st.permutations([signal, restart, kill]))))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Policies whose marks rise and whose ladders keep what they asked for."""
    if draw(st.booleans()):
        ratios = sorted(draw(st.sets(st.floats(0.01, 1.0), min_size=3, max_size=3)))
        marks = [Mark(ratio=ratio) for ratio in ratios]
        hysteresis = draw(st.floats(0, min(0.5, ratios[0] / 2)))
    else:
        marks = [
            Mark(headroom_bytes=size) for size in sorted(draw(st.sets(sizes, min_size=3, max_size=3)), reverse=True)
        ]
        hysteresis = draw(st.floats(0, 0.5))
    trim = Step(Action.TRIM_KV_CACHE, deadline_s=draw(seconds))
    batch = Step(Action.REDUCE_BATCH, draw(st.floats(0.001, 0.999)), draw(seconds))
    unload = Step(Action.UNLOAD_MODEL, deadline_s=draw(st.sampled_from([5.0, 30.0])))
    return Policy(
        elevated=marks[0],
        high=marks[1],
        critical=marks[2],
        hysteresis_ratio=hysteresis,
        dwell_s=draw(seconds),
        restore_dwell_s=draw(seconds),
        repeat_s=draw(seconds),
        static_bytes=draw(sizes),
        settle_s=draw(seconds),
        lead_floor_s=draw(st.floats(0.001, 1.0)),
        lead_ceiling_s=draw(st.floats(1.001, 3600.0)),
        thrash_ratio_per_s=draw(shares),
        psi_ratio=draw(st.floats(0.01, 1.0)),
        livelock_s=draw(seconds),
        relief=draw(st.booleans()),
        relief_allowance_ratio=draw(st.floats(0, 1.0)),
        relief_reserve_ratio=draw(st.floats(0, 0.5)),
        priority=draw(st.integers(-1000, 1000)),
        floor_bytes=draw(st.integers(0, 2**63 - 1)),
        ladder=Ladder((trim,), (batch,), (batch, trim), (batch, unload)),
        last_resort=draw(resorts()),
    )


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,63}", fullmatch=True).filter(lambda name: name != "self")
parts = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda part: part.isprintable() and part not in {".", ".."}
)
paths = st.lists(parts, min_size=1, max_size=3).map(lambda found: "/" + "/".join(found))
targets = st.builds(TargetSpec, names, path=paths, policy=policies())


@st.composite
def devices(draw: st.DrawFn) -> DeviceSpec:
    """Devices of all kinds, each with what its kind needs, their marks rising."""
    kind = draw(st.sampled_from(table.DEVICE_KINDS))
    elevated, high, critical = sorted(draw(st.sets(st.floats(0.001, 0.999), min_size=3, max_size=3)))
    path = draw(paths) if kind == "file" else None
    index = draw(st.integers(0, 255)) if kind == "nvml" else 0
    return DeviceSpec(draw(names), kind, path, index, elevated, high, critical)


@st.composite
def machines(draw: st.DrawFn) -> MachineConfig:
    """Machines whose marks rise: less and less is available."""
    critical, high, elevated = sorted(draw(st.sets(st.floats(0.001, 0.899), min_size=3, max_size=3)))
    return MachineConfig(
        draw(st.booleans()),
        elevated,
        high,
        critical,
        swap_free_ratio=draw(st.floats(0, 1)),
        psi_ratio=draw(st.floats(0.01, 1)),
        sample_s=draw(st.floats(0.1, 60)),
        devices=tuple(draw(st.lists(devices(), max_size=3, unique_by=lambda spec: spec.name))),
    )


watches = st.builds(
    WatchSpec,
    st.sampled_from(["/run/a", "/run/b c", "/c"]),
    mode=st.sampled_from([0o600, 0o666]),
    group=st.none() | st.just("edge"),
)


rules = st.builds(
    OomScoreRule,
    st.sampled_from(["a", "b", "c:d"]),
    st.integers(-999, 1000),
    unit=st.none() | services,
    cgroup=st.none() | st.sampled_from(["/a", "/a b/*.scope"]),
    exe=st.none() | st.sampled_from(["/bin/a", "/opt/ä b"]),
    comm=st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1, max_size=3),
    allow_unkillable=st.booleans(),
)


configs = st.builds(
    Config,
    gate=st.builds(GateConfig, hold_s=st.floats(0.1, 60), agent_port=st.none() | st.integers(0, 65535)),
    oom_scores=st.lists(rules, max_size=3, unique_by=lambda rule: rule.name).map(tuple),
    oom_score_recheck_s=st.floats(1.0, 3600.0),
    delays=st.builds(DelaysConfig, st.booleans(), st.floats(1.0, 3600.0)),
    pressure_watches=st.lists(watches, max_size=3, unique_by=lambda spec: spec.path).map(tuple),
    socket=st.builds(
        SocketConfig,
        path=st.just("/run/x"),
        mode=st.sampled_from([0o600, 0o660, 0o666]),
        group=st.none() | st.just("edge"),
        allow_uids=st.frozensets(st.integers(0, 2**32 - 2), max_size=5),
        max_subscribers=st.integers(1, 65536),
        heartbeat_s=seconds,
        stall_s=seconds,
    ),
    http=st.builds(HttpConfig, enabled=st.booleans(), address=addresses, port=st.integers(0, 65535)),
    sampling=st.builds(SamplingConfig, fast_s=st.floats(0.01, 1.0), slow_s=st.floats(1.0, 60.0)),
    log=st.builds(
        LogConfig, format=st.sampled_from(["auto", "json", "text"]), level=st.sampled_from(["debug", "error"])
    ),
    machine=machines(),
    recorder=st.builds(RecorderConfig, st.booleans(), st.integers(256 << 10, 2**63 - 1)),
    state_directory=paths,
    defaults=policies(),
    targets=st.lists(targets, max_size=3, unique_by=lambda spec: spec.name).map(tuple),
    self_targets=st.booleans(),
    max_targets=st.integers(3, 4096),
)


# A whole configuration is nearly as much as one example may hold: what is too much is drawn anew.
whole = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@whole
@given(configs)
def test_a_configuration_reads_back_as_it_was_written(config: Config) -> None:
    """Writing loses nothing, to the last bit of a ratio and the last byte of a size."""
    assert read(render(config), "f") == config


@whole
@given(configs)
def test_every_key_is_found_at_the_line_that_spells_it(config: Config) -> None:
    """The line in a fault is the line of the key."""
    text = render(config)
    written = text.splitlines()
    for path, line in key_lines(text).items():
        if isinstance(path[-1], str):
            assert path[-1] in written[line - 1]
