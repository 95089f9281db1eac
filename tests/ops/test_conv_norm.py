"""NormConv's reference against onnxruntime's separate ops, and its types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference
from tests.ops.test_conv import windows

_NAMES = ("x", "scale", "shift", "mean", "var", "w", "b", "gain", "offset")


def operands(x: Any, w: Any, parts: Any) -> list[np.ndarray | None]:
    """X, statistics, W and those of "B", "gain" and "offset" that are in `parts`."""
    channels, along = x.shape[1], (x.shape[1], *(1,) * (x.ndim - 2))
    norm = [floats(channels, seed=i) for i in (3, 4, 5)] + [np.abs(floats(channels, seed=6)) + 0.5]
    bias = floats(w.shape[0], seed=2) if "B" in parts else None
    gain = floats(*along, seed=7) if "gain" in parts else None
    offset = floats(1, *along, seed=8) if "offset" in parts else None
    return [None if a is None else a.astype(x.dtype) for a in (x, *norm, w, bias, gain, offset)]


def separate(arrays: Any, attrs: Any, relu: bool) -> np.ndarray:
    """onnxruntime's result of BatchNormalization, Mul, Add, Relu and Conv, without those that are absent."""
    feeds = {name: a for name, a in zip(_NAMES, arrays, strict=True) if a is not None}
    steps = [("BatchNormalization", ["scale", "shift", "mean", "var"], {})]
    steps += [(op, [name], {}) for op, name in (("Mul", "gain"), ("Add", "offset")) if name in feeds]
    steps += [("Relu", [], {})] if relu else []
    steps += [("Conv", [n for n in ("w", "b") if n in feeds], attrs)]
    nodes, value = [], "x"
    for i, (op, more, extra) in enumerate(steps):
        nodes.append(helper.make_node(op, [value, *more], [f"v{i}"], **extra))
        value = f"v{i}"
    kinds = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    last = helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "block", kinds, [last])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_reference_equals_the_separate_ops_of_onnxruntime(data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2]))))
    attrs["group"] = group = data.draw(st.integers(1, 2))
    parts, relu = data.draw(st.sets(st.sampled_from(["B", "gain", "offset"]))), data.draw(st.booleans())
    arrays = operands(floats(2, 2 * group, *sizes), floats(3 * group, 2, *kernel, seed=1), parts)
    full = attrs | {"activation": "Relu" if relu else ""}
    try:
        make_query("NormConv", arrays, full)
    except TypeInferenceError:
        return
    assert_close(reference("NormConv", arrays, full), [separate(arrays, attrs, relu)])


def test_float16_is_rounded_as_by_the_separate_ops() -> None:
    arrays = operands(floats(1, 3, 4, 4, dtype="float16"), floats(5, 3, 1, 1, dtype="float16"), ["gain", "offset"])
    (made,) = reference("BatchNormalization", arrays[:5])
    (made,) = reference("Mul", [made, arrays[7]])
    (made,) = reference("Add", [made, arrays[8]])
    (made,) = reference("Conv", [made, arrays[5]])
    np.testing.assert_array_equal(reference("NormConv", arrays)[0], made)


def _with(index: int, array: Any) -> list[Any]:
    arrays = operands(floats(1, 4, 5, 5), floats(6, 4, 1, 1), ["B", "gain", "offset"])
    arrays[index] = array
    return arrays


@pytest.mark.parametrize(
    ("arrays", "attrs", "words"),
    [
        (_with(7, floats(4)), {}, ["gain is f32[4]", "[4, 1, 1]"]),
        (_with(7, floats(1, 1, 4, 1, 1)), {}, ["gain is"]),
        (_with(8, floats(1, 1, 1)), {}, ["offset is f32[1,1,1]"]),
        (_with(8, floats(4, 1, 1, dtype="float64")), {}, ["offset is f64", "one dtype"]),
        (_with(3, floats(6)), {}, ["mean has shape [6]", "[4]"]),
        (_with(6, floats(5)), {}, ["B has shape [5]"]),
        (_with(0, floats(1, 4, 5, 5)), {"activation": "Tanh"}, ["activation = 'Tanh'"]),
        (_with(0, floats(1, 4, 5, 5)), {"group": 3}, ["group = 3"]),
    ],
)
def test_errors_name_what_does_not_fit(arrays: Any, attrs: Any, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query("NormConv", arrays, attrs)
    for word in words:
        assert word in str(error.value)


def test_it_has_no_gradient_and_is_never_in_place() -> None:
    spec = get_op("NormConv")
    assert spec.gradient is None
    assert spec.inplace == ()
