"""A small inference server: answers chat turns over a Unix socket, with a KV cache in its own memory.

One process, one event loop, one compute step at a time, several requests in flight, as small servers are. The same code
runs bare, with the naive reaction, and guarded; only reactions.py differs.

    python -m tests.demo.server --socket PATH --weights PATH --index PATH --reaction bare|naive|guarded

Must not: know the limits it lives under. Upstream: run starts it in its cgroup. Downstream: kvcache, model, reactions.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

from tests.demo import reactions
from tests.demo.kvcache import Conversation, KvCache
from tests.demo.model import PREFILL_CHUNK_TOKENS, Model
from tests.demo.slots import Slots

# Sized for a machine of its own, as such settings are; nobody told it of the cgroup.
CACHE_LIMIT_BYTES = 512 * 1024 * 1024
BATCH = 4


class InferenceServer:
    """Requests in, answers out; what reactions may do to it is in the second half."""

    def __init__(self, model: Model) -> None:
        self.cache = KvCache(CACHE_LIMIT_BYTES)
        self._model = model
        self._slots = Slots(BATCH)
        self._accepting = True

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection. A client that hangs up has given up: its request is dropped."""
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            if line:
                work = asyncio.create_task(self._answer(json.loads(line)))
                gone = asyncio.create_task(reader.read())
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    writer.write(json.dumps(work.result()).encode() + b"\n")
                work.cancel()
                gone.cancel()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._accepting:
            return {"status": "rejected"}
        async with self._slots:
            conversation = self.cache.use(request["conversation"])
            try:
                return await self._generate(request, conversation)
            finally:
                self.cache.done(conversation)

    async def _generate(self, request: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        """Retrieval, prefill of what the cache does not hold, then the answer token by token."""
        number, prompt_end = request["conversation"], request["context_tokens"] + request["prompt_tokens"]
        self._model.retrieve(number * 31 + prompt_end)
        cached = conversation.tokens
        while conversation.tokens < prompt_end:
            chunk_end = min(conversation.tokens + PREFILL_CHUNK_TOKENS, prompt_end)
            await self._model.accelerator.prefill(chunk_end - conversation.tokens)
            while conversation.tokens < chunk_end:
                conversation.append(self._model.compute(number, conversation.tokens))
        checksum = self._model.attend_all(conversation, prompt_end)
        while conversation.tokens < prompt_end + request["answer_tokens"]:
            await self._model.accelerator.decode()
            conversation.append(self._model.compute(number, conversation.tokens))
            self._model.attend_window(conversation)
        again = max(0, request["context_tokens"] - cached)
        return {"status": "served", "checksum": checksum, "recomputed_tokens": again}

    def set_batch(self, ratio: float) -> None:
        """Let this share of the configured batch run, at least one."""
        self._slots.set_limit(max(1, int(BATCH * ratio)))

    def set_accepting(self, accepting: bool) -> None:
        """Take new requests, or refuse them at once."""
        self._accepting = accepting


def say(event: str, **fields: Any) -> None:
    """Tell the run that started this server; one JSON line on standard output."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def serve(options: argparse.Namespace) -> None:
    """Until killed."""
    server = InferenceServer(Model(options.weights, options.index))
    async with reactions.REACTIONS[options.reaction](server, say):
        listener = await asyncio.start_unix_server(server.connection, options.socket, backlog=512)
        async with listener:
            say("ready")
            await listener.serve_forever()


def main() -> None:
    """Parse and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo.server", description=__doc__)
    for name in ("--socket", "--weights", "--index"):
        parser.add_argument(name, required=True)
    parser.add_argument("--reaction", choices=sorted(reactions.REACTIONS), default="bare")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
