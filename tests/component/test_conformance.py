"""The conformance suite: right clients pass, and wrong ones fail with a sentence that says why."""

import ast
import concurrent.futures
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeguardd.cli import edgeguardctl
from edgeguardd.conformance import link
from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.outcome import Outcome, Result
from edgeguardd.conformance.play import play_all
from edgeguardd.conformance.script import lines_of
from tests.support import rawclient
from tests.support.children import ending
from tests.support.documents.pages import blocks, commands
from tests.support.faketree import FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.subscribers import no_leaked_descriptors
from tests.support.wait import DEADLINE_S, eventually

RAW = [sys.executable, "-S", "-E", os.path.join(REPOSITORY, "tests/support/rawclient.py")]
HOW_TO = Path(REPOSITORY, "docs/how-to/write-a-client.md")
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
    ("forgets", "repeat", '"trims":2} where'),
    ("forgets", "told-again", '"trims":2} where'),
    ("forgets", "told-while-at-it", '"trims":3} where'),
    ("stale-acks", "old-acks", "acked command 1, which it was not sent on this connection"),
    ("quits-at-bye", "bye", "ended with status 1; its last words: the server has left"),
    ("quits-at-error", "error", "ended with status 1; its last words: the server says unknown_seq"),
    ("busy", "back-off", "a busy loop; its pauses were"),
    ("steady", "back-off", "the client's pauses do not grow"),
    ("panics", "gone", '"max_batch_ratio":1.0'),
    ("loyal", "lost", '"max_batch_ratio":0.25'),
    ("mute", "trim", 'printed no state where {"trims":1} was due'),
    ("trim-lifts", "lasting", 'printed the state {"max_batch_ratio":1.0,"accept_requests":true,"trims":1} where'),
    ("exact", "unknown-fields", "its last words: cannot take colour"),
    ("levels", "unknown-level", "its last words: cannot take apocalypse"),
    ("surprised", "unasked", "its last words: cannot take admission"),
    ("impatient", "heartbeat", "the client closed the connection"),
    ("patterns", "spelling", "got no final ack"),
    ("recursive", "nested", "its last words: RecursionError"),
    ("greedy", "too-long", "its last words: no room for this line"),
    ("amnesiac", "same-epoch", 'did not say {"type":"hello"} within 1 s'),
    ("trims-only", "lasting", "hello does not list reduce_batch, reject_requests in supports"),
]


def played(argv: list[str], case: str, *, timeout_s: float = 1.0, strict: bool = True) -> Result:
    """One case with one client."""
    (result,) = play_all([BY_NAME[case]], argv, timeout_s=timeout_s, strict=strict, jobs=1)
    return result


CLIENTS = {
    "raw": RAW,
    "asyncio": [sys.executable, "packaging/examples/python-client/asyncio_server.py"],
    "blocking": [sys.executable, "packaging/examples/python-client/blocking_server.py"],
}


def all_played(pairs: list[tuple[list[str], str]], timeout_s: float) -> list[Result]:
    """Many clients with a case each, at once, because most of the time is waiting."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda pair: played(*pair, timeout_s=timeout_s), pairs))


def test_each_wrong_client_is_told_why() -> None:
    """Not that something failed, but what it did, and what was due instead."""
    results = all_played([([*RAW, kind], case) for kind, case, _ in FINDINGS], timeout_s=1.0)
    for (kind, case, sentence), result in zip(FINDINGS, results, strict=True):
        assert (kind, case, result.outcome) == (kind, case, Outcome.FAILED), result
        assert sentence in result.why, (kind, case)


def test_every_wrong_client_is_found_out_and_every_case_finds_one() -> None:
    """A case that nobody can fail would show nothing."""
    assert {kind for kind, _, _ in FINDINGS} == set(rawclient.WRONG) - {""}
    assert {case for _, case, _ in FINDINGS} == set(BY_NAME)


def conformance(*argv: str) -> tuple[int, str]:
    """edgeguardctl conformance, in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = edgeguardctl.main(["conformance", *argv])
    return status, output.getvalue()


def printed(directory: Path) -> str:
    """The smallest client and its server, as they stand on the protocol's page."""
    for name, block in zip(("guarded.py", "server.py"), blocks("docs/reference/protocol.md", "python"), strict=True):
        ast.parse(block.text, feature_version=(3, 8))  # as the page says
        (directory / name).write_text(block.text)
    return str(directory / "server.py")


