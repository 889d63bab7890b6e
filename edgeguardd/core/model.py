"""The nouns: frozen values that everything else speaks in.

Must not: do I/O, read a clock, know a file format. Upstream: nothing. Downstream: everybody.
Sizes are bytes, times are monotonic seconds, ratios are 0…1; the unit is in the name.
"""

import enum

from msgspec import Struct


class Level(enum.IntEnum):
    """How bad it is for one target. Ordered: a higher level calls for more."""

    NORMAL = 0
    ELEVATED = 1
    HIGH = 2
    CRITICAL = 3
    EMERGENCY = 4

    @property
    def word(self) -> str:
        """The level as protocol, log and metrics spell it."""
        return self.name.lower()

    def __str__(self) -> str:
        """The word: print(guard.level) is for people, and the number is for comparing."""
        return self.word

    def __format__(self, spec: str) -> str:
        """As the word, in f-strings as well."""
        return format(self.word, spec)


class Action(enum.StrEnum):
    """What a command asks a subscriber to do."""

    TRIM_KV_CACHE = "trim_kv_cache"
    REDUCE_BATCH = "reduce_batch"
    REJECT_REQUESTS = "reject_requests"
    UNLOAD_MODEL = "unload_model"
    RESTORE = "restore"


class AckStatus(enum.StrEnum):
    """A subscriber's answer to a command. All but `accepted` are final."""

    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class AckEffect(enum.StrEnum):
    """What a subscriber says became of the memory: nothing, only its own bookkeeping, or pages given back."""

    NONE = "none"
    LOGICAL = "logical"
    RELEASED = "released"


class Outcome(enum.StrEnum):
    """How a command ended. Each command has exactly one."""

    DONE = "done"
    INEFFECTIVE = "ineffective"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    LOST = "lost"
    DROPPED = "dropped"


class LastResort(enum.StrEnum):
    """What the daemon does itself when nobody answers or nothing helps. Off unless configured, level by level."""

    RECLAIM = "reclaim"
    FREEZE = "freeze"
    SIGNAL = "signal"
    RESTART = "restart"
    KILL = "kill"


class Role(enum.StrEnum):
    """What a connection is for: it obeys commands, or it only looks."""

    INFERENCE = "inference"
    OBSERVER = "observer"


class LimitKind(enum.StrEnum):
    """Which file holds the limit that binds."""

    HIGH = "memory.high"
    MAX = "memory.max"


class Counters(Struct, frozen=True):
    """One reading of a `memory.events` file. None: this kernel does not print the key (unknown, not zero)."""

    low: int | None = None
    high: int | None = None
    max: int | None = None
    oom: int | None = None
    oom_kill: int | None = None
    oom_group_kill: int | None = None
    sock_throttled: int | None = None


class Usage(Struct, frozen=True):
    """One cgroup's memory figures at one time. A limit of None means "max": no limit here.

    needed_bytes is what cannot be dropped for free: anon + shmem + unreclaimable kernel memory + mapped file.
    It is None when memory.stat was cut or unreadable; then current_bytes is the only, pessimistic, figure.
    refaulted_bytes counts what was read again after it had been evicted; mapped_bytes is memory.stat's file_mapped;
    psi_some_us is the running total of memory.pressure, None where the kernel has no PSI.
    """

    path: str
    current_bytes: int
    needed_bytes: int | None
    high_bytes: int | None
    max_bytes: int | None
    swap_bytes: int | None = None
    swap_max_bytes: int | None = None
    refaulted_bytes: int | None = None
    mapped_bytes: int | None = None
    psi_some_us: int | None = None


class DeviceUsage(Struct, frozen=True):
    """Memory of a device that the cgroup may not be charged for: a GPU's own, or NvMap's share of the RAM."""

    name: str
    used_bytes: int
    total_bytes: int


class MachineSample(Struct, frozen=True):
    """One reading of the whole machine. None: this kernel does not say, or what it says is implausible.

    swap figures cover zram as well, which shows as swap; they are read again each time, since swap comes and goes.
    psi_some_us is the running total of /proc/pressure/memory.
    """

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    psi_some_us: int | None = None
    devices: tuple[DeviceUsage, ...] = ()


class Sample(Struct, frozen=True):
    """One reading of a target: its own figures first, then each ancestor that has a limit, towards the root."""

    target: str
    usages: tuple[Usage, ...]


class Parameters(Struct, frozen=True, omit_defaults=True):
    """What a command asks for, in absolute terms, so that obeying it twice is harmless.

    release_bytes        how much to give back now (trim_kv_cache)
    needed_target_bytes  the needed bytes the target should come down to (trim_kv_cache)
    max_batch_ratio      share of the *configured* batch that may run (reduce_batch, restore)
    accept_requests      whether new requests may be taken (reject_requests, restore)
    model_loaded         whether the model may be in memory (unload_model, restore)
    """

    release_bytes: int | None = None
    needed_target_bytes: int | None = None
    max_batch_ratio: float | None = None
    accept_requests: bool | None = None
    model_loaded: bool | None = None


class InForce(Struct, frozen=True):
    """The lasting restrictions on a target's subscribers: what welcome tells and restore lifts."""

    max_batch_ratio: float = 1.0
    accept_requests: bool = True
    model_loaded: bool = True


class Command(Struct, frozen=True):
    """One order to one subscriber. `seq` rises per target; the deadline counts from delivery."""

    seq: int
    target: str
    action: Action
    parameters: Parameters
    level: Level
    reason: str
    deadline_s: float


class Report(Struct, frozen=True, omit_defaults=True):
    """What a server says of itself. None: not said (the last word stands)."""

    static_bytes: int | None = None
    kv_bytes: int | None = None
    running: int | None = None
    waiting: int | None = None
    batch_limit: int | None = None
    bytes_per_token: int | None = None
    bytes_per_request: int | None = None
