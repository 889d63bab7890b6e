"""Whether a target takes new requests now, as the gate and the subscribers that ask are told.

Must not: promise memory (admission does). Upstream: target. Downstream: engine, edgeguardd.gate.
"""

from edgeguardd.core.admission import RESERVATION_S
from edgeguardd.core.target import Target

# Retry-After has no fractions, and 0 would have clients ask at once.
LEAST_RETRY_S = 1.0


def closed(target: Target) -> str | None:
    """Why no request is taken; None: they are, as far as there is room for them."""
    if target.ledger.in_force().accept_requests:
        return None
    return f"requests are being rejected: {target.gauge.calls or target.reason}"


def retry_after_s(target: Target) -> float:
    """When asking again makes sense: a level falls no sooner than its dwell time."""
    return max(LEAST_RETRY_S, min(RESERVATION_S, target.policy.dwell_s))
