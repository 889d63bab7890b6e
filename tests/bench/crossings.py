"""Crossings one after the other, each told to one subscriber, and how long that took.

Must not: choose the ground or the rivals (reaction does). Upstream: reaction, storm. Downstream: grounds, listener, a
daemon or the C loop.
"""

import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tests.bench.grounds import Ground, Stamps
from tests.bench.listener import Listener
from tests.support.wait import eventually

NORMAL_WITHIN_S = 30.0
# Marks are the defaults. Dwells are short, so that each crossing starts from normal soon; no relief, as memory.high is
# the trigger's to set and to lift. None of this lies on the way from a count to a command.
POLICY = """
[sampling]
fast = "10ms"
[defaults]
dwell = "1ms"
restore_dwell = "1ms"
repeat = 30
settle = 3600
relief = "off"
"""
EVERYTHING = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]


class Crossing(NamedTuple):
    """The kernel's count, and the command that could be read."""

    stamps: Stamps
    readable_ns: int

    @property
    def took_s(self) -> float:
        """From the moment before the count: an upper bound, with the count itself in it."""
        return (self.readable_ns - self.stamps.before_ns) / 1e9


class Told(Protocol):
    """Somebody who tells a subscriber."""

    def cross(self) -> Crossing:
        """One crossing."""


class ToldByLoop:
    """A loop on a ground of its own: a program that is told its socket, the file, and the counter."""

    def __init__(self, program: Sequence[str], directory: str, ground: Ground) -> None:
        path = f"{directory}/{os.path.basename(program[-1])}.sock"
        self._ground = ground
        self._process = subprocess.Popen([*program, path, ground.events, ground.key])
        connected = eventually(lambda: _connected(path), what="the loop listens")
        assert connected is not None
        self._listener = connected

    def cross(self) -> Crossing:
        """It tells of every count, those of the crossing before too: the kernel merges some and passes them on late."""
        while True:
            self._listener.drop()
            self._ground.start()
            line = self._listener.next("command")
            stamps = self._ground.stamps()
            self._ground.rest()
            if line.at_ns > stamps.before_ns:
                return Crossing(stamps, line.at_ns)

    def close(self) -> None:
        """Hang up, and it ends."""
        self._listener.close()
        self._process.wait()


class ToldByDaemon:
    """edgeguardd, that guards `target`; after each crossing the server obeys, and all is normal again."""

    def __init__(self, socket_path: str, target: str, ground: Ground) -> None:
        self._ground = ground
        self._listener = Listener(socket_path)
        self._listener.say(type="hello", name="bench", target=target, supports=EVERYTHING)
        self._listener.next("welcome")
        self.early = 0

    def cross(self) -> Crossing:
        """A command that came before the count, from a timer that found needed bytes at the limit, does not count."""
        while True:
            self.start()
            crossing = self.finish()
            if crossing.readable_ns > crossing.stamps.before_ns:
                return crossing
            self.early += 1

    def start(self) -> None:
        """The first half, for whoever looks on meanwhile."""
        self._ground.start()

    def finish(self) -> Crossing:
        """The second: told, at rest, obeyed, and normal again."""
        first = self._listener.next("command")
        stamps = self._ground.stamps()
        self._ground.rest()
        self._obey(first.said)
        return Crossing(stamps, first.at_ns)

    def _obey(self, command: dict[str, object]) -> None:
        """Everything is done, as memory shows; until the level is normal and nothing is in force."""
        self._done(command)
        lifted = normal = False
        while not (lifted and normal):
            for line in self._listener.all():
                if line.said["type"] == "command":
                    self._done(line.said)
                    lifted = _lifts_all(line.said)
                elif line.said["type"] == "level":
                    normal = line.said["level"] == "normal"
                elif line.said["type"] == "ping":
                    self._listener.say(type="pong")
            if not (lifted and normal):
                self._listener.read(NORMAL_WITHIN_S, "the end of all restrictions")

    def _done(self, command: dict[str, object]) -> None:
        self._listener.say(type="ack", seq=command["seq"], status="done")

    def close(self) -> None:
        """Hang up."""
        self._listener.close()


def _lifts_all(command: dict[str, object]) -> bool:
    parameters = command["parameters"]
    assert isinstance(parameters, dict)
    return (
        command["action"] == "restore"
        and parameters.get("max_batch_ratio", 1.0) == 1.0
        and parameters.get("accept_requests", True) is True
        and parameters.get("model_loaded", True) is True
    )


def _connected(path: str) -> Listener | None:
    try:
        return Listener(path)
    except OSError:
        return None
