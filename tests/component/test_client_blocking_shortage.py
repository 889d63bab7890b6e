"""The blocking client where threads or descriptors run out, and in a process that forks."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from edgeguardd.client import Subscriber
from edgeguardd.core.model import AckStatus, Action
from tests.support.blockingclient import Server, run, subscribed
from tests.support.subscribers import serving, short_dir
from tests.support.wait import soon


def test_commands_are_carried_out_when_no_thread_can_be_made_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at its limit of tasks is the one that needs to be trimmed: the threads are there from the start."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            with subscribed(server.guard):
                await scripted.joined()
                monkeypatch.setattr(threading.Thread, "start", refuse)
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(lambda: len(scripted.acks()) == 2)
                assert {ack.status for ack in scripted.acks()} == {AckStatus.DONE}
            monkeypatch.undo()

    run(test())


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_start_without_threads_is_refused_and_leaves_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application hears of it at once; no descriptor and none of the threads that could be made is left."""
    start = threading.Thread.start
    left = [True] * threads

    def refuse(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    async def test() -> None:
        guard = Server("/nowhere").guard
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            guard.start()
        monkeypatch.undo()
        guard.close()

    run(test())


def test_a_server_that_has_run_out_of_descriptors_connects_when_it_has_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one of the reasons why there is no connection, told once, and tried again as the others are."""
    make = socket.socket
    refused: list[int] = []

    def refuse_twice(*args: Any, **kwargs: Any) -> socket.socket:
        if threading.current_thread().name == "edgeguardd-client" and len(refused) < 2:
            refused.append(errno.EMFILE)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(*args, **kwargs)

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            monkeypatch.setattr(socket, "socket", refuse_twice)
            with subscribed(server.guard):
                await scripted.joined()
                monkeypatch.undo()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(scripted.acks)

    run(test())
    (warning,) = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert "too many open files" in warning.getMessage().lower()
    assert warning.exc_info is None


def test_a_server_that_only_trims_has_no_thread_for_the_rest() -> None:
    """Threads are made for what has a handler."""

    async def test() -> None:
        guard = Subscriber("s", path="/nowhere", handlers={"trim_kv_cache": print})
        with subscribed(guard):
            names = {thread.name for thread in threading.enumerate() if thread.name.startswith("edgeguardd")}
            assert names == {"edgeguardd-client", "edgeguardd-trim"}
            await asyncio.to_thread(guard.close)

    run(test())


FORKING = """
import os, signal, socket, sys, threading
from edgeguardd.client import Subscriber
from edgeguardd.core import wire

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
guard = Subscriber("s", path=sys.argv[1], handlers={"trim_kv_cache": print})
fresh = Subscriber("f", path=sys.argv[1])
guard.start()
peer, _ = listener.accept()
peer.recv(4096)
peer.sendall(wire.encode(wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, 3600.0)))
while not guard.connected:
    peer.recv(0)
taken, may_go = threading.Event(), threading.Event()

def hold():
    with guard._lock, guard._wakeup._lock:
        taken.set()
        may_go.wait()

holder = threading.Thread(target=hold)
holder.start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    answer = guard.admit(tokens=1, timeout_s=1000)
    guard.report(running=1)
    guard.finished(answer.id)
    guard.close()
    fresh.start()
    listener.accept()[0].recv(4096)
    fresh.close()
    os._exit(0 if answer and not answer.asked else 3)
_, status = os.waitpid(child, 0)
may_go.set()
holder.join()
peer.sendall(wire.encode(wire.Bye(1, "over")))
assert guard.connected, "the parent goes on"
guard.close()
print("child", status)
"""


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not() -> None:
    """A server that forks workers after the start is let through in them, and they can start one of their own."""
    with short_dir() as directory:
        argv = [sys.executable, "-c", FORKING, f"{directory}/s"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert (done.stdout, done.returncode) == ("child 0\n", 0), done.stderr


def test_a_threaded_server_does_not_import_asyncio() -> None:
    """Importing the client costs a threaded server no event loop; asyncio comes with AsyncSubscriber."""
    program = (
        "import sys, edgeguardd.client as c; assert 'asyncio' not in sys.modules;"
        "c.AsyncSubscriber; assert 'asyncio' in sys.modules; print('as said')"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert shown.stdout == "as said\n"
