"""Enemies at the HTTP port of the real daemon: foreign hosts, floods, slow heads, requests within requests."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from tests.support import crowds, guarded
from tests.support.running import Daemon
from tests.support.wait import DEADLINE_S, eventually

PATHS = ("/", "/status", "/metrics", "/admit", "/admit/direct/llm", "/healthz", "/readyz")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One for all tests here, which also goes by the name box.example.com."""
    with guarded.daemon(http='hosts = ["box.example.com"]\ntimeout = 0.5') as (running, _, _):
        yield running


def connected(daemon: Daemon) -> socket.socket:
    host, port = daemon.http.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def said(daemon: Daemon, sent: bytes) -> bytes:
    """All that comes back until the daemon ends the connection."""
    with connected(daemon) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found


def statuses(answers: bytes) -> list[int]:
    """The status codes of answers that came one behind the other."""
    return [int(line.split()[1]) for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def asked(daemon: Daemon, path: str, host: bytes | None) -> bytes:
    field = b"" if host is None else b"Host: " + host + b"\r\n"
    version = b"1.0" if host is None else b"1.1"
    return said(daemon, b"GET " + path.encode() + b" HTTP/" + version + b"\r\n" + field + b"\r\n")


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:9464",
        b"127.0.0.1.evil.example",
        b"localhost.evil.example",
        b"notlocalhost",
        b"192.0.2.1:9464",
        b"[2001:db8::1]",
        b"0.0.0.0",
        b"2130706433",
        b"box.example.com.evil.example",
        b"evil.box.example.com",
        b"localhost@evil.example",
        b"localhost, evil.example",
        b".localhost",
        b"evil..localhost",
        b"\xff\xfe",
        b"x" * 300,
    ],
)
def test_a_page_that_has_its_own_name_lead_here_reads_nothing(daemon: Daemon, host: bytes) -> None:
    """DNS rebinding: on every path a foreign Host gets 421 and a sentence that names the remedy, and nothing else."""
    for path in PATHS:
        answer = asked(daemon, path, host)
        assert statuses(answer) == [421]
        assert b"hosts of [http]" in answer
        assert b"llm" not in answer.partition(b"\r\n\r\n")[2].replace(host, b"")


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:1",
        b"localhost.",
        b"box.localhost",
        b"127.0.0.1",
        b"127.1.2.3:80",
        b"[::1]:9464",
        b"[::1%25lo]",
        b"edgeguardd",
        b"box.example.com",
        b"Box.Example.COM:443",
        None,
    ],
)
def test_by_its_own_names_it_answers(daemon: Daemon, host: bytes | None) -> None:
    """Loopback names and addresses, configured names, and HTTP/1.0 without any, as health checks have it."""
    for path in PATHS:
        assert statuses(asked(daemon, path, host)) in ([200], [204])


def test_any_name_will_do_where_the_operator_says_so() -> None:
    """hosts = ["*"]."""
    with guarded.daemon(http='hosts = ["*"]') as (daemon, _, _):
        assert statuses(asked(daemon, "/readyz", b"anything.example")) == [200]


def test_the_address_that_a_request_came_in_at_is_its_name() -> None:
    """A scraper on another machine uses the box's address, and needs no configuration for it."""
    own = _own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    with guarded.daemon(http='address = "0.0.0.0"') as (daemon, _, _):
        port = int(daemon.facts("started")[-1]["http"].rsplit(":", 1)[1])
        for to, host, status in ((own, own, 200), ("127.0.0.1", own, 421), (own, "192.0.2.1", 421)):
            with socket.create_connection((to, port), timeout=DEADLINE_S) as connection:
                connection.sendall(f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                assert statuses(connection.makefile("rb").read()) == [status]


# Requests within requests

GET = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % len(HIDDEN),
        GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: xchunked\r\n\r\n",
        GET + b"Transfer-Encoding : chunked\r\n\r\n",
        GET + b"Transfer-Encoding: chunked, identity\r\n\r\n",
        GET + b"Content-Length: %d\r\n\r\n" % len(HIDDEN),
        GET + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN),
        GET + b"Content-Length: +%d\r\n\r\n" % len(HIDDEN),
        GET + b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN),
        GET + b"Content-Length: 0x10\r\n\r\n",
        GET + b" folded: yes\r\n\r\n",
        GET + b"X: a\rGET /status HTTP/1.1\r\n\r\n",
        GET + b"X: a\x00b\r\n\r\n",
        GET + b"Host: evil.example\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n",
        b"GET /readyz\r\nHost: localhost HTTP/1.1\r\n\r\n",
    ],
)
def test_no_request_hides_in_another(daemon: Daemon, sent: bytes) -> None:
    """Whatever the shape of the first, it is refused, the connection ends, and what follows on it is never answered."""
    found = statuses(said(daemon, sent + HIDDEN))
    assert len(found) == 1
    assert 400 <= found[0] <= 501


