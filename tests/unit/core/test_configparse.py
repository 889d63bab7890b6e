"""What a configuration file may say, and that every fault in it is told with its line and its remedy."""

import msgspec
import pytest

from edgeguardd.core import configpolicy
from edgeguardd.core import configtable as table
from edgeguardd.core.config import (
    Config,
    DeviceSpec,
    GateConfig,
    Ladder,
    LastResorts,
    LastResortStep,
    MachineConfig,
    Mark,
    Policy,
    RecorderConfig,
    Step,
    TargetSpec,
    WatchSpec,
)
from edgeguardd.core.configparse import MAX_FILE_BYTES, parse, read
from edgeguardd.core.configreader import MAX_PROBLEMS
from edgeguardd.core.configtext import example, render
from edgeguardd.core.model import Action, LastResort
from edgeguardd.errors import ConfigError


def problems(text: str | bytes) -> list[str]:
    """The faults of a text that must have some, without the name of the source."""
    with pytest.raises(ConfigError) as caught:
        read(text, "f.toml")
    assert all(problem.startswith("f.toml: ") for problem in caught.value.problems)
    return [problem.removeprefix("f.toml: ") for problem in caught.value.problems]


def problem(text: str | bytes) -> str:
    """The one fault of a text."""
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n\n# nothing\n", b"", "[socket]\n", "[defaults.ladder]\n", "[defaults.last_resort]\n"),
        *("[machine]\n", "[recorder]\n", "target = []\n", "machine.device = []\n"),
    ],
)
def test_an_empty_file_means_the_defaults(text: str | bytes) -> None:
    """Nothing has to be written for the daemon to start."""
    assert read(text, "f.toml") == Config()


