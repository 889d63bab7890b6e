"""A stand-in for OpenVINO Model Server with a configuration file.

For: the tests of bridges.ovms. Upstream: restserver; a real config.json in a temporary directory. What it answers is
said in openvinotoolkit/model_server docs/model_server_rest_api_tfs.md (Config Reload API: 201 reloaded, 200 nothing to
do or a single model) and docs/online_config_changes.md (a model that is dropped goes after its running requests; a file
that is no JSON changes nothing), src/modelinstance.cpp (retireModel waits for them).
"""

import json
from pathlib import Path
from typing import Any

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work, ok

MODEL_BYTES = 200 << 20
LISTS = ("model_config_list", "mediapipe_config_list", "pipeline_config_list")


class Ovms(RestServer):
    """One server. `config_path` None: started with --model_name, without a file."""

    def __init__(self, config_path: Path | None) -> None:
        super().__init__()
        self.config_path = config_path
        self.work = Work()
        self.served: dict[str, str] = {}
        self.broken: set[str] = set()
        self._read = b""
        self.start_again()

    def start_again(self) -> None:
        """As after a restart: what the file names is loaded."""
        self.served = {"single": "AVAILABLE"}
        if self.config_path is not None:
            self.served = {}
            raw = self.config_path.read_bytes()
            self._apply(raw, _named(raw))

    @property
    def resident_bytes(self) -> int:
        """What the models take."""
        return MODEL_BYTES * sum(state == "AVAILABLE" for state in self.served.values())

    def routes(self) -> Table:
        return {
            ("GET", "/v1/config"): lambda _: Reply(self._status()),
            ("POST", "/v1/config/reload"): self._reload,
            ("GET", "/v2"): lambda _: Reply({"name": "OpenVINO Model Server", "version": "2026.3.0"}),
            ("GET", "/v2/health/ready"): ok,
            ("POST", "/v2/models/*"): self._infer,
        }

    def missing(self, call: Call) -> Reply:
        return Reply({"error": "Invalid request URL"}, 404)

    async def _infer(self, call: Call) -> Reply:
        name = call.path.removeprefix("/v2/models/").removesuffix("/infer")
        if self.served.get(name) != "AVAILABLE":
            return Reply({"error": "Model with requested name is not found"}, 404)
        await self.work.serve()
        return Reply({"model_name": name, "outputs": []})

    def _status(self) -> dict[str, Any]:
        return {
            name: {
                "model_version_status": [
                    {"version": "1", "state": state, "status": {"error_code": "OK", "error_message": "OK"}}
                ]
            }
            for name, state in self.served.items()
        }

    async def _reload(self, _: Call) -> Reply:
        if self.config_path is None:
            return Reply(self._status())
        try:
            raw = self.config_path.read_bytes()
        except OSError:
            return Reply({"error": "Config file not found or cannot open."}, 412)
        if raw == self._read:
            return Reply(self._status())
        try:
            named = _named(raw)
        except (ValueError, KeyError, TypeError):
            return Reply({"error": "Reloading config file failed. Check server logs for more info."}, 412)
        if set(self.served) - named:
            await self.work.drained()
        self._apply(raw, named)
        if any(state == "LOADING" for state in self.served.values()):
            return Reply({"error": "Reloading config file failed. Check server logs for more info."}, 412)
        return Reply(self._status(), 201)

    def _apply(self, raw: bytes, named: set[str]) -> None:
        for name in set(self.served) - named:
            self.served[name] = "END"
        for name in named:
            self.served[name] = "LOADING" if name in self.broken else "AVAILABLE"
        self._read = raw


def _named(raw: bytes) -> set[str]:
    tree = json.loads(raw)
    if not isinstance(tree["model_config_list"], list):
        raise TypeError("model_config_list")
    return {_name(entry) for key in LISTS for entry in tree.get(key, [])}


def _name(entry: dict[str, Any]) -> str:
    return str(entry["config"]["name"] if "config" in entry else entry["name"])
