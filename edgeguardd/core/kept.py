"""What outlives the daemon: levels, rungs, commands on their way, what was learned. Frozen, and written as JSON.

Must not: hold what two samples show anew (growth, stalls), know files. Upstream: model. Downstream: events, resume.

Times are CLOCK_MONOTONIC seconds, which go on for all processes of one run of the kernel. Every field that is added has
a default, so that a newer version reads what an older one wrote; a field of a newer one is passed over.
"""

from msgspec import Struct

from edgeguardd.core.model import Action, Command, Level, Parameters, Report


class Course(Struct):
    """How far a ledger has come on its rung: what it remembers between two calls, beside rung and subscribers.

    repeat_at         when the rung may be asked again
    helped, answered  of the present round: whether some command brought something, whether a server answered at all
    rest_bytes        needed bytes when the ladder had ended; repeats wait until they have grown
    held_at_bytes     needed bytes when the rung was reached, or held because they had grown since
    freed             whether a trim has helped since
    """

    repeat_at: float = 0.0
    helped: bool = False
    answered: bool = False
    rest_bytes: int | None = None
    held_at_bytes: int | None = None
    freed: bool = False


class KeptCommand(Struct, frozen=True):
    """One command on its way, with all that it takes to tell it again and to judge its answer.

    told: its subscriber has heard of it; not, where it was given while that one was away.
    ends_by: when it ends, however often the daemon is restarted from here on; None: no restart has been yet.
    """

    command: Command
    sent_at: float
    due_at: float
    needed_at_send: int | None = None
    accepted: bool = False
    done: bool = False
    claimed_bytes: int | None = None
    message: str | None = None
    told: bool = True
    credited_bytes: int = 0
    ends_by: float | None = None


class KeptSubscriber(Struct, frozen=True):
    """One inference server: known again by its name and its process. Its commands in order."""

    name: str
    pid: int
    supports: frozenset[Action] = frozenset()
    applied: dict[Action, Parameters] = {}
    told: dict[Action, Parameters] = {}
    restore_attempts: int = 0
    restore_at: float | None = None
    report: Report | None = None
    commands: tuple[KeptCommand, ...] = ()


class KeptTarget(Struct, frozen=True):
    """One target. `level` is its own; `announced`, which others may have raised, is what was told."""

    name: str
    path: str
    level: Level = Level.NORMAL
    reason: str = ""
    announced: Level = Level.NORMAL
    announced_reason: str = ""
    rung: Level = Level.NORMAL
    exhausted: bool = False
    rejecting: bool = False
    course: Course | None = None
    learned_static_bytes: int | None = None
    lead_s: float | None = None
    typical_bytes: int | None = None
    flaps: int = 0
    fell_at: float | None = None
    # level, place in its list, when it was last run
    resorted: tuple[tuple[int, int, float], ...] = ()
    subscribers: tuple[KeptSubscriber, ...] = ()
    # numbers of the last commands that ended, so that a late ack is known as one
    ended: tuple[int, ...] = ()


class KeptMachine(Struct, frozen=True):
    """The level of the whole machine."""

    level: Level = Level.NORMAL
    reason: str = ""


def learned_only(kept: KeptTarget) -> KeptTarget:
    """What is still true when the cgroup, or the kernel, is another one: what was learned of the server."""
    return KeptTarget(kept.name, kept.path, lead_s=kept.lead_s, typical_bytes=kept.typical_bytes)
