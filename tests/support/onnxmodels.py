"""Small ONNX models, made in code, and sessions of them.

Must not: use the code under test; import onnxruntime before a session is made. Upstream: component tests.
"""

from typing import Any

import onnx


def session(inputs: dict[str, tuple[str, list[Any]]], nodes: list[Any], *, arena: bool = True) -> Any:
    """A session of a model with these inputs (type and shape of each) and one output "y"."""
    helper, types = onnx.helper, onnx.TensorProto
    declared = [helper.make_tensor_value_info(name, getattr(types, kind), s) for name, (kind, s) in inputs.items()]
    output = helper.make_tensor_value_info("y", types.FLOAT, None)
    graph = helper.make_graph(nodes, "test", declared, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    import onnxruntime  # noqa: PLC0415 - has no build for every Python

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = arena
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def squaring(*, arena: bool = True) -> Any:
    """n numbers in, the sum of an n × n matrix out: dynamic shapes that take memory."""
    node = onnx.helper.make_node
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["square"]),
        node("ReduceSum", ["square"], ["y"], keepdims=0),
    ]
    return session({"x": ("FLOAT", ["n", 4])}, nodes, arena=arena)
