"""The gate's own answers, in the form that OpenAI clients read.

Must not: decide who may in. Upstream: places. Downstream: gate.
"""

import json

from msgspec import Struct

from edgeguardd.bridges.places import Refusal

_WRONG = "invalid_request_error"


class GateError(Struct, frozen=True):
    """An answer of the gate's own."""

    status: int
    phrase: str
    kind: str
    code: str
    message: str

    def body(self) -> bytes:
        """As JSON."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()


FORBIDDEN = GateError(
    403,
    "Forbidden",
    _WRONG,
    "operators_only",
    "this call is the operator's; ask the server itself, past the gate",
)
NO_PROXY = GateError(
    400,
    "Bad Request",
    _WRONG,
    "bad_request",
    "cannot pass this on: only the one server is behind this gate, and its paths begin with /; write GET /PATH",
)
TOO_SLOW = GateError(
    408,
    "Request Timeout",
    _WRONG,
    "request_timeout",
    "cannot wait for the rest of the request: it comes too slowly; send it again, faster",
)
NO_ANSWER = GateError(502, "Bad Gateway", "server_error", "no_answer", "the server ended without an answer")


def unreadable(why: Exception) -> GateError:
    """What came is no request."""
    return GateError(400, "Bad Request", _WRONG, "bad_request", f"cannot read it: {why}")


def overloaded(refusal: Refusal) -> GateError:
    """Not now."""
    return GateError(503, "Service Unavailable", "overloaded_error", refusal.code, refusal.reason)
