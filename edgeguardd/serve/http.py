"""A small HTTP server for metrics, health and status: bounded in connections, bytes and time.

Must not: know what the routes say; run anything slow (routes are called on the loop). Upstream: httpconnection.
Downstream: daemon.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Mapping

from edgeguardd.core.config import HttpConfig
from edgeguardd.errors import ServeError
from edgeguardd.serve.httpconnection import HttpConnection, HttpStats, Response, error

__all__ = ["HttpServer", "HttpStats", "Response"]

_REMEDIES = {
    errno.EADDRINUSE: "stop what listens there, or set [http] port (enabled = false turns HTTP off)",
    errno.EADDRNOTAVAIL: "no interface has this address; set [http] address",
    errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; set [http] port",
}


class HttpServer:
    """Serves `routes`, a table of exact paths. Routes are synchronous and quick."""

    def __init__(self, config: HttpConfig, routes: Mapping[str, Callable[[], Response]]) -> None:
        self.config = config
        self.stats = HttpStats()
        self._routes = routes
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self._closing = False
        self._all_closed = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises ServeError."""
        loop = asyncio.get_running_loop()
        address, port = self.config.address, self.config.port
        try:
            self._server = await loop.create_server(lambda: HttpConnection(self), address, port)
        except (OSError, OverflowError) as fault:
            code = getattr(fault, "errno", None) or 0
            why = os.strerror(code) if code in errno.errorcode else str(fault)
            remedy = _REMEDIES.get(code, "set [http] address and port")
            raise ServeError(f"cannot listen on {address}:{port}: {why}; {remedy}") from fault
        if not self._server.sockets:
            # asyncio takes a failing socket(2) for an address family that this machine has not, and goes on without.
            raise ServeError(
                f"cannot listen on {address}:{port}: no socket could be had; "
                "let the daemon open more files (systemd: LimitNOFILE=, else ulimit -n), or set [http] address"
            )

    @property
    def port(self) -> int:
        """The port listened on; the kernel's choice when the configuration says 0."""
        if self._server is None:
            return self.config.port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        self._closing = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    # What connections say

    def opened(self, connection: HttpConnection) -> bool:
        """Whether there is room for another connection. Those sent away are few as well, or they are cut."""
        self._connections.add(connection)
        self.stats.accepted += 1
        self.stats.current = len(self._connections)
        most = self.config.max_connections
        if not self._closing and len(self._connections) <= most:
            return True
        self.stats.refused += 1
        if self._closing or len(self._connections) > 2 * most:
            connection.abort()
        return False

    def answer(self, path: str) -> Response:
        """What the route of this path says; 500 when it fails, which the loop's exception handler hears of."""
        route = self._routes.get(path)
        if route is None:
            return error(404, "nothing here; see " + " ".join(sorted(self._routes)))
        try:
            return route()
        except Exception as defect:  # a route's defect must not cost more than its own answer
            context = {"message": f"route {path} failed", "exception": defect}
            asyncio.get_running_loop().call_exception_handler(context)
            return error(500, f"cannot answer {path}: an internal error, see the log")

    def closed(self, connection: HttpConnection) -> None:
        """A descriptor is free again."""
        self._connections.discard(connection)
        self.stats.current = len(self._connections)
        if not self._connections:
            self._all_closed.set()
