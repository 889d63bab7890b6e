"""The gate for servers that cannot refuse: /admit for proxies, and the sentence of HAProxy's agent check.

Must not: judge memory (core does), speak HTTP (serve does). Upstream: engine. Downstream: daemon, serve.http,
serve.agent. How each proxy is set up: docs/how-to/gate.md.

Asking without a size reserves nothing and leaves no trace: the answer is what the ladder says now. Asking with a size
goes through the engine, which keeps the granted bytes for `hold`, and by itself gives them back.
"""

import enum
import math
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from edgeguardd.core import gate
from edgeguardd.core.config import GateConfig
from edgeguardd.core.effects import AnswerGate
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import GateAsked
from edgeguardd.core.target import Target
from edgeguardd.core.text import printable
from edgeguardd.logs import get_logger
from edgeguardd.serve.gatestats import GateStats
from edgeguardd.serve.http import Request, Response

ROOT = "/admit"
ANY_TARGET = "-"
KEYS = frozenset({"mode", "target", "bytes", "tokens"})
MAX_FIELDS = 16
MAX_DIGITS = 18
MAX_UNKNOWN = 32
JSON = "application/json"

log = get_logger()


class Mode(enum.StrEnum):
    """Who asks: each proxy takes another status for a refusal, and one of them another for a yes."""

    NGINX = "nginx"
    ENVOY = "envoy"
    CADDY = "caddy"
    TRAEFIK = "traefik"
    DIRECT = "direct"


# mode -> status of a yes, status of a refusal
STATUSES = {
    # auth_request takes 2xx, 401 and 403; anything else becomes a 500 (ngx_http_auth_request_module).
    Mode.NGINX: (204, 403),
    # ext_authz takes 200 alone for a yes, and 5xx for a broken gate, which failure_mode_allow lets pass (Envoy 1.40).
    Mode.ENVOY: (200, 429),
    # forward_auth, ForwardAuth: 2xx lets through, any other answer goes to the client as it is.
    Mode.CADDY: (204, 503),
    Mode.TRAEFIK: (204, 503),
    Mode.DIRECT: (204, 503),
}


class Question(Struct, frozen=True):
    """What a proxy asks. target None: of all that is guarded."""

    mode: Mode = Mode.DIRECT
    target: str | None = None
    bytes: int | None = None
    tokens: int | None = None


class Verdict(Struct, frozen=True):
    """The answer: why not, and when to ask again; refusal None: yes."""

    refusal: str | None = None
    retry_after_s: float = gate.LEAST_RETRY_S


class BadQuestion(Exception):  # noqa: N818  it becomes an answer, never a traceback
    """The question cannot be understood: the sentence says why, and what to write."""


class Gate:
    """Answers for one daemon. `config` may be replaced at any time."""

    def __init__(self, engine: Engine, emit: Callable[[GateAsked], None], config: GateConfig) -> None:
        self.config = config
        self.stats = GateStats()
        self._engine = engine
        self._emit = emit
        self._answer: AnswerGate | None = None
        self._said_closed: set[str] = set()
        self._said_unknown: set[str] = set()

    # HTTP

    def admit(self, request: Request) -> Response:
        """/admit?mode=…&target=…&bytes=…&tokens=…, or /admit/MODE/TARGET and anything after it."""
        try:
            question = _question(request)
            verdict = self._verdict(question)
        except BadQuestion as bad:
            self.stats.count("unknown", "bad")
            log.warning("gate_asked_wrongly", why=str(bad))
            return Response(400, JSON, _body(str(bad), "invalid_request_error", "bad_gate_question"))
        granted_status, refused_status = STATUSES[question.mode]
        if verdict.refusal is None:
            self.stats.count(question.mode.value, "granted")
            return Response(granted_status, JSON, b"")
        self.stats.count(question.mode.value, "refused")
        body = _body(f"no request can be taken now: {verdict.refusal}", "overloaded_error", "memory_pressure")
        return Response(refused_status, JSON, body, (("Retry-After", str(math.ceil(verdict.retry_after_s))),))

    def answered(self, effect: AnswerGate) -> None:
        """The engine's answer to the question that was just emitted."""
        self._answer = effect

    def _verdict(self, question: Question) -> Verdict:
        targets = self._targets(question.target)
        if not targets and question.target is not None:
            sentence = f"no target {printable(question.target or '', 80)} is guarded; see /status for those that are"
            raise BadQuestion(f"cannot answer: {sentence}")
        for target in targets:
            refusal = gate.closed(target)
            self._tell(target.name, refusal)
            if refusal is not None:
                return Verdict(refusal, gate.retry_after_s(target))
        size_bytes = _size_bytes(question, targets)
        return Verdict() if size_bytes is None else self._reserved(targets[0].name, size_bytes)

    def _reserved(self, target: str, size_bytes: int) -> Verdict:
        """The engine's word, which makes a promise; the event loop is in nobody else's hands meanwhile."""
        self._emit(GateAsked(target, size_bytes, self.config.hold_s))
        answer = self._take_answer()
        if answer is None:
            raise RuntimeError("the engine gave no answer")
        return Verdict(None if answer.granted else answer.reason, answer.retry_after_s or gate.LEAST_RETRY_S)

    def _take_answer(self) -> AnswerGate | None:
        answer, self._answer = self._answer, None
        return answer

    def _targets(self, name: str | None) -> list[Target]:
        if name is None:
            return list(self._engine.targets.values())
        found = self._engine.targets.get(name)
        return [] if found is None else [found]

    def _tell(self, target: str, refusal: str | None) -> None:
        """One line when the gate closes for a target, one when it opens: not one a request."""
        if (refusal is not None) is (target in self._said_closed):
            return
        if refusal is None:
            self._said_closed.discard(target)
            log.info("gate_opened", target=target)
        else:
            self._said_closed &= set(self._engine.targets)
            self._said_closed.add(target)
            log.warning("gate_closed", target=target, why=refusal)

    # HAProxy

    def agent(self, line: str) -> str:
        """What the agent check says: of the target in `line` (`TARGET MAXCONN`, both optional), else of all.

        `drain` takes the server out for new requests; `ready up maxconn:N` brings it back with so many connections as
        the ladder allows of those that the line, or the server itself, says it takes. Where nobody says, the same share
        is told as a weight, which counts between several servers of a backend.
        """
        name, most = _agent_words(line)
        targets = self._targets(None if name in ("", ANY_TARGET) else name)
        known = bool(targets) or name in ("", ANY_TARGET)
        refusals = [refusal for target in targets if (refusal := gate.closed(target)) is not None]
        self.stats.count("haproxy", ("refused" if refusals else "granted") if known else "bad")
        if refusals:
            return "drain"
        if not known:
            self._tell_unknown(name)
        ratio = min((target.ledger.in_force().max_batch_ratio for target in targets), default=1.0)
        most = most or _batch_limit(targets)
        # 0 would mean without limit.
        share = f"maxconn:{max(1, math.floor(most * ratio))}" if most else f"{math.ceil(100 * ratio)}%"
        return f"ready up {share}"

    def _tell_unknown(self, name: str) -> None:
        """HAProxy asks every two seconds for ever; that its configuration is wrong is said once."""
        if name not in self._said_unknown and len(self._said_unknown) < MAX_UNKNOWN:
            self._said_unknown.add(name)
            sentence = f"the agent check asks for {printable(name, 80)}, and no such target is guarded"
            log.warning("gate_asked_wrongly", why=f"{sentence}: it is told to go on")


