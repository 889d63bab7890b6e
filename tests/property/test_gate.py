"""Whatever proxies, or those behind them, ask: there is an answer, and it is one that they understand."""

import re

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.core.config import GateConfig, Policy
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import GateAsked, SampleTaken, TargetAdded
from edgeguardd.core.model import Sample, Usage
from edgeguardd.gate import STATUSES, Gate
from edgeguardd.serve.http import Request, Response

AGENT = re.compile(r"drain|ready up ([1-9]\d*%|maxconn:[1-9]\d*)")
WORDS = st.sampled_from(
    ["mode", "target", "bytes", "tokens", "nginx", "envoy", "llm", "-", "1", "=", "&", "/", "%", "?"]
)
texts = st.lists(WORDS | st.text(max_size=5), max_size=12).map("".join)


def gate_at(needed_bytes: int) -> Gate:
    """The gate of an engine that guards one target of 1000 bytes."""
    engine = Engine()
    made: list[Gate] = []

    def emit(event: GateAsked) -> None:
        for effect in engine.handle(event, 1.0):
            made[0].answered(effect)  # type: ignore[arg-type]  # the gate's own event has its answer alone

    engine.handle(TargetAdded("llm", "/llm", Policy()), 0.0)
    engine.handle(SampleTaken(Sample("llm", (Usage("/llm", needed_bytes, needed_bytes, None, 1000),))), 0.0)
    made.append(Gate(engine, emit, GateConfig()))
    return made[0]


def check(answer: Response) -> None:
    """One of the statuses that there are; a refusal with the rest that belongs to it."""
    assert answer.status in {400, *(status for both in STATUSES.values() for status in both)}
    if answer.status in {403, 429, 503}:
        ((name, value),) = answer.headers
        assert (name, int(value) >= 1) == ("Retry-After", True)
    assert bool(answer.body) is (answer.status not in {200, 204})


@given(texts, texts, st.integers(0, 1200))
def test_any_question_has_an_answer(below: str, query: str, needed_bytes: int) -> None:
    """In the path, in the query, at any level."""
    gate = gate_at(needed_bytes)
    check(gate.admit(Request("GET", "/admit", query)))
    check(gate.admit(Request("GET", f"/admit/{below}", query)))


@given(st.sampled_from(["bytes", "tokens"]), st.integers(), st.sampled_from(sorted(STATUSES)))
def test_any_size_has_an_answer(key: str, size: int, mode: str) -> None:
    """Down to less than nothing and up to more than there is."""
    answer = gate_at(100).admit(Request("GET", "/admit", f"target=llm&mode={mode}&{key}={size}"))
    check(answer)
    fits = key == "tokens" or size <= 820
    wanted = 400 if not 0 <= size < 10**18 else STATUSES[mode][0 if fits else 1]  # type: ignore[index]
    assert answer.status == wanted


@given(st.text(max_size=300), st.integers(0, 1200))
def test_any_line_of_the_agent_check_has_an_answer(line: str, needed_bytes: int) -> None:
    """Never maxconn:0, which would mean without limit."""
    gate = gate_at(needed_bytes)
    for asked in (line, f"llm {line}", f"- {line}"):
        assert AGENT.fullmatch(gate.agent(asked))
