"""Elementwise kernels: compiled against the reference, in place, and as plain Python; whole expressions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ops import KernelQuery, get_op
from memopt.ops.elementwise import ScalarForm, compose, loop_call, scalar_form
from memopt.types import TensorType as T
from tests.kernels.checks import TO_NHWC, call_of, check_kernel, execute
from tests.ops.test_elementwise import BINARY, UNARY_FLOAT, random

HARD = np.array([1, -1, 0, -0.0, 0.5, 1.5, 2.5, -2.5, 3.25, -0.75, 20, -20, np.inf, -np.inf, np.nan, 1e-8], "float32")


@pytest.mark.parametrize("op", UNARY_FLOAT)
def test_unary(op):
    check_kernel(op, [HARD])
    check_kernel(op, [random((600,))], plain=False)
    check_kernel(op, [random((2, 0, 3))])


@pytest.mark.parametrize("op", BINARY)
def test_binary(op):
    x, y = random((600,)), random((600,), seed=1)
    x = np.abs(x) if op == "Pow" else x
    x[:4], y[2:6] = np.nan, np.nan
    x[10:20] = y[10:20]
    check_kernel(op, [x, y], plain=False)
    check_kernel(op, [x[:30], y[:30]])
    check_kernel(op, [x, x], plain=False)


def test_attributes_do_not_recompile():
    x = random((9,))
    names = set()
    for alpha in (0.1, 0.2):
        for op in ("LeakyRelu", "Elu"):
            check_kernel(op, [x], alpha=alpha)
            names.add(call_of(op, [x], alpha=alpha)[0].expression)
    assert len(names) == 2
    for limits in ({}, {"min": -1.0}, {"max": 1.0}, {"min": -1.0, "max": 1.0}, {"min": 1.0, "max": -1.0}):
        check_kernel("Clip", [np.concatenate([x, HARD])], **limits)
    check_kernel("Gelu", [x], approximate="tanh")


@pytest.mark.parametrize("op", ["Add", "Div", "Pow", "Max"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_int(op, dtype):
    info = np.iinfo(dtype)
    x = np.array([-7, 7, -7, 7, 5, info.min, info.min, info.max, 0], dtype)
    check_kernel(op, [x, np.array([2, 2, -2, -2, 0, -1, 2, 3, -5], dtype)])


def test_small_ints_and_bools():
    x, y = np.array([0, 1, 200, 255], "uint8"), np.array([1, 2, 100, 0], "uint8")
    for op in ("Sub", "Div"):
        check_kernel(op, [x, y])
    check_kernel("Clip", [x], min=0.5, max=254.0)
    check_kernel("Not", [random((9,), "bool")])
    for op in ("And", "Or", "Equal"):
        check_kernel(op, [random((9,), "bool"), random((9,), "bool", 1)])


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("float32", "int32"),
        ("float32", "float64"),
        ("float32", "uint8"),
        ("float32", "bool"),
        ("int64", "int8"),
        ("bool", "float32"),
    ],
)
def test_cast(source, to):
    x = np.array([1.5, -2.7, 0, 0.3, 100.9, -1, 300], source)
    check_kernel("Cast", [x], to=to)


def test_cast_in_place():
    x = np.array([1.5, -2.7], "f")  # S32
    call, (want,), _, _ = call_of("Cast", [x], to="int32")
    execute(call, [x], [x.view("int32")])
    assert x.view("int32").tolist() == want.tolist() == [1, -2]


def test_mixed_dtypes():
    check_kernel("Pow", [np.abs(random((5,))), random((5,), "int32")])
    check_kernel("Pow", [np.abs(random((5,), "int32")), np.full(5, 0.5, "f")])
    check_kernel("Where", [random((3, 1), "bool"), random((3, 4)), random((4,))])
    check_kernel("Where", [random((7,), "bool"), random((7,), "int64"), random((7,), "int64", 1)])


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 4, 5), (3, 1, 1)],
        [(3, 1, 1), (2, 3, 4, 5)],
        [(4, 300), (300,)],
        [(300, 1), (1, 290)],
        [(), (2, 3)],
        [(2, 1, 3, 1, 2), (1, 2, 1, 3, 1)],
        [(0, 3), (1, 3)],
        [(1, 1), (1,)],
    ],
)
def test_broadcast(shapes):
    check_kernel("Sub", [random(shape, seed=i) for i, shape in enumerate(shapes)], plain=max(max(shapes)) < 100)


def test_variadic():
    arrays = [random((2, 300)), random((300,), seed=1), random((2, 1), seed=2)]
    check_kernel("Sum", arrays, plain=False)
    check_kernel("Sum", arrays[:1])
    check_kernel("Mean", arrays)
    check_kernel("Sum", [random((9,), seed=i) for i in range(5)])


@pytest.mark.parametrize("small", [(3, 1, 1), (3, 4, 5), (4, 5), (1, 3, 1, 1)])
def test_nhwc(small):
    x, y = random((2, 3, 4, 5)), random(small, seed=1)
    call, (want,), _, _ = call_of("Mul", [x, y], layout="NHWC")
    placed = [np.ascontiguousarray(a.transpose(TO_NHWC)) if a.ndim == 4 else a for a in (x, y)]
    out = np.empty((2, 4, 5, 3), "f")
    execute(call, placed, [out])
    np.testing.assert_array_equal(out, want.transpose(TO_NHWC))
    execute(call, placed, [placed[0]])
    np.testing.assert_array_equal(placed[0], out)


def test_device_dtypes():
    """A device that wants float32 for float64 data asks for a kernel of other dtypes than the graph's."""
    x = random((9,))
    for op, wanted in (("Cast", "float32"), ("Elu", "float32")):
        attrs = get_op(op).complete_attrs({"to": "float64"} if op == "Cast" else {})
        call = get_op(op).kernel(KernelQuery((T((9,)),), (T((9,), wanted),), attrs))
        out = np.empty(9, "f")
        execute(call, [x], [out])
        np.testing.assert_allclose(out, get_op(op).reference([x], attrs, [T((9,))])[0], rtol=1e-6)


