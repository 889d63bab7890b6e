"""An embedding server on ONNX Runtime that subscribes to edgeguardd by itself: what it gives up, it knows best.

    python packaging/examples/onnx-server/server.py --port 8000
    curl -d '{"input": "a text"}' http://127.0.0.1:8000/v1/embeddings

Long texts make its arena grow, and it stays grown; under pressure it is shrunk (trim_kv_cache), fewer texts are
computed at once (reduce_batch), new ones get 503 with Retry-After (reject_requests), and a text that would not fit is
refused before it takes anything (admit). Without a daemon it serves as any other.
"""

import argparse
import asyncio
import os
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from model import scores_bytes, serialized
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from edgeguardd.client import AsyncSubscriber, Level
from edgeguardd.client.asgi import MemoryGuard, Scope, Wanted
from edgeguardd.client.onnx import ArenaShrinker

MAX_TEXT_BYTES = 8192
# What JSON may add to a text: a request of more bytes is refused before it is read.
MAX_BODY_BYTES = 6 * MAX_TEXT_BYTES + 1024
AT_ONCE = 2


def load() -> onnxruntime.InferenceSession:
    """The model, with as many threads as there are processors and none that spins while it waits."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(serialized(), options, providers=["CPUExecutionProvider"])


class Embedder:
    """The endpoint, and what the guard may do to it."""

    def __init__(self, guard: AsyncSubscriber) -> None:
        self._session = load()
        self._shrinker = ArenaShrinker(self._session)
        self._guard = guard
        self._at_once = asyncio.Semaphore(AT_ONCE)
        guard.on("trim_kv_cache")(self._shrinker.in_thread)

    async def answer(self, request: Request) -> JSONResponse:
        """POST /v1/embeddings, of one text, as OpenAI's API has it."""
        if body_bytes(request.scope) > MAX_BODY_BYTES:
            return refusal(413, f"the body has to be at most {MAX_BODY_BYTES} bytes, and to say how many")
        try:
            text = (await request.json())["input"].encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return refusal(400, 'the body has to be JSON like {"input": "a text"}')
        if not 1 <= len(text) <= MAX_TEXT_BYTES:
            return refusal(400, f"a text has to be 1 to {MAX_TEXT_BYTES} bytes long")
        async with self._at_once:
            embedding = await asyncio.to_thread(self._embed, text)
        return JSONResponse({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": embedding}]})

    def _embed(self, text: bytes) -> list[float]:
        (embedding,) = self._session.run(None, {"tokens": np.frombuffer(text, np.uint8).astype(np.int64)})
        if self._guard.level > Level.NORMAL:
            self._shrinker()  # a trim could not take what this run was using
        return [float(value) for value in embedding]


def body_bytes(scope: Scope) -> int:
    """What a request's Content-Length says; without one, more than is allowed."""
    said = dict(scope["headers"]).get(b"content-length", b"")
    return int(said) if said.isdigit() and len(said) < 10 else MAX_BODY_BYTES + 1


def wanted(scope: Scope) -> Wanted | None:
    """What a request will take at most, before it is read: its text is shorter than its body."""
    if scope["method"] != "POST":
        return None
    return Wanted(size_bytes=scores_bytes(min(body_bytes(scope), MAX_TEXT_BYTES)))


def refusal(status: int, message: str) -> JSONResponse:
    """An error as OpenAI's clients understand it."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)


async def health(_request: Request) -> JSONResponse:
    """GET /health."""
    return JSONResponse({"status": "ok"})


def application(**options: Any) -> Starlette:
    """The whole server; `options` are AsyncSubscriber's."""
    guard = AsyncSubscriber("onnx-example", **options)
    embedder = Embedder(guard)
    return Starlette(
        routes=[Route("/v1/embeddings", embedder.answer, methods=["POST"]), Route("/health", health)],
        middleware=[Middleware(MemoryGuard, guard=guard, limit=AT_ONCE, wanted=wanted)],
    )


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="An embedding server that subscribes to edgeguardd.")
    parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1 (default: 8000; 0: any that is free)")
    parser.add_argument("--socket", help="the daemon's (default: $EDGEGUARDD_SOCKET, or where it is installed)")
    parser.add_argument("--target", default="self", help='what is guarded: a name, or "self", the own cgroup (default)')
    options = parser.parse_args()
    uvicorn.run(application(path=options.socket, target=options.target), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
