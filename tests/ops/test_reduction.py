"""Reduction references against the ONNX reference evaluator; axes, empty axes, types."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from memopt.ops.reduction import _walk
from memopt.strides import row_strides
from tests.ops.onnx_oracle import onnx_node
from tests.ops.test_elementwise import random, run

REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
]


def axes_of(axes):
    return {} if axes is None else {"axes": axes}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op, axes, keepdims):
    x = random((2, 3, 4))
    opset = 11  # where axes are an attribute
    got = run(op, x, keepdims=keepdims, **axes_of(axes))
    (want,) = onnx_node(op, [x], opset, keepdims=keepdims, **axes_of(axes))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got.shape == np.shape(want)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_dtypes(op, dtype):
    x = random((3, 4), dtype) / 2 if dtype.startswith("f") else random((3, 4), dtype)
    x = x.astype(dtype)
    got = run(op, x, axes=(1,))
    wide = x.astype(np.float64)
    exact = {
        "ReduceSum": lambda: wide.sum(1),
        "ReduceMean": lambda: np.trunc(wide.sum(1) / 4) if got.dtype.kind != "f" else wide.mean(1),
        "ReduceMax": lambda: wide.max(1),
        "ReduceMin": lambda: wide.min(1),
        "ReduceProd": lambda: wide.prod(1) % 256 if dtype == "uint8" else wide.prod(1),
        "ReduceSumSquare": lambda: (wide**2).sum(1) % 256 if dtype == "uint8" else (wide**2).sum(1),
        "ReduceL1": lambda: np.abs(wide).sum(1),
        "ReduceL2": lambda: np.sqrt((wide**2).sum(1)) if got.dtype.kind == "f" else np.floor(np.sqrt((wide**2).sum(1))),
    }[op]()
    np.testing.assert_allclose(got[:, 0], exact, rtol=1e-3 if dtype == "float16" else 1e-12)


def test_over_no_elements():  # S36
    empty = np.zeros((0, 4), "f")
    assert run("ReduceSum", empty).tolist() == [[0]]
    assert run("ReduceSum", empty, axes=(0,), keepdims=0).tolist() == [0] * 4
    assert run("ReduceSum", empty, axes=(1,)).shape == (0, 1)
    assert run("ReduceProd", empty, axes=(0,)).tolist() == [[1] * 4]
    assert run("ReduceL2", empty, axes=(0,)).tolist() == [[0] * 4]
    for op in ("ReduceMax", "ReduceMin", "ReduceMean"):
        with pytest.raises(TypeInferenceError, match="no elements"):
            run(op, empty, axes=(0,))
    assert run("ReduceMax", empty, axes=(1,)).shape == (0, 1)
    with pytest.raises(TypeInferenceError, match="no elements"):
        run("ArgMax", empty, axis=0)


def test_axes():
    x = random((2, 3))
    np.testing.assert_array_equal(
        run("ReduceSumSquare", x, noop_with_empty_axes=1), np.square(x.astype("f8")).astype("f")
    )
    for axes, match in (((2,), "out of range"), ((0, 0), "twice"), ((0, -2), "twice")):
        with pytest.raises(TypeInferenceError, match=match):
            run("ReduceSum", x, axes=axes)
    with pytest.raises(TypeInferenceError, match="out of range"):
        run("Softmax", np.array(1.0, "f"))
    with pytest.raises(TypeInferenceError, match="bool"):
        run("ReduceSum", x > 0)
    assert run("ReduceMax", x > 0, axes=(1,)).tolist() == (x > 0).any(1, keepdims=True).tolist()


@pytest.mark.parametrize(
    ("shape", "axes", "folded"),
    [
        ((2, 3, 4), (1,), (2, 1, 1, 3, 4)),
        ((2, 3, 4), (0, 1, 2), (1, 1, 1, 24, 1)),
        ((2, 3, 4, 5), (0, 2, 3), (1, 2, 3, 20, 1)),
        ((1, 3, 4, 5), (0, 2, 3), (3, 1, 1, 20, 1)),
        ((2, 3, 1), (2,), (1, 1, 1, 1, 6)),
        ((2, 3, 2, 3, 2, 3), (0, 2, 4), None),
        ((), (), (1, 1, 1, 1, 1)),
    ],
)
def test_fold(shape, axes, folded):
    found = _walk(shape, axes, row_strides(shape))
    assert (found and found[:5]) == folded


@pytest.mark.parametrize(
    ("shape", "axes", "steps", "walk"),
    [
        ((2, 3, 4), (1,), (12, 4, 1), (2, 1, 1, 3, 4, 12, 0, 0, 4)),
        ((2, 3, 4), (2,), (30, 10, 1), (6, 1, 1, 4, 1, 10, 0, 0, 1)),  # rows with gaps
        ((2, 3, 4), (0, 2), (20, 4, 1), (1, 2, 3, 4, 1, 0, 20, 4, 1)),
        ((2, 5, 6, 3), (1, 2), (90, 6, 1, 30), (6, 1, 1, 30, 1, 30, 0, 0, 1)),  # channels first in storage
        ((2, 3, 4), (0,), (4, 8, 1), (1, 2, 3, 1, 4, 0, 4, 8, 0)),
        ((3, 4), (0,), (1, 3), (4, 1, 1, 3, 1, 3, 0, 0, 1)),  # columns that are rows
        ((2, 3, 4), (2,), (4, 8, 1), (2, 1, 3, 4, 1, 4, 0, 8, 1)),
        ((2, 3, 4), (2,), (1, 8, 2), None),  # kept axes in another order
        ((3, 4), (1,), (8, 2), None),
    ],
)
def test_walk_of_strides(shape, axes, steps, walk):
    assert _walk(shape, axes, steps) == walk


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(op, axis):
    x = random((2, 3, 4)) * 5  # the evaluator takes the logarithm of an underflow for more
    (want,) = onnx_node(op, [x], 13, axis=axis)
    np.testing.assert_allclose(run(op, x, axis=axis), want, rtol=1e-5, atol=1e-7)
    assert run(op, np.zeros((2, 0), "f")).shape == (2, 0)
    spec = get_op(op)
    assert [(pair.output, pair.input, pair.repeats) for pair in spec.inplace] == [(0, 0, False)]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_argmax(last, axis):
    x = random((3, 4, 5), "int32") // 4
    (want,) = onnx_node("ArgMax", [x], 13, axis=axis, select_last_index=last, keepdims=last)
    np.testing.assert_array_equal(run("ArgMax", x, axis=axis, select_last_index=last, keepdims=last), want)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(exclusive, reverse, axis):
    x = random((3, 4), "int64")
    options = {"exclusive": exclusive, "reverse": reverse}
    (want,) = onnx_node("CumSum", [x], 14, constants=[np.array(axis)], **options)
    np.testing.assert_array_equal(run("CumSum", x, axis=axis, **options), want)
    assert get_op("CumSum").inplace == ()
