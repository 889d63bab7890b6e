"""The little of an HTTP client that the demonstration needs: one request over a Unix socket, one whole answer.

Must not: retry. Upstream: load, server. Downstream: gate or llama-server.
"""

import asyncio
import dataclasses
import json
from typing import Any

HEALTH_WITHIN_S = 5.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole answer. `fields` has names in lower case."""

    status: int
    fields: dict[str, str]
    body: dict[str, Any]


async def ask(socket_path: str, method: str, path: str, content: dict[str, Any] | None = None) -> Answer:
    """One exchange. Raises OSError or EOFError when there is no whole answer."""
    reader, writer = await asyncio.open_unix_connection(socket_path)
    try:
        body = b"" if content is None else json.dumps(content).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        return parse(await reader.read())
    finally:
        writer.close()


def parse(raw: bytes) -> Answer:
    """Bytes up to the end of the connection. Raises EOFError when something is missing."""
    head, found, rest = raw.partition(b"\r\n\r\n")
    if not found:
        raise EOFError("the connection ended before the answer")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(fields.get("content-length", len(rest)))
    if len(rest) < length:
        raise EOFError(f"the connection ended after {len(rest)} of {length} bytes")
    return Answer(int(first.split()[1]), fields, json.loads(rest[:length] or b"{}"))


async def healthy(socket_path: str) -> bool:
    """Whether the server says that its model is loaded."""
    try:
        async with asyncio.timeout(HEALTH_WITHIN_S):
            return (await ask(socket_path, "GET", "/health")).status == 200
    except (OSError, EOFError, TimeoutError):
        return False
