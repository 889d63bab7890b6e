"""What systemd is told and what it hands over: sd_notify(3) through sdnotify, the watchdog, inherited sockets.

Must not: wait for systemd, or fail without it: outside a unit everything here does nothing. Upstream: daemon.
Downstream: the datagram socket named by NOTIFY_SOCKET.
"""

import os
import socket
import time
import warnings
from collections.abc import Mapping, MutableMapping

from sdnotify import SystemdNotifier

from edgeguardd.core.text import printable
from edgeguardd.logs import get_logger

MAX_STATUS_CHARS = 256

# READY=1 must arrive or systemd ends the service at its start timeout, so that one message may wait a moment for
# room in systemd's queue (net.unix.max_dgram_qlen).
READY_WAIT_S = 1.0

# Under this name systemd keeps connections for the next run of this service (sd_pid_notify_with_fds(3), FDSTORE).
KEPT_NAME = "pressure-watcher"

LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
FIRST_LISTEN_FD = 3  # SD_LISTEN_FDS_START in sd-daemon.h
MAX_LISTEN_FDS = 1024  # far above any unit; a number beyond it is a mistake, not tried one by one

# systemd's own users write seconds. Feeding more than twenty times a second costs more than it guards.
LEAST_WATCHDOG_S = 0.1
MOST_WATCHDOG_S = 86_400.0

log = get_logger()


class Notifier:
    """The service's side of the notify protocol. `lost_messages` found no room or no listener."""

    def __init__(self) -> None:
        self.lost_messages = 0
        self.watchdog_interval_s = _watchdog_interval_s(os.environ, os.getpid())
        self._notifier = _connected()

    def ready(self, status: str | None = None) -> None:
        """Start-up, or a reload, is complete."""
        self._send("READY=1" + ("" if status is None else _status_line(status)), READY_WAIT_S)

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(_status_line(text).lstrip("\n"))

    def reloading(self) -> None:
        """A reload has begun; ready() ends it. Type=notify-reload wants the time too (sd_notify(3), systemd 253)."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The service has begun to stop."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The service is alive. Due at least every watchdog_interval_s; half of it is wise."""
        self._send("WATCHDOG=1")

    def keep(self, sock: socket.socket) -> bool:
        """Have systemd hold this connection until its peer ends it, and pass it to the next run. Whether it was sent.

        It is held if the unit has FileDescriptorStoreMax=; nothing tells.
        """
        if self._notifier is None:
            return False
        try:
            socket.send_fds(self._notifier.socket, [f"FDSTORE=1\nFDNAME={KEPT_NAME}".encode()], [sock.fileno()])
        except OSError:
            self.lost_messages += 1
            return False
        return True

    def close(self) -> None:
        """Close the socket; later messages go nowhere."""
        if self._notifier is not None:
            self._notifier.socket.close()
            self._notifier = None

    def _send(self, state: str, wait_s: float = 0.0) -> None:
        if self._notifier is None:
            return
        self._notifier.socket.settimeout(wait_s)
        try:
            # sdnotify encodes as Latin-1, systemd reads UTF-8: this spells the UTF-8 bytes in Latin-1.
            self._notifier.notify(state.encode().decode("latin-1"))
        except OSError:
            self.lost_messages += 1


def listen_sockets(environ: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """The Unix stream sockets that systemd passes to this process (sd_listen_fds(3)): listening ones, in the unit's
    order, and connections that an earlier run has had kept.

    Takes LISTEN_* out of the environment, so that a second call and children get none. Every other descriptor stays
    as it is: the variables may be wrong, and then it is somebody else's, who closes it. Call it before anything else
    opens sockets. The caller keeps all that it gets: a socket that is dropped is closed.
    """
    environ = os.environ if environ is None else environ
    words = {name: environ.pop(name, "") for name in LISTEN_VARIABLES}
    try:
        pid, count = int(words["LISTEN_PID"]), int(words["LISTEN_FDS"])
    except ValueError:
        return []
    if pid != os.getpid() or not 0 < count <= MAX_LISTEN_FDS:
        return []
    names = words["LISTEN_FDNAMES"].split(":")
    kept = {FIRST_LISTEN_FD + at for at, name in enumerate(names) if name == KEPT_NAME}
    found = [_socket_of(fd, kept=fd in kept) for fd in range(FIRST_LISTEN_FD, FIRST_LISTEN_FD + count)]
    return [sock for sock in found if sock is not None]


def _socket_of(fd: int, *, kept: bool) -> socket.socket | None:
    """The listening socket of a descriptor, or the kept connection; None for anything else, which is left alone."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:  # not open, or not a socket
        return None
    if not (sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM and _listens(sock) is not kept):
        sock.detach()
        return None
    os.set_inheritable(fd, False)
    return sock


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _connected() -> SystemdNotifier | None:
    """A notifier with a connected socket, or None outside a unit or where its socket is gone."""
    if not os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@")):
        return None
    with warnings.catch_warnings():
        # Where connecting fails, sdnotify forgets its socket without closing it.
        warnings.simplefilter("ignore", ResourceWarning)
        notifier = SystemdNotifier()
    if notifier.socket is None:
        return None
    notifier.debug = True  # without it, notify() swallows every error, and a lost message could not be counted
    return notifier


def _status_line(text: str) -> str:
    return f"\nSTATUS={printable(text, MAX_STATUS_CHARS)}"


def _watchdog_interval_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Within which time systemd wants to hear from us, in seconds; None: not at all (sd_watchdog_enabled(3))."""
    try:
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
        if int(environ.get("WATCHDOG_PID") or pid) != pid or microseconds <= 0:
            return None
    except ValueError:
        return None
    # Whole numbers are compared: a float has no room for what the variable may hold.
    wanted_s = min(microseconds, int(MOST_WATCHDOG_S * 1_000_000)) / 1_000_000
    if wanted_s >= LEAST_WATCHDOG_S:
        return wanted_s
    log.warning("watchdog_too_short", wanted_s=wanted_s, used_s=LEAST_WATCHDOG_S, remedy="raise WatchdogSec=")
    return LEAST_WATCHDOG_S
