"""A small model, made here so that no file has to be fetched: one attention layer over the bytes of a text.

Its weights are random. What counts is how it takes memory: the scores of a text of n bytes are an n × n matrix of
floats, so that 1,000 bytes need 4 MB and 8,000 need 256 MB, as attention without tricks does.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64
SEED = 20


def scores_bytes(tokens: int) -> int:
    """What the scores of a text take, which is nearly all."""
    return 4 * tokens * tokens


def serialized() -> bytes:
    """The model as onnxruntime loads it: input "tokens", int64[n]; output "embedding", float32[WIDTH]."""
    nodes = [
        helper.make_node("Gather", ["vocabulary", "tokens"], ["x"]),
        helper.make_node("MatMul", ["x", "to_query"], ["query"]),
        helper.make_node("MatMul", ["x", "to_key"], ["key"]),
        helper.make_node("MatMul", ["x", "to_value"], ["value"]),
        helper.make_node("Transpose", ["key"], ["key_transposed"], perm=[1, 0]),
        helper.make_node("MatMul", ["query", "key_transposed"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value"], ["mixed"]),
        helper.make_node("ReduceMean", ["mixed"], ["embedding"], axes=[0], keepdims=0),
    ]
    random = np.random.default_rng(SEED)
    shapes = {"vocabulary": (256, WIDTH), **dict.fromkeys(("to_query", "to_key", "to_value"), (WIDTH, WIDTH))}
    weights = [
        numpy_helper.from_array((random.standard_normal(shape) / WIDTH**0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [WIDTH])],
        weights,
    )
    # Old enough versions that every onnxruntime of the last years loads it.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
