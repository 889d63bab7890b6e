"""Deals parcels of tests out to guests, so that each gets about the same work. Pure.

Must not: split a parcel. Upstream: host_plugin, which says what is one. Downstream: nothing.
"""

from collections.abc import Iterable


def deal(costs: Iterable[tuple[str, float]], guests: int) -> list[list[str]]:
    """Parcels per guest from (parcel, cost) of each test: the dearest first, to the guest with the least so far.

    At most `guests` lists, none empty; the parcels of a guest stay in the order in which they came.
    """
    totals: dict[str, float] = {}
    for name, cost in costs:
        totals[name] = totals.get(name, 0.0) + cost
    order = list(totals)
    loads = [0.0] * max(1, guests)
    hands: list[list[str]] = [[] for _ in loads]
    for name in sorted(order, key=lambda name: -totals[name]):
        least = loads.index(min(loads))
        hands[least].append(name)
        loads[least] += totals[name]
    return [sorted(hand, key=order.index) for hand in hands if hand]
