"""Every configuration key, one row each: the parser, the reference page and the example file all come from here.

Must not: parse anything itself. Upstream: configrows, configpolicy, configkinds, config.
Downstream: configreader, configtext, cli.reference. Defaults are not in the rows: they are those of the values in
core.config.
"""

from edgeguardd.core.config import (
    Config,
    DeviceSpec,
    GateConfig,
    HttpConfig,
    KernelLogConfig,
    LogConfig,
    MachineConfig,
    RecorderConfig,
    SamplingConfig,
    SocketConfig,
    TargetSpec,
    WatchSpec,
)
from edgeguardd.core.configkinds import (
    boolean,
    choice,
    duration,
    file_mode,
    integer,
    share,
    size,
    text,
    texts,
    uids,
)
from edgeguardd.core.confignames import (
    MAX_SOCKET_PATH_BYTES,
    check_absolute,
    check_address,
    check_cgroup_glob,
    check_cgroup_path,
    check_device,
    check_group,
    check_name,
    check_socket_path,
    check_unit,
)
from edgeguardd.core.configpolicy import DEFAULTS, HOUR_S, LADDER, LAST_RESORT
from edgeguardd.core.configprovision import PROVISION, SERVICE, SLICE
from edgeguardd.core.configrows import Row, Section
from edgeguardd.core.configscores import DELAYS, OOM_SCORE
from edgeguardd.core.hosts import check_host

MAX_TARGETS = 4096
# Less than this holds no incident: a sample of one target takes about 300 bytes.
MIN_RECORDER_BYTES = 256 << 10

SOCKET_PATH = text(f"an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes", check_socket_path)
DIRECTORY = text("an absolute path", check_absolute)
FILE = DIRECTORY
ADDRESS = text('an IP address, or "localhost"', check_address)
PORT = integer(0, 65535)
DEVICE_KINDS = ("nvml", "nvmap", "file")
LOG_FORMAT = choice("auto", "json", "text")

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
        Row(
            "state_directory",
            "state_directory",
            DIRECTORY,
            "Where lifted limits are written down before they are lifted, and where the flight recorder writes.",
        ),
        Row(
            "oom_score_recheck",
            "oom_score_recheck_s",
            duration(HOUR_S, 1.0),
            "How often all processes are looked at for [[oom_score]]: for values that something changed, and processes "
            "that were moved to another cgroup, of which the kernel tells nobody.",
        ),
    ),
)

