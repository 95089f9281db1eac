"""Elementwise references against the ONNX reference evaluator; types, broadcasting, in-place conditions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import helper

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from memopt.types import TensorType as T
from tests.ops.onnx_oracle import onnx_node

UNARY_FLOAT = [
    "Abs",
    "Neg",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Sigmoid",
    "Tanh",
    "Relu",
    "HardSwish",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Erf",
    "Softplus",
    "Softsign",
    "LeakyRelu",
    "Elu",
    "Selu",
    "HardSigmoid",
    "Gelu",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "PRelu",
    "Min",
    "Max",
    "Sum",
    "Mean",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
]
VALUES = np.array([1, -1, 0, -0.0, 0.5, 1.5, 2.5, -2.5, 3.25, -0.75, 20, -20, np.inf, -np.inf, np.nan, 1e-8])
#: The evaluator holds the constants of these in float32.
IN_FLOAT32 = {"HardSwish", "LeakyRelu", "HardSigmoid", "Erf", "Gelu", "Elu", "Selu"}
SHAPES = [((2, 3), (2, 3)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2,)), ((0, 3), (1, 3)), ((1, 5), ())]


def run(op, *arrays, **attrs):
    """Infer and run the reference; the result is what was inferred, and no view."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = spec.infer([T.of(a.shape, a.dtype) for a in arrays], full, 1)
    (result,) = spec.reference(arrays, full, types)
    assert (result.shape, result.dtype.name) == (types[0].shape, types[0].dtype)
    assert not any(np.shares_memory(result, a) for a in arrays)
    return result


def compare(op, *arrays, opset=20, **attrs):
    got = run(op, *arrays, **attrs)
    (want,) = onnx_node(op, arrays, opset, **attrs)
    assert got.dtype == np.asarray(want).dtype
    rtol = {"float16": 2e-3, "float32": 2e-6}.get(got.dtype.name, 2e-6 if op in IN_FLOAT32 else 1e-12)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def random(shape, dtype="float32", seed=0):
    draw = np.random.default_rng(seed)
    if dtype == "bool":
        return draw.random(shape) < 0.5
    if np.dtype(dtype).kind == "f":
        return np.asarray(draw.standard_normal(shape) * 3, dtype)
    return np.asarray(draw.integers(-9 if np.dtype(dtype).kind == "i" else 0, 10, shape), dtype)


@pytest.mark.parametrize("op", UNARY_FLOAT)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unary(op, dtype):
    values = VALUES[np.isfinite(VALUES)] if op in ("HardSwish", "Softsign", "Softplus") else VALUES
    compare(op, values.astype(dtype))
    for shape in ((2, 3), (0, 4), *([()] if op != "Softsign" else [])):  # the evaluator fails on a scalar there
        compare(op, np.abs(random(shape, dtype)))


