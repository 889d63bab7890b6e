"""What a configuration file may say, and that every fault in it is told with its line and its remedy."""

import msgspec
import pytest

from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config, Ladder, Mark, Policy, Step, TargetSpec
from edgeguardd.core.configparse import MAX_FILE_BYTES, parse, read
from edgeguardd.core.configtext import example, render
from edgeguardd.core.model import Action
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


@pytest.mark.parametrize("text", ["", "\n\n# nothing\n", b"", "[socket]\n", "[defaults.ladder]\n", "target = []\n"])
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
        [defaults]
        elevated = {headroom = "1.5GiB"}
        high = {headroom = "512M"}
        critical = {headroom = 1024}
        hysteresis = "2.5%"
        dwell = "2min"
        restore_dwell = "1h"
        repeat = 1
        static = "3G"
        [defaults.ladder]
        elevated = []
        [[target]]
        name = "llm"
        unit = 'srv\\x2dllm@main.service'
        critical = "95%"
        high = 0.9
        [target.ladder]
        high = ["trim_kv_cache"]
        critical = [{action = "reduce_batch", max_batch_ratio = "10%", deadline = "1s"}]
        emergency = [{action = "reduce_batch", max_batch_ratio = 0.1}, "unload_model"]
        """.replace("\n        ", "\n"),
        "f.toml",
    )
    assert (config.self_targets, config.max_targets, config.cgroup_root) == (False, 8, "/sys/fs/cgroup/unified")
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
        ladder=Ladder(elevated=()),
    )
    assert config.defaults == defaults
    ladder = Ladder(
        elevated=(),
        high=(Step(Action.TRIM_KV_CACHE),),
        critical=(Step(Action.REDUCE_BATCH, 0.1, 1.0),),
        emergency=(Step(Action.REDUCE_BATCH, 0.1), Step(Action.UNLOAD_MODEL, deadline_s=30.0)),
    )
    policy = msgspec.structs.replace(defaults, high=Mark(ratio=0.9), critical=Mark(ratio=0.95), ladder=ladder)
    assert config.targets == (TargetSpec("llm", unit="srv\\x2dllm@main.service", policy=policy),)


def test_every_field_has_its_row() -> None:
    """No field of the configuration values is without a key, and no key without a field."""
    for section in (*table.SECTIONS, table.STEP):
        fields = {field.name for field in msgspec.structs.fields(section.fills)}
        parts = {"socket", "http", "sampling", "log", "defaults", "targets", "ladder", "policy"}
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
        if not line.startswith(("#path", "#glob"))
    )
    config = read(uncommented, "example")
    assert [spec.unit for spec in config.targets] == ["llama.service"]


def test_what_is_rendered_reads_back() -> None:
    """`check-config --show` prints a file that means the same."""
    config = Config(targets=(TargetSpec("a", path="/b c/\\x2d"), TargetSpec("g", glob="/x/*.scope")))
    assert read(render(config), "f.toml") == config


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
        ("x = '", "cannot read this as TOML: "),
        ("x = " + "9" * 5000, "cannot read this as TOML: "),
        ("x = " + "[" * 100_000, "cannot read brackets nested this deep"),
        ("x = " + "{a=" * 100_000, "cannot read brackets nested this deep"),
        ("\ufeffx = 1", "line 1: cannot read a byte order mark"),
        (b"\xef\xbb\xbfx = 1", "line 1: cannot read a byte order mark"),
        (b"\xff\xfe", "line 1: cannot read byte 0 as UTF-8"),
        (b"a = 1\nb = '\xe4'\n", "line 2: cannot read byte 11 as UTF-8"),
        ("a = 1\n\0", "line 2: cannot read a NUL character"),
        (b"#" * (10 * MAX_FILE_BYTES), "cannot read a configuration of over 1048576 bytes"),
    ],
)
def test_text_that_is_no_toml_is_one_clear_fault(text: str | bytes, expected: str) -> None:
    """Cut, binary, huge or deeply nested files end in one sentence, and never in a traceback."""
    assert problem(text).startswith(expected)


def test_windows_line_ends_are_taken() -> None:
    """A file saved on another system still works, and its lines are counted right."""
    assert read(b"max_targets = 3\r\n[log]\r\nlevel = 'error'\r\n", "f").max_targets == 3
    assert problem(b"max_targets = 3\r\n[log]\r\nlevel = 'loud'\r\n").startswith("line 3: ")
