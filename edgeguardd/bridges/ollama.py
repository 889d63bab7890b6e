"""Ollama. Facts: server/routes.go and server/sched.go of Ollama.

`POST /api/generate {"model": M, "keep_alive": 0}` without a prompt ends the model's runner after the requests that it
works on, and its memory is all back; it answers at once ("done_reason": "unload"), so /api/ps is polled. The next
request loads the model again, so the gate is shut first. Limits (OLLAMA_NUM_PARALLEL, OLLAMA_MAX_QUEUE) are environment
only. Sizes of /api/ps leave the prompt cache out, so memory is measured in the cgroup.

Must not: believe /api/ps about bytes. Upstream: base. Downstream: bridge.
"""

import datetime
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import RefusedError, ServerError

# "keep_alive": -1 shows as an end in some 290 years: a model that somebody has pinned is pinned again.
PINNED_DAYS = 3650
PINNED_MARK = " pinned"

NO_LIMIT = (
    "cannot lower Ollama's own limits while it runs (OLLAMA_NUM_PARALLEL is read at its start); the gate's places do "
    "it: give --places"
)
NO_CALL = "cannot unload models: this Ollama has no /api/ps (it came with 0.1.38); use a newer one"


class OllamaServer(Server):
    """All models that Ollama has loaded, or those that --model names."""

    name: ClassVar[str] = "ollama"
    harmless: ClassVar[frozenset[str]] = frozenset({"/", "/api/version", "/api/tags", "/api/ps", "/v1/models"})
    release_words: ClassVar[str] = "loading its models anew to give memory back"

    async def look(self) -> Look:
        """By /api/version and /api/ps, neither of which loads anything."""
        version = (await self.http.get("/api/version")).field("version")
        shown = version if isinstance(version, str) else None
        try:
            await self._loaded()
        except RefusedError as error:
            if error.status != 404:
                raise
            return Look(shown, cannot=(NO_CALL, NO_LIMIT))
        return Look(shown, releases=True, unloads=True, cannot=(NO_LIMIT,))

    async def release(self) -> None:
        """Unload and load again: the prompt cache is gone. Left to the next request, the weights would look grown."""
        await self.reload()

    async def unload(self) -> tuple[str, ...]:
        """Keep each loaded model alive for no time, until /api/ps names none of them."""
        loaded = await self._loaded()
        self.out = tuple(name + PINNED_MARK if pinned else name for name, pinned in loaded.items())
        for name in loaded:
            await self._keep_alive(name, 0)

        async def gone() -> bool:
            return not loaded.keys() & (await self._loaded()).keys()

        await self.until(gone, f"{', '.join(loaded)} left memory")
        return self.out

    async def load(self, taken: tuple[str, ...]) -> None:
        """Load what was loaded, for as long as Ollama keeps models by itself, or for ever where it was pinned."""
        for entry in taken:
            name = entry.removesuffix(PINNED_MARK)
            await self._keep_alive(name, None if name == entry else -1)

    async def _keep_alive(self, name: str, seconds: int | None) -> None:
        content: dict[str, Any] = {"model": name, "stream": False}
        if seconds is not None:
            content["keep_alive"] = seconds
        try:
            await self.http.post("/api/generate", content, within_s=self.patience_s)
        except RefusedError as error:
            if error.status == 404:  # deleted meanwhile
                return
            if error.status != 400:
                raise
            # "does not support generate": a model for embeddings.
            await self.http.post("/api/embed", content, within_s=self.patience_s)

    async def _loaded(self) -> dict[str, bool]:
        """What is loaded, as far as the bridge may unload it, and whether it is pinned."""
        models = (await self.http.get("/api/ps")).field("models") or []
        if not isinstance(models, list):
            raise ServerError("cannot read /api/ps: its models are no list; is that Ollama?")
        only = self.options.model
        found = {}
        for model in models:
            name = model.get("name") if isinstance(model, dict) else None
            if isinstance(name, str) and (not only or name in only):
                found[name] = _is_pinned(model.get("expires_at"))
        return found


def _is_pinned(expires_at: object) -> bool:
    """Whether this end is so far away that it is none."""
    year = expires_at[:4] if isinstance(expires_at, str) else ""
    if not year.isdigit():
        return False
    return int(year) > (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=PINNED_DAYS)).year
