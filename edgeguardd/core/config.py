"""The configuration as values, with the defaults that need no tuning.

Must not: read files or TOML (configparse does the tree). Upstream: model. Downstream: everybody.
Each default says why it is what it is; what a key means and accepts is in configtable, which makes
docs/reference/config.md. Figures without a source are judgements, to be replaced by measurements.
"""

from msgspec import Struct

from edgeguardd.core.model import Action, LastResort, Level
from edgeguardd.core.provisionspec import ProvisionConfig


class Mark(Struct, frozen=True):
    """Where a level begins: a share of the elastic range in use, or so many bytes of headroom left. One is set."""

    ratio: float | None = None
    headroom_bytes: int | None = None


class Step(Struct, frozen=True):
    """One command of a rung: what is asked, how far, and how long the subscriber has to do it."""

    action: Action
    max_batch_ratio: float | None = None
    # An unthrottled trim takes 0.07 s, one throttled above memory.high 14 s (measured on 6.1): a server that needs
    # longer than this is already being throttled, and asking for more is right.
    deadline_s: float = 5.0


# A server that unloads lets its running requests end first, and gives gigabytes back page by page.
UNLOAD_DEADLINE_S = 30.0

# Trimming frees the most at the least cost to users, so it comes first and stays; refusing comes last, unloading
# only when the kernel has begun to kill.
_TRIM = Step(Action.TRIM_KV_CACHE)
_REJECT = Step(Action.REJECT_REQUESTS)


class Ladder(Struct, frozen=True):
    """Per level, the commands it calls for. A rung is the tuple of one level; normal calls for nothing."""

    elevated: tuple[Step, ...] = (_TRIM,)
    high: tuple[Step, ...] = (_TRIM, Step(Action.REDUCE_BATCH, max_batch_ratio=0.5))
    critical: tuple[Step, ...] = (_TRIM, Step(Action.REDUCE_BATCH, max_batch_ratio=0.25), _REJECT)
    emergency: tuple[Step, ...] = (
        _TRIM,
        Step(Action.REDUCE_BATCH, max_batch_ratio=0.25),
        _REJECT,
        Step(Action.UNLOAD_MODEL, deadline_s=UNLOAD_DEADLINE_S),
    )

    def rung(self, level: Level) -> tuple[Step, ...]:
        """The steps of one level, in the order in which they are asked for."""
        return ((), self.elevated, self.high, self.critical, self.emergency)[level]


class LastResortStep(Struct, frozen=True):
    """One thing the daemon may do itself. `signal` is for signal, `unit` for restart, max_freeze_s for freeze.

    restart without `unit` takes the target's own unit; a target that is not named by unit then cannot be restarted.
    """

    action: LastResort
    hold_off_s: float = 60.0
    signal: str = "SIGTERM"
    unit: str | None = None
    # A frozen server answers nobody: long enough for others to finish, short of most clients' time-outs.
    max_freeze_s: float = 10.0


class LastResorts(Struct, frozen=True):
    """Per level, what is tried in order when nobody answers or nothing helps. Default: nothing, said loudly."""

    elevated: tuple[LastResortStep, ...] = ()
    high: tuple[LastResortStep, ...] = ()
    critical: tuple[LastResortStep, ...] = ()
    emergency: tuple[LastResortStep, ...] = ()

    def steps(self, level: Level) -> tuple[LastResortStep, ...]:
        """The steps of one level."""
        return ((), self.elevated, self.high, self.critical, self.emergency)[level]


class Policy(Struct, frozen=True):
    """How one target is judged and what is asked of its subscribers."""

    # Early enough that a trim still runs unthrottled, and with room for one command to work before the next mark.
    elevated: Mark = Mark(ratio=0.60)
    high: Mark = Mark(ratio=0.80)
    critical: Mark = Mark(ratio=0.92)
    # A quarter of the step from elevated to high: wider than the noise of a busy server, narrower than a level.
    hysteresis_ratio: float = 0.05
    # Longer than the pause between two requests of one conversation, so that capacity does not come and go with them.
    dwell_s: float = 5.0
    restore_dwell_s: float = 5.0
    # A trim that helped has shown in the samples by then.
    repeat_s: float = 2.0
    static_bytes: int | None = None
    # How long needed bytes have to stand still before their minimum is taken as what the server holds at rest.
    settle_s: float = 10.0
    # A trim is asked for so long before the limit as trims of this target have been measured to take, within these.
    lead_floor_s: float = 0.5
    lead_ceiling_s: float = 30.0
    # Evicted pages that come back, as a share of the limit a second: a server reading its own weights again.
    thrash_ratio_per_s: float = 0.02
    # Share of time in which some task waits for memory.
    psi_ratio: float = 0.10
    # `high` counting for so long without needed bytes falling is a livelock: a public report ran for 90 minutes.
    livelock_s: float = 3.0
    # memory.high is lifted for the length of a trim to at most high + allowance, and stays this far below memory.max.
    relief: bool = True
    relief_allowance_ratio: float = 0.25
    relief_reserve_ratio: float = 0.02
    # Among several targets the lowest priority is asked first; none is asked to go below its floor.
    priority: int = 0
    floor_bytes: int = 0
    ladder: Ladder = Ladder()
    last_resort: LastResorts = LastResorts()


class TargetSpec(Struct, frozen=True):
    """One [[target]]: exactly one of path, unit and glob. Paths are below the cgroup root and begin with '/'."""

    name: str
    path: str | None = None
    unit: str | None = None
    glob: str | None = None
    policy: Policy = Policy()


