"""A small share of `make fuzz`, the same lines each time: nothing crashes or grows, and valid peers are served."""

import sys

import pytest

from tests.fuzz import guided, kept, seeds
from tests.fuzz.clients import confuse
from tests.fuzz.mutate import Mutator, client_lines, server_lines
from tests.fuzz.server import attack, parse
from tests.fuzz.targets import PARTS
from tests.support.running import REPOSITORY

SEED = 20_261
SERVER_LINES = 20_000
SOCKET_LINES = 4_000
CLIENT_LINES = 4_000


def test_lines_are_the_same_for_the_same_seed_and_damaged() -> None:
    """What was found can be found again; the share that is still valid is neither all nor none."""
    first, again = (Mutator(client_lines(), SEED) for _ in range(2))
    lines = [first.line() for _ in range(500)]
    assert lines == [again.line() for _ in range(500)]
    assert lines != [Mutator(client_lines(), SEED + 1).line() for _ in range(500)]
    assert not any(b"\n" in line for line in lines)
    assert 300 < sum(line not in client_lines() for line in lines) <= 500
    assert len(server_lines()) > 30


def test_the_servers_parser_stands_it() -> None:
    """Every line is a message or an error with a code."""
    parse(SERVER_LINES, SEED).check()


def test_a_daemon_stands_it_and_serves_others() -> None:
    """Peers that say nonsense, again and again; an observer gets all its answers."""
    figures = attack(SOCKET_LINES, SEED)
    figures.check()
    assert figures.lines >= SOCKET_LINES
    assert figures.answers > 3
    assert figures.connections > 50


@pytest.mark.parametrize("client", ["asyncio", "blocking", "c"])
def test_a_client_stands_it(client: str, c_example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers pings all the while, and carries out what it is asked for afterwards."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PYTHONPATH", REPOSITORY)
    argv = [c_example] if client == "c" else [sys.executable, f"packaging/examples/python-client/{client}_server.py"]
    figures = confuse(client, argv, CLIENT_LINES, SEED)
    figures.check()
    assert figures.answers == CLIENT_LINES // 200


@pytest.mark.parametrize("part", PARTS)
def test_what_is_kept_of_a_parsers_inputs_is_stood(part: str) -> None:
    """All that guided fuzzing has found to lead somewhere, and what it begins with."""
    for data in (*kept.load(part), *seeds.of(part)):
        PARTS[part](data)


def test_kept_inputs_are_text_and_come_back() -> None:
    """Whatever the bytes are: one line of printable ASCII, which no comment can be taken for."""
    for data in (b"#", b"", bytes(range(256)), b"a\\x00\n", "\u8a18".encode()):
        line = kept.escaped(data)
        assert line.isprintable()
        assert line.isascii()
        assert not line.startswith("#")
        assert kept.unescaped(line) == data


def test_a_finding_is_told_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unguided, as that starts at once: inputs are counted, and one that fails is told as the corpus has it."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PYTHONPATH", REPOSITORY)
    monkeypatch.setattr(guided, "is_guided", lambda: False)
    outcome = guided.run("wire", 0.2, SEED, keep=False)
    assert outcome.failure is None, outcome.failure
    assert outcome.inputs > 10
    monkeypatch.setenv("EDGEGUARDD_FUZZ_PLANTED", "1")
    found = guided.run("wire", 5, SEED, keep=False).failure or ""
    assert "AssertionError: planted" in found
    assert "the input, as a line of the corpus: {" in found
