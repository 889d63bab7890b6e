"""HAProxy's agent check: a TCP port that answers each connection with one line, and closes it.

Must not: know what the line says. Upstream: asyncio. Downstream: daemon. Protocol: agent-check and agent-send in
HAProxy's configuration manual (2.6, section 5.2): the agent may be sent a string first, and answers with words up to
the first end of line.
"""

import asyncio
import os
from collections.abc import Callable
from typing import cast

from edgeguardd.core.config import GateConfig
from edgeguardd.core.hosts import endpoint
from edgeguardd.errors import ServeError
from edgeguardd.serve.listening import listen

# Nothing is sent without agent-send, and nothing says so: who has sent no line by then has none to send.
LINE_S = 0.1
# How long the peer may take to close, once it has its answer.
LINGER_S = 1.0
MAX_LINE_BYTES = 256
BACKLOG = 100
MAX_CONNECTIONS = 64


class AgentServer:
    """Answers every connection with `answer(line)`; the line is "" where none came. Few at a time, each short."""

    def __init__(self, config: GateConfig, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self._config = config
        self._connections: set[_AgentConnection] = set()
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises ServeError."""
        address, port = self._config.agent_address, self._config.agent_port
        place = endpoint(address, port or 0)
        try:
            server = await listen(lambda: _AgentConnection(self), address, port or 0, BACKLOG)
        except (OSError, OverflowError) as fault:
            why = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else str(fault)
            remedy = "stop what listens there, or set [gate] agent_address and agent_port"
            raise ServeError(f"cannot answer the agent check on {place}: {why}; {remedy}") from fault
        if not server.sockets:
            server.close()
            # asyncio takes a failing socket(2) for an address family that this machine has not, and goes on without.
            raise ServeError(
                f"cannot answer the agent check on {place}: no socket could be had; "
                "let the daemon open more files (systemd: LimitNOFILE=, else ulimit -n), or set [gate] agent_address"
            )
        self._server = server

    @property
    def port(self) -> int:
        """The port listened on; the kernel's choice when the configuration says 0."""
        if self._server is None:
            return self._config.agent_port or 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            await self._all_closed.wait()

    def opened(self, connection: "_AgentConnection") -> bool:
        """Whether there is room for one more; an HAProxy that is cut keeps what it was told before."""
        self._connections.add(connection)
        self._all_closed.clear()
        return len(self._connections) <= MAX_CONNECTIONS

    def closed(self, connection: "_AgentConnection") -> None:
        """A descriptor is free again."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()


class _AgentConnection(asyncio.Protocol):
    """One check: a line or a short wait, the answer, the end."""

    def __init__(self, server: AgentServer) -> None:
        self._server = server
        self._line = b""
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the line that may come."""
        self._transport = cast(asyncio.Transport, transport)
        if self._server.opened(self):
            self._after(LINE_S, self._send)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """A piece of the line; after the answer it is thrown away."""
        if self._answered:
            return
        self._line += data[:MAX_LINE_BYTES]
        if b"\n" in self._line or len(self._line) >= MAX_LINE_BYTES:
            self._send()

    def eof_received(self) -> bool:
        """It sends no more: there is no line to wait for."""
        if not self._answered:
            self._send()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is the peer's affair
        """The descriptor is closed, by whomever."""
        self._answered = True
        self._stop_waiting()
        self._server.closed(self)

    def abort(self) -> None:
        """Cut it now."""
        self._transport.abort()

    def _send(self) -> None:
        self._answered = True
        line = self._line.partition(b"\n")[0].decode("ascii", "replace")
        self._transport.write(self._server.answer(line).encode() + b"\n")
        # Not close(): with a late line unread the kernel would reset the connection, answer and all.
        self._transport.write_eof()
        self._after(LINGER_S, self.abort)

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
