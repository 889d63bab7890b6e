"""How often the machine is read, by what is available of it."""

import pytest

from edgeguardd.core import looks
from edgeguardd.core.config import DeviceSpec, MachineConfig
from edgeguardd.core.model import MachineSample

MIB = 1 << 20
TOTAL_BYTES = 8192 * MIB
# Of 8 GiB: the first mark at 1228.8 MiB, the second at 655.36 MiB, and 327.68 MiB.
CONFIG = MachineConfig()


def after(available_mib: float) -> float:
    """The interval after such a look."""
    return looks.interval_s(CONFIG, MachineSample(TOTAL_BYTES, int(available_mib * MIB), None, None, None, ()))


def test_before_the_first_look_the_interval_is_the_configured_one() -> None:
    """Nothing is known."""
    assert looks.interval_s(CONFIG, None) == CONFIG.sample_s == 1.0


@pytest.mark.parametrize(("available_mib", "expected_s"), [(4915, 1.0), (2458, 1.0), (2457, 0.25), (1300, 0.25)])
def test_below_twice_the_first_mark_it_is_read_four_times_as_often(available_mib: float, expected_s: float) -> None:
    """A machine that is not far from its marks is read once a second."""
    assert after(available_mib) == expected_s


def test_above_four_times_the_first_mark_it_is_read_half_as_often() -> None:
    """Unless a device has to be read as well: it has marks of its own."""
    assert after(4916) == after(8000) == 2.0
    sample = MachineSample(TOTAL_BYTES, 8000 * MIB, None, None, None, ())
    with_device = MachineConfig(devices=(DeviceSpec("gpu", "nvmap"),))
    assert looks.interval_s(with_device, sample) == 1.0


def test_a_mark_that_is_reached_sooner_is_looked_at_sooner() -> None:
    """In as much time as a server takes for what is left above the mark, but not more than ten times a second."""
    assert after(1228.8 + 32) == pytest.approx(32 / 256, rel=1e-3)
    assert after(1228.8 + 1) == 0.1


def test_a_small_machine_is_looked_at_sooner_only_at_its_mark() -> None:
    """Four times the mark are near where that is little: within 64 MiB above the mark, and not before."""
    small = MachineConfig(elevated_ratio=0.02, high_ratio=0.01, critical_ratio=0.005)
    near, before = (MachineSample(512 * MIB, int(mib * MIB), None, None, None, ()) for mib in (10.24 + 32, 10.24 + 65))
    assert looks.interval_s(small, near) == pytest.approx(32 / 256)
    assert looks.interval_s(small, before) == 1.0


def test_below_a_mark_the_next_one_counts() -> None:
    """Between the first and the second mark too; below both it stays at four times a second."""
    assert after(1228) == 0.25
    assert after(655.4 + 32) == pytest.approx(32 / 256, rel=1e-2)
    assert after(600) == 0.25


def test_a_small_machine_at_rest_is_read_once_a_second() -> None:
    """Half a GiB, two thirds of it available: a server takes little more than a second to fill that. A quarter too."""
    smaller = MachineSample(256 * MIB, 200 * MIB, None, None, None, ())
    assert looks.interval_s(CONFIG, smaller) == 1.0
    sample = MachineSample(512 * MIB, 341 * MIB, None, None, None, ())
    assert 1.0 <= looks.interval_s(CONFIG, sample) < 1.1