def test_every_key_can_be_given() -> None:
    """Each key fills the field it is named for, in each form its kind accepts."""
    config = read(
        """
        self_targets = false
        max_targets = 8
        cgroup_root = "/sys/fs/cgroup/unified"
        state_directory = "/var/lib/other"
        [socket]
        path = "/run/x.sock"
        mode = 0o600
        group = "edge"
        allow_uids = [0, 1000]
        max_subscribers = 5
        heartbeat = "1min 30s"
        stall = 0.5
        [http]
        enabled = false
        address = "::1"
        port = 0
        max_connections = 2
        timeout = "250ms"
        [sampling]
        fast = "20ms"
        slow = 2
        [log]
        format = "json"
        level = "debug"
        [machine]
        enabled = false
        elevated = "20%"
        high = 0.1
        critical = 0.05
        swap_free = 0
        psi = 1
        sample = "250ms"
        [[machine.device]]
        name = "gpu:0"
        kind = "nvml"
        index = 1
        elevated = 0.5
        high = 0.6
        critical = 0.7
        [[machine.device]]
        name = "npu"
        kind = "file"
        path = "/run/npu/memory"
        [[machine.device]]
        name = "shared"
        kind = "nvmap"
        [recorder]
        enabled = false
        max_size = "256K"
        [defaults]
        elevated = {headroom = "1.5GiB"}
        high = {headroom = "512M"}
        critical = {headroom = 1024}
        hysteresis = "2.5%"
        dwell = "2min"
        restore_dwell = "1h"
        repeat = 1
        static = "3G"
        settle = "30s"
        lead_floor = "100ms"
        lead_ceiling = "2min"
        thrash = "5%"
        psi = 0.25
        livelock = 1.5
        relief = "off"
        relief_allowance = 0
        relief_reserve = 0.1
        priority = -5
        floor = "1G"
        [defaults.ladder]
        elevated = []
        [defaults.last_resort]
        high = ["reclaim"]
        emergency = [
          {action = "signal", signal = "SIGUSR1", hold_off = "5min"}, {action = "restart", unit = "a.service"},
        ]
        [[target]]
        name = "llm"
        unit = 'srv\\x2dllm@main.service'
        critical = "95%"
        high = 0.9
        priority = 7
        relief = "auto"
        [target.last_resort]
        elevated = [{action = "reclaim"}]
        critical = [{action = "freeze", max_freeze = "3s"}, "signal", "restart", "kill"]
        emergency = []
        [target.ladder]
        high = ["trim_kv_cache"]
        critical = [{action = "reduce_batch", max_batch_ratio = "10%", deadline = "1s"}]
        emergency = [{action = "reduce_batch", max_batch_ratio = 0.1}, "unload_model"]
        """.replace("\n        ", "\n"),
        "f.toml",
    )
    assert (config.self_targets, config.max_targets, config.cgroup_root) == (False, 8, "/sys/fs/cgroup/unified")
    assert config.state_directory == "/var/lib/other"
    assert config.machine == MachineConfig(
        enabled=False,
        elevated_ratio=0.2,
        high_ratio=0.1,
        critical_ratio=0.05,
        swap_free_ratio=0.0,
        psi_ratio=1.0,
        sample_s=0.25,
        devices=(
            DeviceSpec("gpu:0", "nvml", index=1, elevated_ratio=0.5, high_ratio=0.6, critical_ratio=0.7),
            DeviceSpec("npu", "file", path="/run/npu/memory"),
            DeviceSpec("shared", "nvmap"),
        ),
    )
    assert config.recorder == RecorderConfig(enabled=False, max_bytes=256 << 10)
    assert config.socket.path == "/run/x.sock"
    assert config.socket.mode == 0o600
    assert config.socket.group == "edge"
    assert config.socket.allow_uids == {0, 1000}
    assert (config.socket.max_subscribers, config.socket.heartbeat_s, config.socket.stall_s) == (5, 90.0, 0.5)
    assert (config.http.enabled, config.http.address, config.http.port) == (False, "::1", 0)
    assert (config.http.max_connections, config.http.timeout_s) == (2, 0.25)
    assert (config.sampling.fast_s, config.sampling.slow_s) == (0.02, 2.0)
    assert (config.log.format, config.log.level) == ("json", "debug")
    defaults = Policy(
        elevated=Mark(headroom_bytes=3 * 2**29),
        high=Mark(headroom_bytes=2**29),
        critical=Mark(headroom_bytes=1024),
        hysteresis_ratio=0.025,
        dwell_s=120.0,
        restore_dwell_s=3600.0,
        repeat_s=1.0,
        static_bytes=3 * 2**30,
        settle_s=30.0,
        lead_floor_s=0.1,
        lead_ceiling_s=120.0,
        thrash_ratio_per_s=0.05,
        psi_ratio=0.25,
        livelock_s=1.5,
        relief=False,
        relief_allowance_ratio=0.0,
        relief_reserve_ratio=0.1,
        priority=-5,
        floor_bytes=2**30,
        ladder=Ladder(elevated=()),
        last_resort=LastResorts(
            high=(LastResortStep(LastResort.RECLAIM),),
            emergency=(
                LastResortStep(LastResort.SIGNAL, 300.0, signal="SIGUSR1"),
                LastResortStep(LastResort.RESTART, unit="a.service"),
            ),
        ),
    )
    assert config.defaults == defaults
    ladder = Ladder(
        elevated=(),
        high=(Step(Action.TRIM_KV_CACHE),),
        critical=(Step(Action.REDUCE_BATCH, 0.1, 1.0),),
        emergency=(Step(Action.REDUCE_BATCH, 0.1), Step(Action.UNLOAD_MODEL, deadline_s=30.0)),
    )
    resorts = LastResorts(
        elevated=(LastResortStep(LastResort.RECLAIM),),
        high=(LastResortStep(LastResort.RECLAIM),),
        critical=(
            LastResortStep(LastResort.FREEZE, max_freeze_s=3.0),
            LastResortStep(LastResort.SIGNAL),
            LastResortStep(LastResort.RESTART),
            LastResortStep(LastResort.KILL),
        ),
    )
    policy = msgspec.structs.replace(
        defaults,
        high=Mark(ratio=0.9),
        critical=Mark(ratio=0.95),
        priority=7,
        relief=True,
        ladder=ladder,
        last_resort=resorts,
    )
    assert config.targets == (TargetSpec("llm", unit="srv\\x2dllm@main.service", policy=policy),)


def test_every_field_has_its_row() -> None:
    """No field of the configuration values is without a key, and no key without a field."""
    parts = {"socket", "http", "sampling", "log", "machine", "recorder", "defaults", "targets", "devices"}
    parts |= {"gate", "pressure_watches", "kernel_log", "provision", "slices", "services"}
    parts |= {"oom_scores", "delays"}
    parts |= {"ladder", "last_resort", "policy"}
    for section in (*table.SECTIONS, configpolicy.STEP, configpolicy.RESORT_STEP):
        fields = {field.name for field in msgspec.structs.fields(section.fills)}
        assert {row.field for row in section.rows} == fields - parts, section.header
        assert all(row.doc.endswith(".") for row in section.rows)


