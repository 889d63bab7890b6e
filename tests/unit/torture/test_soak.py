"""A soak is judged by lines through what it saw, and by what it left."""

import random

from tests.bench.soak import Look, Soaked
from tests.torture import soak

KIB = 1024


def soaked(kib_a_look: float, left: int = 0, defects: int = 0, acts: int = 30_000) -> Soaked:
    """A hundred looks in a thousand seconds, at memory that goes up and down, and grows."""
    chance = random.Random(3)  # noqa: S311 - the same each time
    looks = [
        Look(
            10.0 * number,
            int((31_000 + kib_a_look * number + chance.uniform(-40, 40)) * KIB),
            90 + number % 7,
            200_000 + number % 5 * 1000,
        )
        for number in range(100)
    ]
    return Soaked(looks, acts, 500, defects, left)


def test_what_goes_up_and_down_is_right() -> None:
    """Eight hours of acts, and nothing grows."""
    found = soak.judged(soaked(0.0), 1000.0)
    assert found.right
    assert found.resident_kib.flat
    assert found.descriptors.flat
    assert found.hours > soak.HOURS


def test_growth_descriptors_defects_and_too_little_load_are_wrong() -> None:
    """Each by itself."""
    assert not soak.judged(soaked(40.0), 1000.0).right
    assert not soak.judged(soaked(0.0, left=1), 1000.0).right
    assert not soak.judged(soaked(0.0, defects=1), 1000.0).right
    assert not soak.judged(soaked(0.0, acts=20_000), 1000.0).right


def test_a_block_an_act_is_a_leak_whatever_room_there_is() -> None:
    """Resident memory stays as it is: there was room for it."""
    found = soaked(0.0)
    leaking = [look._replace(blocks=look.blocks + 300 * number) for number, look in enumerate(found.looks)]
    assert soak.judged(found._replace(looks=leaking), 1000.0).resident_kib.flat
    assert not soak.judged(found._replace(looks=leaking), 1000.0).right


def test_what_cannot_be_told_from_growth_is_wrong() -> None:
    """A series that goes up and down by more than would be allowed to grow shows nothing."""
    found = soaked(0.0)
    wild = [
        look._replace(resident_bytes=look.resident_bytes + number % 10 * 8000 * KIB)
        for number, look in enumerate(found.looks)
    ]
    assert soak.judged(found, 1000.0).most_kib < soak.ALLOWED_KIB
    assert not soak.judged(found._replace(looks=wild[:40]), 400.0).right
