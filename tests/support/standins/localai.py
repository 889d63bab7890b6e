"""A stand-in for LocalAI, whose backends are processes of their own.

For: the tests of bridges.localai. Upstream: restserver, real child processes, a directory that looks like the cgroup.
What it answers is read in mudler/LocalAI core/http/endpoints/localai/{backend_monitor,backend_load,system}.go and
pkg/model/process.go (a shutdown waits while the backend is busy; what is not loaded is 404, 500 in older versions).
`leaves_child`: the model is stopped in LocalAI's books, and its process stays (mudler/LocalAI#7958).
"""

import subprocess
from pathlib import Path

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work, ok


class LocalAi(RestServer):
    """One server with two models loaded."""

    def __init__(self, cgroup: Path, *, version: str = "v4.1.0", has_load: bool = True, not_found: int = 404) -> None:
        super().__init__()
        self.cgroup = cgroup
        self.version = version
        self.has_load = has_load
        self.not_found = not_found
        self.leaves_child = False
        self.says_models = True
        self.api_key: str | None = None
        self.work = Work()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.orphans: list[subprocess.Popen[bytes]] = []

    async def up(self) -> None:
        await super().up()
        for name in ("chat", "whisper"):
            self._start(name)

    async def down(self) -> None:
        await super().down()
        for child in [*self.children.values(), *self.orphans]:
            child.kill()
            child.wait()

    def refuse(self, call: Call) -> Reply | None:
        if self.api_key is not None and call.headers.get("authorization") != f"Bearer {self.api_key}":
            return Reply({"error": {"message": "An authentication key is required", "code": 401, "type": ""}}, 401)
        return None

    def routes(self) -> Table:
        table: Table = {
            ("GET", "/readyz"): ok,
            ("GET", "/version"): lambda _: Reply({"version": self.version}),
            ("GET", "/system"): self._system,
            ("POST", "/backend/shutdown"): self._shutdown,
            ("POST", "/v1/chat/completions"): self._chat,
        }
        if self.has_load:
            table["POST", "/backend/load"] = self._load
        return table

    def missing(self, call: Call) -> Reply:
        return Reply({"error": {"code": 404, "message": "Resource not found", "type": ""}}, 404)

    def _start(self, model: str) -> None:
        if model not in self.children:
            self.children[model] = subprocess.Popen(["sleep", "1000"])
            self._list_processes()

    def _list_processes(self) -> None:
        pids = [child.pid for child in [*self.children.values(), *self.orphans]]
        (self.cgroup / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def _system(self, _: Call) -> Reply:
        loaded = [{"id": model} for model in self.children]
        return Reply({"backends": ["llama-cpp"]} | ({"loaded_models": loaded} if self.says_models else {}))

    async def _chat(self, call: Call) -> Reply:
        self._start(str(call.json().get("model", "chat")))
        await self.work.serve()
        return Reply({"choices": [{"message": {"content": "hello"}}]})

    async def _shutdown(self, call: Call) -> Reply:
        model = call.json().get("model", "")
        if not model:
            return Reply({"error": {"code": 400, "message": "model is required", "type": ""}}, 400)
        if model not in self.children:
            words = f'model "{model}" is not loaded on this instance or on any worker node'
            return Reply({"error": {"code": self.not_found, "message": words, "type": ""}}, self.not_found)
        await self.work.drained()
        child = self.children.pop(model)
        if self.leaves_child:
            self.orphans.append(child)
        else:
            child.terminate()
            child.wait()
        self._list_processes()
        return Reply({"message": "model stopped"})

    def _load(self, call: Call) -> Reply:
        model = str(call.json().get("model", ""))
        if model == "broken":
            return Reply({"loaded": None, "message": "failed to load model: no such backend"}, 500)
        self._start(model)
        return Reply({"loaded": [model], "message": "model loaded"})
