"""A stand-in for Triton Inference Server's HTTP endpoint.

For: the tests of bridges.triton. Upstream: restserver. What it answers is said in Triton's
docs/protocol/extension_model_repository.md and docs/user_guide/model_management.md, and read in
triton-inference-server/ core src/model_repository_manager/model_lifecycle.cc (AsyncLoad: a load that changes nothing
but instance_group is done in place; any other loads a second copy beside the first) and model_repository_manager.cc
(503 without explicit control).

The configuration that a model was loaded with is compared before the backend completes it, while GET …/config tells the
completed one: the first load with that one is a full reload, each further one with another count is not.
"""

import copy
import json
from typing import Any

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work, ok

INSTANCE_BYTES = 50 << 20
MODEL_BYTES = 200 << 20
NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
EXTENSIONS = ["classification", "model_repository", "model_repository(unload_dependents)", "statistics"]


class Model:
    """One model of the repository."""

    def __init__(self, name: str, counts: tuple[int, ...], loaded: bool) -> None:
        self.name = name
        self.groups = [
            {"name": f"{name}_{index}", "kind": "KIND_CPU", "count": count, "gpus": []}
            for index, count in enumerate(counts)
        ]
        self.on_disk: dict[str, Any] = {"name": name, "backend": "onnxruntime", "instance_group": self.groups}
        self.stored = copy.deepcopy(self.on_disk)
        self.state = "READY" if loaded else ""
        self.work = Work()

    @property
    def completed(self) -> dict[str, Any]:
        """As the backend has completed it."""
        return {**self.stored, "platform": "onnxruntime_onnx", "max_batch_size": 8, "input": [{"name": "x"}]}

    @property
    def instances(self) -> int:
        """How many run."""
        return sum(int(group["count"]) for group in self.stored["instance_group"])


class Triton(RestServer):
    """One server with two models loaded (two and four instances) and one that is not."""

    def __init__(self, *, explicit: bool = True, version: str = "2.61.0") -> None:
        super().__init__()
        self.explicit = explicit
        self.version = version
        self.models = {
            name: Model(name, counts, loaded)
            for name, counts, loaded in (("detect", (2,), True), ("ocr", (3, 1), True), ("spare", (1,), False))
        }
        self.peak_copies = 1
        self.full_reloads: list[str] = []

    @property
    def resident_bytes(self) -> int:
        """What all models and instances take."""
        held = [model for model in self.models.values() if model.state in ("READY", "UNLOADING")]
        return sum(MODEL_BYTES + model.instances * INSTANCE_BYTES for model in held)

    def missing(self, call: Call) -> Reply:
        return Reply({"error": "Not Found"}, 400) if call.path.startswith("/v2/") else Reply(b"", 404)

    def routes(self) -> Table:
        return {
            ("GET", "/v2"): self._metadata,
            ("GET", "/v2/health/live"): ok,
            ("GET", "/v2/health/ready"): ok,
            ("POST", "/v2/repository/index"): self._index,
            ("POST", "/v2/repository/models/*"): self._control,
            ("GET", "/v2/models/*"): self._model,
            ("POST", "/v2/models/*"): self._infer,
        }

    def _metadata(self, _: Call) -> Reply:
        return Reply({"name": "triton", "version": self.version, "extensions": EXTENSIONS})

    def _index(self, call: Call) -> Reply:
        found = []
        for model in self.models.values():
            if call.json().get("ready") and model.state != "READY":
                continue
            entry = {"name": model.name}
            if model.state:
                entry |= {"version": "1", "state": model.state}
            if model.state == "UNAVAILABLE":
                entry["reason"] = "unloaded"
            found.append(entry)
        return Reply(found)

    def _model(self, call: Call) -> Reply:
        name, _, what = call.path.removeprefix("/v2/models/").partition("/")
        model = self.models.get(name)
        if model is None or model.state != "READY":
            return Reply({"error": f"Request for unknown model: '{name}' is not found"}, 400)
        if what == "config":
            return Reply(model.completed)
        return Reply({"name": name, "versions": ["1"], "platform": "onnxruntime_onnx"})

    async def _infer(self, call: Call) -> Reply:
        name, _, what = call.path.removeprefix("/v2/models/").partition("/")
        model = self.models.get(name)
        if what != "infer" or model is None or model.state != "READY":
            return Reply({"error": f"Request for unknown model: '{name}' is not found"}, 400)
        await model.work.serve()
        self.settle()
        return Reply({"model_name": name, "outputs": []})

    # Model control

    def _control(self, call: Call) -> Reply:
        name, _, what = call.path.removeprefix("/v2/repository/models/").partition("/")
        if not self.explicit:
            return Reply({"error": NOT_EXPLICIT}, 503)
        model = self.models.get(name)
        if what == "unload":
            if model is not None and model.state == "READY":
                self._unload(model)
            return Reply(b"")  # one that is not loaded is no error
        if model is None:
            return Reply({"error": f"failed to load '{name}', failed to poll from model repository"}, 400)
        return self._load(model, call)

    def _unload(self, model: Model) -> None:
        """Returns at once; in-flight requests end first, new ones are unknown."""
        model.state = "UNLOADING"
        self.settle()

    def settle(self) -> None:
        """Models whose last request has ended are out."""
        for model in self.models.values():
            if model.state == "UNLOADING" and not model.work.running:
                model.state = "UNAVAILABLE"

    def _load(self, model: Model, call: Call) -> Reply:
        wanted = copy.deepcopy(model.on_disk)
        given = call.json().get("parameters", {}).get("config")
        if given is not None:
            try:
                wanted = json.loads(given)
            except ValueError as error:
                return Reply({"error": f"failed to load '{model.name}', unable to parse config: {error}"}, 400)
        if any(int(group["count"]) < 1 for group in wanted["instance_group"]):
            return Reply({"error": f"failed to load '{model.name}', instance group must have count >= 1"}, 400)
        if model.state == "READY" and _rest(wanted) != _rest(model.stored):
            self.full_reloads.append(model.name)
            self.peak_copies = 2
        model.stored = wanted
        model.state = "READY"
        return Reply(b"")


def _rest(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "instance_group"}
