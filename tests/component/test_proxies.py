"""Real proxies with the shipped configurations in front of a server that cannot refuse: see docs/how-to/gate.md."""

import json
import os
import re
import statistics
import threading
from collections.abc import Iterator

import pytest
import yaml

from tests.support import proxies
from tests.support.faketree import MIB, FakeCgroup
from tests.support.proxies import AGENT, HTTP, SERVER, Answer, Backend, ask
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import DEADLINE_S, eventually

CONFIG = """
[defaults]
dwell = 0.2
restore_dwell = 0.2
[sampling]
fast = 0.02
slow = 0.05
[[target]]
name = "llm"
path = "/llm"
[gate]
agent_port = 0
"""
# From a proxy to the guard and back takes some milliseconds; this is what is promised.
REFUSED_WITHIN_S = 0.050
# As the page says: Caddy has no way to let requests through without trying some twice.
GUARD_GONE = {"caddy": 502}


def here(name: str) -> pytest.MarkDecorator:
    """Skips by name where the proxy is not."""
    missing = proxies.program_of(name) is None
    return pytest.mark.skipif(missing, reason=f"no {name} here: run make setup where its package can be had")


EVERY = [pytest.param(name, marks=here(name)) for name in ("nginx", "haproxy", "caddy", "envoy")]


@pytest.fixture
def place(place: str) -> str:
    """One that other users may enter: nginx's workers are not root."""
    os.chmod(place, 0o755)  # noqa: S103  nothing in it is secret
    return place


@pytest.fixture
def daemon(place: str, llm: FakeCgroup, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Envoy alone sends the client's Host along."""
    hosts = f'hosts = ["{proxies.PUBLIC}"]' if "envoy" in request.node.name else ""
    with Daemon(place, CONFIG, cgroup_root=f"{place}/tree", http=hosts) as running:
        yield running


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as running:
        yield running


def ports(daemon: Daemon, backend: Backend) -> dict[int, int]:
    """Where the test's own server and guard are."""
    (started,) = daemon.facts("started")
    http, agent = (int(started[name].rsplit(":", 1)[1]) for name in ("http", "agent"))
    return {SERVER: backend.port, HTTP: http, AGENT: agent}


@pytest.mark.parametrize("name", EVERY)
def test_a_request_at_critical_is_refused_at_once_and_served_after_recovery(
    name: str, place: str, llm: FakeCgroup, daemon: Daemon, backend: Backend
) -> None:
    """200 before; at critical Retry-After and OpenAI's error within 50 ms, without a word to the server, while a
    response that streams goes on to its end; 200 again when memory is there. A guard that is killed is in nobody's
    way, except in Caddy's."""
    refused_status = 429 if name == "envoy" else 503
    with proxies.running(name, place, ports(daemon, backend)) as front:
        assert eventually(lambda: ask(front)).status == 200
        assert ask(front, body=b"x" * 300_000).body == b"helloworld"
        streamed: list[Answer] = []
        stream = threading.Thread(target=lambda: streamed.append(ask(front, "/stream")))
        stream.start()
        assert backend.streaming.wait(DEADLINE_S)
        llm.usage(950 * MIB)
        eventually(lambda: ask(front).status == refused_status)
        served = backend.requests
        refusals = [ask(front, body=b"x" * 1000) for _ in range(20)]
        assert backend.requests == served
        for answer in refusals:
            assert answer.status == refused_status
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["content-type"] == "application/json"
            assert json.loads(answer.body)["error"]["code"] == "memory_pressure"
        assert statistics.median(answer.took_s for answer in refusals) < REFUSED_WITHIN_S
        backend.go_on.set()
        stream.join()
        assert [(answer.status, answer.body) for answer in streamed] == [(200, b"helloworld")]
        llm.usage(100 * MIB)
        eventually(lambda: ask(front).status == 200)
        daemon.kill()
        assert [ask(front).status for _ in range(5)] == [GUARD_GONE.get(name, 200)] * 5


@here("haproxy")
def test_haproxy_cuts_the_batch_at_high(place: str, llm: FakeCgroup, daemon: Daemon, backend: Backend) -> None:
    """At high four of the eight connections remain, as reduce_batch asks for half; then all of them again. What it was
    told last it keeps without a guard, until somebody tells it otherwise as the page says."""
    with proxies.running("haproxy", place, ports(daemon, backend)) as front:

        def most() -> int:
            return proxies.haproxy_maxconn(place)

        eventually(lambda: ask(front).status == 200)
        assert most() == 8
        llm.usage(850 * MIB)
        eventually(lambda: most() == 4)
        assert ask(front).status == 200
        llm.usage(100 * MIB)
        eventually(lambda: most() == 8)
        with open(f"{REPOSITORY}/docs/how-to/gate.md") as page:
            maintain, go_on, by_hand = re.findall(r'^\$ echo "([^"]*)" \| socat - ', page.read(), re.MULTILINE)
        assert not proxies.haproxy_told(place, maintain).strip()
        asked = daemon.metric("edgeguardd_gate_answers_total", mode="haproxy")
        assert ask(front).status == 503
        assert not proxies.haproxy_told(place, go_on).strip()
        eventually(lambda: daemon.metric("edgeguardd_gate_answers_total", mode="haproxy") != asked)
        eventually(lambda: ask(front).status == 200)
        llm.usage(950 * MIB)
        eventually(lambda: ask(front).status == 503)
        daemon.kill()
        assert ask(front).status == 503
        assert not proxies.haproxy_told(place, by_hand).strip()
        eventually(lambda: ask(front).status == 200)


def test_what_cannot_be_run_here_is_well_formed() -> None:
    """Traefik is no package of Debian's: its file is YAML with what ForwardAuth needs, the guard's address in it."""
    with open(f"{proxies.SHIPPED}/traefik.yaml") as file:
        dynamic = yaml.safe_load(file)["http"]
    (router,) = dynamic["routers"].values()
    (name,) = router["middlewares"]
    assert dynamic["middlewares"][name]["forwardAuth"]["address"].endswith(":9464/admit?mode=traefik&target=llm")
    assert router["service"] in dynamic["services"]
