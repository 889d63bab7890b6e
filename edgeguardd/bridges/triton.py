"""Triton Inference Server. Facts: triton-inference-server/server docs/protocol/extension_model_repository.md and
docs/user_guide/model_management.md; triton-inference-server/core src/model_repository_manager/ (24 to 26).

    unload   unload each model that is READY ─▶ index until none is there any more     running requests end first
    release  the same, and load them again: a backend's arenas and instances start small
    reduce   load with another instance_group.count, which is done in place             only with --instances live

Dangers, and what is done about them:
- without --model-control-mode=explicit every load and unload answers 503: found out by unloading a model of no name;
- an unload answers before the last request has ended: the index says when (`UNAVAILABLE`, "unloaded");
- a load that changes anything but instance_group loads a second copy beside the first, and the configuration that the
  model was loaded with is not the one that Triton tells (the backend has completed it): so --instances live loads each
  model with the told one at the bridge's start, when there should be room, and every later change of a count is in
  place;
- a load takes the configuration of the repository: one that somebody else had passed to a load is lost;
- glibc's allocator may keep what an unload frees: start Triton with tcmalloc or jemalloc (its documentation tells how).

Must not: load a configuration that differs in more than counts. Upstream: base. Downstream: bridge.
"""

import json
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import RefusedError, ServerError, quoted

# No repository has a model of this name: its directory would begin with a dot.
NO_MODEL = ".edgeguardd"
READY = "READY"
LIVE = "live"
# A parameter that no backend knows, in the configurations that the bridge has loaded: a restart of Triton forgets them.
MARK = "edgeguardd"
# States in which a model, or what is left of it, is in memory.
THERE = frozenset({READY, "LOADING", "UNLOADING"})

NOT_EXPLICIT = (
    "cannot unload models or change their instances: Triton takes no load and unload; start it with "
    "--model-control-mode=explicit and a --load-model for each"
)
RESTRICTED = "cannot unload models: Triton restricts the model repository's calls (--http-restricted-api); allow them"
NO_INSTANCES = (
    "cannot lower instance counts in place: the bridge has not loaded the models itself; the gate's places do it, or "
    "give --instances live (each model is then loaded twice for a moment, at the bridge's start)"
)
STALE = (
    "cannot lower instance counts: Triton was restarted after the bridge, and would load a second copy of each model; "
    "restart the bridge"
)
ONE_INSTANCE = "cannot lower instance counts: each model has one instance; the gate's places do it"


