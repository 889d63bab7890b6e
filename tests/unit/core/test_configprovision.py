"""[provision] and its tables: amounts as systemd reads them, shares of CPU time, what no machine could make right."""

import pytest

from edgeguardd.core import configprovision as keys
from edgeguardd.core.configparse import read
from edgeguardd.core.configtext import render
from edgeguardd.core.provisionspec import Amount, CpuShare
from edgeguardd.errors import ConfigError

CONFIG = """
[provision]
backend = "cgroup"
reserve = "5%"

[[provision.slice]]
name = "inference.slice"
memory_high = "65%"
memory_max = "1G 512M"
cpu_weight = 50

[[provision.service]]
name = "llama@a.service"
slice = "inference.slice"
memory_max = 1048576
memory_low = "infinity"
swap_max = 0
oom_group = true
cpu_max = "150%"
oom_score_adjust = 500
"""


def test_slices_and_services_are_read() -> None:
    """Each key into its field; what is shown reads back as the same."""
    found = read(CONFIG, "t").provision
    assert (found.backend, found.reserve, found.overcommit) == ("cgroup", Amount("5%", parts=500), False)
    (slice_,) = found.slices
    assert slice_.memory_high == Amount("65%", parts=6500)
    assert slice_.memory_max == Amount("1G 512M", size_bytes=1536 << 20)
    (service,) = found.services
    assert service.slice == "inference.slice"
    assert service.memory_max == Amount("1048576", size_bytes=1 << 20)
    assert service.memory_low == Amount("infinity")
    assert service.cpu_max == CpuShare("150%", 15000)
    assert (service.oom_group, service.oom_score_adjust) == (True, 500)
    config = read(CONFIG, "t")
    assert read(render(config), "again") == config


@pytest.mark.parametrize(
    "word", ["6GB", "6GiB", "-1", "6G # x", "", "101%", "1.5.5G", "nan", "6g", "max", 2**63, True, 1.5]
)
def test_amounts_that_systemd_would_ignore_are_faults(word: object) -> None:
    """Here they cost a sentence, there the limit."""
    with pytest.raises(ValueError, match="no amount that systemd reads"):
        keys.amount().parse(word)


@pytest.mark.parametrize(("word", "parts"), [("100%", 10_000), ("1%", 100), ("150.5%", 15_050), ("infinity", None)])
def test_cpu_time_is_percent_of_one_cpu(word: str, parts: int | None) -> None:
    """As CPUQuota= has it."""
    assert keys.cpu_share().parse(word) == CpuShare(word, parts)


@pytest.mark.parametrize("word", ["0%", "0.5%", "100", "%", "1.%", "-5%", "99999999%", 50, "1.234%", "١%"])
def test_other_shares_of_cpu_time_are_faults(word: object) -> None:
    """Less than 1 % among them, which no period of 100 ms can hold."""
    with pytest.raises(ValueError, match="no share of CPU time"):
        keys.cpu_share().parse(word)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[provision.slice]]\nmemory_max = "1G"', "it has no name; write one such as name ="),
        ('[[provision.slice]]\nname = "a.service"', "it is no name of a slice"),
        ('[[provision.slice]]\nname = "-.slice"', "the root slice has no limit"),
        ('[[provision.service]]\nname = "a.slice"', "only a .service goes here"),
        ('[[provision.service]]\nname = "a@.service"', "a template has no cgroup"),
        ('[[provision.slice]]\nname = "a.slice"\n[[provision.slice]]\nname = "a.slice"', "put both into one"),
        ('[provision]\nreserve = "infinity"', "no amount that systemd reads"),
        ("[provision]\nslice = 1", "this is an array of tables; write [[provision.slice]]"),
        ('[[provision.slice]]\nname = "a.slice"\nmemory_mx = 1', "did you mean memory_max?"),
    ],
)
def test_what_no_machine_could_make_right_is_a_fault(text: str, sentence: str) -> None:
    """With its line."""
    with pytest.raises(ConfigError) as caught:
        read(text, "t")
    assert sentence in str(caught.value)
    assert "line " in str(caught.value)
