"""LocalAI, whose models run in processes of their own. Facts: mudler/LocalAI core/http/endpoints/localai/
{backend_monitor,backend_load,system}.go and pkg/model/process.go (v3, v4).

    unload   backend/shutdown each model that /system names ─▶ /system names none ─▶ their processes are gone
    release  the same; the next request loads what it needs
    load     backend/load each model; versions without it load with the next request

Dangers, and what is done about them:
- "stopped" may leave the process there with all its memory (LocalAI#7958): processes are counted in the cgroup;
- the next request loads the model again: the gate is shut;
- a shutdown waits for running requests, 30 s, then fails: the gate is drained before;
- its llama backend's prompt cache has no bound: give `cache_ram` in the model's options.

Must not: read a process's memory or command line: while it swaps that takes seconds. Upstream: base, probes.
Downstream: bridge.
"""

import os
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import RefusedError, ServerError
from edgeguardd.bridges.probes import offers, version_at

SHUTDOWN, LOAD, SYSTEM = "/backend/shutdown", "/backend/load", "/system"
MAX_PROCS_BYTES = 256 * 1024
# What a model that is not loaded is answered with: 404, and 500 in versions before it was told apart.
NOT_LOADED = frozenset({404, 500})

NO_SHUTDOWN = "cannot unload models: this LocalAI has no /backend/shutdown; use v2 or newer"
NO_SYSTEM = "cannot tell which models are loaded: this LocalAI's /system does not say; give --model for each"
NO_COUNT = (
    "cannot verify that a stopped model's process is gone: LocalAI's cgroup is not known; give --cgroup or --unit"
)
LAZY = "cannot load models again before a request wants them: this LocalAI has no /backend/load; it loads them then"


class LocalAiServer(Server):
    """All models that are loaded, or those of --model."""

    name: ClassVar[str] = "localai"
    harmless: ClassVar[frozenset[str]] = frozenset(
        {"/healthz", "/readyz", "/version", "/system", "/metrics", "/v1/models"}
    )
    release_words: ClassVar[str] = "stopping its models to give memory back"

    _loads = False

    async def look(self) -> Look:
        """By /version and which calls there are."""
        version = await version_at(self.http, "/version", "LocalAI")
        if not await offers(self.http, SHUTDOWN):
            return Look(version, cannot=(NO_SHUTDOWN,))
        if await self._loaded() is None and not self.options.model:
            return Look(version, cannot=(NO_SYSTEM,))
        self._loads = await offers(self.http, LOAD)
        cannot = ([] if self._loads else [LAZY]) + ([] if self._processes() is not None else [NO_COUNT])
        return Look(version, releases=True, unloads=True, cannot=tuple(cannot))

    async def release(self) -> None:
        """Stop them; requests load what they need."""
        await self.unload()

    async def unload(self) -> tuple[str, ...]:
        """Stop each loaded model, and see that as many processes have ended."""
        before = self._processes()
        loaded = await self._loaded()
        if loaded is None and not self.options.model:
            raise ServerError(NO_SYSTEM)
        wanted = tuple(self.options.model) if loaded is None else loaded
        taken = [name for name in wanted if await self._stop(name)]

        async def gone() -> bool:
            now = self._processes()
            left = await self._loaded() or ()
            return not set(left) & set(taken) and (before is None or now is None or len(before - now) >= len(taken))

        await self.until(gone, f"the processes of {', '.join(taken)} are gone, which LocalAI says it has stopped")
        return tuple(taken)

    async def load(self, taken: tuple[str, ...]) -> None:
        """Load what was stopped."""
        await self.http.get("/readyz")
        for name in taken if self._loads else ():
            await self.http.post(LOAD, {"model": name}, within_s=self.patience_s)

    async def _stop(self, name: str) -> bool:
        """Whether there was anything to stop."""
        try:
            await self.http.post(SHUTDOWN, {"model": name}, within_s=self.patience_s)
        except RefusedError as error:
            if error.status not in NOT_LOADED or name in (await self._loaded() or ()):
                raise
            return False
        return True

    async def _loaded(self) -> tuple[str, ...] | None:
        """What is loaded, as far as the bridge may unload it; None: it does not say."""
        models: Any = (await self.http.get(SYSTEM)).field("loaded_models")
        if models is None:
            return None
        if not isinstance(models, list):
            raise ServerError("cannot read LocalAI's /system: loaded_models is no list; is that LocalAI?")
        names = [str(model["id"]) for model in models if isinstance(model, dict) and "id" in model]
        return tuple(name for name in names if not self.options.model or name in self.options.model)

    def _processes(self) -> frozenset[int] | None:
        """The processes of LocalAI's cgroup and those below; None: it is not known."""
        file = self.procs_file()
        if file is None:
            return None
        found: set[int] = set()
        for directory, _, _ in os.walk(os.path.dirname(file)):
            try:
                with open(os.path.join(directory, "cgroup.procs"), "rb") as procs:
                    found.update(int(word) for word in procs.read(MAX_PROCS_BYTES).split())
            except OSError:
                continue  # it has ended meanwhile, or holds threads only
        return frozenset(found)
