"""The subscriber socket's file is removed while the daemon runs: it is noticed, said and made again."""

import os
import socket
import urllib.error
import urllib.request

from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nfast = 0.05\nslow = 0.1\n'
HELLO = {"name": "test", "target": "llm"}


def ready(daemon: Daemon) -> int:
    """The status of /readyz."""
    try:
        with urllib.request.urlopen(f"{daemon.http}/readyz", timeout=DEADLINE_S) as answer:  # noqa: S310  loopback
            return int(answer.status)
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code


def test_a_socket_that_is_removed_is_made_again(place: str, llm: FakeCgroup) -> None:
    """Who was connected stays and is told, who comes anew is let in, and its end leaves no file."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon, Subscriber(daemon.socket_path, HELLO) as first:
        first.wait_for("welcome")
        mode = os.stat(daemon.socket_path).st_mode
        os.unlink(daemon.socket_path)
        assert ready(daemon) == 503
        (fault,) = eventually(lambda: daemon.facts("works_in_part"))
        assert f"{daemon.socket_path} was removed" in fault["why"]
        assert os.stat(daemon.socket_path).st_mode == mode
        assert ready(daemon) == 200
        with Subscriber(daemon.socket_path, {"name": "second", "target": "llm"}) as second:
            second.wait_for("welcome")
            llm.usage(950 * MIB)
            for server in (first, second):
                server.wait_for("command", action="trim_kv_cache")
    assert not os.path.exists(daemon.socket_path)
    assert not os.path.exists(f"{daemon.socket_path}.lock")


def test_what_somebody_has_put_in_its_place_is_left_alone(place: str, llm: FakeCgroup) -> None:
    """Said; the socket is made again when that has gone."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon:
        os.unlink(daemon.socket_path)
        with open(daemon.socket_path, "w") as file:
            file.write("precious")
        (fault,) = eventually(lambda: daemon.facts("works_in_part"))
        assert "it exists and is not a socket" in fault["why"]
        with open(daemon.socket_path) as file:
            assert file.read() == "precious"
        os.unlink(daemon.socket_path)
        eventually(lambda: daemon.facts("listens_at_last"))
        with Subscriber(daemon.socket_path, HELLO) as server:
            server.wait_for("welcome")


def test_a_socket_of_systemds_is_systemds_to_make_again(place: str, llm: FakeCgroup) -> None:
    """The remedy is named, and no other socket made that systemd knows nothing of."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{place}/s")
        listener.listen()
        with Daemon(place, TARGET, cgroup_root=f"{place}/tree", start=False) as daemon:
            daemon.listener = listener
            daemon.start()
            os.unlink(daemon.socket_path)
            (fault,) = eventually(lambda: daemon.facts("works_in_part"))
            assert "systemctl restart edgeguardd.socket" in fault["why"]
            assert not os.path.exists(daemon.socket_path)