def _question(request: Request) -> Question:
    """Raises BadQuestion."""
    below = request.path.removeprefix(ROOT)
    return _in_path(below) if below else _in_query(request)


def _in_path(below: str) -> Question:
    """/MODE/TARGET, both said: a proxy's variable that is not set must not become a question about something else.

    What follows is the client's own path, and the query is the client's as well: neither is looked at.
    """
    mode, _, rest = below.removeprefix("/").partition("/")
    target = unquote(rest.partition("/")[0])
    if not mode or not target:
        what = "target" if mode else "mode"
        raise BadQuestion(
            f"cannot answer: the path names no {what}; write {ROOT}/MODE/TARGET, with {ANY_TARGET} for all targets"
        )
    return Question(_mode(mode), None if target == ANY_TARGET else target)


def _in_query(request: Request) -> Question:
    try:
        pairs = parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise BadQuestion(f"cannot read over {MAX_FIELDS} parameters") from None
    given = dict(pairs)
    if len(given) < len(pairs) or not set(given) <= KEYS:
        words = ", ".join(sorted(KEYS))
        raise BadQuestion(f"cannot read the query: a parameter is unknown or given twice; there are {words}")
    # A proxy's variable that is not set makes an empty value.
    given = {key: value for key, value in given.items() if value}
    size_bytes, tokens = _count(given, "bytes"), _count(given, "tokens")
    if (size_bytes, tokens) != (None, None) and "target" not in given:
        raise BadQuestion("cannot reserve memory in all targets: name one with target=, or leave bytes and tokens out")
    return Question(_mode(given.get("mode", Mode.DIRECT)), given.get("target"), size_bytes, tokens)


def _mode(word: str) -> Mode:
    try:
        return Mode(word)
    except ValueError:
        words = ", ".join(Mode)
        raise BadQuestion(f"cannot answer in mode {printable(word, 40)}: there are {words}") from None


def _count(given: dict[str, str], key: str) -> int | None:
    word = given.get(key)
    if word is None:
        return None
    if len(word) > MAX_DIGITS or not (word.isascii() and word.isdecimal()):
        raise BadQuestion(f"cannot read {key}: write a whole number of at most {MAX_DIGITS} digits")
    return int(word)


def _size_bytes(question: Question, targets: list[Target]) -> int | None:
    """How much the request needs, as far as that is known: what the asker says, or tokens as the server weighs them."""
    if question.bytes is not None or question.tokens is None:
        return question.bytes
    weights = (report.bytes_per_token for report in targets[0].reports.values())
    heaviest = max((weight for weight in weights if weight is not None), default=None)
    return None if heaviest is None else question.tokens * heaviest


def _agent_words(line: str) -> tuple[str, int]:
    """Target and connections; "" and 0 for what is not said."""
    words = line.split()
    most = words[1] if len(words) > 1 else ""
    return words[0] if words else "", int(most) if most.isascii() and most.isdecimal() and len(most) < MAX_DIGITS else 0


def _batch_limit(targets: Iterable[Target]) -> int:
    return sum(report.batch_limit or 0 for target in targets for report in target.reports.values())


def _body(message: str, kind: str, code: str) -> bytes:
    """An error as OpenAI's API has it, which clients of inference servers can read."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}}) + b"\n"