@pytest.mark.parametrize("op", ["Abs", "Neg", "Relu", "Sign"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_unary_int(op, dtype):
    compare(op, random((7,), dtype))


def test_unary_attributes():
    x = random((9,))
    compare("LeakyRelu", x, alpha=0.25)
    compare("Elu", x, alpha=0.5)
    compare("Selu", x, alpha=0.5, gamma=2.0)
    compare("HardSigmoid", x, alpha=0.1, beta=0.7)
    compare("Gelu", x, approximate="tanh")
    compare("Not", x > 0)


def test_round_half_to_even():
    assert run("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.5], "f")).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("shapes", SHAPES)
def test_binary(op, shapes):
    x, y = (random(shape, seed=i) for i, shape in enumerate(shapes))
    if op == "PRelu" and np.broadcast_shapes(*shapes) != shapes[0]:
        pytest.skip("the slope broadcasts one way")
    if op == "Mean":  # whose evaluator does not broadcast the first operand
        x = np.array(np.broadcast_to(x, np.broadcast_shapes(*shapes)))
    compare(op, np.abs(x) if op == "Pow" else x, y)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Min", "Max", "Equal", "Less", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_binary_int(op, dtype):
    compare(op, random((3, 4), dtype), random((4,), dtype, 1))


@pytest.mark.parametrize("op", ["And", "Or", "Equal"])
def test_logic(op):
    compare(op, random((3, 4), "bool"), random((3, 1), "bool", 1))


def test_variadic():
    arrays = [random((2, 3)), random((3,), seed=1), random((), seed=2), random((2, 1), seed=3)]
    for op in ("Min", "Max", "Sum", "Mean"):
        compare(op, *arrays)
        compare(op, arrays[0])
        compare(op, arrays[0], arrays[0])


def test_where():
    compare("Where", random((3, 1), "bool"), random((3, 4)), random((4,)))
    compare("Where", random((3,), "bool"), random((3,), "int64"), random((), "int64"))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_clip(dtype):
    x = random((9,), dtype)
    for low, high in ((-2.0, 3.0), (None, 1.0), (-1.0, None), (2.0, -2.0), (None, None)):
        limits = [None if v is None else np.array(v, dtype) for v in (low, high)]
        given = {name: v for name, v in (("min", low), ("max", high)) if v is not None}
        want = x if low is None else np.maximum(x, limits[0])
        np.testing.assert_array_equal(run("Clip", x, **given), want if high is None else np.minimum(want, limits[1]))
    (want,) = onnx_node("Clip", [x], constants=[np.array(-2, dtype), np.array(3, dtype)])
    np.testing.assert_array_equal(run("Clip", x, min=-2.0, max=3.0), want)


def test_clip_int_limits_beyond_the_type():
    x = np.array([0, 7, 255], np.uint8)
    assert run("Clip", x, min=-3.0, max=300.0).tolist() == [0, 7, 255]
    assert run("Clip", x, min=0.5, max=254.5).tolist() == [1, 7, 254]
    assert run("Clip", x, min=-math.inf, max=math.inf).tolist() == [0, 7, 255]
    assert run("Clip", x, min=1e30).tolist() == [255, 255, 255]


@pytest.mark.parametrize("to", ["float16", "float32", "float64", "int32", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_cast(to, dtype):
    x = random((9,), dtype)
    x = np.abs(x) if to == "uint8" and dtype != "bool" else x
    (want,) = onnx_node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    got = run("Cast", x, to=to)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_cast_truncates_and_never_fails():
    assert run("Cast", np.array([1.5, -2.7], "f"), to="int32").tolist() == [1, -2]
    assert run("Cast", np.array([np.nan, 0, 0.1], "f"), to="bool").tolist() == [True, False, True]
    run("Cast", np.array([1e30, np.nan, -np.inf], "f"), to="int32")


def test_nan_goes_through_as_in_onnxruntime():
    x, y = np.array([np.nan, 1, 2], "f"), np.array([1, np.nan, 3], "f")
    np.testing.assert_array_equal(run("Min", x, y), [np.nan, np.nan, 2])
    np.testing.assert_array_equal(run("Max", x, y), [np.nan, np.nan, 3])
    np.testing.assert_array_equal(run("Relu", x), [np.nan, 1, 2])
    np.testing.assert_array_equal(run("Clip", x, min=0.0, max=1.0), [np.nan, 1, 1])


def test_integer_division_and_powers():
    x, y = np.array([-7, 7, -7, 7, 5], "int32"), np.array([2, 2, -2, -2, 0], "int32")
    assert run("Div", x, y).tolist() == [-3, 3, 3, -3, 0]  # onnxruntime's, but for the last
    lowest = np.array([np.iinfo("int32").min], "int32")
    assert run("Div", lowest, np.array([-1], "int32")).tolist() == lowest.tolist()
    base, exponent = np.array([-7, 7, 1, -1, -1, 2, 0], "int32"), np.array([2, 3, -2, -3, -2, -1, 0], "int64")
    assert run("Pow", base, exponent).tolist() == [49, 343, 1, -1, 1, 0, 1]
    np.testing.assert_allclose(run("Pow", np.array([2.0, 9.0], "f"), np.array([3, -1])), [8, 1 / 9], rtol=1e-6)
    assert run("Pow", np.array([4, 9]), np.array([0.5, 0.5])).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("op", "types", "match"),
    [
        ("Add", [T((2, 3)), T((2,))], "do not broadcast"),
        ("Add", [T((2,)), T((2,), "float64")], "one dtype"),
        ("Exp", [T((2,), "int32")], "int32"),
        ("And", [T((2,)), T((2,))], "float32"),
        ("Where", [T((2,)), T((2,)), T((2,))], "must be bool"),
        ("PRelu", [T((2,)), T((3, 2))], "slope"),
        ("Sub", [T((2,), "bool"), T((2,), "bool")], "bool"),
        ("Add", [T((2,)), None], "all of its inputs"),
        ("Pow", [T((2,), "bool"), T((2,))], "bool"),
    ],
)
def test_refused_types(op, types, match):
    with pytest.raises(TypeInferenceError, match=match):
        get_op(op).infer(types, get_op(op).complete_attrs({}), 1)


def test_refused_attributes():
    with pytest.raises(TypeInferenceError, match="approximate"):
        get_op("Gelu").infer([T((2,))], {"approximate": "some"}, 1)
    with pytest.raises(TypeInferenceError, match="complex"):
        get_op("Cast").infer([T((2,))], {"to": "complex64"}, 1)
    with pytest.raises(TypeInferenceError, match="needs the attribute 'to'"):
        get_op("Cast").complete_attrs({})


def reasons(op, *types, **attrs):
    """For each input why the output may not lie over it (None: it may)."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    outputs = spec.infer(types, full, 1)
    return [pair.condition(types, outputs, full) for pair in spec.inplace if pair.input < len(types)]


def test_inplace_conditions():
    assert reasons("Relu", T((2, 3))) == [None]
    assert reasons("Sub", T((10, 12), "float64"), T((2, 3, 10, 12), "float64"))[1] is None  # S30
    assert "broadcast" in reasons("Sub", T((10, 12)), T((2, 3, 10, 12)))[0]
    assert "broadcast" in reasons("Add", T((1, 3)), T((3,)))[1]  # same bytes, another shape
    assert all("width" in why for why in reasons("LessOrEqual", T((4,)), T((4,))))  # S31
    assert reasons("Equal", T((4,), "bool"), T((4,), "bool")) == [None, None]
    assert reasons("Cast", T((2,)), to="int32") == [None]  # S32
    assert "width" in reasons("Cast", T((2,)), to="float64")[0]
    assert reasons("Sum", T((2,)), T((2,)), T((1,)))[:2] == [None, None]
    assert get_op("Sum").inplace[7].condition([T((2,))], [T((2,))], {}) == "operand absent"
