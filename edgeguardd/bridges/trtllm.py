"""TensorRT-LLM's trtllm-serve. Facts: NVIDIA/TensorRT-LLM docs/source/features/sleep-wakeup.md (prototype, 2026).

    park    release_memory kv_cache         admission is closed and running work drained by the server itself
    load    resume_memory ─▶ memory_status until `running`

Dangers, and what is done about them:
- without tags a release copies weights and the rest to the host's memory (restore modes CPU and PINNED): only the KV
  cache, whose mode is NONE, is ever released, and there is no call that loads weights again;
- more tags cannot be released while some are (409): once is enough;
- after a failed operation the state is `failed` for good: said so, restart it.

Each control call is signed with the key of TRTLLM_RUNTIME_CONTROL_API_KEY, in the bridge's environment as in the
server's.

Must not: release weights. Upstream: base, probes. Downstream: bridge.
"""

import hashlib
import hmac
import os
import secrets
import time
from typing import Any, ClassVar

import msgspec

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import RefusedError, Reply, ServerError, expect_ok
from edgeguardd.bridges.probes import offered, version_at

KV = "kv_cache"
KEY_VARIABLE = "TRTLLM_RUNTIME_CONTROL_API_KEY"
RELEASE, RESUME, STATUS = "/release_memory", "/resume_memory", "/memory_status"

NO_SLEEP_MODE = (
    f"cannot release the KV cache: trtllm-serve runs without its control calls; set {KEY_VARIABLE} and start it with "
    "--enable_sleep_mode (PyTorch backend)"
)
NO_KEY = f"cannot release the KV cache: trtllm-serve wants signed calls; set {KEY_VARIABLE} for the bridge as well"
WRONG_KEY = f"cannot release the KV cache: trtllm-serve does not accept the key; set the same {KEY_VARIABLE} for both"
NO_WEIGHTS = (
    "cannot unload the weights: TensorRT-LLM would copy them to the host's memory, and has no call that loads them "
    "again; unload_model releases the KV cache alone"
)
NO_LIMIT = "cannot lower the batch while trtllm-serve runs; the gate's places do that: give --places"


class TrtllmServer(Server):
    """One server."""

    name: ClassVar[str] = "trtllm"
    harmless: ClassVar[frozenset[str]] = frozenset({"/health", "/metrics", "/version", "/v1/models"})
    operators: ClassVar[frozenset[str]] = frozenset({RELEASE, RESUME, STATUS})

    async def look(self) -> Look:
        """By /version, which calls there are, and whether they accept the key."""
        version = await version_at(self.http, "/version", "trtllm-serve")
        why = await self._obstacle()
        if why is not None:
            return Look(version, cannot=(why, NO_LIMIT), on_device=True)
        return Look(version, parks=True, unloads=True, cannot=(NO_WEIGHTS, NO_LIMIT), on_device=True)

    async def _obstacle(self) -> str | None:
        if len(await offered(self.http, (RELEASE, RESUME, STATUS))) < 3:
            return NO_SLEEP_MODE
        if not os.environ.get(KEY_VARIABLE):
            return NO_KEY
        try:
            await self._control("GET", STATUS)
        except RefusedError as error:
            if error.status != 401:
                raise
            return WRONG_KEY
        return None

    async def park(self) -> tuple[str, ...]:
        """Take the KV cache's mapping away."""
        await self._control("POST", RELEASE, {"tags": [KV]})
        parked = (await self._control("GET", STATUS)).field("parked_tags")
        if not isinstance(parked, list) or KV not in parked:
            raise ServerError(
                "cannot say that the KV cache is released: /memory_status denies it; see the server's log"
            )
        return (KV,)

    async def unload(self) -> tuple[str, ...]:
        """The same: the weights cannot go."""
        return await self.park()

    async def load(self, taken: tuple[str, ...]) -> None:  # noqa: ARG002 - whatever is parked comes back
        """Map it again, and see that requests are admitted."""
        await self._control("POST", RESUME)
        await self.until(self._is_running, "TensorRT-LLM admits requests")

    async def _is_running(self) -> bool:
        state = (await self._control("GET", STATUS)).field("state")
        if state == "failed":
            raise ServerError("cannot go on: TensorRT-LLM says `failed`, and stays so until it ends; restart it")
        return bool(state == "running")

    async def _control(self, method: str, path: str, content: dict[str, Any] | None = None) -> Reply:
        """A signed call. Raises AwayError, RefusedError."""
        body = b"" if content is None else msgspec.json.encode(content)
        fields = signature(
            os.environ.get(KEY_VARIABLE, ""), method, path, body, int(time.time()), secrets.token_hex(16)
        )
        return expect_ok(await self.http.ask(method, path, content, within_s=self.patience_s, fields=fields))


def signature(key: str, method: str, path: str, body: bytes, at_s: int, nonce: str) -> list[tuple[str, str]]:
    """The header fields that a control call carries: an HMAC over what is called, when, once."""
    lines = ("trtllm-runtime-control-v1", method, path, str(at_s), nonce)
    signed = "".join(f"{line}\n" for line in lines).encode() + body
    digest = hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()
    prefix = "x-trtllm-runtime-control"
    return [(f"{prefix}-auth", f"sha256={digest}"), (f"{prefix}-timestamp", str(at_s)), (f"{prefix}-nonce", nonce)]
