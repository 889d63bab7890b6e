"""OpenVINO Model Server with a configuration file. Facts: openvinotoolkit/model_server
docs/model_server_rest_api_tfs.md (config reload, config status), docs/online_config_changes.md,
src/modelinstance.cpp.

OVMS has no call that unloads. It unloads what its file no longer names, after the running requests, when told to read
it:

    unload   config.json without models ─▶ config/reload ─▶ v1/config until none is there
    release  the same, and back
    load     the file as it was ─▶ config/reload ─▶ v1/config until all are AVAILABLE

Dangers, and what is done about them:
- a reload answers 200 as well where OVMS serves one model without a file, or reads another file: what is served is
  looked at;
- a file that is half written is an error in OVMS: it is replaced as a whole, keeping owner and mode;
- a file that is mounted by itself into a container cannot be replaced, or only on one side: mount its directory;
- the file as it was is kept beside it (.edgeguardd): a bridge that dies brings it back; what somebody else has added to
  the file meanwhile stays.

Must not: write anything but that file and its copy. Upstream: base, configfile. Downstream: bridge.
"""

import asyncio
import contextlib
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import AwayError, RefusedError, ServerError
from edgeguardd.bridges.ovmsfile import OvmsFile
from edgeguardd.bridges.probes import gauge_sum, version_at

RELOAD, STATUS = "/v1/config/reload", "/v1/config"
# tensorflow_serving.apis.ModelVersionStatus.State, which OVMS shares.
AVAILABLE, END = "AVAILABLE", "END"

NO_FILE = "cannot unload models: OVMS unloads what its configuration file no longer names; give --config-path FILE"
NO_LIMIT = (
    "cannot lower nireq while OVMS runs without loading the model again; the gate's places do that: give --places"
)
OTHER_FILE = (
    "cannot unload models: OVMS still serves what the file no longer names; give --config-path the file that it was "
    "started with (--config_path), which has to be the same file here"
)


class OvmsServer(Server):
    """All models, graphs and pipelines of the file."""

    name: ClassVar[str] = "ovms"
    harmless: ClassVar[frozenset[str]] = frozenset(
        {"/v1/config", "/v1/models", "/v3/models", "/v2", "/v2/health/live", "/v2/health/ready", "/metrics"}
    )
    release_words: ClassVar[str] = "reloading its models to give memory back"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file = None if self.options.config_path is None else OvmsFile(self.options.config_path)

    async def look(self) -> Look:
        """By /v2 and /v1/config, and by whether the file can be replaced."""
        version = await version_at(self.http, "/v2", "OVMS's REST port")
        await self._states()
        obstacle = NO_FILE if self._file is None else await asyncio.to_thread(self._file.obstacle)
        if obstacle is not None:
            return Look(version, cannot=(obstacle, NO_LIMIT))
        return Look(version, releases=True, unloads=True, cannot=(NO_LIMIT,))

    async def release(self) -> None:
        """Unload and load again."""
        await self.reload()

    async def unload(self) -> tuple[str, ...]:
        """Take every model out of the file, and see that OVMS has let them go."""
        file = self._known_file()
        names = await asyncio.to_thread(file.strip)
        try:
            await self._reload_without(names)
        except ServerError:
            await asyncio.to_thread(file.put_back)
            with contextlib.suppress(AwayError):
                await self.http.ask("POST", RELOAD, within_s=self.patience_s)
            raise

        async def gone() -> bool:
            return all(state == END for state in (await self._states_of(names)).values())

        await self.until(gone, f"{', '.join(names)} left memory")
        return names

    async def _reload_without(self, names: tuple[str, ...]) -> None:
        await self.http.post(RELOAD, within_s=self.patience_s)
        if any(state == AVAILABLE for state in (await self._states_of(names)).values()):
            raise ServerError(OTHER_FILE)

    async def load(self, taken: tuple[str, ...]) -> None:  # noqa: ARG002 - the copy beside the file tells what it was
        """The file as it was."""
        file = self._known_file()
        names = await asyncio.to_thread(file.put_back)
        try:
            await self.http.post(RELOAD, within_s=self.patience_s)
        except RefusedError as error:
            raise ServerError(f"cannot load OVMS's models again: {error}; the file is as it was before") from None

        async def there() -> bool:
            states = await self._states_of(names)
            return len(states) == len(names) and all(state == AVAILABLE for state in states.values())

        await self.until(there, f"{', '.join(names)} are available")

    async def running(self) -> int | None:
        """From /metrics on the same port (--metrics_enable); None without."""
        reply = await self.http.ask("GET", "/metrics")
        return gauge_sum(reply.text(), "ovms_current_requests") if reply.status == 200 else None

    def _known_file(self) -> OvmsFile:
        if self._file is None:
            raise ServerError(NO_FILE)
        return self._file

    async def _states_of(self, names: tuple[str, ...]) -> dict[str, str]:
        return {name: state for name, state in (await self._states()).items() if name in names}

    async def _states(self) -> dict[str, str]:
        """Of each model: AVAILABLE if any version is, END if all have ended, else what one says."""
        tree = (await self.http.get(STATUS)).json()
        if not isinstance(tree, dict):
            raise ServerError(f"cannot use {self.http.at}: its {STATUS} is no object; is that OVMS's REST port?")
        found = {}
        for name, model in tree.items():
            versions = model.get("model_version_status") if isinstance(model, dict) else None
            listed = versions if isinstance(versions, list) else []
            states = [str(version.get("state")) for version in listed if isinstance(version, dict)]
            unfinished = [state for state in states if state != END]
            found[name] = AVAILABLE if AVAILABLE in states else unfinished[0] if unfinished else END
        return found
