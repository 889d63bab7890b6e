"""A threaded server in small, subscribed with edgeguardd.client; it keeps the test contract of the conformance suite.

    edgeguardctl conformance --exec python3 packaging/examples/python-client/blocking_server.py

What is the contract's and no real server's needs: printing the state, and obeying the reasons "conformance: …"
(docs/how-to/write-a-client.md).
"""

import json
import os
import threading
import time

from edgeguardd.client import Command, NoEffect, Released, Subscriber

state: dict[str, float] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True, "trims": 0}
# A trim and another command may run at the same time, each in its thread.
lock = threading.Lock()


def change(**fields: float) -> None:
    """Change the state; the contract: it is printed before the command is acked."""
    with lock:
        state.update(fields)
        print(json.dumps(state), flush=True)


def trim(command: Command) -> Released:
    """Give the cache back."""
    if command.reason == "conformance: fail":
        raise RuntimeError("told to fail")
    if command.reason == "conformance: slow":
        time.sleep(0.5)
    change(trims=int(state["trims"]) + 1)
    return Released(command.parameters.release_bytes or 0)


def obey(command: Command) -> NoEffect:
    """Set what the parameters say: the one handler of everything that lasts."""
    asked = {name: getattr(command.parameters, name) for name in ("max_batch_ratio", "accept_requests", "model_loaded")}
    change(**{name: value for name, value in asked.items() if value is not None})
    return NoEffect()


LASTING = ("reduce_batch", "reject_requests", "unload_model", "restore")
guard = Subscriber(
    "blocking-server",
    handlers={"trim_kv_cache": trim, **dict.fromkeys(LASTING, obey)},
    lost_after_s=float(os.environ.get("EDGEGUARDD_LOST_AFTER_S", "30")),
)

if __name__ == "__main__":
    guard.run_forever()
