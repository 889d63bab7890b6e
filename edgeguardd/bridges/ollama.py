"""Ollama. Facts: server/routes.go and server/sched.go of Ollama.

`POST /api/generate {"model": M, "keep_alive": 0}` without a prompt ends the model's runner after the requests that it
works on: its memory is all back. The next request loads the model again, so the gate is shut first. Limits
(OLLAMA_NUM_PARALLEL, OLLAMA_MAX_QUEUE) are environment only; sizes of /api/ps leave the prompt cache out, so memory is
measured in the cgroup.

Must not: believe /api/ps about bytes. Upstream: base. Downstream: bridge.
"""

from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import RefusedError, ServerError

NO_LIMIT = (
    "cannot lower Ollama's own limits while it runs (OLLAMA_NUM_PARALLEL is read at its start); the gate's places do "
    "that: give --places"
)
NO_CALL = "cannot unload models: this Ollama has no /api/ps (before 0.1.33); use a newer one"


class OllamaServer(Server):
    """All models that Ollama has loaded."""

    name: ClassVar[str] = "ollama"
    harmless: ClassVar[frozenset[str]] = frozenset({"/", "/api/version", "/api/tags", "/api/ps", "/v1/models"})
    release_words: ClassVar[str] = "unloading its models to give memory back"

    async def look(self) -> Look:
        """By /api/version and /api/ps."""
        version = (await self.http.get("/api/version")).field("version")
        try:
            await self._loaded()
        except RefusedError as error:
            if error.status != 404:
                raise
            return Look(version, cannot=(NO_CALL, NO_LIMIT))
        return Look(version, releases=True, unloads=True, cannot=(NO_LIMIT,))

    async def release(self) -> None:
        """Unload; the next request loads what it needs."""
        await self.unload()

    async def unload(self) -> tuple[str, ...]:
        """Keep each loaded model alive for no time, until /api/ps names it no longer."""
        taken = await self._loaded()
        for name in taken:
            await self._keep_alive(name, 0)

        async def gone() -> bool:
            return not set(taken) & set(await self._loaded())

        await self.until(gone, f"{', '.join(taken)} left memory")
        return tuple(taken)

    async def load(self, taken: tuple[str, ...]) -> None:
        """Load what was loaded, for as long as Ollama keeps models by itself."""
        for name in taken:
            await self._keep_alive(name, None)

    async def _keep_alive(self, name: str, seconds: int | None) -> None:
        content: dict[str, Any] = {"model": name, "stream": False}
        if seconds is not None:
            content["keep_alive"] = seconds
        try:
            await self.http.post("/api/generate", content, within_s=self.patience_s)
        except RefusedError as error:
            # 400: a model for embeddings, which /api/generate does not take in all versions. 404: deleted meanwhile.
            if error.status == 404:
                return
            if error.status != 400:
                raise
            await self.http.post("/api/embed", content, within_s=self.patience_s)

    async def _loaded(self) -> list[str]:
        """The names of what is loaded, as far as the bridge may unload it."""
        models = (await self.http.get("/api/ps")).field("models", default=None)
        if models is None:
            models = []
        if not isinstance(models, list):
            raise ServerError("cannot read /api/ps: models is no list; is that Ollama?")
        names = [model["name"] for model in models if isinstance(model, dict) and isinstance(model.get("name"), str)]
        only = self.options.model
        return [name for name in names if not only or name in only]
