"""Orders that come out of the engine. All are imperatives; the shell carries them out in order, in dispatch.py.

Must not: know how they are carried out. Upstream: model. Downstream: engine, daemon.
"""

from collections.abc import Mapping

from msgspec import Struct

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.model import Action, Command, InForce, Level, Outcome

Fact = str | int | float | bool | None


class Welcome(Struct, frozen=True, tag=True):
    """Tell a subscriber who just joined what is in force now. Its commands follow as Deliver."""

    subscriber: int
    target: str | None
    level: Level
    in_force: InForce


class Deliver(Struct, frozen=True, tag=True):
    """Send a command to a subscriber; a newer command of the same action replaces an unsent older one.

    again: it was on its way before the daemon was restarted; number and parameters are as they were.
    """

    subscriber: int
    command: Command
    again: bool = False


class AnnounceLevel(Struct, frozen=True, tag=True):
    """Tell the target's subscribers and all observers the target's level. The latest replaces an unsent one."""

    target: str
    level: Level
    was: Level
    reason: str


class AnswerAdmit(Struct, frozen=True, tag=True):
    """Answer an admit question. A refusal says when asking again makes sense."""

    subscriber: int
    id: str
    granted: bool
    reason: str
    retry_after_s: float | None = None


class AnswerGate(Struct, frozen=True, tag=True):
    """Answer a proxy that asked for a request of a known size."""

    target: str
    granted: bool
    reason: str
    retry_after_s: float | None = None


class SignalPressure(Struct, frozen=True, tag=True):
    """Tell the watchers of a target to give up what they can spare; None: those of the whole machine."""

    target: str | None


class Refuse(Struct, frozen=True, tag=True):
    """Send an error line to a subscriber; the connection stays."""

    subscriber: int
    code: str
    message: str


class Disconnect(Struct, frozen=True, tag=True):
    """Say bye to a subscriber and close its connection."""

    subscriber: int
    reason: str


class SetTimer(Struct, frozen=True, tag=True):
    """Send TimerFired(key) at `at` (monotonic seconds); a timer of the same key is replaced."""

    key: str
    at: float


class CancelTimer(Struct, frozen=True, tag=True):
    """Forget a timer; unknown keys are fine."""

    key: str


class SampleEvery(Struct, frozen=True, tag=True):
    """Sample the target at this interval from now on."""

    target: str
    interval_s: float


class RaiseLimit(Struct, frozen=True, tag=True):
    """Write `to_bytes` to memory.high of the target's own cgroup, which stands at from_bytes now.

    The shell writes down the old value first. Answered by LimitRaised or ReliefFailed.
    """

    target: str
    from_bytes: int
    to_bytes: int


class PutBackLimit(Struct, frozen=True, tag=True):
    """Write the old memory.high back, unless somebody else changed it meanwhile. Answered by LimitPutBack."""

    target: str


class RunLastResort(Struct, frozen=True, tag=True):
    """Do this to the target's cgroup. reclaim_bytes is for reclaim. Answered by LastResortEnded."""

    target: str
    step: LastResortStep
    reclaim_bytes: int | None = None


class Thaw(Struct, frozen=True, tag=True):
    """End a freeze. Answered by LastResortEnded with outcome thawed."""

    target: str


class CommandEnded(Struct, frozen=True, tag=True):
    """A command has its outcome, once. `outcome` is one of model.Outcome.

    freed_bytes is what left the target's needed bytes between delivery and the end, as measured, less what another
    command was credited with meanwhile; None: unknown.
    """

    subscriber: int
    seq: int
    target: str
    action: Action
    outcome: Outcome
    took_s: float
    claimed_bytes: int | None
    freed_bytes: int | None
    message: str | None = None


class Note(Struct, frozen=True, tag=True):
    """Write one log line: a stable snake_case fact and the figures that made it."""

    severity: str
    event: str
    fields: Mapping[str, Fact]


Effect = (
    Welcome
    | Deliver
    | AnnounceLevel
    | AnswerAdmit
    | AnswerGate
    | SignalPressure
    | Refuse
    | Disconnect
    | SetTimer
    | CancelTimer
    | SampleEvery
    | RaiseLimit
    | PutBackLimit
    | RunLastResort
    | Thaw
    | CommandEnded
    | Note
)