class TritonServer(Server):
    """All models that are loaded, or those of --model."""

    name: ClassVar[str] = "triton"
    harmless: ClassVar[frozenset[str]] = frozenset({"/v2", "/v2/health/live", "/v2/health/ready", "/metrics"})
    release_words: ClassVar[str] = "reloading its models to give memory back"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # With --instances live: each model's completed configuration with the counts that it is meant to have.
        self._configs: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, list[int]] = {}

    async def look(self) -> Look:
        """By /v2, and by an unload that has nothing to unload."""
        version = await self._version()
        obstacle = await self._obstacle()
        if obstacle is not None:
            return Look(version, cannot=(obstacle,))
        if self.options.instances != LIVE:
            return Look(version, releases=True, unloads=True, cannot=(NO_INSTANCES,))
        await self._take_over()
        reduces = any(count > 1 for counts in self._counts.values() for count in counts)
        return Look(version, releases=True, unloads=True, reduces=reduces, cannot=() if reduces else (ONE_INSTANCE,))

    async def _version(self) -> str:
        reply = await self.http.get("/v2")
        version, extensions = reply.field("version"), reply.field("extensions")
        if not isinstance(version, str) or not isinstance(extensions, list) or "model_repository" not in extensions:
            raise ServerError(
                f"cannot use {self.http.at}: its /v2 names no model_repository extension; is that Triton?"
            )
        return version

    async def _obstacle(self) -> str | None:
        try:
            await self.http.post(f"/v2/repository/models/{quoted(NO_MODEL)}/unload", {})
        except RefusedError as error:
            if error.status == 503:
                return NOT_EXPLICIT
            if error.status in {401, 403}:
                return RESTRICTED
            # Any other refusal is about the model, which is not there.
        return None

    # Models

    async def release(self) -> None:
        """Unload and load again."""
        await self.reload()

    async def unload(self) -> tuple[str, ...]:
        """Unload what is ready, until nothing of it is left."""
        taken = await self._ready()
        for name in taken:
            await self.http.post(_control(name, "unload"), {})

        async def gone() -> bool:
            states = await self._states()
            return not any(states.get(name) in THERE for name in taken)

        await self.until(gone, f"{', '.join(taken)} left memory")
        return taken

    async def load(self, taken: tuple[str, ...]) -> None:
        """Load what was unloaded; what a bridge before this one had, the index tells."""
        failed: list[RefusedError] = []
        for name in taken or await self._unloaded():
            config = self._configs.get(name)
            try:
                await self._load(name, config)
            except RefusedError as error:  # the others are to come back all the same
                failed.append(error)
            else:
                self._counts[name] = _counts(config or {})
        if failed:
            raise failed[0]

    async def _load(self, name: str, config: dict[str, Any] | None) -> None:
        content = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        await self.http.post(_control(name, "load"), content, within_s=self.patience_s)

    # Instances

    async def reduce(self, ratio: float) -> None:
        """Scale each group's count of the models that are loaded, one at least."""
        ready = set(await self._ready())
        for name, whole in self._configs.items():
            config = _scaled(whole, ratio)
            if name in ready and _counts(config) != self._counts[name]:
                if MARK not in (await self._config(name)).get("parameters", {}):
                    raise ServerError(STALE)
                await self._load(name, config)
                self._counts[name] = _counts(config)

    async def _take_over(self) -> None:
        """Load each model with its completed configuration, so that Triton compares later ones with that."""
        self._configs.clear()
        self._counts.clear()
        for name in await self._ready():
            await self._load(name, None)  # the repository's: a bridge that died may have left fewer instances
            config = await self._config(name)
            if not _counts(config):
                continue  # an ensemble has no instances
            config["parameters"] = {**config.get("parameters", {}), MARK: {"string_value": "1"}}
            await self._load(name, config)
            self._configs[name], self._counts[name] = config, _counts(config)

    async def _config(self, name: str) -> dict[str, Any]:
        config = (await self.http.get(f"/v2/models/{quoted(name)}/config")).json()
        if not isinstance(config, dict) or not isinstance(config.get("parameters", {}), dict):
            raise ServerError(f"cannot read the configuration of {name}: it is no object; is that Triton?")
        return config

    # The index

    async def _ready(self) -> tuple[str, ...]:
        only = self.options.model
        states = await self._states()
        return tuple(name for name, state in states.items() if state == READY and (not only or name in only))

    async def _unloaded(self) -> tuple[str, ...]:
        """What somebody has unloaded since Triton started: nothing else has this reason."""
        only = self.options.model
        entries = await self._index()
        gone = [str(entry["name"]) for entry in entries if entry.get("reason") == "unloaded"]
        return tuple(dict.fromkeys(name for name in gone if not only or name in only))

    async def _states(self) -> dict[str, str]:
        """Each model's state; of several versions the one that holds memory."""
        found: dict[str, str] = {}
        for entry in await self._index():
            name, state = str(entry["name"]), str(entry.get("state", ""))
            if found.get(name) not in THERE:
                found[name] = state
        return found

    async def _index(self) -> list[dict[str, Any]]:
        entries = (await self.http.post("/v2/repository/index", {})).json()
        if not isinstance(entries, list):
            raise ServerError("cannot read Triton's repository index: it is no list; is that Triton?")
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)]


def _control(name: str, what: str) -> str:
    return f"/v2/repository/models/{quoted(name)}/{what}"


def _groups(config: dict[str, Any]) -> list[dict[str, Any]]:
    groups = config.get("instance_group")
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _counts(config: dict[str, Any]) -> list[int]:
    return [group["count"] for group in _groups(config) if isinstance(group.get("count"), int)]


def _scaled(config: dict[str, Any], ratio: float) -> dict[str, Any]:
    """The same with fewer instances."""
    groups = [
        {**group, "count": max(1, int(group["count"] * ratio))} if isinstance(group.get("count"), int) else group
        for group in _groups(config)
    ]
    return {**config, "instance_group": groups}
