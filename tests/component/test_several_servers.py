"""Several servers on one box, configured as the page prints it: who is asked first, who next, and who is left alone."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.documents.pages import blocks
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

PAGE = "docs/how-to/several-servers.md"
SERVERS = ("embed", "chat", "vision")
SLICE = "/inference.slice"
LIMIT = 6 << 30
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests"]


@dataclass
class Box:
    """The slice and its services, and how much each needs."""

    slice: FakeCgroup
    services: dict[str, FakeCgroup]
    needed: dict[str, int]

    def needs(self, **mib: int) -> None:
        """What services need from now on; the slice's own figure follows with `add_up`."""
        self.needed |= {name: size * MIB for name, size in mib.items()}
        for name in mib:
            self.services[name].usage(self.needed[name])

    def add_up(self) -> None:
        """The slice has the sum, as the kernel counts it."""
        self.slice.usage(sum(self.needed.values()))


@pytest.fixture
def box(place: str) -> Box:
    os.mkdir(f"{place}/tree")
    tree = FakeTree(f"{place}/tree")
    around = tree.cgroup(SLICE, max_bytes=LIMIT)
    limits = {"embed": 2 << 30, "chat": 4 << 30, "vision": 3 << 30}
    services = {name: tree.cgroup(f"{SLICE}/{name}.service", max_bytes=size) for name, size in limits.items()}
    made = Box(around, services, {})
    made.needs(embed=300, chat=1100, vision=700)
    made.add_up()
    return made


@pytest.fixture
def daemon(place: str, box: Box) -> Iterator[Daemon]:
    """With the page's own configuration; only what each holds at rest is said here, as the servers would report it."""
    text = blocks(PAGE, "toml")[0].text
    with Daemon(place, text, cgroup_root=f"{place}/tree") as running:
        yield running


@contextlib.contextmanager
def servers(daemon: Daemon) -> Iterator[dict[str, Subscriber]]:
    """All three, which accept whatever they are asked and do nothing yet."""
    with contextlib.ExitStack() as stack:
        connected = {
            name: stack.enter_context(
                Subscriber(daemon.socket_path, {"name": name, "target": name, "supports": SUPPORTS}, ack="accepted")
            )
            for name in SERVERS
        }
        for one in connected.values():
            one.wait_for("welcome")
        yield connected


def grow(box: Box, daemon: Daemon, **mib: int) -> None:
    """The services grow, and once the daemon has seen that, the slice's sum is there: it looks at one after another."""
    box.needs(**mib)
    eventually(lambda: {row["name"]: row["needed_bytes"] for row in daemon.status()["targets"]} == box.needed)
    box.add_up()


def test_the_one_nobody_waits_for_is_asked_first(box: Box, daemon: Daemon) -> None:
    """The slice is at 65 %: the lowest priority is asked, for no more than it has above its floor. Nobody else is."""
    with servers(daemon) as connected:
        grow(box, daemon, embed=1000, chat=1900, vision=1000)
        asked = connected["embed"].wait_for("command", action="trim_kv_cache")
        assert SLICE in asked["reason"]
        assert 0 < asked["parameters"]["release_bytes"] <= (1000 - 256) * MIB
        connected["vision"].wait_for("level", level="elevated")
        assert connected["chat"].actions() == connected["vision"].actions() == []


def test_the_next_is_asked_when_the_first_is_at_its_floor(box: Box, daemon: Daemon) -> None:
    """It has given all; the slice is still too full: the chat model is asked, the one the robot drives by is not."""
    with servers(daemon) as connected:
        grow(box, daemon, embed=256, chat=2900, vision=900)
        asked = connected["chat"].wait_for("command", action="trim_kv_cache")
        assert SLICE in asked["reason"]
        assert asked["parameters"]["release_bytes"] <= (2900 - 1024) * MIB
        assert connected["embed"].of("command") == connected["vision"].of("command") == []


def test_a_server_near_its_own_limit_is_asked_itself(box: Box, daemon: Daemon) -> None:
    """Whatever its priority: the slice has room enough, the vision model has not."""
    with servers(daemon) as connected:
        grow(box, daemon, vision=2200)
        asked = connected["vision"].wait_for("command", action="trim_kv_cache")
        assert f"{SLICE}/vision.service" in asked["reason"]
        assert connected["embed"].actions() == connected["chat"].actions() == []


def test_what_the_page_says_of_its_sums_is_so() -> None:
    """The services' limits together are more than the slice's, and the slice's is the one that is named."""
    text = blocks(PAGE, "toml")[0].text
    sizes = [int(size) for size in re.findall(r'memory_max = "(\d)G"', text)]
    assert sum(sizes[1:]) > sizes[0] == LIMIT >> 30
