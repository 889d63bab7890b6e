"""A small HTTP server for metrics, health and status: bounded in connections, bytes and time.

Must not: know what the routes say; run anything slow (routes are called on the loop). Upstream: httpconnection.
Downstream: daemon.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping

from edgeguardd.core.config import HttpConfig
from edgeguardd.core.hosts import endpoint
from edgeguardd.errors import ServeError
from edgeguardd.serve.httpconnection import HttpConnection, HttpStats, Request, Response, error
from edgeguardd.serve.listening import listen

__all__ = ["HttpServer", "HttpStats", "Request", "Response"]

_MORE_FILES = "let the daemon open more files (systemd: LimitNOFILE=, else ulimit -n)"
_REMEDIES = {
    errno.EMFILE: _MORE_FILES,
    errno.EADDRINUSE: "stop what listens there, or set [http] port (enabled = false turns HTTP off)",
    errno.EAFNOSUPPORT: 'this kernel has no IPv6; set [http] address = "0.0.0.0" for all of IPv4\'s',
    errno.EADDRNOTAVAIL: "no interface has this address; set [http] address",
    errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; set [http] port",
}


# asyncio accepts as many connections in one turn as its backlog says, and reads them turns later: with few a turn,
# those before have been answered, and may make room, before a crowd of askers fills max_connections.
ACCEPTS_PER_TURN = 16
# The kernel's queue is longer: who finds it full tries again a second later (TCP_TIMEOUT_INIT).
BACKLOG = 1024


def _lengthen_queue(listener: int) -> None:
    """Have the kernel queue BACKLOG connections. Raises OSError."""
    same = os.dup(listener)
    try:
        sock = socket.socket(fileno=same)
    except OSError:
        os.close(same)
        raise
    with sock:
        sock.listen(BACKLOG)


class HttpServer:
    """Serves `routes`, a table of exact paths, and `open_routes`. Routes are synchronous and quick.

    An open route answers its path and all below it, whatever the method; a body that comes along is not looked at.
    """

    def __init__(
        self,
        config: HttpConfig,
        routes: Mapping[str, Callable[[Request], Response]],
        open_routes: Mapping[str, Callable[[Request], Response]] | None = None,
    ) -> None:
        self.config = config
        self.stats = HttpStats()
        self._routes = routes
        self._open_routes = open_routes or {}
        self._connections: dict[HttpConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._closing = False
        self._all_closed = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises ServeError."""
        address, port = self.config.address, self.config.port
        place = endpoint(address, port)
        try:
            server = await listen(lambda: HttpConnection(self), address, port, ACCEPTS_PER_TURN)
            try:
                for listener in server.sockets:
                    _lengthen_queue(listener.fileno())
            except OSError:
                server.close()
                raise
        except (OSError, OverflowError) as fault:
            code = getattr(fault, "errno", None) or 0
            why = os.strerror(code) if code in errno.errorcode else str(fault)
            remedy = _REMEDIES.get(code, "set [http] address and port")
            raise ServeError(f"cannot listen on {place}: {why}; {remedy}") from fault
        if not server.sockets:
            # asyncio takes a failing socket(2) for an address family that this machine has not, and goes on without.
            server.close()
            raise ServeError(f"cannot listen on {place}: no socket could be had; {_MORE_FILES}, or set [http] address")
        self._server = server

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
        """Whether there is room for another connection. Those sent away are few as well, or they are cut.

        Proxies keep connections open that they may never use again: the longest idle one makes room.
        """
        self._connections[connection] = None
        self.stats.accepted += 1
        self.stats.current = len(self._connections)
        most = self.config.max_connections
        if len(self._connections) > most:
            idle = next((other for other in self._connections if other.idle), None)
            if idle is not None:
                idle.abort()
                self._forget(idle)
        if not self._closing and len(self._connections) <= most:
            return True
        self.stats.refused += 1
        if self._closing or len(self._connections) > 2 * most:
            connection.abort()
        return False

    def is_open(self, path: str) -> bool:
        """Whether any request for this path is answered, however it is made."""
        return self._open_route(path) is not None

    def answer(self, request: Request) -> Response:
        """What the route of its path says; 500 when it fails, which the loop's exception handler hears of."""
        path = request.path
        route, open_route = self._routes.get(path), self._open_route(path)
        try:
            if open_route is not None:
                return open_route(request)
            if route is not None:
                return route(request)
            return error(404, "nothing here; see " + " ".join(sorted([*self._routes, *self._open_routes])))
        except Exception as defect:  # a route's defect must not cost more than its own answer
            context = {"message": f"route {path} failed", "exception": defect}
            asyncio.get_running_loop().call_exception_handler(context)
            return error(500, f"cannot answer {path}: an internal error, see the log")

    def closed(self, connection: HttpConnection) -> None:
        """A descriptor is free again."""
        self._forget(connection)

    def used(self, connection: HttpConnection) -> None:
        """It has answered a request: of all connections, it is now the shortest idle."""
        if self._connections.pop(connection, True) is None:
            self._connections[connection] = None

    def _open_route(self, path: str) -> Callable[[Request], Response] | None:
        return next(
            (route for top, route in self._open_routes.items() if path == top or path.startswith(f"{top}/")), None
        )

    def _forget(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        self.stats.current = len(self._connections)
        if not self._connections:
            self._all_closed.set()