def test_the_example_means_the_defaults_and_names_every_key() -> None:
    """The commented example changes nothing, with or without its sample values put in force."""
    assert read(example(), "example") == Config()
    for section in table.SECTIONS:
        for row in section.rows:
            assert f"\n{row.key} = " in example() or f"\n#{row.key} = " in example(), row.key
    uncommented = "\n".join(
        line.removeprefix("#") if line.startswith("#") and line[1:2] != " " else line
        for line in example().splitlines()
        if not line.startswith(("#path", "#glob", "#target =")) or "pressure.sock" in line
    )
    config = read(uncommented, "example")
    assert config.pressure_watches == (WatchSpec("/run/edgeguardd/pressure.sock", group="edgeguardd"),)
    assert config.gate == GateConfig(agent_port=9465)
    assert [(rule.name, rule.value, rule.comm) for rule in config.oom_scores] == [("llm", 500, "llama-server")]
    assert [spec.unit for spec in config.targets] == ["llama.service"]
    assert config.machine.devices == (DeviceSpec("gpu", "nvml"),)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ("value = 5\ncomm = 'a'", "it has no name"),
        ("name = 'a'\ncomm = 'a'", "it has no value"),
        ("name = 'a'\nvalue = 5", "write unit, cgroup, exe or comm"),
        ("name = 'a'\nvalue = 5\nallow_unkillable = true", "write unit, cgroup, exe or comm"),
        ("name = 'a'\nvalue = 1001\ncomm = 'a'", "from -1000 to 1000"),
        ("name = 'a'\nvalue = -1000\ncomm = 'a'", "allow_unkillable = true"),
        ("name = 'a'\nvalue = -1000\ncomm = 'a'\nallow_unkillable = false", "allow_unkillable = true"),
        ("name = 'a'\nvalue = 5\ncomm = ''", "1 to 15 bytes"),
        ("name = 'a'\nvalue = 5\ncomm = 'llama-server-main'", 'write "llama-server-ma"'),
        ("name = 'a'\nvalue = 5\ncomm = 'ü' ", None),
        ("name = 'a'\nvalue = 5\ncomm = 'üüüüüüüü'", 'write "üüüüüüü"'),
        ("name = 'a'\nvalue = 5\nexe = 'bin/a'", "not absolute"),
        ("name = 'a'\nvalue = 5\nexe = '/bin/a (deleted)'", "leave it out"),
        ("name = 'a'\nvalue = 5\ncgroup = '/sys/fs/cgroup/a'", 'write "/a"'),
        ("name = 'a'\nvalue = 5\ncgroup = '/'", "root cgroup"),
        ("name = 'a'\nvalue = 5\nunit = 'a@.service'", "template"),
        (
            "name = 'a'\nvalue = 5\ncomm = 'a'\n[[oom_score]]\nname = 'a'\nvalue = 5\ncomm = 'b'",
            "another rule has that name",
        ),
        ("name = 'a'\nvalue = 5\ncomm = 'a'\nscore = 5", "there is no such key"),
    ],
)
def test_a_rule_of_oom_score_adj_is_whole_or_a_fault(keys: str, word: str | None) -> None:
    """-1000 takes consent, and a rule without a condition would be for everything."""
    text = f"[[oom_score]]\n{keys}"
    if word is None:
        assert len(read(text, "f").oom_scores) == 1
    else:
        assert word in problem(text)


def test_the_number_of_rules_is_bounded() -> None:
    """Each is tried on each process."""
    text = "".join(f"[[oom_score]]\nname = 'r{n}'\nvalue = 1\ncomm = 'c{n}'\n" for n in range(65))
    assert "at most 64" in problem(text)


def test_what_is_rendered_reads_back() -> None:
    """`check-config --show` prints a file that means the same."""
    config = Config(targets=(TargetSpec("a", path="/b c/\\x2d"), TargetSpec("g", glob="/x/*.scope")))
    assert read(render(config), "f.toml") == config


def test_what_is_rendered_shows_what_is_not_set() -> None:
    """As comments, so that nobody has to know which keys there are; what cannot be set beside another is left out."""
    shown = render(Config(targets=(TargetSpec("a", path="/b"),)))
    assert '\n#group = "edgeguardd"  # not set\n' in shown
    assert shown.startswith("self_targets = true\n")
    assert '\n#cgroup_root = "/sys/fs/cgroup"  # not set\n' in shown
    assert shown.count('\n#static = "6G"  # not set\n') == 2
    assert "unit" not in shown


