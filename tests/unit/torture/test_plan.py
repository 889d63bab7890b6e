"""Torture's schedules, and the calls into the kernel that it knows to fail."""

import errno
from itertools import islice

from tests.torture import calls, callsites, faults, plan

SOURCE = """
import os
from select import epoll

def look(path):
    with open(path) as file:
        name = os.strerror(5)
        return os.read(
            file.fileno(), os.fstat(3).st_size
        )
"""


def test_the_same_seed_makes_the_same_schedule() -> None:
    """To the last figure; another seed makes another."""
    first = [str(each) for each in plan.schedule(7, 100)]
    assert first == [str(each) for each in plan.schedule(7, 100)]
    assert first != [str(each) for each in plan.schedule(8, 100)]


def test_a_longer_schedule_begins_with_the_shorter_one() -> None:
    """So a round that was wrong is had again without those behind it."""
    assert [str(e) for e in plan.schedule(7, 10)] == [str(e) for e in islice(plan.schedule(7, 100), 10)]


def test_every_kind_comes_before_any_comes_again() -> None:
    """And each kind can be done."""
    kinds = [each.kind for each in plan.schedule(1, 2 * len(plan.KINDS))]
    assert set(kinds[: len(plan.KINDS)]) == set(plan.KINDS) == set(faults.FAULTS)
    assert set(kinds[len(plan.KINDS) :]) == set(plan.KINDS)


def test_calls_into_the_kernel_are_found_in_the_source() -> None:
    """By the line that they begin on; what cannot fail is left out."""
    found = callsites.sites_of("m", SOURCE)
    assert [site.key for site in found] == ["m:6:open", "m:8:os.read", "m:9:os.fstat"]
    assert {site.function for site in found} == {"look"}


def test_the_daemons_own_calls_are_all_known() -> None:
    """Those of every module of the kernel layer that makes any, among them the readings of a cgroup's files."""
    found = {(site.module, site.call) for site in callsites.sites()}
    assert {
        ("edgeguardd.kernel.cgroupfs", "os.pread"),
        ("edgeguardd.kernel.held", "os.write"),
        ("edgeguardd.kernel.kmsg", "os.read"),
        ("edgeguardd.kernel.peers", "os.pidfd_open"),
        ("edgeguardd.serve.unixbind", "fcntl.flock"),
        ("edgeguardd.state", "os.rename"),
    } <= found


def test_every_call_meets_a_shortage_of_memory_and_where_it_opens_something_of_descriptors() -> None:
    """Whatever the seed; the same seed draws the same errors for the others."""
    for seed in (1, 2):
        cases = calls.cases(seed, 2)
        assert {case.site for case in cases if case.number == errno.ENOMEM} == set(plan.sites())
        opened = {case.site for case in cases if case.number == errno.EMFILE}
        assert {site for site in plan.sites() if site.endswith((":os.open", ":open", ":os.scandir"))} <= opened
        assert [str(case) for case in cases] == [str(case) for case in calls.cases(seed, 2)]
