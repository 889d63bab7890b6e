"""Every configuration key, one row each: the parser, the reference page and the example file all come from here.

Must not: parse anything itself. Upstream: configkinds, config. Downstream: configparse, configtext, cli.reference.
Defaults are not in the rows: they are those of the values in core.config.
"""

import msgspec
from msgspec import Struct

from edgeguardd.core.config import (
    UNLOAD_DEADLINE_S,
    Config,
    HttpConfig,
    Ladder,
    LogConfig,
    Policy,
    SamplingConfig,
    SocketConfig,
    Step,
    TargetSpec,
)
from edgeguardd.core.configkinds import (
    Kind,
    boolean,
    choice,
    duration,
    file_mode,
    integer,
    mark,
    quoted,
    share,
    show_duration,
    show_share,
    size,
    text,
    uids,
)
from edgeguardd.core.confignames import (
    MAX_SOCKET_PATH_BYTES,
    check_absolute,
    check_address,
    check_cgroup_glob,
    check_cgroup_path,
    check_group,
    check_name,
    check_socket_path,
    check_unit,
)
from edgeguardd.core.model import Action

MAX_TARGETS = 4096
HOUR_S = 3600.0


class Row(Struct, frozen=True):
    """One key: its name in the file, the field it fills, its kind, and one sentence for the reference."""

    key: str
    field: str
    kind: Kind
    doc: str


class Section(Struct, frozen=True):
    """One table of the file: its header, the value it fills, one sentence, its rows."""

    header: str
    fills: type[Struct]
    doc: str
    rows: tuple[Row, ...]

    def default(self, row: Row) -> object:
        """The default of a row's field; None also for a field that must be given."""
        for field in msgspec.structs.fields(self.fills):
            if field.name == row.field:
                return None if field.default is msgspec.NODEFAULT else field.default
        raise KeyError(row.field)


SOCKET_PATH = text(f"an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes", check_socket_path)
DIRECTORY = text("an absolute path", check_absolute)
ADDRESS = text('an IP address, or "localhost"', check_address)
PORT = integer(0, 65535)
LOG_FORMAT = choice("auto", "json", "text")
LADDER_ACTIONS = (Action.TRIM_KV_CACHE, Action.REDUCE_BATCH, Action.REJECT_REQUESTS, Action.UNLOAD_MODEL)

TOP = Section(
    "",
    Config,
    "Keys before the first table.",
    (
        Row(
            "self_targets",
            "self_targets",
            boolean(),
            'Whether a subscriber may say hello with target "self" and have the cgroup it lives in guarded.',
        ),
        Row(
            "max_targets",
            "max_targets",
            integer(1, MAX_TARGETS),
            "How many cgroups are guarded at most, globs included.",
        ),
        Row(
            "cgroup_root",
            "cgroup_root",
            DIRECTORY,
            "Where cgroup v2 is mounted; found in /proc/self/mountinfo when not given.",
        ),
    ),
)

SOCKET = Section(
    "socket",
    SocketConfig,
    "The socket that inference servers and observers connect to.",
    (
        Row("path", "path", SOCKET_PATH, "Where the socket is made, unless systemd hands one over."),
        Row("mode", "mode", file_mode(), "Who may connect: the socket's file mode."),
        Row(
            "group",
            "group",
            text("a group's name or number", check_group),
            "The socket's group; root's when not given.",
        ),
        Row(
            "allow_uids",
            "allow_uids",
            uids(),
            "Users that may take the inference role for targets whose cgroup they do not live in.",
        ),
        Row("max_subscribers", "max_subscribers", integer(1, 65536), "How many connections are held at once."),
        Row(
            "heartbeat",
            "heartbeat_s",
            duration(HOUR_S, 0.1),
            "How often a silent peer is pinged; an inference server silent for three of these is disconnected.",
        ),
        Row(
            "stall",
            "stall_s",
            duration(HOUR_S, 0.1),
            "How long a peer may leave its lines unread before it is disconnected.",
        ),
    ),
)

HTTP = Section(
    "http",
    HttpConfig,
    "The HTTP server: /metrics, /healthz, /readyz, /status.",
    (
        Row("enabled", "enabled", boolean(), "Whether HTTP is served at all."),
        Row(
            "address",
            "address",
            ADDRESS,
            "The address to listen on; anything but loopback shows process names to the network.",
        ),
        Row("port", "port", PORT, "The TCP port; 0 lets the kernel choose one."),
        Row("max_connections", "max_connections", integer(1, 4096), "How many HTTP connections are held at once."),
        Row(
            "timeout", "timeout_s", duration(HOUR_S, 0.1), "How long a peer has to send its request or take the answer."
        ),
    ),
)

SAMPLING = Section(
    "sampling",
    SamplingConfig,
    "How often the targets' files are read besides the kernel's own wake-ups.",
    (
        # The kernel itself speaks at most every 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV, kernel/cgroup/cgroup.c).
        Row("fast", "fast_s", duration(60.0, 0.01), "The interval close to a mark."),
        Row("slow", "slow_s", duration(60.0, 0.01), "The interval far from every mark."),
    ),
)

