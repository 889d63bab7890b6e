"""One HTTP call to a server, and where a server is."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from edgeguardd.bridges import calls
from edgeguardd.bridges.calls import AwayError, Http, RefusedError, ServerError, quoted
from edgeguardd.bridges.endpoint import Endpoint, endpoint
from tests.support.standin import Call, Reply, StandIn


class Echo(StandIn):
    """Answers what it was asked; `content` instead if it is set. /hang answers never."""

    content: object = None

    async def answer(self, call: Call) -> Reply:
        if call.path == "/hang":
            await asyncio.Event().wait()
        if call.path == "/refuse":
            return Reply({"error": "no\nsuch \x1b[31mthing"}, 400)
        key = call.headers.get("authorization")
        return Reply(self.content or {"call": str(call), "key": key, "body": call.body.decode()})


def test_a_call_carries_its_content_and_its_key_and_gives_the_answer() -> None:
    """With a prefix where the server lies behind one."""

    async def scene() -> None:
        async with Echo() as server:
            http = Http(endpoint(f"{server.url}/v2/"), key="secret")
            reply = await http.post(f"/models/{quoted('a/b c')}/unload", {"force": True})
            assert reply.json() == {
                "call": "POST /v2/models/a/b c/unload",
                "key": "Bearer secret",
                "body": '{"force":true}',
            }
            assert (await http.get("/health")).field("key") == "Bearer secret"
            assert reply.field("call", "deeper", default="none") == "none"
            assert reply.headers["content-type"] == "application/json"

    asyncio.run(scene())


def test_what_goes_wrong_is_a_sentence_that_names_the_call() -> None:
    """Refused, slow, no JSON, too long, nobody there, no HTTP."""

    async def scene() -> None:
        async with Echo() as server:
            http = server.http()
            with pytest.raises(
                RefusedError, match=r"cannot GET /refuse: the server answered 400 \(.*\\u001b"
            ) as refused:
                await http.get("/refuse")
            assert refused.value.status == 400
            with pytest.raises(AwayError, match=r"cannot GET /hang at http://127.*: no answer within 0\.05 s"):
                await http.get("/hang", within_s=0.05)
            server.content = b"<html>"
            with pytest.raises(ServerError, match="cannot read the answer to GET /: it is no JSON"):
                (await http.get("/")).json()
            server.content = b"x" * (calls.MAX_ANSWER_BYTES + 1)
            with pytest.raises(AwayError, match="its answer has over 8388608 bytes"):
                await http.get("/")
        with pytest.raises(AwayError, match="connection refused; start the server, or correct --url"):
            await http.get("/")
        for said in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"):
            listener = await asyncio.start_server(_saying(said), "127.0.0.1", 0)
            async with listener:
                port = listener.sockets[0].getsockname()[1]
                with pytest.raises(AwayError, match="it ended before its answer; see the server's log"):
                    await Http(endpoint(f"http://127.0.0.1:{port}")).get("/")
        listener = await asyncio.start_server(_saying(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", hold=True), "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(AwayError, match="is that an HTTP server"):
                await Http(endpoint(f"http://127.0.0.1:{port}")).get("/")
        listener = await asyncio.start_server(_greeting, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(AwayError, match=r"https://127.*SSL.*; start the server, or correct --url"):
                await Http(endpoint(f"https://127.0.0.1:{port}")).get("/")

    asyncio.run(scene())


def test_a_name_that_is_not_found_is_told_in_the_resolvers_words() -> None:
    """Its numbers are none of the system's."""
    assert calls.why_of(socket.gaierror(-2, "Name or service not known")) == "name or service not known"


async def _greeting(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server without TLS, which speaks first."""
    writer.write(b"220 ready\r\n")
    writer.close()


def _saying(words: bytes, *, hold: bool = False) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A server that says so much once it was asked, and hangs up; `hold`: when the client has."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(words)
            if hold:
                await reader.read()
        finally:
            writer.close()

    return serve


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("http://127.0.0.1:8080", Endpoint("127.0.0.1", 8080)),
        ("http://[::1]:8080/", Endpoint("::1", 8080)),
        ("https://llm.example/v2", Endpoint("llm.example", 443, tls=True, prefix="/v2")),
        ("unix:/run/llama.sock", Endpoint("localhost", path="/run/llama.sock")),
    ],
)
def test_an_address_is_read_as_it_is_written(word: str, meant: Endpoint) -> None:
    """And shown so."""
    assert endpoint(word) == meant
    assert endpoint(str(meant)) == meant


@pytest.mark.parametrize(
    "word",
    [
        *(
            "",
            "8080",
            "ftp://a",
            "http://",
            "http://a:b",
            "http://a:99999",
            "http://u:p@a",
            "http://a/?q",
            "http://a/#f",
        ),
        *("http://a/ b", "http://a/\n", "http://a/é", "unix:run", "unix:/a\nb", "http://a..b/", f"http://{'a' * 64}/"),
    ],
)
def test_what_is_no_address_is_refused(word: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValueError, match=r"; (write|correct)"):
        endpoint(word)
