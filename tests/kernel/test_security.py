"""Peers that are not who they should be, where the kernel decides: another user or cgroup, a target that moves."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cgroup import ROOT, Cgroup
from tests.support.running import Daemon
from tests.support.unprivileged import NOBODY
from tests.support.wait import eventually

# Says hello as the user whose number is given, and prints what comes back.
PEER = """
import os, socket, sys
uid, path, hello = int(sys.argv[1]), *sys.argv[2:]
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(path)
    sock.sendall(hello.encode() + b"\\n")
    for line in sock.makefile():
        print(line, end="", flush=True)
"""


class Peer:
    """A process that has said hello."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: str) -> None:
        self.process = process
        self._said = said

    def lines(self) -> list[dict[str, Any]]:
        """What it got so far."""
        with open(self._said) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The first line of a type."""
        return eventually(lambda: next((line for line in self.lines() if line["type"] == kind), None)) or {}


@contextlib.contextmanager
def peer(daemon: Daemon, cgroup: Cgroup | None, uid: int = NOBODY, **hello: str) -> Iterator[Peer]:
    """A peer in a cgroup (None: in this process's own)."""
    said = f"{daemon.directory}/peer-{len(os.listdir(daemon.directory))}"
    text = json.dumps({"type": "hello", "name": "peer", **hello})
    argv = [sys.executable, "-c", PEER, str(uid), daemon.socket_path, text]
    with open(said, "wb") as out:
        started = subprocess.Popen(argv, stdout=out) if cgroup is None else cgroup.spawn(argv, stdout=out)
    try:
        yield Peer(started, said)
    finally:
        started.kill()
        started.wait()


@contextlib.contextmanager
def open_to_all(run_dir: str, config: str) -> Iterator[Daemon]:
    """A daemon that anybody may connect to."""
    with Daemon(run_dir, config) as daemon:
        os.chmod(run_dir, 0o755)  # noqa: S103  the point of it
        os.chmod(daemon.socket_path, 0o666)  # noqa: S103
        yield daemon


@pytest.mark.cost(4)
def test_only_who_lives_in_a_target_or_is_allowed_serves_it(cgroup: Cgroup, run_dir: str) -> None:
    """Another user in the target's cgroup is its server. From any other cgroup it is refused, whatever it says it is;
    "self" is what the kernel says, and looking is free."""
    llm, other = cgroup.child("llm"), cgroup.child("other")
    config = f'[[target]]\nname = "llm"\npath = "{llm.below_root}"\n'
    with open_to_all(run_dir, config) as daemon:
        with peer(daemon, llm, target="llm") as server:
            assert server.wait_for("welcome")["target"] == "llm"
        with peer(daemon, llm) as server:
            assert server.wait_for("welcome")["target"] == "llm"
        with peer(daemon, other, target="llm", role="inference") as stranger:
            assert stranger.wait_for("error")["code"] == "not_allowed"
            assert other.below_root in stranger.wait_for("error")["message"]
            stranger.process.wait()
        with peer(daemon, other) as itself:
            assert itself.wait_for("welcome")["target"] == other.below_root
        with peer(daemon, None, target="llm") as outside:
            assert outside.wait_for("error")["code"] == "not_allowed"
        with peer(daemon, None, uid=0, target="llm") as root:
            assert root.wait_for("welcome")["target"] == "llm"
        with peer(daemon, other, target="llm", role="observer") as observer:
            assert observer.wait_for("welcome")["target"] == "llm"
        for forged in (llm.below_root, f"{other.below_root}/../llm", "../llm", "llm/", " llm", "LLM", "%6clm"):
            with peer(daemon, other, target=forged) as stranger:
                assert stranger.wait_for("error")["code"] == "unknown_target"


@pytest.mark.cost(4)
def test_who_is_left_behind_by_a_target_that_moves_is_put_out(run_dir: str) -> None:
    """The unit runs in another slice now: its server there is let in, the process that is still where it was is not
    trusted any longer, and cannot come back."""
    unit = f"edgeguardd-moves-{os.getpid()}.service"
    with Cgroup(f"{ROOT}/edgeguardd{os.getpid()}.slice") as top:
        deep = top.child("deep.slice").child(unit)
        config = f'[[target]]\nname = "llm"\nunit = "{unit}"\n'
        with open_to_all(run_dir, config) as daemon, peer(daemon, deep, target="llm") as left_behind:
            left_behind.wait_for("welcome")
            now = top.child(unit)
            assert "any more" in left_behind.wait_for("bye")["reason"]
            eventually(lambda: not daemon.status()["subscribers"])
            with peer(daemon, deep, target="llm") as again:
                assert again.wait_for("error")["code"] == "not_allowed"
            with peer(daemon, now, target="llm") as server:
                assert server.wait_for("welcome")["target"] == "llm"


@pytest.mark.cost(3)
def test_who_is_taken_off_the_allow_list_is_put_out(cgroup: Cgroup, run_dir: str) -> None:
    """A reload that withdraws a user's right ends what it has let in by it, and nothing else."""
    llm = cgroup.child("llm")
    target = f'[[target]]\nname = "llm"\npath = "{llm.below_root}"\n'
    with open_to_all(run_dir, target) as daemon, peer(daemon, llm, target="llm") as member:
        member.wait_for("welcome")
        with peer(daemon, None, uid=0, target="llm") as root:
            root.wait_for("welcome")
            with open(daemon.config_path) as file:
                text = file.read()
            with open(daemon.config_path, "w") as file:
                file.write(text.replace("[socket]\n", "[socket]\nallow_uids = []\n"))
            daemon.hang_up()
            assert "any more" in root.wait_for("bye")["reason"]
        assert not [line for line in member.lines() if line["type"] == "bye"]
