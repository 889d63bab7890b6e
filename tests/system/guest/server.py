"""An inference server as a unit of its own, set up by the package's own drop-in, and the way to talk to it.

Must not: do the daemon's work. Upstream: the tests. Downstream: box, inference.py.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

from tests.system.guest import box
from tests.system.guest.box import eventually

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inference.py")
UNIT = """\
[Service]
Type=exec
User=nobody
RuntimeDirectory={name}
ExecStart=/usr/bin/python3 {program} /run/{name}/control {target} {subscribers} {hold_mib}
"""


class Server:
    """One running unit."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.unit = f"{name}.service"
        self.target = target

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Have it do something; what it holds and was told then."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(box.PATIENCE_S)
            sock.connect(f"/run/{self.name}/control")
            sock.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
            with sock.makefile("rb") as lines:
                return dict(json.loads(lines.readline()))

    def grow(self, mib: int) -> None:
        """Hold so much more."""
        self.ask("grow", mib=mib)

    def grow_aside(self, mib: int) -> None:
        """The same, not waited for: above memory.high it may take long, and whoever is killed never answers."""

        def grow() -> None:
            with contextlib.suppress(OSError, ValueError):
                self.grow(mib)

        threading.Thread(target=grow, daemon=True).start()

    def told(self, *kinds: str, since: float = 0.0) -> list[tuple[float, int, str, dict[str, Any]]]:
        """What it was told of these kinds: when, to which of its subscribers, what."""
        return [tuple(row) for row in self.ask("told")["told"] if row[2] in kinds and row[0] >= since]

    def commands(self, action: str = "", since: float = 0.0) -> list[dict[str, Any]]:
        """The commands it got, in order."""
        found = [fields for _, _, _, fields in self.told("command", since=since)]
        return [fields for fields in found if action in ("", fields["action"])]

    def welcomed(self, count: int, since: float = 0.0) -> None:
        """Wait until so many of its subscribers were let in."""

        def names() -> set[int]:
            # While its unit restarts there is nobody to ask.
            with contextlib.suppress(OSError, ValueError):
                return {number for _, number, _, _ in self.told("welcome", since=since)}
            return set()

        eventually(lambda: len(names()) >= count, box.PATIENCE_S, what=f"{count} subscribers of {self.unit} let in")


@contextlib.contextmanager
def serving(
    name: str, *, target: str, high: str, most: str, subscribers: int = 1, hold_mib: int = 8
) -> Iterator[Server]:
    """A server with limits, in its slice and let in, as the package's drop-in for one has it; gone afterwards."""
    unit = f"{name}.service"
    with open(f"{box.UNITS}/{unit}", "w") as file:
        words = {"name": name, "program": PROGRAM, "target": target, "subscribers": subscribers, "hold_mib": hold_mib}
        file.write(UNIT.format(**words))
    sizes = {"MemoryHigh=5G": f"MemoryHigh={high}", "MemoryMax=6G": f"MemoryMax={most}"}
    box.drop_in(unit, "edgeguardd", box.shipped("inference", sizes))
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", unit)
    try:
        server = Server(name, target)
        eventually(lambda: os.path.exists(f"/run/{name}/control"), box.PATIENCE_S)
        server.welcomed(subscribers)
        yield server
    finally:
        box.run("systemctl", "stop", unit)
        box.remove(f"{box.UNITS}/{unit}.d/edgeguardd.conf", f"{box.UNITS}/{unit}")
        box.run("systemctl", "daemon-reload")
