"""The parts of `make bench`, one row each: what is run where, and what becomes a section of which page.

Must not: measure. Upstream: probes. Downstream: __main__.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from tests.bench import grounds, llama, qemu, reaction, soak
from tests.bench.probes import GUEST, HERE, Found, ProbeError, Tell, kernel_of_memory, probe
from tests.bench.report import Section
from tests.llama.__main__ import GUEST_MEMORY_BYTES, LIMIT_S
from tests.support.uml.runner import GuestError

PERFORMANCE, RELIABILITY = "docs/explanation/performance.md", "docs/explanation/reliability.md"
SOAK_TEMPO = 10.0


class Size(NamedTuple):
    """How much of everything: enough for the figures, or so little that only the code is tried."""

    word: str
    crossings: int
    falls: int
    kills: int
    soak_s: float
    survival_s: float
    seeds: tuple[int, ...]


Ask = Callable[[], Found]

FULL = Size("full", crossings=300, falls=20, kills=6, soak_s=3600.0, survival_s=30.0, seeds=(1, 2))
QUICK = Size("quick", crossings=3, falls=2, kills=1, soak_s=3.0, survival_s=3.0, seeds=(1,))
# As the demonstration's guest: the machine's own memory plays a part.
GUEST_BYTES = 640 << 20


class Part(NamedTuple):
    """One part: its page, whether it belongs to a run without options, after how many minutes it is given up, and what
    it does."""

    page: str
    usual: bool
    most_minutes: float
    run: Callable[[Size, Tell], Section]


def _reaction(size: Size, tell: Tell) -> Section:
    reaction.built_loop()
    where = kernel_of_memory()
    asked = [lambda: probe("reaction", where, "memory", str(size.crossings))]
    if where == GUEST and has_huge():
        # The figures of a real processor, by a counter of another controller.
        asked.insert(0, lambda: probe("reaction", HERE, "huge", str(size.crossings)))
    return _section("reaction", "Reaction", asked)


def _cost(size: Size, tell: Tell) -> Section:
    return _section("cost", "Cost", [lambda: probe("cost", HERE, size.word)])


def _subscribers(size: Size, tell: Tell) -> Section:
    where, kind = (HERE, "huge") if has_huge() else (kernel_of_memory(), "memory")
    return _section("subscribers", "Many subscribers", [lambda: probe("crowd", where, kind, size.word)])


def _restart(size: Size, tell: Tell) -> Section:
    return _section("restart", "Restarts", [lambda: probe("restart", HERE, size.word)])


def _storm(size: Size, tell: Tell) -> Section:
    if not has_huge():
        raise ProbeError("it needs root, cgroup v2 with the hugetlb controller, and a kernel from 5.6 on")
    return _section("storm", "A storm", [lambda: probe("storm", HERE, size.word)])


def has_huge() -> bool:
    """Whether counters of huge pages can be had here."""
    return os.geteuid() == 0 and grounds.huge_root() is not None


def _machine(size: Size, tell: Tell) -> Section:
    asked = [lambda: probe("machinewide", GUEST, str(size.falls), memory_bytes=GUEST_BYTES)]
    return _section("machine", "Guards of the whole machine", asked)


def _survival(size: Size, tell: Tell) -> Section:
    seconds = str(size.survival_s)

    def of(seed: int) -> Ask:
        return lambda: probe("survival", GUEST, str(seed), seconds, memory_bytes=GUEST_BYTES)

    return _section("survival", "Survival", [of(seed) for seed in size.seeds])


def _llama(size: Size, tell: Tell) -> Section:
    server = llama.found()
    if server is None:
        raise ProbeError("there is no llama-server: `make llama` builds it, LLAMA_DIR names where")
    asked = [lambda: probe("llama", GUEST, *server, memory_bytes=GUEST_MEMORY_BYTES, limit_s=LIMIT_S)]
    return _section("llama", "Survival of a real llama-server", asked)


def _guest(size: Size, tell: Tell) -> Section:
    """In QEMU, whose processor is emulated: systemd, PSI, and systemd-oomd are only there."""
    asked = [["reaction", "memory", str(size.crossings), "whole"], ["oomd", str(size.kills)]]
    asked.append(["survival", "1", str(size.survival_s), "systemd"])
    loop = reaction.built_loop()
    measured = qemu.measure(asked, loop, tell)
    tables = [table for each in measured.found for table in each.tables]
    # An emulated processor is ten times slower: its figures are not what the budgets are about.
    return Section("guest", "In a Debian guest", tables, missing=measured.missing)


def _soak(size: Size, tell: Tell) -> Section:
    seconds = float(os.environ.get("SOAK_SECONDS", size.soak_s))
    return soak.run(seconds, SOAK_TEMPO, 1, tell)


def _section(part: str, title: str, asked: list[Ask]) -> Section:
    """All tables. A figure measured on several grounds is judged on the first, the best; of seeds the worst counts.

    What cannot be measured is said, and the rest stays. Raises ProbeError, GuestError when nothing can.
    """
    found: list[Found] = []
    missing: list[str] = []
    for ask in asked:
        try:
            found.append(ask())
        except (ProbeError, GuestError) as error:
            missing.append(str(error).strip())
            if len(missing) == len(asked):
                raise
    measured: dict[str, float] = {}
    for each in found:
        for name, value in each.measured.items():
            measured[name] = max(value, measured.get(name, value)) if part == "survival" else measured.get(name, value)
    tables = [table for each in found for table in each.tables]
    return Section(part, title, tables, measured, missing=missing)


# In order; what is given up takes about three times as long as usual.
PARTS = {
    "reaction": Part(PERFORMANCE, True, 10, _reaction),
    "cost": Part(PERFORMANCE, True, 8, _cost),
    "restart": Part(PERFORMANCE, True, 4, _restart),
    "subscribers": Part(PERFORMANCE, True, 5, _subscribers),
    "storm": Part(PERFORMANCE, True, 5, _storm),
    "machine": Part(PERFORMANCE, True, 12, _machine),
    "survival": Part(RELIABILITY, True, 20, _survival),
    "guest": Part(PERFORMANCE, True, 16, _guest),
    "llama": Part(RELIABILITY, llama.found() is not None, 18, _llama),
    "soak": Part(PERFORMANCE, False, 100, _soak),
}
