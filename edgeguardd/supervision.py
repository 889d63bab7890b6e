"""What systemd hears while the daemon runs: one line of status, the watchdog, the connections it is to keep.

Must not: wait for systemd, judge. Upstream: dispatch, daemon. Downstream: systemd (the notify socket).
"""

import asyncio
import socket
from collections.abc import Callable

from edgeguardd.core.engine import Engine
from edgeguardd.core.model import Level
from edgeguardd.systemd import Notifier

NOT_KEPT = (
    "cannot keep the connections of pressure watchers for the next run: when this one ends, programs built on sd-event "
    "take a whole processor each; run it as a systemd service with FileDescriptorStoreMax=512"
)


class Supervision:
    """Of one daemon."""

    def __init__(
        self, notifier: Notifier, engine: Engine, loop: asyncio.AbstractEventLoop, on_fault: Callable[[str], None]
    ) -> None:
        self._notifier = notifier
        self._engine = engine
        self._loop = loop
        self._on_fault = on_fault
        self._status_line = ""
        self._said_not_kept = False

    def tell_status(self) -> None:
        """For `systemctl status`, when it has changed."""
        worst = self._engine.guard.worst_level()
        raised = sum(1 for target in self._engine.targets.values() if target.level > Level.NORMAL)
        line = f"{worst.word}: {len(self._engine.targets)} targets, {raised} above normal"
        if line != self._status_line:
            self._status_line = line
            self._notifier.status(line)

    def feed_watchdog(self, blind_s: Callable[[], float | None]) -> None:
        """Feed from now on, while targets are being looked at: a daemon that looks no more should be restarted.

        blind_s  for how long nothing has been looked at; None: all is
        """
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is None:
            return
        if blind_s() is None:
            self._notifier.watchdog()
        self._loop.call_later(interval_s / 2, self.feed_watchdog, blind_s)

    def keep(self, connection: socket.socket) -> None:
        """Have a watcher's connection outlive this process; that it cannot is said once."""
        if not self._notifier.keep(connection) and not self._said_not_kept:
            self._said_not_kept = True
            self._on_fault(NOT_KEPT)