def test_every_fault_is_told_at_once_in_the_order_of_lines() -> None:
    """One run of check-config is enough to mend a file."""
    text = """\
max_targets = 0
[socket]
path = "relative"
[defaults]
elevated = 1.4
[http]
port = 65536
"""
    assert [found.split(":")[0] for found in problems(text)] == ["line 1", "line 3", "line 5", "line 7"]


def test_a_fault_names_line_key_value_and_remedy() -> None:
    """A fault can be mended without looking anything up."""
    assert problem("[[target]]\nname = 'a'\npath = '/a'\n\nelevated = 60\n") == (
        'line 5: cannot use target.elevated = 60: a share is between 0 and 1, or a percent such as "60%"; '
        'write "60%" if that many percent are meant, or {headroom = "512M"} for bytes left'
    )


def test_a_tree_without_lines_counts_the_targets_instead() -> None:
    """A fault in a tree that was no text still says which target it is in."""
    with pytest.raises(ConfigError) as caught:
        parse({"target": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/b", "high": 2}]})
    assert caught.value.problems[0].startswith("cannot use target.high = 2 (number 2): a share is")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self_target = true", "line 1: cannot use self_target: there is no such key; did you mean self_targets?"),
        ("[sokcet]", "line 1: cannot use sokcet: there is no such key; did you mean socket?"),
        (
            "[socket]\nheart_beat = 1",
            "line 2: cannot use socket.heart_beat: there is no such key; did you mean heartbeat?",
        ),
        ("[defaults]\nladders = 1", "line 2: cannot use defaults.ladders: there is no such key; did you mean ladder?"),
        ("[log]\nzzz = 1", "line 2: cannot use log.zzz: there is no such key; the keys here are format, level"),
    ],
)
def test_an_unknown_key_is_a_fault_with_the_nearest_known_one(text: str, expected: str) -> None:
    """A slip of the pen never means a default in silence."""
    assert problem(text) == expected


