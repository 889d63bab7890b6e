"""`python -m tests.torture.afflicted run …`: edgeguardd, with afflictions in it that a control socket puts in force.

The daemon is the product's own, started by its own command. EDGEGUARDD_AFFLICTIONS names the control socket; a file of
that name with ".start" behind it holds what is to be in force from the start. One JSON line is asked, one answered.
Must not: change anything while nothing is asked. Upstream: world. Downstream: afflictions, edgeguardd.cli.edgeguardd.
"""

import importlib
import json
import os
import socket
import sys
import threading
from typing import Any, cast

from edgeguardd.cli import edgeguardd
from edgeguardd.standins import without_unused
from tests.torture import afflictions as ills
from tests.torture import callsites

CONTROL_VARIABLE = "EDGEGUARDD_AFFLICTIONS"
PRESSURE_MODULE = "edgeguardd.kernel.pressure"


def main() -> int:
    """Put everything in place, then be the daemon."""
    found = ills.Afflictions()
    with without_unused():
        place(found)
    path = os.environ[CONTROL_VARIABLE]
    if os.path.exists(f"{path}.start"):
        with open(f"{path}.start") as file:
            for line in file:
                answer(found, json.loads(line))
    threading.Thread(target=listen, args=(found, path), daemon=True).start()
    return edgeguardd.main(sys.argv[1:])


def place(found: ills.Afflictions) -> None:
    """Gates at every call into the kernel, and a point of death before and after every effect."""
    from edgeguardd import dispatch  # noqa: PLC0415  as the command does it: without OpenSSL

    known: dict[str, set[str]] = {}
    for site in callsites.sites():
        known.setdefault(site.module, set()).add(site.call)
    vars(importlib.import_module(PRESSURE_MODULE))["os"] = ills.PressureFiles(found)
    for name, calls in known.items():
        ills.place(found, importlib.import_module(name), frozenset(calls))
    ills.place_in_libraries(found)
    ills.place_clock(found)
    carry_out = dispatch.Dispatch._carry_out

    def carried(self: dispatch.Dispatch, effect: Any, *rest: Any) -> None:
        found.pass_by(f"before {type(effect).__name__}")
        if type(effect).__name__ not in found.lost:
            carry_out(self, effect, *rest)
        found.pass_by(f"after {type(effect).__name__}")

    dispatch.Dispatch._carry_out = carried  # type: ignore[method-assign]


def listen(found: ills.Afflictions, path: str) -> None:
    """The control socket, for as long as the process lives."""
    with socket.socket(socket.AF_UNIX) as listener:
        if os.path.exists(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen()
        while True:
            serve(found, listener)


def serve(found: ills.Afflictions, listener: socket.socket) -> None:
    """One question, past all gates. Its descriptor is closed again, so that those of the daemon can be counted."""
    fd, _ = cast(Any, listener)._accept()
    try:
        asked = b""
        while not asked.endswith(b"\n"):
            piece = os.read(fd, 65536)
            if not piece:
                return
            asked += piece
        told = json.dumps(answer(found, json.loads(asked))).encode() + b"\n"
        while told:
            told = told[os.write(fd, told) :]
    finally:
        os.close(fd)


def answer(found: ills.Afflictions, asked: dict[str, Any]) -> dict[str, Any]:
    """Do one thing that is asked; what there is to tell."""
    match asked["do"]:
        case "fail":
            found.fail(asked["sites"], asked["number"], asked["odds"], asked["seed"])
        case "heal":
            found.fail((), 0, 0.0, 0)
            found.doom.clear()
            found.lost.clear()
        case "die":
            found.die_at(asked["point"], asked["nth"])
        case "lose":
            found.lost.add(asked["effect"])
        case "gap":
            found.gap_s += asked["seconds"]
        case "pressure":
            found.pressure_directory = asked["directory"]
        case "count":
            pass
        case other:
            raise ValueError(f"cannot do {other}")
    return {"calls": dict(found.calls), "hits": dict(found.hits)}


if __name__ == "__main__":
    sys.exit(main())
