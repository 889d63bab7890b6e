"""A soak is judged by lines through what it saw, and by what it left."""

import random

from tests.bench.soak import Look, Soaked
from tests.torture import soak

KIB = 1024


def soaked(kib_a_look: float, left: int = 0, defects: int = 0, acts: int = 30_000) -> Soaked:
    """A hundred looks in a thousand seconds, at memory that goes up and down, and grows."""
    chance = random.Random(3)  # noqa: S311 - the same each time
    looks = [
        Look(10.0 * number, int((31_000 + kib_a_look * number + chance.uniform(-40, 40)) * KIB), 90 + number % 7)
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
