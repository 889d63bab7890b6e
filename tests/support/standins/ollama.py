"""A stand-in for Ollama's scheduler, as server/routes.go and sched.go do it.

What matters: keep_alive 0 answers at once and the runner ends after what it works on; the next request loads the model
again; /api/generate refuses a model for embeddings; an unknown model is 404; the sizes of /api/ps are of no use.
"""

import asyncio
from typing import Any

from tests.support.standin import Call, Reply, StandIn

FOR_EVER = "2318-01-09T10:00:00.000000001Z"
SOON = "2026-11-30T18:00:00.123456789+01:00"


class FakeOllama(StandIn):
    """Models by name; a runner ends when nothing runs in it and it is wanted no longer."""

    def __init__(self, *models: str, version: str = "0.12.6") -> None:
        super().__init__()
        self.version = version
        self.known = {*models}
        self.loaded: dict[str, str] = {}
        self.for_embeddings: set[str] = set()
        self.has_ps = True
        self.sent: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._running: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def answer(self, call: Call) -> Reply:
        """One request."""
        match call.path:
            case "/api/version":
                return Reply({"version": self.version})
            case "/api/ps" if self.has_ps:
                return Reply({"models": [self._shown(name) for name in self.loaded] or None})
            case "/api/generate" | "/api/chat" | "/api/embed":
                return await self._generate(call.path, call.json())
        return Reply("404 page not found", 404)

    def _shown(self, name: str) -> dict[str, Any]:
        return {"name": name, "model": name, "size": 1, "size_vram": 0, "expires_at": self.loaded[name]}

    async def _generate(self, path: str, content: dict[str, Any]) -> Reply:
        self.sent.append(content)
        name = content["model"]
        if name not in self.known:
            return Reply({"error": f"model '{name}' not found"}, 404)
        empty = not content.get("prompt") and not content.get("messages") and not content.get("input")
        if (name in self.for_embeddings) != (path == "/api/embed"):
            return Reply({"error": f'"{name}" does not support generate'}, 400)
        if empty and content.get("keep_alive") == 0:
            task = asyncio.ensure_future(self._end(name))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            return Reply({"model": name, "response": "", "done": True, "done_reason": "unload"})
        self.loaded[name] = FOR_EVER if content.get("keep_alive") == -1 else SOON
        if empty:
            return Reply({"model": name, "response": "", "done": True, "done_reason": "load"})
        self._running[name] = self._running.get(name, 0) + 1
        try:
            await self.go.wait()
        finally:
            self._running[name] -= 1
        return Reply({"model": name, "response": "words", "done": True})

    async def _end(self, name: str) -> None:
        await self.may_end.wait()
        while self._running.get(name):  # noqa: ASYNC110 - a turn of the loop, no wait
            await asyncio.sleep(0)
        self.loaded.pop(name, None)
