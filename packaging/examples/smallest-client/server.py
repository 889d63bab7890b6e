"""A server that keeps the test contract with it: edgeguardctl conformance --exec python3 server.py"""

import json, os, time

from guarded import Guarded

state = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True, "trims": 0}


def obey(action, parameters, reason):
    if action == "trim_kv_cache":
        if reason == "conformance: fail":
            raise MemoryError(reason)
        if reason == "conformance: slow":
            time.sleep(0.5)
        state["trims"] += 1  # yours: give parameters["release_bytes"] back to the kernel
    elif action in ("reduce_batch", "reject_requests", "restore"):
        state.update(parameters)  # yours: run as many, accept or refuse
    else:
        return "unsupported"
    print(json.dumps(state), flush=True)
    return "done"


lost_after_s = float(os.environ["EDGEGUARDD_LOST_AFTER_S"])
Guarded("small", obey, os.environ["EDGEGUARDD_SOCKET"], lost_after_s=lost_after_s).run()
