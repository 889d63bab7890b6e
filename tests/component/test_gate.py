"""The gate of a running daemon: what proxies are answered at /admit and by the agent check, level by level."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

QUICK = "[defaults]\ndwell = 0.05\nrestore_dwell = 0.05\n[sampling]\nfast = 0.02\nslow = 0.05\n"
TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n'
AGENT = "[gate]\nagent_port = 0\n"
HELLO = {"name": "test", "target": "llm"}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Daemon, FakeCgroup]]:
    """One daemon for all tests that leave no promise behind, and its cgroup of 1000 MiB."""
    with new_place() as place:
        llm = FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB)
        with Daemon(place, QUICK + TARGET + AGENT, cgroup_root=f"{place}/tree") as running:
            yield running, llm


@pytest.fixture
def llm(shared: tuple[Daemon, FakeCgroup]) -> FakeCgroup:
    """The shared cgroup, at 100 MiB."""
    shared[1].usage(100 * MIB)
    return shared[1]


@pytest.fixture
def daemon(shared: tuple[Daemon, FakeCgroup], llm: FakeCgroup) -> Daemon:
    """The shared daemon, with its gate open and nothing restricted."""
    running = shared[0]
    eventually(lambda: running.status()["targets"][0]["needed_bytes"] == 100 * MIB)
    eventually(lambda: running.status()["targets"][0]["rung"] == "normal")
    return running


@pytest.fixture
def place() -> Iterator[str]:
    """A directory with a short path and an empty tree, for a daemon of the test's own."""
    with new_place() as path:
        yield path


@pytest.fixture
def tree(place: str) -> FakeTree:
    return FakeTree(f"{place}/tree")


@contextlib.contextmanager
def new_place() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
    os.mkdir(f"{path}/tree")
    yield path
    shutil.rmtree(path)


def new_cgroup(tree: FakeTree, name: str) -> FakeCgroup:
    """A cgroup of 100 of 1000 MiB."""
    cgroup = tree.cgroup(name, max_bytes=1000 * MIB)
    cgroup.usage(100 * MIB)
    return cgroup


class Answer:
    """One answer, its headers in lower case."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def ask(daemon: Daemon, query: str, method: str = "GET", body: bytes | None = None) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(daemon.http.removeprefix("http://"), timeout=DEADLINE_S)
    try:
        connection.request(method, query, body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


def agent(daemon: Daemon, line: bytes = b"") -> str:
    """What the agent check answers."""
    host, port = daemon.facts("started")[-1]["agent"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(line)
        return connection.makefile().readline().strip()


def close_gate(daemon: Daemon, llm: FakeCgroup) -> None:
    llm.usage(950 * MIB)
    eventually(lambda: ask(daemon, "/admit").status == 503)


STATUSES = {"nginx": (204, 403), "envoy": (200, 429), "caddy": (204, 503), "traefik": (204, 503), "direct": (204, 503)}


def test_each_proxy_is_answered_as_it_understands(daemon: Daemon, llm: FakeCgroup) -> None:
    """Below critical a yes without content; at critical a refusal with Retry-After and an error as OpenAI has it."""
    closed = len(daemon.facts("gate_closed"))
    for mode, (granted, _) in STATUSES.items():
        for path in (
            f"/admit?mode={mode}",
            f"/admit/{mode}/-",
            f"/admit/{mode}/llm/v1/chat/completions?target=x&mode=y",
        ):
            answer = ask(daemon, path)
            assert (answer.status, answer.body, answer.headers.get("retry-after")) == (granted, b"", None)
    close_gate(daemon, llm)
    for mode, (_, refused) in STATUSES.items():
        for path in (
            f"/admit?mode={mode}",
            f"/admit/{mode}/-",
            f"/admit/{mode}/llm/v1/chat/completions?target=x&mode=y",
        ):
            answer = ask(daemon, path)
            assert answer.status == refused
            assert int(answer.headers["retry-after"]) >= 1
            error = json.loads(answer.body)["error"]
            assert (error["type"], error["code"], error["param"]) == ("overloaded_error", "memory_pressure", None)
            assert "memory.max" in error["message"]
        assert daemon.metric("edgeguardd_gate_answers_total", mode=mode, answer="refused")
    llm.usage(100 * MIB)
    eventually(lambda: ask(daemon, "/admit?mode=nginx").status == 204)
    assert len(daemon.facts("gate_opened")) == len(daemon.facts("gate_closed")) == closed + 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "PROPFIND"])
def test_any_method_is_answered_and_a_body_is_not_waited_for(daemon: Daemon, method: str) -> None:
    """A sub-request has the method of the request it is about; a body that is promised need not come."""
    assert ask(daemon, "/admit/envoy/llm/v1/models", method).status == 200
    if method == "HEAD":
        return
    assert ask(daemon, "/admit", method, b"x" * 100_000).status == 204
    host, port = daemon.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(f"{method} /admit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("/admit?mode=apache", "there are nginx"),
        ("/admit/apache/llm", "there are nginx"),
        ("/admit?target=other", "no target other"),
        ("/admit/nginx/other", "no target other"),
        ("/admit/", "the path names no mode; write /admit/MODE/TARGET, with - for all targets"),
        ("/admit//", "the path names no mode"),
        ("/admit//llm", "the path names no mode"),
        ("/admit/nginx", "the path names no target; write /admit/MODE/TARGET, with - for all targets"),
        ("/admit/nginx/", "the path names no target"),
        ("/admit/envoy//v1/models", "the path names no target"),
        ("/admit?bytes=-1&target=llm", "cannot read bytes"),
        ("/admit?bytes=1e9&target=llm", "cannot read bytes"),
        ("/admit?tokens=" + "9" * 30 + "&target=llm", "cannot read tokens"),
        ("/admit?tokens=%D9%A3&target=llm", "cannot read tokens"),
        ("/admit?bytes=100", "name one with target="),
        ("/admit?size=100", "unknown or given twice"),
        ("/admit?mode=nginx&mode=envoy", "unknown or given twice"),
        ("/admit?" + "&".join(f"a{number}=1" for number in range(100)), "over 16 parameters"),
        ("/admit?target=%00%1b[2J", "no target \\\\x00\\\\x1b[2J"),
    ],
)
def test_a_wrong_question_is_answered_with_what_to_write(daemon: Daemon, query: str, why: str) -> None:
    """400 with a sentence, and a line in the log, as some proxies show their users neither."""
    answer = ask(daemon, query)
    assert answer.status == 400
    assert why in answer.body.decode()
    assert daemon.metric("edgeguardd_gate_answers_total", mode="unknown", answer="bad")
    assert daemon.facts("gate_asked_wrongly")


def test_the_question_on_the_page_is_answered_as_printed(daemon: Daemon) -> None:
    """The address that a reader is told to ask, and the first line of what comes."""
    with open(f"{REPOSITORY}/docs/how-to/gate.md") as page:
        found = re.search(r"^\$ curl -i 'http://127.0.0.1:9464(/\S*)'\nHTTP/1.1 (\d+) ", page.read(), re.MULTILINE)
    assert found
    assert ask(daemon, found[1]).status == int(found[2])


def test_an_empty_parameter_counts_as_not_given(daemon: Daemon) -> None:
    """As a proxy's variable makes it that is not set."""
    assert ask(daemon, "/admit?mode=&target=&bytes=&tokens=").status == 204


