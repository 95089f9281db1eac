"""SliceAssign and Assign: meaning, refusals, kernels, gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt.errors import TypeInferenceError
from memopt.ops import KernelQuery, get_op
from memopt.types import TensorType
from tests.autodiff.numeric import Case, check_gradient
from tests.kernels.checks import check_kernel, types_of

SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


def cut(shape, attrs):
    """The shape of the slice."""
    spec = get_op("Slice")
    return spec.infer([TensorType.of(shape)], spec.complete_attrs(attrs), 1)[0].shape


def data(shape, dtype="float32", start=0):
    return (np.arange(int(np.prod(shape))) + start).astype(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("index", "attrs"),
    [
        (np.s_[1:], {"starts": (1,), "ends": (99,)}),
        (np.s_[:, -1:-4:-2], {"starts": (-1,), "ends": (-4,), "axes": (1,), "steps": (-2,)}),
        (np.s_[::-1, 1:3], {"starts": (9, 1), "ends": (-99, 3), "steps": (-1, 1)}),
        (np.s_[2:1], {"starts": (2,), "ends": (1,)}),
    ],
)
def test_meaning(index, attrs):
    x = data((3, 4))
    want = x.copy()
    want[index] = -want[index] - 1
    (got,) = check_kernel("SliceAssign", [x, -x[index] - 1], **attrs)
    np.testing.assert_array_equal(got, want)


@settings(deadline=None, max_examples=30)
@given(SHAPES, st.sampled_from(["bool", "float16", "float32", "int64"]), st.data())
def test_kernel(shape, dtype, draw):
    bound = st.integers(-6, 6)
    attrs = {
        "starts": tuple(draw.draw(bound) for _ in shape),
        "ends": tuple(draw.draw(bound) for _ in shape),
        "steps": tuple(draw.draw(st.sampled_from([-2, -1, 1, 2])) for _ in shape),
    }
    check_kernel("SliceAssign", [data(shape, dtype), data(cut(shape, attrs), dtype, 50)], **attrs)


def test_no_kernel_beyond_six_axes():
    x = data((3,) * 7)
    attrs = get_op("SliceAssign").complete_attrs({"starts": (0,) * 7, "ends": (3,) * 7, "steps": (2,) * 7})
    types = types_of([x, data((2,) * 7)])
    assert get_op("SliceAssign").kernel(KernelQuery(types, types[:1], attrs)) is None


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (data((2, 4)), r"the slice of f32\[3,4\] is f32\[1,4\], the value for it f32\[2,4\]"),
        (data((1, 4), "int64"), "i64"),
    ],
)
def test_refuses(value, match):
    b = memopt.GraphBuilder()
    with pytest.raises(TypeInferenceError, match=match):
        b.slice_assign(b.input("x", (3, 4)), b.param("v", value), starts=(0,), ends=(1,))
    with pytest.raises(TypeInferenceError, match=r"the variable is f32\[3\], its new value f32\[4\]"):
        b.op("Assign", b.param("w", np.zeros(3, "f")), b.input("y", (4,)))


@pytest.mark.parametrize(
    "attrs",
    [
        {"starts": (1,), "ends": (3,), "axes": (1,)},
        {"starts": (3, 0), "ends": (-9, 4), "steps": (-2, 3)},
        {"starts": (0,), "ends": (9,)},
        {"starts": (2,), "ends": (2,)},
    ],
)
def test_gradient(attrs):
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(-1, 1, (4, 5)), rng.uniform(-1, 1, cut((4, 5), attrs))]
    check_gradient(Case("SliceAssign", arrays, **attrs))
    check_gradient(Case("SliceAssign", arrays, wrt=[1], **attrs))


def test_assign_stores():
    b = memopt.GraphBuilder()
    w, x = b.param("w", np.zeros(3, "f")), b.input("x", (3,))
    new = b.op("Assign", w, b.relu(x))
    b.output(b.neg(new))
    graph, feed = b.build(), {"x": np.array([-1, 0, 2], "f")}
    for strategy in ("none", "share", "rename"):
        plan = memopt.compile(graph, strategy)
        assert plan.run(feed)["neg"].tolist() == [0, 0, -2]
        assert plan.state()["w"].tolist() == [0, 0, 2]
    lost = memopt.Machine.host_and("gpu", lacks={"Assign"})
    assert memopt.compile(graph, machine=lost).run(feed)["neg"].tolist() == [0, 0, -2]
