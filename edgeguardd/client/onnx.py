"""Make ONNX Runtime give its arena back when the daemon asks for a trim.

    shrink = ArenaShrinker(session)
    guard.on("trim_kv_cache")(shrink)              # Subscriber
    guard.on("trim_kv_cache")(shrink.in_thread)    # AsyncSubscriber

Why: a session keeps every byte that its largest run needed, because its arena only grows. It shrinks at the end of a
run whose options say so (onnxruntime_run_options_config_keys.h, "memory.enable_memory_arena_shrinkage"), and only by
regions in which nothing is in use. So a trim is one small run. What other runs are using cannot be taken from them:
call shrink() after each run that ends under pressure.

Must not: be imported by the rest of the client; import onnxruntime or numpy before a shrinker is made.
Upstream: answers. Downstream: applications.
"""

import asyncio
import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from edgeguardd.client.answers import Released
from edgeguardd.core.model import Command

SHRINKAGE = "memory.enable_memory_arena_shrinkage"
# What get_inputs() calls them -> what numpy calls them.
NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
}


class Session(Protocol):
    """What is used of an onnxruntime.InferenceSession."""

    def get_inputs(self) -> Sequence[Any]:
        """Name, type and shape of each."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None, /) -> Any:
        """Compute."""


class ArenaShrinker:
    """Shrinks the arenas of one session, from any thread. Makes one small run now, or raises ValueError.

    session  an onnxruntime.InferenceSession
    feeds    the inputs of the small run; default: zeros of the declared types, with 1 for each dimension left open
    arenas   which to shrink, as ONNX Runtime spells it: "cpu:0", "gpu:0", "cpu:0;gpu:0"

    A model that cannot make that run says so here, and not when memory is short. Other runs may go on meanwhile.
    """

    def __init__(self, session: Session, *, feeds: Mapping[str, Any] | None = None, arenas: str = "cpu:0") -> None:
        self._session = session
        self._arenas = arenas
        self._feeds = smallest_feeds(session) if feeds is None else dict(feeds)
        try:
            self._run()
        except Exception as error:  # ONNX Runtime's own have no base of theirs
            raise ValueError(
                f"cannot shrink the arena {arenas!r} of this session: {error}; give feeds= that it can run, and leave "
                "its arena on (SessionOptions.enable_cpu_mem_arena)"
            ) from error

    def __call__(self, command: Command | None = None) -> Released:  # noqa: ARG002 - as a handler is called
        """Shrink, and return what this process has fewer of anonymous memory. Takes as long as the small run."""
        before = anonymous_bytes()
        self._run()
        return_free_heap()
        return Released(before - anonymous_bytes())

    async def in_thread(self, command: Command | None = None) -> Released:
        """The same for an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(self, command)

    def _run(self) -> None:
        import onnxruntime  # noqa: PLC0415 - optional: edgeguardd[onnx]

        options = onnxruntime.RunOptions()
        options.add_run_config_entry(SHRINKAGE, self._arenas)
        self._session.run(None, self._feeds, options)


def smallest_feeds(session: Session) -> dict[str, Any]:
    """Zeros for each input, with 1 for each dimension left open. Raises ValueError for an input that is no tensor."""
    import numpy as np  # noqa: PLC0415 - optional: comes with onnxruntime

    feeds = {}
    for declared in session.get_inputs():
        kind = NUMPY_TYPES.get(declared.type)
        if kind is None:
            raise ValueError(
                f"cannot make a small input {declared.name!r} of type {declared.type}; give feeds= that it can run"
            )
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in declared.shape]
        feeds[declared.name] = np.zeros(shape, kind)
    return feeds


def anonymous_bytes() -> int:
    """What this process holds of memory without a file behind it: RSS less shared, of proc_pid_statm(5)."""
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def return_free_heap() -> None:
    """Give freed inputs and outputs back as well: glibc keeps blocks below its mmap threshold, which grows to 32 MiB
    (mallopt(3)). Other C libraries have no such call, and nothing to be done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
