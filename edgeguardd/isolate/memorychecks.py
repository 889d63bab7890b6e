"""What rules ask about a unit's memory: its limits, its guarantees, the slices above it, the machine, the kernel.

Must not: read files. Upstream: findings, effective. Downstream: rules.
"""

from edgeguardd.core.kernelfmt import U64_MAX
from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate import effective as force
from edgeguardd.isolate.findings import Answer, Subject, failed, judge, passed, unset
from edgeguardd.isolate.unit import LOADED, Unit

# Below this the room between MemoryHigh and MemoryMax is used up by one batch's buffers: 5 % of a limit of 1 to 8 GiB
# is 50 to 400 MiB. `relief` lifts memory.high within the same room.
_LEAST_GAP_SHARE = 0.05
# Those whose own value the kernel files show.
_KERNEL_FILES = (
    ("MemoryMin", "memory.min"),
    ("MemoryLow", "memory.low"),
    ("MemoryHigh", "memory.high"),
    ("MemoryMax", "memory.max"),
    ("MemorySwapMax", "memory.swap.max"),
)


def words(size_bytes: int) -> str:
    """A size as a person reads it, exact when that is short."""
    if size_bytes == INFINITE:
        return "infinity"
    for unit, power in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size_bytes >= 1 << power and size_bytes % (1 << max(power - 10, 0)) == 0:
            return f"{size_bytes / (1 << power):.4g}{unit}"
    return f"{size_bytes} bytes"


def max_set(subject: Subject) -> Answer:
    """MemoryMax= finite."""
    unit = subject.unit
    limit: int = unit.values["MemoryMax"]
    if limit != INFINITE:
        return passed(f"MemoryMax is {words(limit)}", "MemoryMax")
    if force.memory_limit_applies(unit):
        limit = unit.values["MemoryLimit"]
        return judge(f"only MemoryLimit={words(limit)}, which a later MemoryHigh= would undo", "MemoryLimit")
    if unit.values["MemoryLimit"] != INFINITE:
        return failed("MemoryLimit= does not count beside newer settings, and MemoryMax is infinity", "MemoryLimit")
    return failed("MemoryMax is infinity", "MemoryMax")


def high_below_max(subject: Subject) -> Answer:
    """MemoryHigh= below MemoryMax=."""
    high, limit = subject.unit.values["MemoryHigh"], subject.unit.values["MemoryMax"]
    if high == INFINITE:
        return unset("MemoryHigh is infinity: nothing slows the unit down before it is killed", "MemoryHigh")
    if limit == INFINITE:
        return judge(f"MemoryHigh is {words(high)} and MemoryMax infinity: throttled, never ended", "MemoryHigh")
    if high < limit:
        return passed(f"MemoryHigh {words(high)} is below MemoryMax {words(limit)}", "MemoryHigh")
    return failed(f"MemoryHigh {words(high)} is not below MemoryMax {words(limit)}: it never acts", "MemoryHigh")


def swap_max_set(subject: Subject) -> Answer:
    """MemorySwapMax= finite."""
    limit: int = subject.unit.values["MemorySwapMax"]
    if limit == INFINITE:
        return failed(
            "MemorySwapMax is infinity: what is over the limit goes to swap, as far as there is any", "MemorySwapMax"
        )
    return passed(f"MemorySwapMax is {words(limit)}", "MemorySwapMax")


def gap_for_throttling(subject: Subject) -> Answer | None:
    """Without swap, MemoryHigh= needs MemoryMax= above it, at a distance."""
    given = subject.unit.values
    high, limit = given["MemoryHigh"], given["MemoryMax"]
    no_swap = given["MemorySwapMax"] == 0 or (subject.live is not None and subject.live.has_swap is False)
    if high == INFINITE or not no_swap or high >= limit:
        return None
    if limit == INFINITE:
        return failed(
            "MemoryHigh without swap and without MemoryMax: it can stall for ever, and is never ended", "MemoryHigh"
        )
    if limit - high < limit * _LEAST_GAP_SHARE:
        return failed(f"only {words(limit - high)} between MemoryHigh and MemoryMax, and no swap", "MemoryHigh")
    return passed(f"{words(limit - high)} between MemoryHigh and MemoryMax", "MemoryHigh")


def max_below_memory(subject: Subject) -> Answer | None:
    """MemoryMax= below what the machine has."""
    limit, there = force.hard_limit(subject.unit), subject.machine.memory_bytes
    if limit == INFINITE:
        return None
    if limit >= there:
        return failed(
            f"MemoryMax {words(limit)} is not below the machine's {words(there)}: the whole machine runs out first",
            "MemoryMax",
        )
    return passed(f"MemoryMax {words(limit)} of the machine's {words(there)}", "MemoryMax")


def ancestor_tighter(subject: Subject) -> Answer | None:
    """No slice above has a limit that makes the unit's own useless."""
    own = {"MemoryMax": force.hard_limit(subject.unit), "MemoryHigh": subject.unit.values["MemoryHigh"]}
    for key, limit in own.items():
        least, holder = force.tightest(subject.unit, key)
        if limit != INFINITE and holder is not subject.unit:
            return failed(f"{key} {words(limit)} never acts: {holder.name} above it has {words(least)}", key)
    least, holder = force.tightest(subject.unit, "MemoryMax")
    if holder is not subject.unit and least != INFINITE:
        return judge(f"only {holder.name} above it has a limit, {words(least)}, which it shares", "MemoryMax")
    return passed("no slice above is tighter") if min(own.values()) != INFINITE else None