LOG = Section(
    "log",
    LogConfig,
    "What is logged to standard error, and how.",
    (
        Row("format", "format", LOG_FORMAT, "auto writes JSON lines under journald and readable lines elsewhere."),
        Row("level", "level", choice("debug", "info", "warning", "error"), "The least severity that is written."),
    ),
)

POLICY_ROWS = (
    Row("elevated", "elevated", mark(), "Where level elevated begins, as share of the elastic range or as headroom."),
    Row("high", "high", mark(), "Where level high begins."),
    Row("critical", "critical", mark(), "Where level critical begins."),
    Row(
        "hysteresis",
        "hysteresis_ratio",
        share(0, 0.5),
        "How far below a mark the target has to come before the level may fall, as share of the elastic range.",
    ),
    Row("dwell", "dwell_s", duration(HOUR_S), "How long it has to stay there before the level falls by one."),
    Row(
        "restore_dwell",
        "restore_dwell_s",
        duration(HOUR_S),
        "How long the level has to stay down before the next rung of restrictions is lifted.",
    ),
    Row(
        "repeat",
        "repeat_s",
        duration(HOUR_S),
        "How long after a rung was asked before it may be asked again within one level.",
    ),
    Row(
        "static",
        "static_bytes",
        size(),
        "What the server holds at rest; what it reports counts when not given.",
    ),
)

DEFAULTS = Section(
    "defaults",
    Policy,
    "How targets are judged; every key may be given again in a [[target]].",
    POLICY_ROWS,
)

STEP = Section(
    "",
    Step,
    "One step of a ladder, written as a table.",
    (
        Row("action", "action", choice(*LADDER_ACTIONS), "What is asked of the subscriber."),
        Row(
            "max_batch_ratio",
            "max_batch_ratio",
            share(0, 1, open_ends=True),
            "The share of its configured batch that may run: for reduce_batch, which needs it, and for it alone.",
        ),
        Row(
            "deadline",
            "deadline_s",
            duration(HOUR_S),
            "How long the subscriber has before the step counts as failed (30s for unload_model).",
        ),
    ),
)

DEADLINES_S = {Action.UNLOAD_MODEL: UNLOAD_DEADLINE_S}


def plain_step(action: Action) -> Step:
    """The step that the bare name of an action stands for."""
    return Step(action, deadline_s=DEADLINES_S.get(action, Step(action).deadline_s))


def show_step(step: Step) -> str:
    """A step as TOML: the bare name where that says it all."""
    if step == plain_step(step.action):
        return quoted(step.action)
    keys = [f"action = {quoted(step.action)}"]
    if step.max_batch_ratio is not None:
        keys.append(f"max_batch_ratio = {show_share(step.max_batch_ratio)}")
    if step.deadline_s != plain_step(step.action).deadline_s:
        keys.append(f"deadline = {show_duration(step.deadline_s)}")
    return "{" + ", ".join(keys) + "}"


def _rung(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    raise ValueError('a rung is an array of steps; write ["trim_kv_cache"], or [] for none')


RUNG = Kind(
    "an array of actions or steps",
    _rung,
    lambda steps: "[" + ", ".join(show_step(step) for step in steps) + "]",
)
LADDER = Section(
    "defaults.ladder",
    Ladder,
    "Per level, the steps it calls for, in the order in which they are asked; also [target.ladder].",
    (
        Row("elevated", "elevated", RUNG, "What is asked at level elevated."),
        Row("high", "high", RUNG, "What is asked at level high; it keeps the lasting steps of the level below."),
        Row("critical", "critical", RUNG, "What is asked at level critical."),
        Row("emergency", "emergency", RUNG, "What is asked at level emergency, when the kernel has begun to kill."),
    ),
)

TARGET = Section(
    "target",
    TargetSpec,
    "One [[target]] each: its name, exactly one of path, unit and glob, and any key of [defaults].",
    (
        Row(
            "name",
            "name",
            text("letters, digits and _ . : @ -, at most 64", check_name),
            "What protocol, log and metrics call it.",
        ),
        Row(
            "path",
            "path",
            text("an absolute path below the cgroup root", check_cgroup_path),
            "The cgroup's path below the cgroup root, as /proc/PID/cgroup shows it.",
        ),
        Row(
            "unit",
            "unit",
            text("a .service, .slice or .scope", check_unit),
            "The systemd unit whose cgroup is guarded.",
        ),
        Row(
            "glob",
            "glob",
            text("a path below the cgroup root with *, ? or [", check_cgroup_glob),
            "A pattern for cgroup paths; each that matches is guarded by itself.",
        ),
    ),
)

# In the order of the reference page and of the example file.
SECTIONS = (TOP, SOCKET, HTTP, SAMPLING, LOG, DEFAULTS, LADDER, TARGET)
