"""Facts that go into the engine. All are past tense, frozen, and can be recorded and replayed.

Must not: carry descriptors, sockets, clocks. Upstream: model. Downstream: engine, daemon, recorder.
The time of an event is not in it: `engine.handle(event, now)` is given it.
"""

from msgspec import Struct

from edgeguardd.core.config import Config, Policy
from edgeguardd.core.kept import KeptMachine, KeptTarget
from edgeguardd.core.model import (
    AckEffect,
    AckStatus,
    Action,
    Counters,
    LastResort,
    MachineSample,
    Report,
    Role,
    Sample,
)


class TargetAdded(Struct, frozen=True, tag=True):
    """A cgroup is to be guarded from now on; it may not exist yet. `path` is its place below the cgroup root."""

    target: str
    path: str
    policy: Policy


class TargetDropped(Struct, frozen=True, tag=True):
    """A target is guarded no longer (reload, or the last subscriber of a self target left)."""

    target: str


class CgroupAppeared(Struct, frozen=True, tag=True):
    """The target's cgroup is there and watched. Its counters start from what was read, so old kills raise nothing."""

    target: str


class CgroupVanished(Struct, frozen=True, tag=True):
    """The target's cgroup was removed (`systemctl restart` does this), or its memory controller was switched off."""

    target: str


class SampleTaken(Struct, frozen=True, tag=True):
    """The target's files were read."""

    sample: Sample


class SampleFailed(Struct, frozen=True, tag=True):
    """The target's files could not be read or understood; the target is degraded until a sample succeeds."""

    target: str
    reason: str


class CountersMoved(Struct, frozen=True, tag=True):
    """memory.events of the target or of an ancestor counted up. `path` says whose file, `delta` by how much.

    A SampleTaken of the same reading comes first. `local` is the target's own file.
    """

    target: str
    path: str
    local: bool
    delta: Counters


class KillsNearRemoval(Struct, frozen=True, tag=True):
    """The target's cgroup was removed before its last counts were read, and its parent has counted kills since.

    They are the target's or another child's: the kernel keeps no more. Comes before CgroupVanished.
    """

    target: str
    parent: str
    kills: int


class MachineSampled(Struct, frozen=True, tag=True):
    """The whole machine was read."""

    sample: MachineSample


class LimitRaised(Struct, frozen=True, tag=True):
    """memory.high of the target's cgroup stands at raised_bytes for the length of a trim; it was high_bytes."""

    target: str
    high_bytes: int
    raised_bytes: int


class LimitPutBack(Struct, frozen=True, tag=True):
    """A raised memory.high is not ours any more. outcome: restored, changed (by somebody else: left), gone, failed."""

    target: str
    outcome: str
    message: str | None = None


class ReliefFailed(Struct, frozen=True, tag=True):
    """memory.high could not be raised (not writable, no state directory): no relief for this target."""

    target: str
    message: str


class LastResortEnded(Struct, frozen=True, tag=True):
    """The daemon did something itself, and this is what came of it. outcome: done, failed, thawed."""

    target: str
    action: LastResort
    outcome: str
    message: str | None = None


class KillsWhileAway(Struct, frozen=True, tag=True):
    """memory.events of the target's cgroup had counted kills before this run looked, and no run before it has told.

    new_cgroup: the cgroup was made meanwhile, and all that it has counted is news.
    """

    target: str
    kills: int
    new_cgroup: bool = False


class StateRecalled(Struct, frozen=True, tag=True):
    """What a daemon before this one has left: the first event, before any target is added.

    last_seq is the last number that it gave to a command; who was subscribed has wait_s to come back.
    """

    targets: tuple[KeptTarget, ...]
    machine: KeptMachine
    last_seq: int
    wait_s: float


class SubscriberJoined(Struct, frozen=True, tag=True):
    """A peer said hello and was let in. An observer's target may be None: it sees all. pid: 0 where it is not known."""

    subscriber: int
    name: str
    role: Role
    target: str | None
    supports: frozenset[Action]
    pid: int = 0


class SubscriberLeft(Struct, frozen=True, tag=True):
    """A connection ended, whoever ended it."""

    subscriber: int
    reason: str


class AckReceived(Struct, frozen=True, tag=True):
    """A subscriber answered a command."""

    subscriber: int
    seq: int
    status: AckStatus
    effect: AckEffect | None = None
    released_bytes: int | None = None
    message: str | None = None


class ReportReceived(Struct, frozen=True, tag=True):
    """A subscriber told its own figures; `finished` are ids of admitted requests that are done."""

    subscriber: int
    report: Report
    finished: tuple[str, ...] = ()


class AdmitAsked(Struct, frozen=True, tag=True):
    """A subscriber asks whether it may take a request. None: the size is not known to the asker."""

    subscriber: int
    id: str
    bytes: int | None = None
    tokens: int | None = None


class GateAsked(Struct, frozen=True, tag=True):
    """A proxy asks whether a request of a known size may go to the target; let through, it has its bytes for hold_s."""

    target: str
    bytes: int
    hold_s: float


class TimerFired(Struct, frozen=True, tag=True):
    """A timer that the engine had set ran out."""

    key: str


class ConfigReloaded(Struct, frozen=True, tag=True):
    """A new, valid configuration is in force. The targets that it adds and drops come as events of their own."""

    config: Config


Event = (
    TargetAdded
    | TargetDropped
    | CgroupAppeared
    | CgroupVanished
    | SampleTaken
    | SampleFailed
    | CountersMoved
    | KillsNearRemoval
    | KillsWhileAway
    | StateRecalled
    | MachineSampled
    | LimitRaised
    | LimitPutBack
    | ReliefFailed
    | LastResortEnded
    | SubscriberJoined
    | SubscriberLeft
    | AckReceived
    | ReportReceived
    | AdmitAsked
    | GateAsked
    | TimerFired
    | ConfigReloaded
)
