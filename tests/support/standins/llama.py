"""Stand-ins for llama.cpp's llama-server: with one model, and as a router. As tools/server of llama.cpp does it.

What matters here and is easy to get wrong: erase without --slot-save-path is 501 before anything else is looked at; a
busy slot holds the call until its generation ends; ids wrap; /slots and erase wake a sleeping model, /props does not;
the queue has no end; /models/unload returns at once; a request for a model that is not loaded loads it; who is inside
when a process ends gets nothing, or 500 from the router.
"""

import asyncio
import dataclasses
from typing import Any

from tests.support.standin import Call, Reply, StandIn

WORK = frozenset({"/completion", "/v1/completions", "/v1/chat/completions"})


def error(status: int, message: str, kind: str = "invalid_request_error") -> Reply:
    """In llama-server's form."""
    return Reply({"error": {"code": status, "message": message, "type": kind}}, status)


@dataclasses.dataclass
class Slot:
    """One slot; `free` is set while nothing runs in it."""

    tokens: int = 100
    free: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class FakeLlama(StandIn):
    """One model. Requests run until `go` is set."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__()
        self.slots = [Slot() for _ in range(slots)]
        for slot in self.slots:
            slot.free.set()
        self.slot_save_path = True
        self.has_slots = True
        self.has_metrics = True
        self.ready = True
        self.sleeping = False
        self.woken = 0
        self.served = 0
        self.deferred = 0
        self.go = asyncio.Event()
        self.go.set()

    async def answer(self, call: Call) -> Reply:  # noqa: PLR0911 - one a route
        """One request."""
        if call.path == "/health":
            return Reply({"status": "ok"}) if self.ready else error(503, "Loading model", "unavailable_error")
        if not self.ready:
            return error(503, "Loading model", "unavailable_error")
        if call.path == "/props":
            return Reply(self.props())
        if call.path == "/metrics":
            return self._metrics()
        if call.path == "/slots":
            return self._slots()
        if call.path.startswith("/slots/") and call.method == "POST":
            return await self._slot_action(call)
        if call.path in WORK:
            return await self._complete()
        return error(404, "File Not Found", "not_found_error")

    def props(self) -> dict[str, Any]:
        """What /props says."""
        build = "b6123-0c1e570"
        return {
            "total_slots": len(self.slots),
            "build_info": build,
            "is_sleeping": self.sleeping,
            "model_path": "m.gguf",
        }

    @property
    def running(self) -> int:
        """How many slots are busy."""
        return sum(not slot.free.is_set() for slot in self.slots)

    def _metrics(self) -> Reply:
        if not self.has_metrics:
            return error(501, "This server does not support metrics endpoint.", "not_supported_error")
        lines = ["# TYPE llamacpp:requests_processing gauge", f"llamacpp:requests_processing {self.running}"]
        return Reply("\n".join([*lines, f"llamacpp:requests_deferred {self.deferred}", ""]))

    def _slots(self) -> Reply:
        if not self.has_slots:
            return error(501, "This server does not support slots endpoint.", "not_supported_error")
        self._wake()
        return Reply([{"id": n, "is_processing": not slot.free.is_set()} for n, slot in enumerate(self.slots)])

    async def _slot_action(self, call: Call) -> Reply:
        if not self.slot_save_path:
            return error(501, "This server does not support slots action. Start it with `--slot-save-path`")
        number = int(call.path.removeprefix("/slots/"))
        if call.query.get("action") != "erase":
            return error(400, "Invalid action")
        self._wake()
        slot = self.slots[number % len(self.slots)]
        await slot.free.wait()
        erased, slot.tokens = slot.tokens, 0
        return Reply({"id_slot": number, "n_erased": erased})

    async def _complete(self) -> Reply:
        self._wake()
        self.deferred += 1
        try:
            while not (free := [slot for slot in self.slots if slot.free.is_set()]):
                await asyncio.wait(
                    [asyncio.ensure_future(slot.free.wait()) for slot in self.slots],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            self.deferred -= 1
        slot = free[0]
        slot.free.clear()
        try:
            await self.go.wait()
        finally:
            slot.free.set()
        slot.tokens += 10
        self.served += 1
        return Reply({"content": "words", "tokens_predicted": 8})

    def _wake(self) -> None:
        if self.sleeping:
            self.sleeping, self.woken = False, self.woken + 1


class FakeRouter(StandIn):
    """Many models, each a process of its own. `stop_s`: how long a process takes to end, busy or not."""

    def __init__(self, *models: str, autoload: bool = True) -> None:
        super().__init__()
        self.states = dict.fromkeys(models, "unloaded")
        self.autoload = autoload
        self.stop = asyncio.Event()
        self.stop.set()
        self.broken: set[str] = set()
        self.go = asyncio.Event()
        self.go.set()
        self.killed = 0
        self._ends: dict[str, asyncio.Event] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def answer(self, call: Call) -> Reply:  # noqa: PLR0911 - one a route
        """One request."""
        match call.path:
            case "/health":
                return Reply({"status": "ok"})
            case "/props" if "model" not in call.query:
                return Reply(
                    {"role": "router", "max_instances": 4, "models_autoload": self.autoload, "build_info": "b7"}
                )
            case "/models":
                return Reply({"data": [{"id": name, "status": self._status(name)} for name in self.states]})
            case "/models/unload":
                return self._unload(call.json()["model"])
            case "/models/load":
                return self._load(call.json()["model"])
            case path if path in WORK:
                return await self._work(call.json().get("model", ""))
        return error(404, "File Not Found", "not_found_error")

    def _status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = {"value": self.states[name]}
        if name in self.broken and self.states[name] == "unloaded":
            status |= {"failed": True, "exit_code": 1}
        return status

    def _unload(self, name: str) -> Reply:
        if name not in self.states:
            return error(404, "model is not found", "not_found_error")
        if self.states[name] == "unloaded":
            return error(400, "model is not running")
        self._start(self._end(name))
        return Reply({"success": True})

    async def _end(self, name: str) -> None:
        await self.stop.wait()
        self.states[name] = "unloaded"
        self._end_of(name).set()

    def _load(self, name: str) -> Reply:
        if name not in self.states:
            return error(404, "model is not found", "not_found_error")
        if self.states[name] != "unloaded":
            return error(400, "model is already running")
        self.states[name] = "loading"
        self._start(self._loaded(name))
        return Reply({"success": True})

    async def _loaded(self, name: str) -> None:
        await asyncio.sleep(0)
        self._ends[name] = asyncio.Event()
        self.states[name] = "unloaded" if name in self.broken else "loaded"

    async def _work(self, name: str) -> Reply:
        if name not in self.states:
            return error(404, "model is not found", "not_found_error")
        if self.states[name] == "unloaded":
            if not self.autoload:
                return error(400, "model is not loaded")
            self.states[name] = "loading"
            await self._loaded(name)
        going = asyncio.ensure_future(self.go.wait())
        ending = asyncio.ensure_future(self._end_of(name).wait())
        try:
            await asyncio.wait({going, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            ending.cancel()
        if not self.go.is_set():
            self.killed += 1
            return error(500, "proxy error: Failed to read connection", "server_error")
        return Reply({"content": "words"})

    def _end_of(self, name: str) -> asyncio.Event:
        return self._ends.setdefault(name, asyncio.Event())

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
