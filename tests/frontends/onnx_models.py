"""Small ONNX models for tests, and what other engines make of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from memopt.frontends import load
from memopt.runtime import run_reference

LIGHT = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attrs: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attrs)


def info(name: str, shape: Sequence[int | str | None] | None, dtype: Any = "float32") -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Any],
    outputs: Sequence[str] = ("y",),
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    ir_version: int = 8,
    out_dtype: Any = "float32",
) -> ModelProto:
    """Inputs: name -> shape, or array (shape and dtype of it). Weights become initialisers."""
    feeds = [
        info(name, value.shape, value.dtype) if isinstance(value, np.ndarray) else info(name, value)
        for name, value in inputs.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", feeds, [info(name, None, out_dtype) for name in outputs], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def ours(proto: Any, feeds: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    """What our graph of `proto` computes, by the references of its ops."""
    return run_reference(load(proto, **options), feeds)[0]


def theirs(proto: ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def agree(proto: ModelProto, feeds: dict[str, np.ndarray], **options: Any) -> None:
    """Check that both agree: in shape, in dtype, and to 1e-5 in value."""
    expected = theirs(proto, feeds)
    found = ours(proto, feeds, **options)
    assert list(found) == list(expected)
    for name, want in expected.items():
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)


def small_net(opset: int = 13) -> ModelProto:
    """Conv, BN, Relu, pooling, a residual, computed shapes, Gemm and Softmax, with weights."""
    rng = np.random.default_rng(0)

    def w(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * 0.3

    weights = {
        "w1": w(4, 2, 3, 3), "b1": w(4), "scale": w(4), "shift": w(4), "mean": w(4), "var": np.abs(w(4)) + 1,
        "w2": w(4, 4, 1, 1), "w3": w(5, 16), "b3": w(5), "minus": np.array([-1], np.int64),
        "zero": np.array(0, np.int64), "axis": np.array([0], np.int64),
    }  # fmt: skip
    unsqueeze = (
        [node("Unsqueeze", ["n", "axis"], ["n1"])] if opset >= 13 else [node("Unsqueeze", ["n"], ["n1"], axes=[0])]
    )
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["bn"]),
        node("Relu", ["bn"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"]),
        node("Add", ["p1", "c2"], ["s1"]),
        node("Shape", ["s1"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        *unsqueeze,
        node("Concat", ["n1", "minus"], ["to"], axis=0),
        node("Reshape", ["s1", "to"], ["flat"]),
        node("Gemm", ["flat", "w3", "b3"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["y"]),
    ]
    return model(nodes, {"x": ["batch", 2, 4, 4]}, weights=weights, opset=opset)
