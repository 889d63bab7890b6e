"""The JSON of /status as values. Fields that are missing get a default, new ones are ignored: either side may be newer.

Must not: fetch or print. Upstream: pages (makes the JSON). Downstream: daemonlink, status, watch.
"""

from msgspec import Struct, field

from edgeguardd.core.model import Counters, InForce, MachineSample


class Marks(Struct, frozen=True):
    """The needed bytes at which each level begins, under the limit that binds now."""

    elevated_bytes: int
    high_bytes: int
    critical_bytes: int


class Outstanding(Struct, frozen=True):
    """A command that has no outcome yet."""

    seq: int
    action: str
    subscriber: int
    status: str
    age_s: float


class ResortOutcome(Struct, frozen=True):
    """What became of one last resort."""

    action: str
    outcome: str
    age_s: float
    message: str | None = None


class ResortRow(Struct, frozen=True):
    """Where the last resort of a target stands."""

    configured: bool = False
    running: bool = False
    last: ResortOutcome | None = None


class TargetRow(Struct, frozen=True):
    """One target."""

    name: str
    path: str | None = None
    present: bool = False
    watch: str | None = None
    level: str = "normal"
    reason: str | None = None
    level_age_s: float | None = None
    calls: str | None = None
    needed_bytes: int | None = None
    current_bytes: int | None = None
    static_bytes: int | None = None
    limit_bytes: int | None = None
    limit_kind: str | None = None
    limit_path: str | None = None
    headroom_bytes: int | None = None
    used_ratio: float | None = None
    marks: Marks | None = None
    growth_bytes_per_s: float | None = None
    rung: str | None = None
    exhausted: bool = False
    relief: str | None = None
    lead_s: float | None = None
    evicted_bytes: int | None = None
    psi_ratio: float | None = None
    in_force: InForce = InForce()
    counters: Counters | None = None
    sample_age_s: float | None = None
    degraded: str | None = None
    watchers: int = 0
    last_resort: ResortRow = ResortRow()
    outstanding: list[Outstanding] = field(default_factory=list)


class DeviceRow(Struct, frozen=True):
    """One configured device of the machine."""

    name: str
    kind: str
    used_bytes: int | None = None
    total_bytes: int | None = None
    degraded: str | None = None


class MachineRow(Struct, frozen=True):
    """The whole machine."""

    level: str = "normal"
    reason: str | None = None
    level_age_s: float | None = None
    wanted_bytes: int | None = None
    enabled: bool = False
    interval_s: float | None = None
    sample_age_s: float | None = None
    psi: str | None = None
    estimated: bool = False
    degraded: str | None = None
    sample: MachineSample | None = None
    devices: list[DeviceRow] = field(default_factory=list)


class SubscriberRow(Struct, frozen=True):
    """One connection."""

    subscriber: int
    name: str
    role: str
    target: str | None = None
    pid: int | None = None
    uid: int | None = None
    supports: list[str] = field(default_factory=list)
    connected_s: float | None = None
    silent_s: float | None = None
    outbox_lines: int = 0


class EndedCommand(Struct, frozen=True):
    """One command with its outcome."""

    seq: int
    target: str
    action: str
    outcome: str
    took_s: float
    claimed_bytes: int | None = None
    freed_bytes: int | None = None
    subscriber: int | None = None
    age_s: float | None = None
    message: str | None = None


class LoadedConfig(Struct, frozen=True):
    """Where the configuration in force came from."""

    path: str | None = None


class OomRow(Struct, frozen=True):
    """The last OOM report of the kernel."""

    target: str | None = None
    scope: str = "unknown"
    pid: int | None = None
    comm: str | None = None
    kills: int = 0
    limit_cgroup: str | None = None
    why: str = ""
    remedy: str = ""


class KernelLogRow(Struct, frozen=True):
    """What the kernel's log has told since the start."""

    readable: bool = False
    why: str | None = None
    reports: int = 0
    victims: int = 0
    lost_records: int = 0
    last_report: OomRow | None = None


class ScoreRow(Struct, frozen=True):
    """One rule of oom_score_adj."""

    name: str
    value: int
    in_force: int = 0
    writes: int = 0
    corrections: int = 0
    failures: int = 0
    why: str | None = None


class ScoresRow(Struct, frozen=True):
    """oom_score_adj by rule."""

    told: bool = False
    why: str | None = None
    overruns: int = 0
    rules: list[ScoreRow] = field(default_factory=list)


class StateRow(Struct, frozen=True):
    """What outlives the daemon, and what the run before this one has left."""

    directory: str | None = None
    kept: bool | None = None
    continued: bool = False
    away_s: float | None = None
    recalled_targets: int = 0
    recalled_commands: int = 0
    told_again: int = 0
    faults: list[str] = field(default_factory=list)


class Status(Struct, frozen=True):
    """The whole answer."""

    version: str
    epoch: str
    uptime_s: float
    worst_level: str
    ready: bool
    stale_s: float | None = None
    config: LoadedConfig = LoadedConfig()
    machine: MachineRow = MachineRow()
    targets: list[TargetRow] = field(default_factory=list)
    subscribers: list[SubscriberRow] = field(default_factory=list)
    last_commands: list[EndedCommand] = field(default_factory=list)
    kernel_log: KernelLogRow = KernelLogRow()
    oom_scores: ScoresRow = ScoresRow()
    state: StateRow = StateRow()