@pytest.mark.parametrize(
    "line",
    [
        "[socket]\nheartbeat = true",
        "[socket]\nheartbeat = nan",
        "[socket]\nheartbeat = inf",
        "[socket]\nheartbeat = -inf",
        "[socket]\nheartbeat = 0",
        "[socket]\nheartbeat = -1",
        "[socket]\nheartbeat = '5'",
        "[socket]\nheartbeat = '5 parsecs'",
        "[socket]\nheartbeat = '2h'",
        "[socket]\nheartbeat = 1979-05-27",
        "[socket]\nheartbeat = []",
        "[socket]\nmax_subscribers = 1.0",
        "[socket]\nmax_subscribers = true",
        "[socket]\nmode = 660",
        "[socket]\nmode = '0770'",
        "[socket]\nmode = '0060'",
        "[socket]\nmode = '888'",
        "[socket]\nmode = false",
        "[socket]\nmode = 0x" + "f" * 5000,
        "[socket]\ngroup = ''",
        "[socket]\ngroup = 'a b'",
        "[socket]\ngroup = 5",
        "[socket]\nallow_uids = 0",
        "[socket]\nallow_uids = [true]",
        "[socket]\nallow_uids = [-1]",
        "[socket]\nallow_uids = [4294967295]",
        "[socket]\npath = ''",
        "[socket]\npath = '/'",
        "[socket]\npath = '/run/../x'",
        "[socket]\npath = '/run/x/'",
        "[socket]\npath = '/" + "x" * 107 + "'",
        "[socket]\npath = '/" + "ü" * 54 + "'",
        '[socket]\npath = "/run/\\u0000x"',
        '[socket]\npath = "/run/\\u001bx"',
        "[http]\nenabled = 1",
        "[http]\nport = -1",
        "[http]\naddress = '127.0.0.1:80'",
        "[http]\naddress = 'example.org'",
        "[log]\nformat = 'xml'",
        "[log]\nlevel = 'LOUD'",
        "[sampling]\nfast = 0.001",
        "[sampling]\nfast = 2",
        "[sampling]\nslow = '50ms'",
        "[defaults]\nhysteresis = 0.6",
        "[defaults]\nhysteresis = false",
        "[defaults]\nelevated = 0",
        "[defaults]\nelevated = true",
        "[defaults]\nelevated = '120%'",
        "[defaults]\nelevated = 'headroom 512M'",
        "[defaults]\nelevated = {}",
        "[defaults]\nelevated = {headroom = 1, ratio = 1}",
        "[defaults]\nelevated = {headroom = -1}",
        "[defaults]\nstatic = 0",
        "[defaults]\nstatic = '12Q'",
        "[defaults]\nstatic = '1e9'",
        "[defaults]\nstatic = 1.5",
        "[defaults]\nstatic = '9999999999T'",
        "[defaults]\nelevated = 0.8",
        "[defaults]\nhigh = 0.5",
        "[defaults]\ncritical = 0.8",
        "[defaults]\nelevated = {headroom = 5}\nhigh = {headroom = 5}",
        "[defaults]\nelevated = {headroom = 5}\nhigh = 0.5\ncritical = {headroom = 6}",
        "[defaults]\nelevated = 0.3\nhysteresis = 0.3",
        "[defaults]\nladder = 5",
        "[defaults.ladder]\nnormal = []",
        "[defaults.ladder]\nelevated = 'trim_kv_cache'",
        "[defaults.ladder]\nelevated = ['restore']",
        "[defaults.ladder]\nelevated = [5]",
        "[defaults.ladder]\nelevated = [[]]",
        "[defaults.ladder]\nelevated = [{}]",
        "[defaults.ladder]\nelevated = ['trim_kv_cache', 'trim_kv_cache']",
        "[defaults.ladder]\nhigh = ['reduce_batch']",
        "[defaults.ladder]\nhigh = [{action = 'reduce_batch', max_batch_ratio = 0}]",
        "[defaults.ladder]\nhigh = [{action = 'reduce_batch', max_batch_ratio = 1}]",
        "[defaults.ladder]\nelevated = [{action = 'trim_kv_cache', max_batch_ratio = 0.5}]",
        "[defaults.ladder]\nelevated = [{action = 'trim_kv_cache', deadline = 0}]",
        "[defaults.ladder]\ncritical = [{action = 'reduce_batch', max_batch_ratio = 0.75}, 'reject_requests']",
        "[defaults.ladder]\nemergency = [{action = 'reduce_batch', max_batch_ratio = 0.1}]",
        "state_directory = 'x'",
        "[defaults]\nsettle = 0",
        "[defaults]\nlead_floor = '30s'",
        "[defaults]\nlead_floor = '40s'",
        "[defaults]\nlead_ceiling = '100ms'",
        "[defaults]\nlead_floor = '2s'\nlead_ceiling = '1s'",
        "[defaults]\nthrash = 0",
        "[defaults]\nthrash = 2",
        "[defaults]\npsi = 0",
        "[defaults]\npsi = '0.5%'",
        "[defaults]\nlivelock = '2h'",
        "[defaults]\nrelief = true",
        "[defaults]\nrelief = 'on'",
        "[defaults]\nrelief_allowance = 1.5",
        "[defaults]\nrelief_reserve = 0.6",
        "[defaults]\npriority = 1.0",
        "[defaults]\npriority = 1001",
        "[defaults]\nfloor = -1",
        "[defaults]\nfloor = '1e9'",
        "[defaults]\nlast_resort = ['reclaim']",
        "[defaults.last_resort]\nnormal = []",
        "[defaults.last_resort]\nhigh = 'reclaim'",
        "[defaults.last_resort]\nhigh = ['reboot']",
        "[defaults.last_resort]\nhigh = [5]",
        "[defaults.last_resort]\nhigh = [[]]",
        "[defaults.last_resort]\nhigh = [{}]",
        "[defaults.last_resort]\nhigh = [{hold_off = 5}]",
        "[defaults.last_resort]\nhigh = [{action = 'reclaim', hold_off = 0}]",
        "[defaults.last_resort]\nhigh = [{action = 'reclaim', deadline = 1}]",
        "[defaults.last_resort]\nhigh = [{action = 'reclaim', signal = 'SIGTERM'}]",
        "[defaults.last_resort]\nhigh = [{action = 'kill', unit = 'a.service'}]",
        "[defaults.last_resort]\nhigh = [{action = 'signal', max_freeze = 5}]",
        "[defaults.last_resort]\nhigh = [{action = 'signal', signal = 'TERM'}]",
        "[defaults.last_resort]\nhigh = [{action = 'signal', signal = 15}]",
        "[defaults.last_resort]\nhigh = [{action = 'signal', signal = 'SIG'}]",
        "[defaults.last_resort]\nhigh = [{action = 'restart', unit = 'a.slice'}]",
        "[defaults.last_resort]\nhigh = [{action = 'restart', unit = 'a.scope'}]",
        "[defaults.last_resort]\nhigh = [{action = 'freeze', max_freeze = 0}]",
        "[defaults.last_resort]\nhigh = [{action = 'freeze', hold_off = '10s'}]",
        "[defaults.last_resort]\nhigh = ['reclaim', 'reclaim']",
        "[defaults.last_resort]\nhigh = ['reclaim', {action = 'reclaim', hold_off = 5}]",
        "[machine]\nenabled = 'yes'",
        "[machine]\nelevated = 0",
        "[machine]\nelevated = 0.9",
        "[machine]\nelevated = 0.05",
        "[machine]\nhigh = 0.15",
        "[machine]\ncritical = 0.5",
        "[machine]\nswap_free = 2",
        "[machine]\nsample = 0.01",
        "[machine]\ndevices = []",
        "machine = 5",
        "[machine]\ndevice = 5",
        "[machine]\ndevice = [5]",
        "[machine.device]\nname = 'a'\nkind = 'nvml'",
        "[[machine.device]]\nname = 'a'",
        "[[machine.device]]\nkind = 'nvml'",
        "[[machine.device]]\nname = 'a b'\nkind = 'nvml'",
        "[[machine.device]]\nname = 'a'\nkind = 'rocm'",
        "[[machine.device]]\nname = 'a'\nkind = 'file'",
        "[[machine.device]]\nname = 'a'\nkind = 'file'\npath = 'a'",
        "[[machine.device]]\nname = 'a'\nkind = 'nvml'\npath = '/a'",
        "[[machine.device]]\nname = 'a'\nkind = 'nvmap'\nindex = 1",
        "[[machine.device]]\nname = 'a'\nkind = 'nvml'\nindex = -1",
        "[[machine.device]]\nname = 'a'\nkind = 'nvml'\nhigh = 0.8",
        "[[machine.device]]\nname = 'a'\nkind = 'nvml'\ncritical = 1",
        "[[machine.device]]\nname = 'a'\nkind = 'nvml'\n[[machine.device]]\nname = 'a'\nkind = 'nvmap'",
        "[recorder]\nmax_size = '4K'",
        "[gate]\nhold = 0",
        "[gate]\nagent_port = 70000",
        "[gate]\nagent_address = 'here'",
        "pressure_watch = 5",
        "[pressure_watch]\npath = '/run/p'",
        "[[pressure_watch]]\nmode = '0660'",
        "[[pressure_watch]]\npath = 'p'",
        "[[pressure_watch]]\npath = '/run/p'\n[[pressure_watch]]\npath = '/run/p'",
        "[[pressure_watch]]\npath = '/run/edgeguardd/edgeguardd.sock'",
        "[[pressure_watch]]\npath = '/run/p'\ntarget = 'llm'",
        "[[pressure_watch]]\npath = '/run/p'\ntarget = 'g'\n[[target]]\nname = 'g'\nglob = '/*'",
        "[recorder]\nenabled = 1",
        "[target]\nname = 'a'",
        "target = [5]",
        "target = 5",
        "[[target]]\npath = '/a'",
        "[[target]]\nname = 'a'",
        "[[target]]\nname = 'self'\npath = '/a'",
        "[[target]]\nname = 'a b'\npath = '/a'",
        "[[target]]\nname = '" + "a" * 65 + "'\npath = '/a'",
        "[[target]]\nname = 5\npath = '/a'",
        "[[target]]\nname = 'a'\npath = '/a'\nunit = 'a.service'",
        "[[target]]\nname = 'a'\npath = 'a'",
        "[[target]]\nname = 'a'\npath = '/'",
        "[[target]]\nname = 'a'\npath = '/a/../..'",
        "[[target]]\nname = 'a'\npath = '/a//b'",
        "[[target]]\nname = 'a'\npath = '/sys/fs/cgroup/a'",
        "[[target]]\nname = 'a'\nglob = '/a'",
        "[[target]]\nname = 'a'\nglob = '*'",
        "[[target]]\nname = 'a'\nunit = 'a.socket'",
        "[[target]]\nname = 'a'\nunit = 'a@.service'",
        "[[target]]\nname = 'a'\nunit = '-.slice'",
        "[[target]]\nname = 'a'\nunit = 'a/b.service'",
        "[[target]]\nname = 'a'\nunit = 'a\\xZZ.service'",
        "[[target]]\nname = 'a'\npath = '/a'\n[[target]]\nname = 'a'\npath = '/b'",
        "max_targets = 1\n[[target]]\nname = 'a'\npath = '/a'\n[[target]]\nname = 'b'\npath = '/b'",
        "[[target]]\nname = 'a'\npath = '/a'\nhigh = 0.95",
        "[[target]]\nname = 'a'\npath = '/a'\n[target.ladder]\nemergency = ['reject_requests', 'unload_model']",
        "[[target]]\nname = 'a'\npath = '/a'\nlead_ceiling = '100ms'",
        "[[target]]\nname = 'a'\npath = '/a'\n[target.last_resort]\nhigh = ['restart']",
        "[[target]]\nname = 'a'\nglob = '/a*'\n[target.last_resort]\nhigh = ['restart']",
        "[[target]]\nname = 'a'\nunit = 'a.slice'\n[target.last_resort]\nhigh = ['restart']",
    ],
)
def test_a_bad_value_is_one_fault_with_a_line_and_a_remedy(line: str) -> None:
    """Whatever is wrong, it is told as "line N: cannot use KEY: what is wrong; what to write"."""
    found = problem(line)
    assert found.startswith("line ")
    assert "cannot use " in found
    assert "; " in found
    assert "\n" not in found
    assert len(found) < 400


