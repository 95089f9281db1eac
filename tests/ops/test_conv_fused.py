"""FusedConv's reference against onnxruntime's separate ops, and its types."""

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

_NAMES = ("x", "w", "b", "scale", "shift", "mean", "var", "z")


def operands(x: Any, w: Any, parts: Any, attrs: Any) -> list[np.ndarray | None]:
    """X, W and those of "B", "norm" and "Z" that are in `parts`."""
    maps = w.shape[0]
    bias = floats(maps, seed=2) if "B" in parts else None
    norm = [floats(maps, seed=i) for i in (3, 4, 5)] + [np.abs(floats(maps, seed=6)) + 0.5]
    arrays = [x, w, bias, *(norm if "norm" in parts else [None] * 4), None]
    shape = make_query("FusedConv", arrays, attrs).outputs[0].shape
    arrays[-1] = floats(*shape, seed=7) if "Z" in parts else None
    return [None if a is None else a.astype(x.dtype) for a in arrays]


def separate(arrays: Any, attrs: Any, relu: bool) -> np.ndarray:
    """onnxruntime's result of Conv, BatchNormalization, Add and Relu, without those that are absent."""
    feeds = {name: a for name, a in zip(_NAMES, arrays, strict=True) if a is not None}
    nodes = [helper.make_node("Conv", [n for n in ("x", "w", "b") if n in feeds], ["v0"], **attrs)]
    later = [("BatchNormalization", ["scale", "shift", "mean", "var"])] if "scale" in feeds else []
    later += [("Add", ["z"])] if "z" in feeds else []
    later += [("Relu", [])] if relu else []
    for i, (op, more) in enumerate(later):
        nodes.append(helper.make_node(op, [f"v{i}", *more], [f"v{i + 1}"]))
    kinds = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    last = helper.make_tensor_value_info(f"v{len(later)}", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "block", kinds, [last])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_reference_equals_the_separate_ops_of_onnxruntime(data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2]))))
    group = data.draw(st.integers(1, 2))
    x, w = floats(2, 2 * group, *sizes), floats(3 * group, 2, *kernel, seed=1)
    attrs["group"] = group
    parts, relu = data.draw(st.sets(st.sampled_from(["B", "norm", "Z"]))), data.draw(st.booleans())
    try:
        arrays = operands(x, w, parts, attrs)
    except TypeInferenceError:
        return
    found = reference("FusedConv", arrays, attrs | {"activation": "Relu" if relu else ""})
    assert_close(found, [separate(arrays, attrs, relu)])


def test_float16_is_rounded_as_by_the_separate_ops() -> None:
    x, w = floats(1, 3, 5, 5, dtype="float16"), floats(4, 3, 3, 3, dtype="float16")
    arrays = operands(x, w, ["norm", "Z"], {})
    (made,) = reference("Conv", arrays[:2])
    (made,) = reference("BatchNormalization", [made, *arrays[3:7]])
    (made,) = reference("Add", [made, arrays[7]])
    (found,) = reference("FusedConv", arrays)
    np.testing.assert_array_equal(found, made)


def _with(index: int, array: Any) -> list[Any]:
    arrays = operands(floats(1, 4, 5, 5), floats(6, 4, 3, 3), ["B", "norm", "Z"], {})
    arrays[index] = array
    return arrays


@pytest.mark.parametrize(
    ("arrays", "attrs", "words"),
    [
        (_with(7, floats(1, 6, 1, 1)), {}, ["Z is", "f32[1,6,3,3]", "not broadcast"]),
        (_with(7, floats(1, 6, 3, 3, dtype="float64")), {}, ["Z is f64"]),
        (_with(5, None), {}, ["come together", "missing: mean"]),
        (_with(3, floats(5)), {}, ["scale has shape [5]", "[6]"]),
        (_with(4, np.zeros(6, np.int32)), {}, ["shift", "floating"]),
        (_with(2, floats(5)), {}, ["B has shape [5]"]),
        (_with(0, floats(1, 4, 5, 5)), {"activation": "Tanh"}, ["activation = 'Tanh'"]),
        (_with(0, floats(1, 4, 5, 5)), {"group": 3}, ["group = 3"]),
    ],
)
def test_errors_name_what_does_not_fit(arrays: Any, attrs: Any, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query("FusedConv", arrays, attrs)
    for word in words:
        assert word in str(error.value)


def test_it_has_no_gradient_and_may_lie_over_the_addend_only() -> None:
    spec = get_op("FusedConv")
    assert spec.gradient is None
    assert [(p.output, p.input, p.repeats) for p in spec.inplace] == [(0, 7, False)]