def guarantee_reaches(subject: Subject) -> Answer | None:
    """MemoryMin= and MemoryLow= hold on the whole way from the root, and below the unit's limits."""
    unit = subject.unit
    for key in ("MemoryMin", "MemoryLow"):
        wanted = force.applied_guarantee(unit, key)
        if wanted == 0:
            continue
        for above in unit.slices[:-1]:  # the root slice needs none
            given = force.applied_guarantee(_with_slices(above, unit), key) if above.load_state == LOADED else 0
            if given < wanted:
                return failed(
                    f"{key} {words(wanted)}, but {above.name} above it guarantees {words(given)}: that much holds", key
                )
        least = min(force.hard_limit(unit), unit.values["MemoryHigh"])
        if wanted > least:
            return failed(f"{key} {words(wanted)} is above the unit's own limit of {words(least)}", key)
        if wanted != INFINITE and wanted >= subject.machine.memory_bytes:
            return failed(f"{key} {words(wanted)} is all that the machine has", key)
    guaranteed = any(force.applied_guarantee(unit, key) for key in ("MemoryMin", "MemoryLow"))
    return passed("the slices above guarantee as much") if guaranteed else None


def _with_slices(above: Unit, unit: Unit) -> Unit:
    """A slice of the unit, with the slices above that one: it is loaded without them."""
    place = unit.slices.index(above)
    return Unit(
        above.name, above.kind, above.found, above.load_state, values=above.values, slices=unit.slices[place + 1 :]
    )


def controller_there(subject: Subject) -> Answer | None:
    """The memory controller reaches the unit."""
    if not _limited(subject.unit):
        return None
    taken = force.disabled_controllers(subject.unit).get("memory")
    if taken is not None:
        return failed(
            f"DisableControllers= of {taken.name} takes the memory controller away: no limit acts", "DisableControllers"
        )
    if subject.live is not None and subject.live.controllers is not None:
        if "memory" not in subject.live.controllers:
            return failed(f"cgroup.controllers of {subject.live.cgroup} has no memory: no limit acts")
        return passed("cgroup.controllers has memory")
    if subject.unit.user:
        return judge("a user's unit is limited only where the memory controller is delegated to user@.service")
    return passed("nothing takes the memory controller away")


def not_legacy(subject: Subject) -> Answer | None:
    """MemoryLimit= is not used."""
    if subject.unit.values["MemoryLimit"] == INFINITE:
        return None
    return failed(
        "MemoryLimit= is of cgroup v1, beside newer settings it does nothing, and systemd 258 drops it", "MemoryLimit"
    )


def managed_oom(subject: Subject) -> Answer | None:
    """ManagedOOM… is not all there is."""
    given = subject.unit.values
    kills = "kill" in (given["ManagedOOMSwap"], given["ManagedOOMMemoryPressure"])
    if not kills and given["ManagedOOMPreference"] == "none":
        return None
    if kills and force.hard_limit(subject.unit) == INFINITE:
        return failed(
            "ManagedOOM…=kill and no MemoryMax: it acts only where systemd-oomd runs, and only after seconds",
            "ManagedOOMSwap",
        )
    if given["ManagedOOMPreference"] != "none":
        return judge(
            f"ManagedOOMPreference={given['ManagedOOMPreference']} is for systemd-oomd; the kernel does not read it",
            "ManagedOOMPreference",
        )
    return passed("there is a MemoryMax besides")


def kernel_agrees(subject: Subject) -> Answer | None:
    """The cgroup of a running unit has what the files say."""
    live = subject.live
    if live is None:
        return None
    if live.controllers is not None and "memory" not in live.controllers:
        return None  # memory_controller_there says so
    other: list[str] = []
    for key, file in _KERNEL_FILES:
        wanted = force.hard_limit(subject.unit) if key == "MemoryMax" else _wanted(subject.unit, key)
        text = live.files.get(file)
        if text is None:
            continue
        there = INFINITE if text.strip() == "max" else int(text) if text.strip().isdigit() else None
        if there is None or there != _rounded(wanted, subject.machine.page_bytes):
            other.append(f"{file} is {text.strip()[:40] or 'empty'}, {key} {words(wanted)}")
    if other:
        return failed(f"{live.cgroup}: {'; '.join(other)}")
    score = subject.unit.values["OOMScoreAdjust"]
    wrong = {pid: there for pid, there in live.scores.items() if score is not None and there != score}
    if wrong:
        pid, there = next(iter(wrong.items()))
        return judge(f"process {pid} has an oom_score_adj of {there}, OOMScoreAdjust is {score}", "OOMScoreAdjust")
    return passed(f"{live.cgroup} has what the files say")


def files_in_force(subject: Subject) -> Answer | None:
    """The running systemd has what the files say."""
    if subject.differs is None:
        return None
    if subject.differs:
        return failed("; ".join(subject.differs))
    return passed("the running systemd has what the files say")


def _wanted(unit: Unit, key: str) -> int:
    return force.applied_guarantee(unit, key) if key in ("MemoryMin", "MemoryLow") else int(unit.values[key])


def _rounded(size_bytes: int, page_bytes: int) -> int:
    """As the kernel keeps it: whole pages, and "max" for what is beyond all (page_counter_memparse)."""
    return INFINITE if size_bytes >= U64_MAX // 2 else size_bytes // page_bytes * page_bytes


def _limited(unit: Unit) -> bool:
    keys = ("MemoryHigh", "MemoryMax", "MemorySwapMax", "MemoryLimit")
    return any(unit.values[key] != INFINITE for key in keys) or bool(
        unit.values["MemoryMin"] or unit.values["MemoryLow"]
    )
