"""Stand-ins from a table of routes: what the APIs beside this have in common, and how a test makes them slow or wrong.

Must not: know any of those APIs. Upstream: tests.support.standin. Downstream: vllm, sglang, trtllm, triton, ovms,
localai.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.standin import Call, Reply, StandIn

Route = Callable[[Call], Reply | Awaitable[Reply]]
Table = dict[tuple[str, str], Route]


class RestServer(StandIn):
    """Serves routes(): (method, path), or (method, prefix*)."""

    def __init__(self) -> None:
        super().__init__()
        self.overrides: dict[str, Reply | None] = {}
        self.to_all: Reply | None = None
        self._held: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, int] = {}

    # What a stand-in says

    def routes(self) -> Table:
        """The table; asked at each request, so that it follows the stand-in's flags."""
        raise NotImplementedError

    def missing(self, call: Call) -> Reply:
        """The answer to what is not in the table: FastAPI's, which most of these servers are made with."""
        return Reply({"detail": "Not Found"}, 404)

    def refuse(self, call: Call) -> Reply | None:
        """An answer before any route is looked for: a missing key, say."""
        return None

    # What a test does

    def override(self, path: str, status: int, content: Any = b"") -> None:
        """From now on this is the answer to that path, whatever the table says. status 0: hang up."""
        self.overrides[path] = Reply(content, status) if status else None

    def hold(self, path: str) -> None:
        """Let requests to this path wait before anything is done."""
        self._held[path] = asyncio.Event()

    def let_go(self, path: str) -> None:
        """Let them go on."""
        self._held.pop(path).set()

    def waiting(self, path: str) -> int:
        """How many are held."""
        return self._waiting.get(path, 0)

    def done(self, *without: str) -> list[str]:
        """The calls that do something, in order, but for those to some paths."""
        posts = [call.removeprefix("POST ") for call in self.calls if call.startswith("POST ")]
        return [call for call in posts if call.split("?")[0] not in without]

    # Inside

    async def answer(self, call: Call) -> Reply:
        """One request. Raises ConnectionError to hang up."""
        held = self._held.get(call.path)
        if held is not None:
            self._waiting[call.path] = self._waiting.get(call.path, 0) + 1
            await held.wait()
            self._waiting[call.path] -= 1
        if self.to_all is not None:
            return self.to_all
        if call.path in self.overrides and call.method != "OPTIONS":
            overridden = self.overrides[call.path]
            if overridden is None:
                raise ConnectionError
            return overridden
        refusal = self.refuse(call)
        if refusal is not None:
            return refusal
        other_method = False
        for (method, path), route in self.routes().items():
            if path == call.path or (path[-1] == "*" and call.path.startswith(path[:-1])):
                if method == call.method:
                    reply = route(call)
                    return reply if isinstance(reply, Reply) else await reply
                other_method = True
        return Reply({"detail": "Method Not Allowed"}, 405) if other_method else self.missing(call)


def ok(call: Call) -> Reply:
    """200 without a body."""
    return Reply(b"")


class Work:
    """The requests that a server works on: each runs until the test ends it or the server aborts it.

    While it is not open new ones wait in a queue, as vLLM's and SGLang's do while they are paused.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: set[asyncio.Future[str]] = set()
        self.queued = 0

    @property
    def running(self) -> int:
        """How many are worked on."""
        return len(self._running)

    async def serve(self) -> str:
        """One request, from its turn to its end; how it ended. Raises ConnectionError when its server has died."""
        self.queued += 1
        try:
            await self._open.wait()
        finally:
            self.queued -= 1
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._running.add(over)
        self._idle.clear()
        try:
            how = await over
        finally:
            self._running.discard(over)
            if not self._running:
                self._idle.set()
        if how == "died":
            raise ConnectionError
        return how

    def end(self, how: str = "stop") -> None:
        """All that run come to their end."""
        for over in list(self._running):
            if not over.done():
                over.set_result(how)

    def shut(self) -> None:
        """New ones wait."""
        self._open.clear()

    def open(self) -> None:
        """They get their turn."""
        self._open.set()

    async def drained(self) -> None:
        """Until nothing runs."""
        await self._idle.wait()