def test_a_fault_in_the_defaults_is_told_once() -> None:
    """Targets that inherit a bad default do not repeat it, nor judge their own keys against what stands in for it."""
    two = "[[target]]\nname = 'a'\npath = '/a'\nhigh = 0.5\n[[target]]\nname = 'b'\npath = '/b'\n"
    assert "defaults.elevated = 7" in problem("[defaults]\nelevated = 7\n" + two)
    assert "defaults.high = 0.5" in problem("[defaults]\nhigh = 0.5\n" + two.replace("high = 0.5\n", ""))


def test_the_key_to_blame_is_one_that_the_table_sets() -> None:
    """A mark that does not rise is told at the line that was written, not at an inherited default."""
    found = problem("[[target]]\nname = 'a'\npath = '/a'\nelevated = 0.9\ncritical = 0.95\n")
    assert found.startswith("line 4: cannot use target.elevated = 0.9: level elevated begins at 0.9")


def test_a_step_in_a_long_array_is_told_at_its_own_line() -> None:
    """Arrays over several lines do not hide which step is meant."""
    text = "[defaults.ladder]\nelevated = [\n  'trim_kv_cache',\n  # why\n  {action = 'trim', deadline = 1},\n]\n"
    assert problem(text).startswith("line 5: cannot use defaults.ladder.elevated.action = ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[socket\n", "line 1: cannot read this as TOML: "),
        ("a = \n", "line 1: cannot read this as TOML: invalid value at column 5; "),
        ("[socket]\n[socket]\n", "line 2: cannot read this as TOML: "),
        ("x = '", "line 1: cannot read this as TOML: the file ends before what begins here"),
        ("[a]\nb = 1\nc = [1,\n  2,\n", "line 4: cannot read this as TOML: the file ends before what begins here"),
        ('[log]\nlevel = """\nx\n', "line 2: cannot read this as TOML: the file ends before what begins here"),
        ("x = " + "9" * 5000, "cannot read this as TOML: "),
        ("x = " + "[" * 100_000, "cannot read brackets nested this deep"),
        ("x = " + "{a=" * 100_000, "cannot read brackets nested this deep"),
        ("\ufeffx = 1", "line 1: cannot read a byte order mark"),
        (b"\xef\xbb\xbfx = 1", "line 1: cannot read a byte order mark"),
        (b"\xff\xfe", "line 1: cannot read byte 0 as UTF-8"),
        (b"a = 1\nb = '\xe4'\n", "line 2: cannot read byte 11 as UTF-8"),
        ("a = 1\n\0", "line 2: cannot read a NUL character"),
        (b"#" * (10 * MAX_FILE_BYTES), "cannot read a configuration of over 1048576 bytes"),
        ("\n" + ".".join("a" * 500_000) + "=1", "line 2: cannot read a key of over 64 parts"),
        ("[" + ".".join("a" * 500_000) + "]", "line 1: cannot read a key of over 64 parts"),
    ],
)
def test_text_that_is_no_toml_is_one_clear_fault(text: str | bytes, expected: str) -> None:
    """Cut, binary, huge or deeply nested files end in one sentence, and never in a traceback."""
    assert problem(text).startswith(expected)