# -- whole expressions ------------------------------------------------------------------------------------------------

SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (4, 1, 3), (4, 2, 1), (2, 1), (1, 2, 3)])
#: Ops that are rounded once, so that a chain must give the bits of its ops one after the other.
EXACT = {
    "float32": [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Min",
        "Max",
        "Neg",
        "Abs",
        "Relu",
        "Sqrt",
        "Floor",
        "LeakyRelu",
        "Clip",
        "Sum",
    ],
    "int32": ["Add", "Sub", "Mul", "Div", "Min", "Max", "Neg", "Abs", "Relu", "Clip", "Sum"],
}


@st.composite
def chains(draw):
    """(leaves, form over them, value by the references one after the other)."""
    dtype = draw(st.sampled_from(sorted(EXACT)))
    leaves = [random(draw(SHAPES), dtype, seed) for seed in range(draw(st.integers(1, 3)))]
    pool = [(ScalarForm(f"x{i}"), leaf) for i, leaf in enumerate(leaves)]
    for _ in range(draw(st.integers(1, 4))):
        spec = get_op(draw(st.sampled_from(EXACT[dtype])))
        operands = [draw(st.sampled_from(pool)) for _ in range(2 if len(spec.inputs) == 2 or spec.name == "Sum" else 1)]
        attrs = spec.complete_attrs({"min": -1.0} if spec.name == "Clip" else {})
        types = [T.of(value.shape, value.dtype) for _, value in operands]
        outputs = spec.infer(types, attrs, 1)
        form = compose(scalar_form(spec.name, types, outputs[0], attrs), [form for form, _ in operands])
        pool.append((form, spec.reference([value for _, value in operands], attrs, outputs)[0]))
    return leaves, *pool[-1]


@settings(deadline=None, max_examples=10)
@given(chains())
def test_a_chain_is_its_ops(chain):
    leaves, form, want = chain
    output = T.of(want.shape, want.dtype)
    inputs = [T.of(leaf.shape, leaf.dtype) for leaf in leaves]
    if any(np.broadcast_shapes(leaf.shape, want.shape) != want.shape for leaf in leaves):
        leaves = [np.ones_like(want) if f"x{i}" not in form.text else leaf for i, leaf in enumerate(leaves)]
        inputs = [T.of(leaf.shape, leaf.dtype) for leaf in leaves]
    call = loop_call(form, inputs, output)
    out = np.empty(want.shape, want.dtype)
    execute(call, leaves, [out])
    np.testing.assert_array_equal(out, want)
    slow = np.empty(want.shape, want.dtype)
    execute(call, leaves, [slow], plain=True)
    np.testing.assert_array_equal(slow, want)
    for i, leaf in enumerate(leaves):
        if leaf.shape == want.shape:
            copies = [a.copy() for a in leaves]
            execute(call, copies, [copies[i]])
            np.testing.assert_array_equal(copies[i], out)
