"""systemd's memory-pressure protocol as a server: whoever is connected is sent a byte when memory is short.

Must not: judge memory, decide whose pressure a peer hears of (`home_of` does). Upstream: unixbind, peercred.
Downstream: daemon. Protocol: docs/PRESSURE.md of systemd ($MEMORY_PRESSURE_WATCH naming an AF_UNIX stream socket).

The client side that this is made for, sd-event (sd_event_add_memory_pressure, read at 0068131bf5c7, tried with 254.26):
it connects, may write $MEMORY_PRESSURE_WRITE, and on each readiness reads once, whatever there is, and calls back.
- End of file is readiness for ever: the program then calls back without end, on a whole processor. So no connection is
  closed from here while the peer may be such a program: not for want of room, which is kept by accepting no more, not
  for want of a target, and not at a restart, across which systemd keeps the connections (`keep`).
- A reset, which is what a close with unread bytes in our queue makes, ends its event loop with an error. So what peers
  write is always read.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from edgeguardd.core.config import WatchSpec
from edgeguardd.serve.peercred import Peer, peer_of
from edgeguardd.serve.unixbind import Claim, claim, listening_at

# As many programs as a box has services, and some more; each costs a descriptor.
MAX_WATCHERS = 512
ACCEPTS_PER_TURN = 32
# sd-event connects without waiting, and gives up for good where the kernel's queue is full.
BACKLOG = 1024
# When no descriptor is left, accepting is tried again after so long.
PAUSE_S = 1.0
READ_BYTES = 4096
# An environment variable holds less; whoever writes more speaks something else.
MAX_WRITTEN_BYTES = 256 * 1024
# The kernel makes the least that it gives of this, which is still some dozens of unread bytes.
SEND_BUFFER_BYTES = 1
PRESSURE = b"\n"


class WatchStats(Struct):
    """`current` is the number of connections now; `unread` signals found those before them still unread."""

    current: int = 0
    accepted: int = 0
    signals: int = 0
    unread: int = 0


class Watcher:
    """One connected program. `target`: whose pressure it hears of; None: the machine's."""

    def __init__(self, sock: socket.socket, peer: Peer, spec: WatchSpec | None) -> None:
        self.sock = sock
        self.peer = peer
        self.spec = spec
        self.target: str | None = None
        self.written_bytes = 0


class Host(Struct, frozen=True):
    """What the server needs of the daemon.

    home_of  whose pressure a peer hears of, counted as one more that needs the target; None: the machine's
    release  one fewer needs it
    keep     a connection that is to outlive this process, if there is a way
    changed  a watcher came (True) or went
    """

    home_of: Callable[[Peer, WatchSpec | None], str | None]
    release: Callable[[str], None]
    keep: Callable[[socket.socket], None]
    changed: Callable[[Watcher, bool], None]


class PressureWatchServer:
    """Listens on every socket of `specs` and keeps those who connected."""

    def __init__(self, specs: Sequence[WatchSpec], host: Host) -> None:
        self.stats = WatchStats()
        self._specs = specs
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[int, Watcher] = {}
        self._listening: list[tuple[socket.socket, WatchSpec]] = []
        self._claims: list[Claim] = []
        self._accepting = self._closing = False
        self._resume_at: asyncio.TimerHandle | None = None

    # Start and stop

    def start(self, passed: Sequence[socket.socket] = ()) -> None:
        """Listen, and take over the connections among `passed` that an earlier run has kept. Raises ServeError."""
        for spec in self._specs:
            sock = listening_at(passed, spec.path)
            if sock is None:
                self._claims.append(claim(spec))
                sock = self._claims[-1].sock
            sock.setblocking(False)
            sock.listen(BACKLOG)
            self._listening.append((sock, spec))
        by_path = {spec.path: spec for spec in self._specs}
        for sock in passed:
            if sock.family == socket.AF_UNIX and not _is_listening(sock):
                self._take(sock, by_path.get(str(sock.getsockname())))
        self._accept_again()

    def close(self) -> None:
        """Leave no descriptor and no file behind. What can be read is read first: a reset would do harm."""
        self._closing = True
        self._stop_accepting()
        for watcher in tuple(self._watchers.values()):
            with contextlib.suppress(OSError):
                while watcher.written_bytes <= MAX_WRITTEN_BYTES and (written := watcher.sock.recv(READ_BYTES)):
                    watcher.written_bytes += len(written)
            self._forget(watcher)
        for sock, _ in self._listening:
            sock.close()
        for claimed in self._claims:
            claimed.remove_file()
            claimed.unlock()
        self._listening.clear()
        self._claims.clear()

    # What the daemon says

    def signal(self, target: str | None) -> None:
        """Memory is short: wake those who watch this target, or the machine."""
        for watcher in tuple(self._watchers.values()):
            if watcher.target == target:
                self._send(watcher)

    def place_again(self, target: str | None = None) -> None:
        """Targets have changed: find the home of those who watch `target` again; None: of all."""
        for watcher in self._watchers.values():
            if target is None or watcher.target == target:
                left, watcher.target = watcher.target, self._host.home_of(watcher.peer, watcher.spec)
                if left is not None:
                    self._host.release(left)

    def counts(self) -> dict[str | None, int]:
        """How many watch each target; None: the machine."""
        found: dict[str | None, int] = {}
        for watcher in self._watchers.values():
            found[watcher.target] = found.get(watcher.target, 0) + 1
        return found

    # What peers do

    def _accept(self, listener: socket.socket, spec: WatchSpec) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if len(self._watchers) >= MAX_WATCHERS:
                self._stop_accepting()
                return
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left
                self._stop_accepting()
                self._resume_at = self._loop.call_later(PAUSE_S, self._accept_again)
                return
            self.stats.accepted += 1
            self._host.keep(sock)
            self._take(sock, spec)

    def _take(self, sock: socket.socket, spec: WatchSpec | None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        watcher = Watcher(sock, peer_of(sock), spec)
        self._watchers[sock.fileno()] = watcher
        self.stats.current = len(self._watchers)
        watcher.target = self._host.home_of(watcher.peer, spec)
        self._loop.add_reader(sock, self._read, watcher)
        self._host.changed(watcher, True)

    def _read(self, watcher: Watcher) -> None:
        """What the peer writes says nothing here; nothing at all is its end."""
        try:
            written = len(watcher.sock.recv(READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            written = 0
        watcher.written_bytes += written
        if not written or watcher.written_bytes > MAX_WRITTEN_BYTES:
            self._forget(watcher)

    def _send(self, watcher: Watcher) -> None:
        try:
            watcher.sock.send(PRESSURE)
            self.stats.signals += 1
        except BlockingIOError:
            self.stats.unread += 1
        except OSError:
            self._forget(watcher)

    def _forget(self, watcher: Watcher) -> None:
        if self._watchers.pop(watcher.sock.fileno(), None) is None:
            return
        self.stats.current = len(self._watchers)
        self._loop.remove_reader(watcher.sock)
        watcher.sock.close()
        if watcher.target is not None:
            self._host.release(watcher.target)
        self._host.changed(watcher, False)
        self._accept_again()

    def _accept_again(self) -> None:
        if not (self._accepting or self._closing) and len(self._watchers) < MAX_WATCHERS:
            self._accepting = True
            for sock, spec in self._listening:
                self._loop.add_reader(sock, self._accept, sock, spec)

    def _stop_accepting(self) -> None:
        """Who connects now waits in the kernel's queue, unheard but unharmed."""
        self._accepting = False
        if self._resume_at is not None:
            self._resume_at.cancel()
        for sock, _ in self._listening:
            self._loop.remove_reader(sock)


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