@pytest.mark.timeout(30)
def test_a_wrong_file_does_not_keep_its_reader_for_long() -> None:
    """A megabyte of faults is not told fault by fault: a daemon that reloads would stand still over it."""
    entry = '[[target]]\nname = "t"\npath = "/p"\n'
    with pytest.raises(ConfigError) as error:
        read(entry * (MAX_FILE_BYTES // len(entry)), "f.toml")
    assert len(error.value.problems) == MAX_PROBLEMS + 1
    assert error.value.problems[-1].startswith("f.toml: cannot list more than 256 faults; mend these first")


def test_a_mode_without_quotes_is_told_to_get_some() -> None:
    """0660 is no number in TOML, and what tomllib says of it helps nobody."""
    assert problem("[socket]\nmode = 0660  # group\n") == (
        "line 2: cannot read this as TOML: a number cannot begin with 0; "
        'write a file mode in quotes, "0660", and any other number without the 0'
    )


def test_what_to_compare_with_is_what_every_installation_has() -> None:
    """Not a file of the source tree."""
    assert problem("a = \n").endswith("compare it with what `edgeguardctl check-config --example` prints")


def test_windows_line_ends_are_taken() -> None:
    """A file saved on another system still works, and its lines are counted right."""
    assert read(b"max_targets = 3\r\n[log]\r\nlevel = 'error'\r\n", "f").max_targets == 3
    assert problem(b"max_targets = 3\r\n[log]\r\nlevel = 'loud'\r\n").startswith("line 3: ")


RESTART = "[defaults.last_resort]\nhigh = ['restart']\n"


def test_a_restart_that_is_inherited_is_told_where_the_target_is_named() -> None:
    """In the defaults it is no fault: only a target knows whether it has a unit."""
    assert read(RESTART, "f").defaults.last_resort.high == (LastResortStep(LastResort.RESTART),)
    assert read(RESTART + "[[target]]\nname = 'a'\nunit = 'a.service'\n", "f").targets[0].unit == "a.service"
    found = problem(RESTART + "[[target]]\nname = 'a'\npath = '/a'\n")
    assert found.startswith("line 5: cannot use target.path: the last resort of level high restarts its unit")
    assert read(RESTART + "[[target]]\nname = 'a'\npath = '/a'\nlast_resort.high = []\n", "f").targets


def test_a_restart_with_a_unit_needs_no_unit_of_the_target() -> None:
    """A cgroup that is named by path may still have a service that runs in it."""
    text = (
        "[[target]]\nname = 'a'\npath = '/a'\n[target.last_resort]\nhigh = [{action = 'restart', unit = 'a.service'}]\n"
    )
    assert read(text, "f").targets[0].policy.last_resort.high[0].unit == "a.service"


def test_a_fault_in_the_last_resort_of_the_defaults_is_told_once() -> None:
    """Targets that inherit it do not repeat it."""
    two = "[[target]]\nname = 'a'\npath = '/a'\n[[target]]\nname = 'b'\npath = '/b'\n"
    assert "reboot" in problem("[defaults.last_resort]\nhigh = ['reboot', 'restart']\n" + two)
    assert "twice" in problem("[defaults.last_resort]\nhigh = ['kill', 'kill']\n" + two)


@pytest.mark.parametrize(("written", "near"), [("SIGTREM", "SIGTERM"), ("sigusr1", "SIGUSR1"), ("USR1", "SIGUSR1")])
def test_a_signal_that_is_no_signal_gets_the_nearest(written: str, near: str) -> None:
    """A slip is found before the crisis in which it would have mattered."""
    found = problem(f"[defaults.last_resort]\nhigh = [{{action = 'signal', signal = '{written}'}}]\n")
    assert f'there is no such signal; write "{near}"' in found


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("::ffff:127.0.0.1", 'write "127.0.0.1"'),
        ("fe80::1", 'write "fe80::1%eth0"'),
        ("224.0.0.1", "one of this machine's own"),
        ("ff02::1", "one of this machine's own"),
        ("255.255.255.255", "one of this machine's own"),
    ],
)
@pytest.mark.parametrize(("section", "key"), [("http", "address"), ("gate", "agent_address")])
def test_an_address_that_no_machine_can_listen_on_is_refused(section: str, key: str, address: str, remedy: str) -> None:
    """What bind() can never take is an error of the configuration, with what to write instead."""
    assert remedy in problem(f"[{section}]\n{key} = '{address}'\n")


@pytest.mark.parametrize("address", ["::", "::1", "127.0.0.2", "192.0.2.1", "fe80::1%lo", "localhost"])
def test_an_address_that_a_machine_may_have_is_taken(address: str) -> None:
    """Whether this machine has it now is not for the configuration to say."""
    assert read(f"[http]\naddress = '{address}'\n", "f.toml").http.address == address