@pytest.mark.parametrize("path", ["/admit", "/admit/direct/llm"])
def test_what_hides_in_the_body_of_a_question_is_not_answered(daemon: Daemon, path: str) -> None:
    """A body is allowed there, whatever frames it, and it is thrown away together with its connection."""
    for framing in (
        b"Content-Length: 3",
        b"Transfer-Encoding: chunked",
        b"Content-Length: 9\r\nTransfer-Encoding: chunked",
    ):
        head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n"
        assert statuses(said(daemon, head + HIDDEN * 3)) in ([204], [400])


# Floods


def test_a_flood_of_headers_ends_early_and_costs_nothing_more(daemon: Daemon) -> None:
    """A hundred connections with heads without end are each refused at 16 KiB; memory and descriptors stay."""
    before, rss = daemon.descriptors(), resident_bytes(daemon)
    line = b"X-%d: " + b"y" * 100 + b"\r\n"
    flood = GET + b"".join(line % number for number in range(2000))
    for _ in range(100):
        with connected(daemon) as connection:
            with contextlib.suppress(ConnectionError):  # what it does not read any more, the kernel throws away
                connection.sendall(flood)
            with contextlib.suppress(ConnectionError):
                assert statuses(connection.recv(65536)) in ([431], [])
    eventually(lambda: daemon.descriptors() <= before, what="descriptors are closed")
    assert resident_bytes(daemon) - rss < 8 << 20


def test_slow_heads_take_no_place_for_longer_than_the_timeout(daemon: Daemon) -> None:
    """Slowloris: 600 connections of 512 that send a byte now and then are ended, and a scraper is answered."""
    before = daemon.descriptors()
    with contextlib.ExitStack() as open_now:
        slow = [open_now.enter_context(connected(daemon)) for _ in range(600)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /status HT")
        ended: set[int] = set()

        def all_ended() -> bool:
            for number, connection in enumerate(slow):
                if number in ended:
                    continue
                try:
                    connection.send(b"x")
                except ConnectionError:
                    ended.add(number)
            return len(ended) == len(slow)

        eventually(all_ended, what="every slow connection is ended, though each goes on sending")
        assert statuses(asked(daemon, "/metrics", b"localhost")) == [200]
    eventually(lambda: daemon.descriptors() <= before, what="descriptors are closed")


def test_a_crowd_of_connections_is_bounded_and_a_scraper_is_served(daemon: Daemon) -> None:
    """Thousands at once, 10,000 in the torture, or as many as this machine lets us open: the daemon holds
    max_connections and some, and answers."""
    with crowds.room_for() as many, contextlib.ExitStack() as open_now:
        before, rss = daemon.descriptors(), resident_bytes(daemon)
        for _ in range(many):
            open_now.enter_context(connected(daemon))
        assert daemon.descriptors() <= before + 2 * 512 + 16
        assert resident_bytes(daemon) - rss < 32 << 20
        eventually(lambda: is_ready(daemon), what="a scraper is answered")
        print(f"{many} connections to HTTP at once")
    eventually(lambda: daemon.descriptors() <= before, what="descriptors are closed")


def is_ready(daemon: Daemon) -> bool:
    """Whether a scraper is answered now; until the crowd's time is over it may be told to come back, or be cut off."""
    try:
        return statuses(asked(daemon, "/readyz", b"localhost")) == [200]
    except OSError:  # a reset, or ENOTCONN where the reset came before the request was ended
        return False


def resident_bytes(daemon: Daemon) -> int:
    with open(f"/proc/{daemon.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _own_address() -> str | None:
    """The address that packets to elsewhere would leave with; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address