class SocketConfig(Struct, frozen=True):
    """The subscriber socket. allow_uids may take the inference role for targets that they do not live in."""

    path: str = "/run/edgeguardd/edgeguardd.sock"
    mode: int = 0o660
    group: str | None = None
    # Root may do worse than answer for somebody else's cgroup.
    allow_uids: frozenset[int] = frozenset({0})
    # Beyond the design's budget of 1,000; each costs a descriptor and, at worst, its bounded outbox.
    max_subscribers: int = 1024
    # Three silent heartbeats end a hung server: its commands are lost after half a minute, not after a TCP-like hour.
    heartbeat_s: float = 10.0
    # As long as a command's deadline: who does not read for that long could not have obeyed either.
    stall_s: float = 5.0


class HttpConfig(Struct, frozen=True):
    """The HTTP server; enabled = false turns it off."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: int = 9464
    hosts: frozenset[str] = frozenset()
    # A scraper, a page or two, a few probes, and a crowd that asks /admit at once. Each takes about 5 KiB (measured).
    max_connections: int = 512
    timeout_s: float = 5.0


class GateConfig(Struct, frozen=True):
    """What stands between clients and servers that cannot refuse; agent_port None: no agent check is answered."""

    # Long enough for a prompt to be read into the KV cache, where it shows as needed bytes.
    hold_s: float = 5.0
    agent_port: int | None = None
    agent_address: str = "127.0.0.1"


class WatchSpec(Struct, frozen=True):
    """One [[pressure_watch]]: a socket of systemd's memory-pressure protocol; target None: by each peer's cgroup."""

    path: str
    target: str | None = None
    mode: int = 0o660
    group: str | None = None


class SamplingConfig(Struct, frozen=True):
    """How often targets are read: `slow_s` far from the marks, down to `fast_s` near them."""

    # The kernel's own wake-ups come between these, at most every 10 ms; sampling finds what moves no counter.
    fast_s: float = 0.1
    # The budget: at most one wake-up a second with a target far from its marks.
    slow_s: float = 1.0


class LogConfig(Struct, frozen=True):
    """format: auto (JSON under journald, readable on a terminal), json or text. level: debug … error."""

    format: str = "auto"
    level: str = "info"


class DeviceSpec(Struct, frozen=True):
    """One [[machine.device]]: memory outside the cgroups' accounts. kind: nvml, nvmap or file.

    file reads two numbers, used and total bytes, from `path`; nvml takes the card `index`.
    """

    name: str
    kind: str
    path: str | None = None
    index: int = 0
    elevated_ratio: float = 0.80
    high_ratio: float = 0.90
    critical_ratio: float = 0.96


class MachineConfig(Struct, frozen=True):
    """The whole machine as a domain of its own: marks on the share of RAM that is still available."""

    enabled: bool = True
    elevated_ratio: float = 0.15
    high_ratio: float = 0.08
    critical_ratio: float = 0.04
    # Without swap reclaim has nowhere to go, so that the marks above count alone; with it the share below counts too.
    swap_free_ratio: float = 0.10
    psi_ratio: float = 0.20
    sample_s: float = 1.0
    devices: tuple[DeviceSpec, ...] = ()


class RecorderConfig(Struct, frozen=True):
    """The flight recorder: a ring of files in the state directory, together at most max_bytes."""

    enabled: bool = True
    max_bytes: int = 16 << 20


class KernelLogConfig(Struct, frozen=True):
    """Whether the kernel's OOM reports are read from /dev/kmsg."""

    enabled: bool = True


class OomScoreRule(Struct, frozen=True):
    """One [[oom_score]]: oom_score_adj for every process that meets all of the conditions that are set."""

    name: str
    value: int
    unit: str | None = None
    cgroup: str | None = None
    exe: str | None = None
    comm: str | None = None
    allow_unkillable: bool = False


class DelaysConfig(Struct, frozen=True):
    """Whether and how often the targets' main processes are asked for their delays."""

    enabled: bool = False
    # As often as Prometheus usually scrapes.
    interval_s: float = 15.0


class Config(Struct, frozen=True):
    """Everything. `self_targets` lets a subscriber have its own cgroup guarded without any configuration."""

    socket: SocketConfig = SocketConfig()
    http: HttpConfig = HttpConfig()
    gate: GateConfig = GateConfig()
    pressure_watches: tuple[WatchSpec, ...] = ()
    sampling: SamplingConfig = SamplingConfig()
    log: LogConfig = LogConfig()
    machine: MachineConfig = MachineConfig()
    recorder: RecorderConfig = RecorderConfig()
    provision: ProvisionConfig = ProvisionConfig()
    kernel_log: KernelLogConfig = KernelLogConfig()
    delays: DelaysConfig = DelaysConfig()
    oom_scores: tuple[OomScoreRule, ...] = ()
    # One look at 300 processes takes about 15 ms: a thousandth of a processor.
    oom_score_recheck_s: float = 15.0
    # Lifted limits are written here before they are lifted; systemd's StateDirectory= makes it.
    state_directory: str = "/var/lib/edgeguardd"
    defaults: Policy = Policy()
    targets: tuple[TargetSpec, ...] = ()
    self_targets: bool = True
    # Twice the design's 100 and some; each costs a few descriptors.
    max_targets: int = 256
    cgroup_root: str | None = None
