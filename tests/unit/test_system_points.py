"""The summary of `make system`: every test in the guest belongs to a point, and every point has tests."""

import ast
from pathlib import Path

from tests.system import points

GUEST = Path(points.__file__).parent / "guest"


def names() -> dict[str, str]:
    """The tests of both boots."""
    trees = [ast.parse(path.read_text()) for path in GUEST.glob("*/test_*.py")]
    found = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return dict.fromkeys((name for name in found if name.startswith("test_")), points.PASSED)


def test_every_point_has_its_tests_and_every_test_its_point() -> None:
    """A test that is renamed or new is not left out silently."""
    words = [word for _, tests in points.POINTS for word in tests]
    assert [word for word in words if not points.matching(word, names())] == []
    assert [name for name in names() if not any(word in name for word in words)] == []


def test_a_point_is_as_bad_as_its_worst_test() -> None:
    """Parameters of a test count as well; what did not run is not named."""
    text = (
        "a/test_f.py::test_systemd_analyze_security_finds_little_exposed[edgeguardd.service] PASSED [ 10%]\n"
        "a/test_f.py::test_systemd_analyze_security_finds_little_exposed[other.service] FAILED [ 20%]\n"
        "a/test_f.py::test_systemd_analyze_verify_has_nothing_to_say PASSED [ 30%]\n"
        "    edgeguardd.service: exposure 1.4\n"
        "a/test_c.py::test_prometheus_scrapes_it PASSED [ 40%]\n"
    )
    assert points.summary(points.outcomes(text)) == [
        "PASSED  scrape by a real Prometheus",
        "FAILED  systemd-analyze verify and security",
    ]
