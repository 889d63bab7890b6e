"""The blocking client beside the loop that its server runs on: started, closed, and with handlers that write down.

Must not: know what a test expects. Upstream: the client. Downstream: component tests of the blocking client.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edgeguardd.client import Command, Released, Subscriber
from tests.support.subscribers import no_leaked_descriptors
from tests.support.wait import eventually


def run(test: Any) -> None:
    """Run a coroutine; afterwards every descriptor is closed and every thread of the client has ended."""
    with no_leaked_descriptors():
        asyncio.run(test)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("edgeguardd")])


@contextlib.contextmanager
def subscribed(guard: Subscriber) -> Iterator[Subscriber]:
    """A started guard, closed afterwards without blocking the loop that its server runs on."""
    guard.start()
    try:
        yield guard
    finally:
        guard.close()


class Server:
    """An inference server that writes down what it was told."""

    def __init__(self, path: str, **options: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.guard = Subscriber("llama", target="llm", path=path, **options)
        self.guard.on("trim_kv_cache")(self.trim)
        self.guard.on("reject_requests")(self.reject)
        self.guard.on("restore")(self.restore)
        self.trimming = threading.Event()
        self.may_trim = threading.Event()
        self.may_trim.set()

    def trim(self, command: Command) -> Released:
        self.trimming.set()
        assert self.may_trim.wait(20)
        self.calls.append(("trim", command.parameters.release_bytes))
        return Released(command.parameters.release_bytes or 0)

    def reject(self, command: Command) -> None:
        self.calls.append(("reject", command.parameters.accept_requests))

    def restore(self, command: Command) -> None:
        self.calls.append(("restore", command.parameters.accept_requests))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