SOCKET = Section(
    "socket",
    SocketConfig,
    "The socket that inference servers and observers connect to.",
    (
        Row(
            "path",
            "path",
            SOCKET_PATH,
            "Where the socket is made, unless systemd hands one over; its directory too, where only that is missing.",
        ),
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
    "The HTTP server: /metrics, /healthz, /readyz, /status, /admit.",
    (
        Row("enabled", "enabled", boolean(), "Whether HTTP is served at all."),
        Row(
            "address",
            "address",
            ADDRESS,
            "The address to listen on; anything but loopback shows process names to the network. `::` is every "
            "address, of IPv4 as well, `0.0.0.0` every one of IPv4.",
        ),
        Row("port", "port", PORT, "The TCP port; 0 lets the kernel choose one."),
        Row(
            "hosts",
            "hosts",
            texts("host names", check_host),
            "What else requests may be addressed to, besides localhost, loopback addresses and the address they come "
            'in at: the names that scrapers and proxies use. "*": any, where pages in browsers cannot reach it.',
        ),
        Row(
            "max_connections",
            "max_connections",
            integer(1, 4096),
            "How many HTTP connections are held at once; before one is refused, the longest idle is closed.",
        ),
        Row(
            "timeout", "timeout_s", duration(HOUR_S, 0.1), "How long a peer has to send its request or take the answer."
        ),
    ),
)

GATE = Section(
    "gate",
    GateConfig,
    "Asked by proxies before they let a request through: /admit of the HTTP server, and HAProxy's agent check.",
    (
        Row(
            "hold",
            "hold_s",
            duration(HOUR_S, 0.1),
            "How long the bytes of a request that /admit has let through, with its size, are kept for it.",
        ),
        Row("agent_port", "agent_port", PORT, "The TCP port that answers HAProxy's agent-check; off when not given."),
        Row("agent_address", "agent_address", ADDRESS, "The address that the agent check is answered on."),
    ),
)

WATCH = Section(
    "pressure_watch",
    WatchSpec,
    "One [[pressure_watch]] each: a socket for programs that heed systemd's MEMORY_PRESSURE_WATCH.",
    (
        Row("path", "path", SOCKET_PATH, "Where the socket is made; its directory too, where only that is missing."),
        Row(
            "target",
            "target",
            text("letters, digits and _ . : @ -, at most 64", check_name),
            "The target whose pressure is told there; when not given, that of the cgroup each program lives in.",
        ),
        Row("mode", "mode", file_mode(), "Who may connect: the socket's file mode."),
        Row("group", "group", text("a group's name or number", check_group), "The socket's group."),
    ),
    many=True,
)

SAMPLING = Section(
    "sampling",
    SamplingConfig,
    "How often the targets' files are read besides the kernel's own wake-ups.",
    (
        # The kernel itself speaks at most every 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV, kernel/cgroup/cgroup.c).
        Row("fast", "fast_s", duration(60.0, 0.01), "The interval close to a mark."),
        Row(
            "slow",
            "slow_s",
            duration(60.0, 0.01),
            "The interval far from every mark; twice as long at rest, with half of the way to the first mark to go.",
        ),
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

MACHINE = Section(
    "machine",
    MachineConfig,
    "The whole machine, which counts beside each target's own limit; the worse of both decides.",
    (
        Row("enabled", "enabled", boolean(), "Whether the machine is read at all."),
        Row(
            "elevated",
            "elevated_ratio",
            share(0, 0.9, open_ends=True),
            "Level elevated begins where less than this share of the RAM is available (MemAvailable).",
        ),
        Row("high", "high_ratio", share(0, 0.9, open_ends=True), "Where level high begins."),
        Row("critical", "critical_ratio", share(0, 0.9, open_ends=True), "Where level critical begins."),
        Row(
            "swap_free",
            "swap_free_ratio",
            share(0, 1),
            "Free swap, zram included, below this share makes a level that RAM has raised one worse.",
        ),
        Row(
            "psi",
            "psi_ratio",
            share(0.01, 1),
            "For how much of the time tasks may wait for memory before that, with little RAM available, is high.",
        ),
        Row(
            "sample",
            "sample_s",
            duration(60.0, 0.1),
            "How often the machine is read; four times as often below twice the share of elevated, up to ten times "
            "within 64 MiB above a mark, half as often above four times that share where no device is read.",
        ),
    ),
)

DEVICE = Section(
    "machine.device",
    DeviceSpec,
    "One [[machine.device]] each for memory that no cgroup is charged for, such as a GPU's own.",
    (
        Row(
            "name",
            "name",
            text("letters, digits and _ . : @ -, at most 64", check_device),
            "What log, status and metrics call it.",
        ),
        Row(
            "kind",
            "kind",
            choice(*DEVICE_KINDS),
            "nvml: an NVIDIA card, which needs the extra nvml (nvidia-ml-py); nvmap: what the GPU of a Jetson holds of "
            "the RAM; file: two numbers in a file, used and total bytes.",
        ),
        Row("path", "path", FILE, "The file: for kind file, which needs it, and for it alone."),
        Row("index", "index", integer(0, 255), "Which card, as nvidia-smi counts them: for kind nvml alone."),
        Row(
            "elevated",
            "elevated_ratio",
            share(0, 1, open_ends=True),
            "Level elevated begins where this share of the device's memory is in use.",
        ),
        Row("high", "high_ratio", share(0, 1, open_ends=True), "Where level high begins."),
        Row("critical", "critical_ratio", share(0, 1, open_ends=True), "Where level critical begins."),
    ),
    many=True,
)

RECORDER = Section(
    "recorder",
    RecorderConfig,
    "The flight recorder: what the engine was told and decided, for edgeguardctl replay and incidents.",
    (
        Row("enabled", "enabled", boolean(), "Whether anything is recorded."),
        Row(
            "max_size",
            "max_bytes",
            size(MIN_RECORDER_BYTES),
            "How large all its files together may become; the oldest go first.",
        ),
    ),
)

KERNEL_LOG = Section(
    "kernel_log",
    KernelLogConfig,
    "The kernel's own log, for its OOM reports; kills are counted without it too.",
    (
        Row(
            "enabled",
            "enabled",
            boolean(),
            "Whether OOM reports are read from /dev/kmsg and explained in the log; a missing permission is said once.",
        ),
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
            "A pattern for cgroup paths; each that matches is guarded by itself and called `NAME:PATH`. Where that is "
            "over 128 characters or not printable, a hash between two ~ makes up for what is cut out of the path.",
        ),
    ),
    many=True,
)

# In the order of the reference page and of the example file.
SECTIONS = (
    *(TOP, SOCKET, WATCH, HTTP, GATE, SAMPLING, LOG, MACHINE, DEVICE, RECORDER, KERNEL_LOG, OOM_SCORE, DELAYS),
    *(DEFAULTS, LADDER, LAST_RESORT, TARGET, PROVISION, SLICE, SERVICE),
)
