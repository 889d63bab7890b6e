"""What the blocking and the asyncio client have in common: names, handlers, state to look at.

Must not: import asyncio or start threads. Upstream: session, handlers, backoff. Downstream: blocking, aio.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from edgeguardd.client.answers import Admission
from edgeguardd.client.backoff import Backoff
from edgeguardd.client.checks import checked_lost_after, checked_name, checked_path, checked_role, checked_target
from edgeguardd.client.handlers import Handler, Handlers
from edgeguardd.client.session import LOST_AFTER_S, ClientEvent, ClientSession
from edgeguardd.core import wire
from edgeguardd.core.model import Level, Role

PATH_VARIABLE = "EDGEGUARDD_SOCKET"
DEFAULT_PATH = "/run/edgeguardd/edgeguardd.sock"
# How long connect(2) may wait for a place in a busy daemon's queue.
CONNECT_S = 5.0
READ_BYTES = 64 * 1024

log = logging.getLogger("edgeguardd.client")

H = TypeVar("H", bound=Handler)


class Guard:
    """One subscriber of a daemon. Raises ValueError for what the daemon would never let in.

    name          what logs and status call this server
    path          the daemon's socket; default: $EDGEGUARDD_SOCKET, else /run/edgeguardd/edgeguardd.sock
    target        a configured target's name, or "self": the cgroup this process lives in
    role          an observer gets levels, but no commands
    handlers      functions by command, as with `on`
    lost_after_s  how long the daemon may be away before the restore handler lifts what it had restricted, so that a
                  daemon that died does not leave the server refusing for ever; None: never
    on_event      called with each message of the daemon's, in the I/O thread or on the loop; it must be quick
    """

    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        target: str | None = "self",
        role: Role | str = Role.INFERENCE,
        handlers: Mapping[str, Handler] | None = None,
        lost_after_s: float | None = LOST_AFTER_S,
        on_event: Callable[[ClientEvent], None] | None = None,
    ) -> None:
        self.path = checked_path(path or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)
        self._handlers = Handlers(handlers or {})
        self._session = ClientSession(
            checked_name(name),
            checked_target(target),
            checked_role(role),
            lost_after_s=checked_lost_after(lost_after_s),
            now=time.monotonic(),
        )
        self._backoff = Backoff(random.random)
        self._on_event = on_event
        self._sealed = False
        self._said: str | None = None  # what was last logged of an absent daemon; None: it is there
        self._parting: str | None = None
        self._request_prefix = os.urandom(4).hex()
        self._requests = 0
        self._prepare()

    def on(self, action: str) -> Callable[[H], H]:
        """Decorate the function that carries out a command: trim_kv_cache, reduce_batch, reject_requests, …

        It gets the Command and returns None (done), Released(bytes), Logical() or NoEffect(), or raises: Unsupported,
        or anything else, which the daemon is told as failed. A restore handler sets all that its parameters say, which
        may still be less than everything. Raises ValueError for an unknown action, RuntimeError after the start.
        """

        def register(handler: H) -> H:
            self._check_open(action)
            self._check_handler(handler)
            self._handlers.add(action, handler)
            return handler

        return register

    def wrap(self, action: str, around: Callable[[Handler | None], Handler]) -> None:
        """Put a function around the one that carries out a command, or in its place: around(what was there or None).

        For what stands between server and daemon, as edgeguardd.client.asgi. Raises as `on` does.
        """
        self._check_open(action)
        self.on(action)(around(self._handlers.take(action)))

    def handles(self, action: str) -> bool:
        """Whether a command has a function. Raises ValueError for an unknown command."""
        return self._handlers.has(action)

    # What is in force

    @property
    def connected(self) -> bool:
        """Whether the daemon has let us in and has not left since."""
        return self._session.welcomed

    @property
    def level(self) -> Level:
        """The target's level as last heard; normal when the daemon has been away for lost_after_s.

        Levels compare as numbers and print as words: guard.level >= Level.HIGH, print(guard.level).
        """
        return self._session.level

    @property
    def max_batch_ratio(self) -> float:
        """The share of the configured batch that the daemon lets run."""
        return self._session.wanted.max_batch_ratio

    @property
    def accept_requests(self) -> bool:
        """Whether the daemon lets new requests in."""
        return self._session.wanted.accept_requests

    @property
    def last_error(self) -> str | None:
        """The daemon's last error line, for people; None when there was none."""
        error = self._session.last_error
        return None if error is None else f"{error.code}: {error.message}"

    # For the two clients

    def _prepare(self) -> None:
        """Set up what only one kind of client has."""

    def _check_handler(self, handler: Handler) -> None:
        """Raises TypeError for a handler that this client cannot call."""

    def _check_open(self, action: str) -> None:
        if self._sealed:
            raise RuntimeError(f"cannot handle {str(action)!r} now: register handlers before the start")

    def _seal(self) -> None:
        """The start: what is supported is what has a handler. Raises ValueError when that cannot work."""
        for action in self._handlers.supported():
            handler = self._handlers.get(action)
            if handler is not None:
                self._check_handler(handler)
        self._handlers.check()
        self._sealed = True
        self._session.supports = self._handlers.supported()

    def _next_request(self) -> str:
        self._requests += 1
        return f"{self._request_prefix}-{self._requests}"

    def _tell(self, event: ClientEvent) -> None:
        """Log what matters to operators, and pass the event on."""
        match event:
            case wire.WelcomeLine():
                self._backoff.reset()
                self._said = None
                log.info("connected to edgeguardd at %s as %s", self.path, self._session.name)
            case wire.ErrorLine() if wire.closes(event.code):
                self._parting = f"it refused us as {self._session.name}: {event.message} ({event.code})"
            case wire.ErrorLine():
                log.warning("edgeguardd says %s: %s", event.code, event.message)
            case wire.Bye():
                # After an error that ends the connection it only repeats that.
                self._parting = self._parting or f"it said bye: {event.reason}"
            case _:
                pass
        if self._on_event is not None:
            try:
                self._on_event(event)
            except (Exception, SystemExit):  # the application's function must not end the subscription
                log.exception("on_event failed")

    def _tell_away(self, why: str) -> None:
        """Log that there is no connection, once until there is one: what the daemon said at the end, if it did."""
        parting, self._parting = self._parting, None
        said = "away" if parting is None else parting
        if said == self._said:
            return
        self._said = said
        if parting is None:
            log.warning("cannot reach edgeguardd at %s: %s; trying again until it is there", self.path, why)
        else:
            log.warning("no connection to edgeguardd at %s: %s; trying again until it lets us in", self.path, parting)


def why_of(error: OSError) -> str:
    """What the system says of a connection that cannot be had or has ended, within a sentence."""
    return os.strerror(error.errno).lower() if error.errno else str(error) or "it does not take connections"


def unasked(request: str, granted: bool, why: str) -> Admission:
    """The admission when the daemon could not be asked."""
    return Admission(request, granted, why, asked=False)


def admission_of(line: wire.Admission) -> Admission:
    """The admission that the daemon gave."""
    return Admission(line.id, line.granted, line.reason, line.retry_after_s)
