"""Subscribe an inference server to edgeguardd.

    from edgeguardd.client import Released, Subscriber

    guard = Subscriber("my-server")

    @guard.on("trim_kv_cache")
    def trim(command):
        return Released(cache.trim(command.parameters.release_bytes))

    guard.start()

Subscriber is for threaded servers, AsyncSubscriber for asyncio ones; asyncio is imported only for the latter.
"""

from typing import TYPE_CHECKING

from edgeguardd.client.answers import Admission, Logical, NoEffect, Released, Unsupported
from edgeguardd.client.blocking import Subscriber
from edgeguardd.client.session import ClientSession
from edgeguardd.core.model import Command, Level, Parameters, Role

if TYPE_CHECKING:
    from edgeguardd.client.aio import AsyncSubscriber

__all__ = [
    "Admission",
    "AsyncSubscriber",
    "ClientSession",
    "Command",
    "Level",
    "Logical",
    "NoEffect",
    "Parameters",
    "Released",
    "Role",
    "Subscriber",
    "Unsupported",
]


def __getattr__(name: str) -> object:
    """AsyncSubscriber, imported when it is first asked for."""
    if name != "AsyncSubscriber":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeguardd.client.aio import AsyncSubscriber  # noqa: PLC0415 - on purpose: see above

    return AsyncSubscriber
