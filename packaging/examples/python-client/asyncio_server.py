"""An asyncio server in small, subscribed with edgeguardd.client; it keeps the test contract of the conformance suite.

    edgeguardctl conformance --exec python3 packaging/examples/python-client/asyncio_server.py

What is the contract's and no real server's needs: printing the state, and obeying the reasons "conformance: …"
(docs/how-to/write-a-client.md).
"""

import asyncio
import json
import os

from edgeguardd.client import AsyncSubscriber, Command, NoEffect, Released

state: dict[str, float] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True, "trims": 0}


def change(**fields: float) -> None:
    """Change the state; the contract: it is printed before the command is acked."""
    state.update(fields)
    print(json.dumps(state), flush=True)


async def trim(command: Command) -> Released:
    """Give the cache back."""
    if command.reason == "conformance: fail":
        raise RuntimeError("told to fail")
    if command.reason == "conformance: slow":
        await asyncio.sleep(0.5)
    change(trims=int(state["trims"]) + 1)
    return Released(command.parameters.release_bytes or 0)


def obey(command: Command) -> NoEffect:
    """Set what the parameters say: the one handler of everything that lasts."""
    asked = {name: getattr(command.parameters, name) for name in ("max_batch_ratio", "accept_requests", "model_loaded")}
    change(**{name: value for name, value in asked.items() if value is not None})
    return NoEffect()


LASTING = ("reduce_batch", "reject_requests", "unload_model", "restore")


async def main() -> None:
    """Serve; here only the subscription."""
    guard = AsyncSubscriber(
        "asyncio-server",
        handlers={"trim_kv_cache": trim, **dict.fromkeys(LASTING, obey)},
        lost_after_s=float(os.environ.get("EDGEGUARDD_LOST_AFTER_S", "30")),
    )
    await guard.run_forever()


if __name__ == "__main__":
    asyncio.run(main())
