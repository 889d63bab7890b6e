"""edgeguardd for the guarded run, with the few lines of configuration that a server which must restart needs.

Must not: know the load. Upstream: run. Downstream: tests.demo.guard, which starts the daemon and reads its log.
"""

from collections.abc import Callable

from tests.demo import guard

# What llama-server can give back it gives back only by a restart, so that is asked at high and not at elevated,
# where half of the callers in flight are tried first. It may take a drain and a load, which are no reason to ask
# earlier (lead_ceiling): the gate is shut at once, and behind it nothing grows.
TARGET = "llama"
CONFIGURATION = """\
[[target]]
name = "llama"
path = "{path}"
lead_ceiling = "2s"

[target.ladder]
elevated = [{{action = "reduce_batch", max_batch_ratio = "50%"}}]
high = [
    {{action = "reduce_batch", max_batch_ratio = "50%"}},
    {{action = "trim_kv_cache", deadline = "120s"}},
]
critical = [
    {{action = "reduce_batch", max_batch_ratio = "50%"}},
    "reject_requests",
    {{action = "trim_kv_cache", deadline = "120s"}},
]
emergency = [
    {{action = "reduce_batch", max_batch_ratio = "50%"}},
    "reject_requests",
    {{action = "unload_model", deadline = "120s"}},
]
"""


class Guard(guard.Guard):
    """As tests.demo.guard.Guard, for the cgroup at `path` below the root."""

    def __init__(self, directory: str, path: str, said: Callable[[str | None, str | None, int], None]) -> None:
        super().__init__(directory, said, CONFIGURATION.format(path=path))
