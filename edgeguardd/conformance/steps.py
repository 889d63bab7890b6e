"""The words that transcripts are written in: the guard's lines, the client's, and the beginnings that many share.

Must not: do I/O, know a case. Upstream: script, core.wire. Downstream: cases.
"""

from typing import Any

from edgeguardd.conformance.script import (
    CONTRACT_REASON,
    LOST_AFTER_S,
    Case,
    Give,
    How,
    Shows,
    Step,
    Want,
    say,
)
from edgeguardd.core import wire
from edgeguardd.core.model import Action, Parameters

DEADLINE_S = 5.0
FAIL = f"{CONTRACT_REASON}fail"
SLOW = f"{CONTRACT_REASON}slow"
WHY = "needed 830.0 MiB is 81% of the range below memory.high"
MIB = 2**20

HELLO = Want({"type": "hello"})


def welcome(epoch: str = "e1", *, ratio: float = 1.0, accept: bool = True, heartbeat_s: float = 10.0) -> Give:
    """The guard lets the client in, and says what is in force."""
    level = "normal" if accept else "critical"
    return say(wire.WelcomeLine(1, epoch, "llm", level, ratio, accept, True, heartbeat_s))


def command(
    seq: int, action: str, reason: str = WHY, how: How = How.ALONE, deadline_s: float = DEADLINE_S, **parameters: Any
) -> Give:
    """The guard orders something."""
    return say(
        wire.CommandLine(1, seq, "llm", action, Parameters(**parameters), "high", reason, deadline_s),
        how,
    )


def trim(seq: int, reason: str = WHY, how: How = How.ALONE) -> Give:
    """A trim of 267 MiB."""
    return command(seq, Action.TRIM_KV_CACHE, reason, how, release_bytes=267 * MIB, needed_target_bytes=563 * MIB)


def reduce(seq: int, ratio: float, how: How = How.ALONE) -> Give:
    """Smaller batches."""
    return command(seq, Action.REDUCE_BATCH, how=how, max_batch_ratio=ratio)


def reject(seq: int, how: How = How.ALONE) -> Give:
    """No more requests."""
    return command(seq, Action.REJECT_REQUESTS, how=how, accept_requests=False)


def restore(seq: int, ratio: float = 1.0) -> Give:
    """Back to normal, or a part of the way."""
    return command(
        seq, Action.RESTORE, "level is normal", max_batch_ratio=ratio, accept_requests=True, model_loaded=True
    )


def acked(seq: int, status: str = "done") -> Want:
    """The client answers a command."""
    return Want({"type": "ack", "seq": seq, "status": status})


def ping(name: str, how: How = How.ALONE) -> Give:
    """The guard asks for a sign of life."""
    return say(wire.Ping(id=name), how)


def pong(name: str) -> Want:
    """The client gives one."""
    return Want({"type": "pong", "id": name})


def state(**fields: Any) -> Shows:
    """What the client tells its program."""
    return Shows(fields)


def case(name: str, rule: str, *steps: Step, lost_after_s: float = LOST_AFTER_S) -> Case:
    """One transcript; what it holds a client to."""
    return Case(name, rule, steps, lost_after_s)


BEGIN = (HELLO, welcome())
RESTRICTED = (HELLO, welcome(ratio=0.25, accept=False), state(max_batch_ratio=0.25, accept_requests=False))
# On a busy machine half a second is over before the connection is closed.
EARLY = Want({"type": "ack", "seq": 1, "status": "done"}, optional=True)
FREE = state(max_batch_ratio=1.0, accept_requests=True)
