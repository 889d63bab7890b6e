"""The helper for ONNX Runtime with real sessions, of models made here."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import onnx
import pytest

from edgeguardd.client import Released
from edgeguardd.client.onnx import ArenaShrinker, anonymous_bytes, smallest_feeds
from tests.support.onnxmodels import session, squaring

pytest.importorskip("onnxruntime", reason="onnxruntime has no build for this Python")

MIB = 1 << 20


def grow(grown: Any, numbers: int = 5000) -> None:
    """Make its arena hold about 95 MiB."""
    grown.run(None, {"x": np.ones((numbers, 4), np.float32)})


def test_what_a_large_run_has_taken_is_given_back() -> None:
    """Down to where it was before, and the answer says how much it was; without it nothing ever shrinks."""
    running = squaring()
    shrink = ArenaShrinker(running)
    before = anonymous_bytes()
    grow(running)
    running.run(None, {"x": np.ones((1, 4), np.float32)})
    grown = anonymous_bytes()
    assert grown - before > 80 * MIB
    released = shrink()
    assert isinstance(released, Released)
    assert released.bytes > 80 * MIB
    assert anonymous_bytes() - before < 16 * MIB
    assert shrink().bytes < 16 * MIB


def test_it_works_again_and_again_and_in_a_thread() -> None:
    """The event loop goes on meanwhile."""
    running = squaring()
    shrink = ArenaShrinker(running)
    for _ in range(2):
        grow(running)
        assert asyncio.run(shrink.in_thread()).bytes > 80 * MIB


def test_it_may_be_called_while_others_run() -> None:
    """They end with the right sum, and what they used is given back afterwards."""
    running = squaring()
    shrink = ArenaShrinker(running)
    sums: list[float] = []

    def work() -> None:
        for _ in range(3):
            (total,) = running.run(None, {"x": np.ones((2000, 4), np.float32)})
            sums.append(float(total))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shrink()
    for thread in threads:
        thread.join()
    assert sums == [pytest.approx(2000 * 2000 * 4)] * 9
    shrink()


def test_the_small_run_fits_the_declared_inputs() -> None:
    """Types as declared, 1 for what is open, the rest as it has to be."""
    node = onnx.helper.make_node
    nodes = [
        node("Cast", ["ids"], ["a"], to=onnx.TensorProto.FLOAT),
        node("Cast", ["half"], ["b"], to=onnx.TensorProto.FLOAT),
        node("Cast", ["mask"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Sum", ["a", "b", "c"], ["y"]),
    ]
    inputs: dict[str, tuple[str, list[Any]]] = {
        "ids": ("INT64", ["n", None, 3]),
        "half": ("FLOAT16", [3]),
        "mask": ("BOOL", []),
    }
    running = session(inputs, nodes)
    feeds = smallest_feeds(running)
    assert {name: (array.dtype.name, array.shape) for name, array in feeds.items()} == {
        "ids": ("int64", (1, 1, 3)),
        "half": ("float16", (3,)),
        "mask": ("bool", ()),
    }
    ArenaShrinker(running)


def test_a_model_that_needs_other_inputs_says_so_when_the_shrinker_is_made() -> None:
    """Not when memory is short; feeds= is the way out."""
    nodes = [onnx.helper.make_node("MatMul", ["a", "b"], ["y"])]
    running = session({"a": ("FLOAT", ["n", "m"]), "b": ("FLOAT", [3, "k"])}, nodes)
    with pytest.raises(ValueError, match="give feeds="):
        ArenaShrinker(running)
    feeds = {"a": np.zeros((1, 3), np.float32), "b": np.zeros((3, 1), np.float32)}
    ArenaShrinker(running, feeds=feeds)()


def test_a_session_without_an_arena_says_so_when_the_shrinker_is_made() -> None:
    """There would be nothing to shrink, and each trim would fail. The same for a device that is not there."""
    with pytest.raises(ValueError, match="enable_cpu_mem_arena"):
        ArenaShrinker(squaring(arena=False))
    with pytest.raises(ValueError, match="'gpu:0'"):
        ArenaShrinker(squaring(), arenas="gpu:0")


def test_an_input_that_is_no_tensor_is_named() -> None:
    """Nobody can guess a sequence's length."""

    class Declared:
        name = "images"
        type = "seq(tensor(float))"
        shape = ()

    class Session:
        def get_inputs(self) -> list[Declared]:
            return [Declared()]

        def run(self, output_names: Any, input_feed: Any, run_options: Any = None, /) -> None:
            raise AssertionError("it may not be run")

    with pytest.raises(ValueError, match=r"'images' of type seq\(tensor\(float\)\); give feeds="):
        ArenaShrinker(Session())


def test_importing_it_needs_nothing() -> None:
    """A server without ONNX Runtime may import all of the client."""
    program = (
        "import sys, edgeguardd.client.onnx; sys.exit(bool({'onnxruntime', 'numpy', 'onnx'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
