"""The conformance suite: right clients pass, and wrong ones fail with a sentence that says why."""

import concurrent.futures
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator

import pytest

from edgeguardd.cli import edgeguardctl
from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.play import Outcome, Result, play_all
from tests.support import rawclient
from tests.support.running import REPOSITORY

RAW = [sys.executable, "-S", "-E", os.path.join(REPOSITORY, "tests/support/rawclient.py")]
BY_NAME = {case.name: case for case in CASES}

# Kind of wrong client, a case that finds it out, and words of the sentence that says why.
FINDINGS = [
    ("silent", "hello-first", 'did not say {"type":"hello","role":"inference"} within 1 s'),
    ("hasty", "hello-first", "said report before it was welcome"),
    ("no-json", "hello-first", "sent Hello, I am a server., which no server takes (bad_json)"),
    ("ack-next", "trim", "acked command 2, which it was not sent on this connection"),
    ("ack-twice", "trim", 'acked command 1 again ("done") after its final ack'),
    ("ack-accepted", "deadline", "command 1 got no final ack within its deadline of 2 s"),
    ("no-ack", "deadline", "command 1 got no final ack within its deadline of 2 s"),
    ("late", "deadline", "command 1 got no final ack within its deadline of 2 s"),
    ("relative", "absolute", 'printed the state {"max_batch_ratio":0.25} where {"max_batch_ratio":0.5} was due'),
    ("eager", "unknown-action", "command 1 was acked done where unsupported was due"),
    ("optimist", "failing-handler", "command 1 was acked done where failed was due"),
    ("float-seq", "gaps", "acked command 9007199254740992, which it was not sent"),
    ("deaf", "ping", 'did not say {"type":"pong","id":"1"} within 1 s'),
    ("forgetful", "ping", """the client's pong says {"id":null} where {"id":"1"} was due"""),
    ("ascii", "utf-8", "pong"),
    ("one-read", "pieces", "the program ended with status 1; its last words: json.decoder.JSONDecodeError"),
    ("first-line", "together", "within"),
    ("short-lines", "long-line", "command 1 got no final ack"),
    ("strict-types", "unknown-type", "ended with status 1; its last words: cannot take confetti"),
    ("answers-unknown", "unknown-type", "which no server takes (unknown_type)"),
    ("strict-json", "garbage", "the program ended with status 1"),
    ("ignores-welcome", "welcome-in-force", "the program printed no state where"),
    ("never-lifts", "welcome-lifts", '"max_batch_ratio":0.25'),
    ("restores-all", "restore", 'printed the state {"max_batch_ratio":1.0'),
    ("keeps-rest", "cut-off", 'printed the state {"max_batch_ratio":1.0} where {"max_batch_ratio":0.5} was due'),
    ("remembers", "new-epoch", "command 1 got no final ack within its deadline of 5 s"),
    ("remembers", "repeat", "command 1 got no final ack within its deadline of 5 s"),
    ("stale-acks", "old-acks", "acked command 1, which it was not sent on this connection"),
    ("quits-at-bye", "bye", "ended with status 1; its last words: the server has left"),
    ("quits-at-error", "error", "ended with status 1; its last words: the server says unknown_seq"),
    ("busy", "back-off", "a busy loop; its pauses were"),
    ("steady", "back-off", "the client's pauses do not grow"),
    ("panics", "gone", '"max_batch_ratio":1.0'),
    ("loyal", "lost", '"max_batch_ratio":0.25'),
    ("mute", "trim", 'printed no state where {"trims":1} was due'),
    ("trims-only", "lasting", "hello does not list reduce_batch, reject_requests in supports"),
]


def played(kind: str, case: str, *, timeout_s: float = 1.0, strict: bool = True) -> Result:
    """One case with one raw client."""
    (result,) = play_all([BY_NAME[case]], [*RAW, kind], timeout_s=timeout_s, strict=strict, jobs=1)
    return result


@pytest.fixture(scope="module")
def found() -> Iterator[dict[tuple[str, str], Result]]:
    """Each finding, played; many at once, because most of the time goes by waiting."""
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        pairs = [(kind, case) for kind, case, _ in FINDINGS]
        yield dict(zip(pairs, pool.map(lambda pair: played(*pair), pairs), strict=True))


@pytest.mark.parametrize(("kind", "case", "sentence"), FINDINGS)
def test_a_wrong_client_is_told_why(found: dict[tuple[str, str], Result], kind: str, case: str, sentence: str) -> None:
    """Not that something failed, but what it did, and what was due instead."""
    result = found[kind, case]
    assert result.outcome is Outcome.FAILED
    assert sentence in result.why, result


def test_every_kind_of_wrong_client_is_found_out() -> None:
    """And most of the cases find somebody out."""
    assert {kind for kind, _, _ in FINDINGS} == set(rawclient.WRONG) - {""}


def conformance(*argv: str) -> tuple[int, str]:
    """edgeguardctl conformance, in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = edgeguardctl.main(["conformance", *argv])
    return status, output.getvalue()


CLIENTS = {
    "raw": RAW,
    "asyncio": [sys.executable, "packaging/python/asyncio_server.py"],
    "blocking": [sys.executable, "packaging/python/blocking_server.py"],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_right_client_passes_every_case(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty lines of sockets, and both clients of ours."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PYTHONPATH", REPOSITORY)
    status, output = conformance("--json", "--jobs", "12", "--timeout", "20", "--exec", *CLIENTS[client])
    told = json.loads(output)
    assert [(case["name"], case["why"]) for case in told["cases"] if case["outcome"] != "passed"] == []
    assert (status, told["passed"], told["failed"], told["left_out"]) == (0, len(CASES), 0, 0)
