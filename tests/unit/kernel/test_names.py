"""Names of found targets: unique, short, printable, and the plain path where that will do."""

import pytest

from edgeguardd.core import wire
from edgeguardd.kernel.names import found_name

POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8c1f0a52_77d3_4a0e_9d6b_0a1b2c3d4e5f.slice"
CONTAINER = POD + "/cri-containerd-" + "0123456789abcdef" * 4 + ".scope"


@pytest.mark.parametrize("path", ["/", "/system.slice/llm.service", "/a\\x2db.slice/é", "/" + "x" * 125])
def test_a_plain_path_is_its_own_name(path: str) -> None:
    """Also with systemd's escapes, and up to the longest that a hello can say."""
    assert found_name(path, "g:" if len(path) < 127 else "") in (f"g:{path}", path)
    assert found_name(path) == path


def test_a_long_path_keeps_both_ends() -> None:
    """A container's path is 180 characters; its beginning and most of its id are kept."""
    name = found_name(CONTAINER, "llm:")
    assert len(name) == wire.MAX_NAME_CHARS
    assert name.startswith("llm:/kubepods.slice/")
    assert name.endswith("0123456789abcdef.scope")


def test_a_name_stays_the_same() -> None:
    """Over restarts and releases: people put it into dashboards and clients."""
    assert found_name("/a\x01b", "g:") == "g:/a\\x01b~ca615e560225ffd0~"
