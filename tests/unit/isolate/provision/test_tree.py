"""The plan for a cgroup tree, as tables: what is wanted, there, and recorded -> the changes in order."""

import pytest

from edgeguardd.isolate.provision import tree
from edgeguardd.isolate.provision.model import Change, Entry, Group, Kind, number_of
from edgeguardd.isolate.provision.tree import Place

BOTH = frozenset({"cpu", "memory"})
ROOT = Place(inode=1, controllers=BOTH, domain=None)
GROUP = Group("a.service", ("a.slice",), {"memory.max": 8192, "cpu.weight": 50}, ())


def lines(changes: list[Change]) -> list[str]:
    """Each change in one line."""
    return [f"{one.place} {one.key or 'cgroup'} {one.before} -> {one.after}" for one in changes]


def test_controllers_come_from_the_root_down_before_what_needs_them() -> None:
    """In an empty tree."""
    changes, notes = tree.changes([GROUP], {"/": ROOT}, (), False)
    assert lines(changes) == [
        "/ cgroup.subtree_control cpu None -> on",
        "/ cgroup.subtree_control memory None -> on",
        "/a.slice cgroup None -> there",
        "/a.slice cgroup.subtree_control cpu None -> on",
        "/a.slice cgroup.subtree_control memory None -> on",
        "/a.slice/a.service cgroup None -> there",
        "/a.slice/a.service memory.max None -> 8192",
        "/a.slice/a.service cpu.weight None -> 50",
    ]
    assert notes == []


def there(**values: str) -> dict[str, Place]:
    """The tree with GROUP's cgroup in it."""
    return {
        "/": Place(inode=1, controllers=BOTH, passed_on=BOTH, domain=None, children=frozenset({"a.slice"})),
        "/a.slice": Place(inode=2, controllers=BOTH, passed_on=BOTH, children=frozenset({"a.service"})),
        "/a.slice/a.service": Place(inode=3, controllers=BOTH, values=values),
    }


def test_only_what_differs_is_written() -> None:
    """What the kernel shows in other words is the same."""
    places = there(**{"memory.max": "max", "cpu.weight": "50"})
    assert lines(tree.changes([GROUP], places, (), False)[0]) == ["/a.slice/a.service memory.max max -> 8192"]
    places = there(**{"memory.max": "8192", "cpu.weight": "50"})
    assert tree.changes([GROUP], places, (), False) == ([], [])


@pytest.mark.parametrize(
    ("file", "text", "number"),
    [
        ("cpu.max", "200000 100000", 200_000),
        ("cpu.max", "100000 50000", 200_000),
        ("cpu.max", "max 100000", 2**64 - 1),
        ("memory.max", "max", 2**64 - 1),
        ("memory.max", "nonsense", None),
        ("memory.max", "", None),
    ],
)
def test_kernel_files_are_read_as_numbers(file: str, text: str, number: int | None) -> None:
    """A quota in another period among them."""
    assert number_of(file, text) == number


RECORD = (
    Entry(Kind.CONTROLLER, "/", "cgroup.subtree_control memory", None, "on", 1),
    Entry(Kind.CGROUP, "/a.slice", "", None, "there", 2),
    Entry(Kind.CONTROLLER, "/a.slice", "cgroup.subtree_control memory", None, "on", 2),
    Entry(Kind.CGROUP, "/a.slice/a.service", "", None, "there", 3),
    Entry(Kind.FILE, "/a.slice/a.service", "memory.max", "max", "8192", 3),
)


def test_what_we_made_goes_from_the_leaves_up() -> None:
    """An undo: nothing is wanted."""
    places = there(**{"memory.max": "8192"})
    assert lines(tree.changes([], places, RECORD, False)[0]) == [
        "/a.slice/a.service cgroup there -> None",
        "/a.slice cgroup there -> None",
        "/ cgroup.subtree_control memory on -> None",
    ]


def test_what_is_in_use_stays_with_its_values_put_back() -> None:
    """Processes of others are never moved."""
    places = there(**{"memory.max": "8192"})
    places["/a.slice/a.service"] = Place(3, BOTH, processes=2, values={"memory.max": "8192"})
    changes, notes = tree.changes([], places, RECORD, False)
    assert lines(changes) == ["/a.slice/a.service memory.max 8192 -> max"]
    assert notes == [
        "/a.slice/a.service holds 2 processes: the cgroup stays, its limits are put back",
        "/a.slice holds 1 cgroups of others: the cgroup stays, its limits are put back",
        "/a.slice goes on passing memory on: 1 other cgroups below it may use it",
        "/ goes on passing memory on: 1 other cgroups below it may use it",
    ]


def test_what_others_changed_or_made_anew_is_left_alone() -> None:
    """A value that is not the one written; a cgroup with another inode."""
    record = (Entry(Kind.FILE, "/a.slice/a.service", "memory.max", "max", "8192", 3),)
    changes, notes = tree.changes([], there(**{"memory.max": "4096"}), record, False)
    assert changes == []
    assert notes == [
        "memory.max of /a.slice/a.service is 4096, not the 8192 that was written: somebody changed it, left alone"
    ]
    other = (Entry(Kind.FILE, "/a.slice/a.service", "memory.max", "max", "4096", 7),)
    assert tree.changes([], there(**{"memory.max": "4096"}), other, False) == ([], [])


def test_a_key_that_is_no_longer_in_the_configuration_is_put_back() -> None:
    """The rest stays."""
    group = Group("a.service", ("a.slice",), {"cpu.weight": 50}, ())
    record = (Entry(Kind.FILE, "/a.slice/a.service", "memory.max", "max", "8192", 3),)
    changes, _ = tree.changes([group], there(**{"memory.max": "8192", "cpu.weight": "50"}), record, False)
    assert lines(changes) == ["/a.slice/a.service memory.max 8192 -> max"]


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ({"/": Place(controllers=frozenset({"memory"}), domain=None)}, "there is no cpu controller in this tree"),
        (
            {"/": Place(controllers=BOTH, domain="domain", processes=3)},
            "/ would have to pass cpu and memory on",
        ),
        (
            {"/": Place(controllers=BOTH, passed_on=BOTH, domain=None), "/a.slice": Place(domain="threaded")},
            "/a.slice is threaded, and cannot pass memory on",
        ),
        (
            {**there(**{"memory.max": "max"})},
            "this kernel has no cpu.weight there; leave it out, or use a newer or fuller kernel",
        ),
    ],
)
def test_what_the_kernel_would_refuse_is_a_fault(places: dict[str, Place], sentence: str) -> None:
    """Before anything is written."""
    assert [fault for fault in tree.faults(GROUP, places, False) if sentence in fault]


def test_a_swap_limit_of_nothing_needs_no_file() -> None:
    """Kernels without swap accounting, machines without swap."""
    group = Group("a.service", ("a.slice",), {"memory.swap.max": 0}, ())
    assert tree.faults(group, there(**{"memory.max": "max"}), False) == []
    assert tree.changes([group], there(**{"memory.max": "max"}), (), False) == ([], [])
    assert tree.faults(group, there(**{"memory.max": "max"}), True) != []
