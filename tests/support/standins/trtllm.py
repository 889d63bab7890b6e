"""A stand-in for trtllm-serve with --enable_sleep_mode.

For: the tests of bridges.trtllm. Upstream: restserver. What it answers is said in NVIDIA/TensorRT-LLM
docs/source/features/sleep-wakeup.md (2026): states, tags, status codes, and the HMAC that each control call carries.
The routes are there only when the server was started with a key and the flag.
"""

import hashlib
import hmac
import time

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work, ok

KEY = "a-long-random-secret"
WEIGHT_BYTES = 600 << 20
KV_BYTES = 300 << 20
TAGS = ("model", "model_weights", "kv_cache", "sampler", "executor_extra")
CLOCK_SKEW_S = 60
CONTROL = ("/release_memory", "/resume_memory", "/memory_status")


class Trtllm(RestServer):
    """One server. `kv_tag`: whether the KV cache is in a pool that can be released."""

    def __init__(self, *, version: str = "1.4.0", sleep_mode: bool = True, kv_tag: bool = True) -> None:
        super().__init__()
        self.version = version
        self.sleep_mode = sleep_mode
        self.kv_tag = kv_tag
        self.work = Work()
        self.state = "running"
        self.parked: set[str] = set()
        self.host_copy = False
        self.nonces: set[str] = set()

    @property
    def device_bytes(self) -> int:
        """What is mapped now."""
        return (0 if "kv_cache" in self.parked else KV_BYTES) + (0 if "model_weights" in self.parked else WEIGHT_BYTES)

    def refuse(self, call: Call) -> Reply | None:
        if call.path in CONTROL and self.sleep_mode and not self._signed(call):
            return Reply({"detail": "Unauthorized"}, 401)
        return None

    def routes(self) -> Table:
        table: Table = {
            ("GET", "/health"): ok,
            ("GET", "/version"): lambda _: Reply({"version": self.version}),
            ("POST", "/v1/completions"): self._complete,
        }
        if self.sleep_mode:
            table |= {
                ("POST", "/release_memory"): self._release,
                ("POST", "/resume_memory"): self._resume,
                ("GET", "/memory_status"): self._status,
            }
        return table

    def _signed(self, call: Call) -> bool:
        stamp = call.headers.get("x-trtllm-runtime-control-timestamp", "")
        nonce = call.headers.get("x-trtllm-runtime-control-nonce", "")
        if not stamp.isdigit() or abs(time.time() - int(stamp)) > CLOCK_SKEW_S:
            return False
        if len(nonce) != 32 or nonce.strip("0123456789abcdef") or nonce in self.nonces:
            return False
        self.nonces.add(nonce)
        signed = b"\n".join(
            [b"trtllm-runtime-control-v1", call.method.encode(), call.path.encode(), stamp.encode(), nonce.encode()]
        )
        digest = hmac.new(KEY.encode(), signed + b"\n" + call.body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(call.headers.get("x-trtllm-runtime-control-auth", ""), f"sha256={digest}")

    async def _complete(self, _: Call) -> Reply:
        if self.state != "running":
            return Reply({"object": "error", "message": "the runtime is parked", "code": 503}, 503)
        how = await self.work.serve()
        return Reply({"choices": [{"text": "hello", "finish_reason": how}]})

    async def _release(self, call: Call) -> Reply:
        tags = call.json().get("tags", TAGS)
        known = set(TAGS) if self.kv_tag else set(TAGS) - {"kv_cache"}
        if not tags or not set(tags) <= known:
            return Reply({"detail": f"Invalid tags: {sorted(set(tags) - known)}"}, 400)
        if self.state != "running":
            already = self.state == "parked" and set(tags) <= self.parked
            return Reply({"status": "success"}) if already else Reply({"detail": f"state is {self.state}"}, 409)
        self.state = "parking"
        await self.work.drained()
        self.parked = set(tags)
        self.host_copy = bool(self.parked - {"kv_cache"})
        self.state = "parked"
        return Reply({"status": "success"})

    def _resume(self, call: Call) -> Reply:
        if self.state not in ("parked", "running"):
            return Reply({"detail": f"state is {self.state}"}, 409)
        self.parked -= set(call.json().get("tags", TAGS))
        if not self.parked:
            self.state = "running"
        return Reply({"status": "success"})

    def _status(self, _: Call) -> Reply:
        return Reply({"state": self.state, "parked_tags": sorted(self.parked)})