def test_without_targets_every_request_is_let_through(place: str, tree: FakeTree) -> None:
    """A guard that guards nobody is in nobody's way."""
    with Daemon(place, QUICK + AGENT, cgroup_root=f"{place}/tree") as daemon:
        assert ask(daemon, "/admit").status == 204
        assert agent(daemon) == "ready up 100%"


def test_of_several_targets_the_worst_decides_unless_one_is_named(place: str, tree: FakeTree) -> None:
    """A proxy that names its target is not refused for another's sake."""
    new_cgroup(tree, "/llm")
    other = new_cgroup(tree, "/other")
    body = QUICK + TARGET + '[[target]]\nname = "other"\npath = "/other"\n' + AGENT
    with Daemon(place, body, cgroup_root=f"{place}/tree") as daemon:
        other.usage(950 * MIB)
        eventually(lambda: ask(daemon, "/admit").status == 503)
        assert ask(daemon, "/admit?target=other").status == 503
        assert ask(daemon, "/admit?target=llm").status == 204
        assert agent(daemon) == "drain"
        assert agent(daemon, b"llm 8\n") == "ready up maxconn:8"


def test_many_who_ask_at_once_are_not_promised_the_same_bytes(place: str, tree: FakeTree) -> None:
    """Of sixteen that want 200 MiB each, as many are let through as fit below the critical mark at 920 of 1000 MiB.

    Asking without a size before that, however often, has taken nothing away from them.
    """
    new_cgroup(tree, "/llm")
    found: list[int] = []
    with Daemon(place, QUICK + TARGET + '[gate]\nhold = "1h"\n', cgroup_root=f"{place}/tree") as daemon:
        eventually(lambda: daemon.status()["targets"][0]["needed_bytes"])
        for _ in range(50):
            assert ask(daemon, "/admit?target=llm").status == 204

        def one() -> None:
            found.append(ask(daemon, f"/admit?target=llm&bytes={200 * MIB}").status)

        threads = [threading.Thread(target=one) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [204] * 4 + [503] * 12


def test_a_promise_ends_by_itself(place: str, tree: FakeTree) -> None:
    """Nobody tells the gate that a request is done; after `hold` its bytes are free again, and nothing is left over."""
    new_cgroup(tree, "/llm")
    body = QUICK + TARGET + '[gate]\nhold = "200ms"\n'
    with Daemon(place, body, cgroup_root=f"{place}/tree") as daemon:
        eventually(lambda: daemon.status()["targets"][0]["needed_bytes"])
        query = f"/admit?target=llm&bytes={800 * MIB}"
        for _ in range(3):
            eventually(lambda: ask(daemon, query).status == 204)
            eventually(lambda: ask(daemon, query).status == 503)


def test_tokens_weigh_what_the_server_reports(daemon: Daemon) -> None:
    """Without a report of bytes_per_token their number says nothing, and the level alone decides."""
    assert ask(daemon, "/admit?target=llm&tokens=1000000").status == 204
    with Subscriber(daemon.socket_path, HELLO) as server:
        server.wait_for("welcome")
        server.send({"type": "report", "bytes_per_token": MIB})
        eventually(lambda: ask(daemon, "/admit?target=llm&tokens=100000").status == 503)
        assert ask(daemon, "/admit?target=llm&tokens=10").status == 204


def test_the_agent_check_follows_the_ladder(daemon: Daemon, llm: FakeCgroup) -> None:
    """Half the connections at high, drain at critical, and all of them back afterwards."""
    assert agent(daemon, b"llm 8\n") == "ready up maxconn:8"
    assert agent(daemon) == "ready up 100%"
    llm.usage(850 * MIB)
    eventually(lambda: agent(daemon, b"llm 8\n") == "ready up maxconn:4")
    assert agent(daemon, b"llm 1\n") == "ready up maxconn:1"
    assert agent(daemon, b"- 9\r\n") == "ready up maxconn:4"
    assert agent(daemon) == "ready up 50%"
    llm.usage(950 * MIB)
    eventually(lambda: agent(daemon, b"llm 8\n") == "drain")
    assert agent(daemon) == "drain"
    llm.usage(100 * MIB)
    eventually(lambda: agent(daemon, b"llm 8\n") == "ready up maxconn:8")


def test_the_agent_check_takes_the_batch_that_the_server_reports(daemon: Daemon) -> None:
    """Where the proxy does not say how many connections are all."""
    with Subscriber(daemon.socket_path, HELLO) as server:
        server.wait_for("welcome")
        server.send({"type": "report", "batch_limit": 6})
        eventually(lambda: agent(daemon, b"llm\n") == "ready up maxconn:6")


@pytest.mark.parametrize(
    ("line", "known"),
    [
        *((b"\n", True), (b"llm x\n", True), (b"llm -3\n", True), (b"llm " + b"9" * 200 + b"\n", True)),
        *((b"other\n", False), (b"other 8\n", False), (b"\xff\x00\n", False), (b"x" * 10_000, False)),
    ],
)
def test_the_agent_check_answers_whatever_it_is_sent(daemon: Daemon, line: bytes, known: bool) -> None:
    """A name that is unknown is told to go on, and counted; it is said once, as HAProxy goes on asking for ever."""

    def bad() -> float:
        return daemon.metric("edgeguardd_gate_answers_total", mode="haproxy", answer="bad") or 0

    def said() -> int:
        return sum("the agent check" in fact["why"] for fact in daemon.facts("gate_asked_wrongly"))

    before = bad()
    assert agent(daemon, line).startswith("ready up")
    first = said()
    assert agent(daemon, line).startswith("ready up")
    assert (bad() - before, said()) == (0 if known else 2, first)


def test_a_port_that_is_taken_is_said_with_its_remedy(place: str, tree: FakeTree, daemon: Daemon) -> None:
    """Memory is guarded without it."""
    port = daemon.facts("started")[-1]["agent"].rsplit(":", 1)[1]
    other = os.path.join(place, "other")
    os.mkdir(other)
    with Daemon(other, f"[gate]\nagent_port = {port}\n", cgroup_root=f"{place}/tree") as second:
        said = [line["why"] for line in second.facts("works_in_part")]
        (agent_fault,) = [why for why in said if "agent check" in why]
        assert f"cannot answer the agent check on 127.0.0.1:{port}: Address already in use" in agent_fault
        assert "set [gate] agent_address and agent_port" in agent_fault


def test_many_connections_to_the_agent_are_bounded(daemon: Daemon) -> None:
    """Those that say nothing are answered after a moment and closed; the daemon has its descriptors back."""
    before = daemon.descriptors()
    host, port = daemon.facts("started")[-1]["agent"].rsplit(":", 1)
    crowd: list[Any] = [socket.create_connection((host, int(port)), timeout=DEADLINE_S) for _ in range(150)]
    ended = []
    for one in crowd:
        try:
            ended.append(one.makefile().readline())
        except ConnectionResetError:
            ended.append("")
        one.close()
    assert 64 <= sum(line == "ready up 100%\n" for line in ended) < 150
    eventually(lambda: daemon.descriptors() <= before)
    assert agent(daemon) == "ready up 100%"
