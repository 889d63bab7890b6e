"""A protected service for tests: pings on loopback, and listens to whatever changes in the network, by pyroute2.

    bystander.py REPORT

Writes REPORT as JSON when it begins and again every half second: pings sent, lost, the longest round trip, and the
network's events. Must not: depend on the daemon. Upstream: the tests. Downstream: loopback, netlink.
"""

import json
import os
import select
import socket
import sys
import threading
import time
from typing import Any

from pyroute2 import IPRoute

EVERY_S = 0.05
# A ping that takes longer is lost.
LOST_S = 5.0
REPORT_EVERY_S = 0.5


def listen(events: list[str]) -> None:
    """Every link, address and route that comes, changes or goes."""
    with IPRoute() as netlink:
        netlink.bind()
        events.append("listening")
        while True:
            events.extend(str(message["event"]) for message in netlink.get())


def ping(sock: socket.socket) -> float | None:
    """One round trip through the loopback device in seconds; None: lost."""
    began = time.monotonic()
    sock.sendto(b"%f" % began, sock.getsockname())
    if not select.select([sock], [], [], LOST_S)[0]:
        return None
    sock.recv(64)
    return time.monotonic() - began


def main(report: str) -> None:
    """Until it is ended."""
    events: list[str] = []
    threading.Thread(target=listen, args=(events,), daemon=True).start()
    found: dict[str, Any] = {"sent": 0, "lost": 0, "longest_s": 0.0}
    told_at = 0.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        while True:
            took_s = ping(sock)
            found["sent"] += 1
            found["lost"] += took_s is None
            found["longest_s"] = max(found["longest_s"], took_s or 0.0)
            if time.monotonic() - told_at > REPORT_EVERY_S:
                told_at = time.monotonic()
                with open(report + ".new", "w") as file:
                    json.dump({**found, "events": events}, file)
                os.replace(report + ".new", report)
            time.sleep(EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1])
