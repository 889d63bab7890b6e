"""llama.cpp's llama-server, with one model or as a router of many. Facts: tools/server/README.md of llama.cpp.

One model: there is no call that gives the prompt cache back, and a slot's KV is allocated at load. So a trim erases the
slots that are idle (logical: their cells are free, their pages stay), and memory comes back by ending the process.
Router: each model is a process of its own, which /models/unload ends.

Dangers, and what is done about them:
- erase waits for a busy slot until its generation ends (112 s seen): only idle slots are erased, and the call is cut;
- ids wrap (/slots/99 is slot 1 of 2): only ids below total_slots are used;
- GET /slots and erase wake a sleeping model, and polling /slots keeps it from sleeping: /props tells, and is exempt;
- /models/unload returns at once and kills what runs after stop-timeout: the gate is drained before, GET /models polled;
- with autoload the next request loads the model again: the gate stays shut until it is restored.

Must not: poll /slots. Upstream: base, supervise. Downstream: bridge.
"""

from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import AwayError, RefusedError, ServerError
from edgeguardd.bridges.probes import gauge_sum

# An idle slot is erased in milliseconds; one that has become busy meanwhile would block for its whole generation.
ERASE_WITHIN_S = 2.0
MAX_SLOTS = 256
# What /models says of a model whose process is there. "downloading" has none.
PROCESS_STATES = frozenset({"loaded", "loading", "sleeping"})

NO_SLOT_SAVE_PATH = (
    "cannot erase idle slots: the server answers 501; start it with --slot-save-path DIR (a trim below --release-from "
    "does nothing without)"
)
NO_KEEPER = (
    "cannot give memory back: a server of one model does so only by ending; name what stops and starts it: --unit, "
    "--stop and --start, or the command itself"
)
NO_SLOTS = "cannot tell idle slots from busy ones: /slots is off; start it without --no-slots"
AUTOLOAD = (
    "cannot keep a model out of memory if requests go past the gate: the router loads what they name; start it with "
    "--no-models-autoload"
)


class LlamaServer(Server):
    """Both modes; which one is found out by /props."""

    name: ClassVar[str] = "llama-server"
    # /props and /metrics of a router, with ?model=, load that model; without a query they do not.
    harmless: ClassVar[frozenset[str]] = frozenset(
        {"/health", "/v1/health", "/v1/models", "/models", "/metrics", "/props"}
    )
    release_words: ClassVar[str] = "restarting to give memory back"

    _router = False
    _total_slots = 0
    _has_metrics = False

    async def look(self) -> Look:
        """By /props, which neither wakes nor counts as activity."""
        props = (await self.http.get("/props")).json()
        if not isinstance(props, dict):
            raise ServerError(f"cannot use {self.http.at}: its /props is no object; is that llama-server?")
        self._router = props.get("role") == "router"
        version = _text(props.get("build_info"))
        return await (self._look_at_router(version, props) if self._router else self._look_at_model(version, props))

    async def _look_at_model(self, version: str | None, props: dict[str, Any]) -> Look:
        total = props.get("total_slots")
        self._total_slots = total if isinstance(total, int) and 0 < total <= MAX_SLOTS else 0
        # An action that does not exist: refused with 400 where slots can be erased, with 501 where they cannot.
        erases = (await self.http.ask("POST", "/slots/0?action=none")).status != 501
        cannot = [] if erases else [NO_SLOT_SAVE_PATH]
        if self.keeper is None:
            cannot.append(NO_KEEPER)
        self._has_metrics = (await self.http.ask("GET", "/metrics")).status == 200
        kept = self.keeper is not None
        places = self._total_slots or None
        return Look(version, places, trims=erases, releases=kept, unloads=kept, cannot=tuple(cannot))

    async def _look_at_router(self, version: str | None, props: dict[str, Any]) -> Look:
        await self._states()
        cannot = (AUTOLOAD,) if props.get("models_autoload") is not False else ()
        return Look(version, None, releases=True, unloads=True, cannot=cannot)

    # One model

    async def trim(self) -> None:
        """Erase the slots that are idle. A model that sleeps has none, and is left asleep."""
        if (await self.http.get("/props")).field("is_sleeping", default=False):
            return
        slots = (await self.http.ask("GET", "/slots")).json() if self._total_slots else []
        if not isinstance(slots, list):
            raise ServerError(NO_SLOTS)
        for slot in slots:
            number = slot.get("id") if isinstance(slot, dict) else None
            if not isinstance(number, int) or not 0 <= number < self._total_slots or slot.get("is_processing"):
                continue
            await self._erase(number)

    async def _erase(self, number: int) -> None:
        try:
            await self.http.post(f"/slots/{number}?action=erase", within_s=ERASE_WITHIN_S)
        except AwayError:
            pass  # it has become busy: the server erases it when its generation ends
        except RefusedError as error:
            if error.status == 501:
                raise ServerError(NO_SLOT_SAVE_PATH) from None
            raise

    async def release(self) -> None:
        """End the process and start it again, or unload the router's models and load them again.

        Left to autoload, their weights would look like something that has grown, and be taken away again.
        """
        await self.reload()

    async def unload(self) -> tuple[str, ...]:
        """End the process, or those of the router's models."""
        if self._router:
            return await self._unload_models()
        self.out = ()
        await self._kept().stop()
        return ()

    async def load(self, taken: tuple[str, ...]) -> None:
        """Start the process and wait until it answers, or load the router's models."""
        if self._router:
            for model in taken:
                await self._load_model(model)
            return
        await self._kept().start()
        await self.until(self._is_healthy, "llama-server is ready")

    def _kept(self) -> Any:
        if self.keeper is None:
            raise ServerError(NO_KEEPER)
        return self.keeper

    async def _is_healthy(self) -> bool:
        try:
            return (await self.http.ask("GET", "/health")).status == 200
        except AwayError:
            return False

    async def running(self) -> int | None:
        """From /metrics, which may be polled; None without --metrics, and of a router."""
        if self._router or not self._has_metrics:
            return None
        text = (await self.http.get("/metrics")).text()
        return gauge_sum(text, "llamacpp:requests_processing", "llamacpp:requests_deferred")

    # Router

    async def _unload_models(self) -> tuple[str, ...]:
        states = await self._states()
        wanted: list[str] = self.options.model or list(states)
        taken = [name for name in wanted if states.get(name) in PROCESS_STATES]
        self.out = tuple(taken)
        for name in taken:
            try:
                await self.http.post("/models/unload", {"model": name})
            except RefusedError as error:
                if error.status != 400:  # 400: it is not running any more
                    raise

        async def gone() -> bool:
            now = await self._states()
            return not any(now.get(name) in PROCESS_STATES for name in taken)

        await self.until(gone, f"{', '.join(taken)} left memory")
        return self.out

    async def _load_model(self, name: str) -> None:
        if (await self._states()).get(name) not in PROCESS_STATES:
            await self.http.post("/models/load", {"model": name})

        async def there() -> bool:
            state = (await self._states()).get(name)
            if state == "unloaded":
                raise ServerError(f"cannot load {name}: the router says that it failed; see its log")
            return state in {"loaded", "sleeping"}

        await self.until(there, f"{name} is loaded")

    async def _states(self) -> dict[str, str]:
        """Each model's state as the router says it."""
        models = (await self.http.get("/models")).field("data", default=[])
        found = {}
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and isinstance(model.get("id"), str) and isinstance(model.get("status"), dict):
                found[model["id"]] = str(model["status"].get("value"))
        return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
