"""Why it is not done: each rule a function from what is wanted, and found, to sentences.

Must not: look at or change anything. Upstream: model. Downstream: plan.
A refusal comes before any damage: a limit below what is in use makes the kernel kill, one that acts nowhere makes
people believe in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate.provision.model import (
    HIGH,
    LOW,
    MAX,
    MIN,
    SWAP_MAX,
    Found,
    Group,
    Machine,
    size_text,
)

_GUARANTEES = (MIN, LOW)
_LIMITS = (HIGH, MAX)


class Request(Struct, frozen=True):
    """All that the rules look at. `reserve_bytes`: what stays with the kernel and all that is not named."""

    groups: Sequence[Group]
    found: Mapping[str, Found]
    machine: Machine
    reserve_bytes: int = 0
    overcommit: bool = False
    force: bool = False


def refusals(request: Request) -> list[str]:
    """Every reason, in the order of the rules."""
    return [sentence for rule in RULES for sentence in rule(request)]


def cannot_be_there(request: Request) -> Iterator[str]:
    """What the back end found in the way: no such unit, no such controller, processes where none may be."""
    for group in request.groups:
        for fault in request.found.get(group.name, Found()).faults:
            yield f"cannot provision {group.name}: {fault}"


def limits_in_order(request: Request) -> Iterator[str]:
    """memory.high has to be below memory.max to act at all, guarantees below both."""
    for group in request.groups:
        values = group.values
        high, limit = values.get(HIGH, INFINITE), values.get(MAX, INFINITE)
        if MAX in values and limit == 0:
            yield f"cannot set memory_max of {group.name} to 0: nothing could run in it; write a size"
        elif high != INFINITE and high >= limit:
            yield (
                f"cannot set memory_high of {group.name} to {size_text(high)}: it never acts at or above memory_max, "
                f"{size_text(limit)}; write a smaller one"
            )
        for file in _GUARANTEES:
            guarantee = values.get(file, 0)
            least = min(high, limit)
            if guarantee > least != INFINITE:
                yield (
                    f"cannot guarantee {group.name} {_amount(guarantee)} ({_key(file)}): it may have no more than "
                    f"{size_text(least)}; write at most that"
                )


def limits_within_the_slice(request: Request) -> Iterator[str]:
    """A limit above that of a slice around it never acts."""
    by_name = {group.name: group for group in request.groups}
    for group in request.groups:
        limit = group.values.get(MAX, INFINITE)
        for name in group.above:
            around = by_name[name].values.get(MAX, INFINITE) if name in by_name else INFINITE
            if limit != INFINITE and limit > around:
                yield (
                    f"cannot set memory_max of {group.name} to {size_text(limit)}: {name} around it has "
                    f"{size_text(around)}, so that it would never act; write at most that"
                )


def guarantees_fit_the_slice(request: Request) -> Iterator[str]:
    """What a slice does not guarantee, its services do not get (cgroup-v2.rst, "memory.min")."""
    for name in _parents(request.groups):
        inside = [group for group in request.groups if group.above[-1:] == (name,)]
        own = next((group for group in request.groups if group.name == name), None)
        for file in _GUARANTEES:
            total = sum(group.values.get(file, 0) for group in inside)
            has = own.values.get(file, 0) if own is not None else 0
            if own is None and total:
                yield (
                    f"cannot guarantee {_names(inside, file)} {_amount(total)} ({_key(file)}): {name} guarantees "
                    f"nothing; add it as [[provision.slice]] with {_key(file)} of at least that"
                )
            elif total > has:
                yield (
                    f"cannot guarantee {_names(inside, file)} {_amount(total)} ({_key(file)}): {name} around has "
                    f"{_amount(has)}; raise that by {_amount(total - has)} or lower these"
                )


def sums_within_memory(request: Request) -> Iterator[str]:
    """Guarantees may not promise more than there is; limits may only if the configuration says so."""
    for_all = request.machine.memory_bytes - request.reserve_bytes
    outermost = [group for group in request.groups if not any(_inside(group, other) for other in request.groups)]
    for file in _GUARANTEES:
        total = sum(group.values.get(file, 0) for group in outermost)
        if total > for_all:
            yield (
                f"cannot guarantee {_amount(total)} ({_key(file)} of {_names(outermost, file)}): "
                f"{_of_memory(request)}; take {_amount(total - for_all)} off"
            )
    if request.overcommit:
        return
    limited = [group for group in outermost if _takes(group)]
    total = sum(_takes(group) for group in limited)
    if total > for_all:
        each = ", ".join(f"{group.name} {size_text(_takes(group))}" for group in limited)
        yield (
            f"cannot let these have {size_text(total)} together ({each}): {_of_memory(request)}; take "
            f"{size_text(total - for_all)} off, or write overcommit = true if they never need it at once"
        )


def swap_is_there(request: Request) -> Iterator[str]:
    """A swap limit without swap is a belief."""
    for group in request.groups:
        limit = group.values.get(SWAP_MAX, 0)
        if limit not in (0, INFINITE) and not request.machine.has_swap:
            yield (
                f"cannot limit the swap of {group.name} to {size_text(limit)}: this machine has none; add swap, or "
                "write swap_max = 0"
            )


def limits_above_use(request: Request) -> Iterator[str]:
    """Lowering memory.max below what is in use can kill, memory.high throttle: said by how much; --force does it
    in steps."""
    if request.force:
        return
    for group in request.groups:
        found = request.found.get(group.name, Found())
        for file in reversed(_LIMITS):
            limit = group.values.get(file, INFINITE)
            if found.path is None or found.current_bytes <= limit:
                continue
            consequence = "the kernel could kill" if file == MAX else "the kernel would throttle it"
            yield (
                f"cannot set {_key(file)} of {group.name} to {size_text(limit)}: it uses "
                f"{size_text(found.current_bytes)}, {size_text(found.current_bytes - limit)} more (of its use "
                f"{size_text(found.droppable_bytes)} is page cache), and {consequence}; have it use less, or give "
                "--force to lower it in steps"
            )
            break


RULES: tuple[Callable[[Request], Iterator[str]], ...] = (
    *(cannot_be_there, limits_in_order, limits_within_the_slice, guarantees_fit_the_slice),
    *(sums_within_memory, swap_is_there, limits_above_use),
)


def _takes(group: Group) -> int:
    """What a group may have of the RAM: its limit, or what it is guaranteed."""
    limit = group.values.get(MAX, INFINITE)
    return group.values.get(MIN, 0) if limit == INFINITE else limit


def _inside(group: Group, other: Group) -> bool:
    return other.name in group.above


def _parents(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.above[-1] for group in groups if group.above))


def _names(groups: Sequence[Group], file: str) -> str:
    return " and ".join(group.name for group in groups if group.values.get(file, 0))


def _key(file: str) -> str:
    return "swap_max" if file == SWAP_MAX else file.replace(".", "_")


def _amount(number: int) -> str:
    return "everything" if number >= INFINITE >> 1 else size_text(number)


def _of_memory(request: Request) -> str:
    memory = size_text(request.machine.memory_bytes)
    if request.reserve_bytes:
        return f"this machine has {memory}, of which {size_text(request.reserve_bytes)} are reserved"
    return f"this machine has {memory}"
