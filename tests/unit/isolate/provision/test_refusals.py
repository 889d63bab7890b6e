"""What is refused before anything is changed, as tables: what is wanted and found -> the sentence."""

import pytest

from edgeguardd.core.configparse import read
from edgeguardd.isolate.provision import wanted
from edgeguardd.isolate.provision.model import Found, Machine
from edgeguardd.isolate.provision.refusals import Request, refusals

MIB = 1 << 20
GIB = 1 << 30
MACHINE = Machine(memory_bytes=8 * GIB, page_bytes=4096, has_swap=False)


def asked(text: str, *, found: dict[str, Found] | None = None, force: bool = False, swap: bool = False) -> list[str]:
    """The refusals of a configuration on a machine with 8 GiB."""
    config = read(text, "t").provision
    machine = Machine(MACHINE.memory_bytes, MACHINE.page_bytes, swap)
    reserve = wanted.resolve(config.reserve, machine)
    groups = wanted.groups(config, machine)
    return refusals(Request(groups, found or {}, machine, reserve, config.overcommit, force))


SLICE = '[[provision.slice]]\nname = "inference.slice"\n'
SERVICE = '[[provision.service]]\nname = "llama.service"\nslice = "inference.slice"\n'
TWO_GUARANTEED = "".join(SERVICE.replace("llama", name) + 'memory_min = "2G"\n' for name in ("llama", "b"))
SAME = SLICE + 'memory_max = "6G"\n' + SERVICE


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            SAME + 'memory_high = "6G"\nmemory_max = "6G"',
            "llama.service to 6G: it never acts at or above",
        ),
        (SAME + "memory_max = 0", "memory_max of llama.service to 0: nothing could run in it"),
        (SAME + 'memory_max = "7G"', "memory_max of llama.service to 7G: inference.slice around it has 6G"),
        (
            SAME + 'memory_min = "2G"\nmemory_max = "1G"',
            "llama.service 2G (memory_min): it may have no",
        ),
        (
            SAME + 'memory_min = "2G"',
            "llama.service 2G (memory_min): inference.slice around has 0 bytes",
        ),
        (
            SERVICE + 'memory_low = "2G"',
            "cannot guarantee llama.service 2G (memory_low): inference.slice guarantees nothing; add it as",
        ),
        (
            SLICE
            + 'memory_min = "3G"\n'
            + SERVICE
            + 'memory_min = "2G"\n'
            + SERVICE.replace("llama", "b")
            + 'memory_min = "2G"',
            "llama.service and b.service 4G (memory_min): inference.slice around has 3G; raise that by 1G",
        ),
        (
            SLICE + 'memory_min = "8G"',
            "8G (memory_min of inference.slice): this machine has 8G, of which",
        ),
        (
            SLICE + 'memory_max = "6G"\n[[provision.slice]]\nname = "b.slice"\nmemory_max = "50%"',
            "cannot let these have 10G together (b.slice 4G, inference.slice 6G): this machine has 8G",
        ),
        (SAME + 'swap_max = "1G"', "cannot limit the swap of llama.service to 1G: this machine has none"),
        (SLICE + 'memory_low = "infinity"', "cannot guarantee everything (memory_low of inference.slice)"),
    ],
)
def test_what_cannot_be_is_refused(text: str, sentence: str) -> None:
    """One reason, said once, with the figures and what to do."""
    assert [one for one in asked(text) if sentence in one], asked(text)


def test_a_sound_configuration_is_not_refused() -> None:
    """Guarantees handed down, limits in order, shares of the RAM, no swap used."""
    text = (
        SLICE
        + 'memory_high = "65%"\nmemory_max = "75%"\nswap_max = 0\n'
        + SERVICE
        + 'memory_high = "5G"\nmemory_max = "6G"\nswap_max = 0\n'
        + '[[provision.slice]]\nname = "protected.slice"\nmemory_min = "256M"\n'
        + '[[provision.service]]\nname = "control.service"\nslice = "protected.slice"\nmemory_min = "256M"\n'
    )
    assert asked(text) == []


def test_limits_may_be_more_than_the_ram_only_if_that_is_meant() -> None:
    """Guarantees never."""
    text = SLICE + 'memory_max = "7G"\n[[provision.slice]]\nname = "b.slice"\nmemory_max = "7G"\n'
    assert len(asked(text)) == 1
    assert asked("[provision]\novercommit = true\n" + text) == []


def test_a_limit_below_what_is_in_use_is_refused_by_how_much() -> None:
    """Only the worse one of two is said; --force lets it pass to the steps."""
    found = {"llama.service": Found("/x", {}, current_bytes=3 * GIB, droppable_bytes=GIB)}
    text = SAME + 'memory_high = "1G"\nmemory_max = "2G"'
    (sentence,) = asked(text, found=found)
    assert "cannot set memory_max of llama.service to 2G: it uses 3G, 1G more (of its use 1G is page cache)" in sentence
    assert asked(text, found=found, force=True) == []
    (sentence,) = asked(SAME + 'memory_high = "1G"\nmemory_max = "4G"', found=found)
    assert "the kernel would throttle it" in sentence


def test_swap_limits_need_swap_and_then_pass() -> None:
    """With swap there is nothing to refuse."""
    assert asked(SAME + 'swap_max = "1G"', swap=True) == []


def test_shares_are_whole_pages_as_the_kernel_has_them() -> None:
    """75 % of 8 GiB, and a size that is no whole page."""
    text = SLICE + 'memory_max = "33.33%"\nmemory_high = 1000001\ncpu_max = "150%"\n'
    (group,) = wanted.groups(read(text, "t").provision, MACHINE)
    pages = 8 * GIB // 4096
    assert dict(group.values) == {
        "memory.high": 1000001 // 4096 * 4096,
        "memory.max": pages * 3333 // 10_000 * 4096,
        "cpu.max": 150_000,
    }
    assert group.lines == (("MemoryHigh", "1000001"), ("MemoryMax", "33.33%"), ("CPUQuota", "150%"))


def test_slices_lie_in_each_other_by_their_names() -> None:
    """From the root down, whatever the order in the file."""
    text = (
        SERVICE.replace("inference.slice", "a-b-c.slice")
        + SLICE.replace("inference", "a-b")
        + SLICE.replace("inference", "a")
    )
    groups = wanted.groups(read(text, "t").provision, MACHINE)
    assert [group.path for group in groups] == [
        "/a.slice",
        "/a.slice/a-b.slice",
        "/a.slice/a-b.slice/a-b-c.slice/llama.service",
    ]