def test_each_right_client_passes_every_case(c_example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred lines of sockets, the one that the protocol's page prints, and ours; that in C with sanitizers on."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PYTHONPATH", REPOSITORY)
    clients = {**CLIENTS, "c": [c_example], "page": [sys.executable, "-S", printed(tmp_path)]}
    # The cases that wait for the longest come first.
    names = sorted(BY_NAME, key=lambda name: name not in {"back-off", "lost", "gone", "old-acks"})
    pairs = [(client, name) for name in names for client in clients]
    results = all_played([(clients[client], name) for client, name in pairs], timeout_s=DEADLINE_S)
    passed = {pair: result.outcome is Outcome.PASSED for pair, result in zip(pairs, results, strict=True)}
    whys = {pair: result.why for pair, result in zip(pairs, results, strict=True) if not passed[pair]}
    assert (whys, len(passed)) == ({}, len(clients) * len(CASES))


def test_text_tells_outcome_rule_and_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a case; under one that failed the rule and the end of what was said."""
    status, output = conformance("--only", "trim,unknown-action", "--exec", *RAW, "eager")
    assert (status, output.splitlines()[0]) == (1, "ok    trim")
    assert "FAIL  unknown-action: command 1 was acked done where unsupported was due\n      Rule: A command" in output
    assert '      > {"type":"ack","seq":1,"status":"done"}\n' in output
    assert output.splitlines()[-1] == "1 passed, 1 failed, 0 left out"


def test_json_tells_the_same() -> None:
    """For programs: each case with its rule, its transcript and what was really said."""
    status, output = conformance("--json", "--only", "trim", "--exec", *RAW)
    told = json.loads(output)
    assert (status, told["passed"], told["failed"], told["left_out"]) == (0, 1, 0, 0)
    (case,) = told["cases"]
    assert (case["name"], case["outcome"], case["why"]) == ("trim", "passed", "")
    assert case["wanted"] == lines_of(BY_NAME["trim"])
    assert case["heard"][0].startswith('> {"type":"hello"')


def test_a_server_without_the_contract_is_tested_as_far_as_the_socket_shows() -> None:
    """Its own prints do not matter; what it does not support is left out, and said so."""
    status, output = conformance(
        "--protocol-only", "--only", "hello-first,trim,deadline,repeat", "--exec", *RAW, "trims-only"
    )
    assert status == 0
    assert "-     trim: it needs a program that keeps the test contract" in output
    assert "-     deadline: it does not support reduce_batch" in output
    assert "ok    hello-first" in output


def test_nothing_played_is_no_success() -> None:
    """A green CI job has seen something pass."""
    assert conformance("--protocol-only", "--only", "trim", "--exec", *RAW)[0] == 1


def test_the_list_names_every_case() -> None:
    """With its rule, and whether it needs the contract; as JSON too."""
    status, output = conformance("--list")
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()] == list(BY_NAME)
    assert [case["name"] for case in json.loads(conformance("--list", "--json")[1])["cases"]] == list(BY_NAME)


def test_a_program_that_cannot_be_started_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Not thirty failures."""
    status, _ = conformance("--exec", "/nowhere/my-server")
    assert status == 1
    told = capsys.readouterr().err
    assert told == (
        "edgeguardctl: cannot start /nowhere/my-server: no such file or directory; name a program that can be run\n"
    )


@pytest.mark.parametrize("argv", [[], ["--only", "nonsense"], ["--timeout", "0"], ["--jobs", "none"], ["--exec"]])
def test_wrong_usage_is_told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, before anything is started."""
    with pytest.raises(SystemExit) as caught:
        conformance(*argv)
    assert caught.value.code == 2
    assert "cannot" in capsys.readouterr().err


def test_nothing_is_left_of_a_program(tmp_path: Path) -> None:
    """A program that does not hear SIGTERM, with a child that does not either: both are gone, and so is the socket."""
    script = tmp_path / "stubborn"
    script.write_text(
        f'#!/bin/sh\ntrap "" TERM\nsleep 1000 &\necho "$EDGEGUARDD_SOCKET $!" > {tmp_path}/told\nexec {" ".join(RAW)}\n'
    )
    script.chmod(0o700)
    with no_leaked_descriptors():
        assert played([str(script)], "trim", timeout_s=DEADLINE_S).outcome is Outcome.PASSED
    path, pid = (tmp_path / "told").read_text().split()
    assert not os.path.exists(path)
    eventually(lambda: not os.path.exists(f"/proc/{pid}") or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["sh", "-c", "kill -40 $$"], "was killed by signal 40"),
        (["sh", "-c", 'rm "$EDGEGUARDD_SOCKET"; exit 7'], "ended with status 7"),
        (["yes"], "did not connect within"),
    ],
)
def test_an_odd_program_is_told_of_in_a_sentence(argv: list[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends, whatever it removes, and if it prints without end."""
    monkeypatch.setattr(link, "LONGEST_PAUSE_S", 0.0)
    with no_leaked_descriptors():
        result = played(argv, "ping", timeout_s=0.3)
    assert (result.outcome, why in result.why) == (Outcome.FAILED, True), result


@pytest.mark.parametrize("command", [one.text for one in commands("docs/how-to/write-a-client.md")])
def test_each_command_of_the_page_on_writing_clients_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reader's server in place of ./my-server; short, since the cases are played elsewhere."""
    server = tmp_path / "my-server"
    server.write_text(f"#!/bin/sh\nexec {' '.join(RAW)}\n")
    server.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    program, *argv = shlex.split(command)
    assert (program, argv[0]) == ("edgeguardctl", "conformance")
    assert conformance("--only", "ping", *argv[1:])[0] == 0


def test_an_interrupt_ends_it_soon() -> None:
    """Ctrl-C: the programs under test end as well."""
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "conformance", "--exec", *RAW, "silent"]
    started = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with ending(started) as process:
        eventually(lambda: grandchildren(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def grandchildren(pid: int) -> list[str]:
    """The programs that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def test_the_client_of_the_page_says_why_it_was_refused(place: str, llm: FakeCgroup, tmp_path: Path) -> None:
    """In the daemon's words, once and not with each try; afterwards that the daemon is gone."""
    said = tmp_path / "said"
    program = [sys.executable, "-S", printed(tmp_path)]
    with Daemon(place, cgroup_root=f"{place}/tree") as daemon, open(said, "wb") as errors:
        environment = {"EDGEGUARDD_SOCKET": daemon.socket_path, "EDGEGUARDD_LOST_AFTER_S": "30"}
        process = subprocess.Popen(program, env=environment, stdin=subprocess.DEVNULL, stderr=errors)
        with ending(process):
            eventually(lambda: len(daemon.facts("peer_refused")) > 2, what="it tries again")
            daemon.stop()
            eventually(lambda: len(said.read_text().splitlines()) > 1, what="it says that nobody is there")
    refused, gone = said.read_text().splitlines()
    assert refused.startswith("edgeguardd: cannot ")
    assert gone.startswith(f"edgeguardd: {daemon.socket_path}: ")
