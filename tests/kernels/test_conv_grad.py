"""The kernels of Conv's gradients against the references and as plain Python, in the scratch they planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_conv import windows

OPS = ("ConvGradInput", "ConvGradWeight")


def operands(op: str, x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The inputs and attributes of a gradient of the convolution of `x` with `w`."""
    out = reference("Conv", [x, w], attrs)[0]
    slope = floats(*out.shape, seed=3, dtype=x.dtype.name)
    if op == "ConvGradInput":
        return [slope, w], attrs | {"input_shape": x.shape}
    return [slope, x], attrs | {"kernel_shape": w.shape[2:]}


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference(op: str, data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2]))))
    group = data.draw(st.integers(1, 3))
    channels, maps = group * data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 5))
    x, w = floats(2, channels, *sizes), floats(maps, channels // group, *kernel, seed=1)
    scratch = data.draw(st.sampled_from([0, 100, 700, 1 << 20]))
    try:
        arrays, attrs = operands(op, x, w, attrs | {"group": group})
    except TypeInferenceError:
        assume(False)
    assert_close(run_by_kernel(op, arrays, attrs, scratch=scratch), reference(op, arrays, attrs))


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ((2, 4, 5, 6), (8, 4, 1, 1), {}, "pointwise"),
    ((2, 4, 5, 6), (8, 2, 1, 1), {"group": 2}, "pointwise"),
    ((2, 3, 6, 7), (5, 3, 3, 2), {"strides": (2, 1), "pads": (1, 0, 2, 1)}, "gemm"),
    ((1, 3, 6, 6), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}, "gemm"),
    ((1, 4, 5, 5), (8, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}, "gemm"),
    ((2, 4, 9, 21), (8, 1, 3, 3), {"group": 4, "dilations": (2, 1), "pads": (1, 1, 1, 1)}, "direct"),
    ((1, 2, 9, 21), (2, 1, 3, 3), {"group": 2, "strides": (2, 2), "pads": (1, 1, 1, 1)}, "direct"),
    ((1, 2, 7, 20), (2, 1, 3, 2), {"group": 2, "strides": (1, 3)}, "direct"),
    ((1, 2, 2, 530), (2, 1, 2, 2), {"group": 2}, "direct"),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("x", "w", "attrs", "kernel"), CASES)
def test_plain_python_is_the_same_kernel(op: str, x: Any, w: Any, attrs: Any, kernel: str) -> None:
    arrays, attrs = operands(op, floats(*x), floats(*w, seed=1), attrs)
    call = get_op(op).kernel(make_query(op, arrays, attrs))
    assert call is not None
    assert call.kernel == f"conv_grad.{op.removeprefix('ConvGrad').lower()}_{kernel}"
    found = run_by_kernel(op, arrays, attrs, scratch=200, plain=True)
    assert_close(found, reference(op, arrays, attrs))
    assert_close(run_by_kernel(op, arrays, attrs, scratch=200), found)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("group", [1, 3])
def test_float64(op: str, group: int) -> None:
    x, w = floats(2, 3, 6, 7, dtype="float64"), floats(6, 3 // group, 3, 3, dtype="float64")
    arrays, attrs = operands(op, x, w, {"pads": (1, 1, 1, 1), "group": group})
    assert_close(run_by_kernel(op, arrays, attrs), reference(op, arrays, attrs), 1e-12)


@pytest.mark.parametrize("op", OPS)
def test_a_run_repeats_bit_for_bit(op: str) -> None:
    arrays, attrs = operands(op, floats(2, 5, 9, 9), floats(7, 5, 3, 3), {"pads": (1, 1, 1, 1)})
    first, second = (run_by_kernel(op, arrays, attrs, scratch=2000)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("limit", [1 << 20, 40_000, 5_000, 37, 0])
@pytest.mark.parametrize(
    ("x", "w"), [((1, 512, 28, 28), (512, 512, 3, 3)), ((1, 3, 224, 224), (64, 3, 7, 7)), ((1, 8, 5), (4, 8, 3))]
)
def test_scratch_is_bounded(op: str, x: tuple[int, ...], w: tuple[int, ...], limit: int) -> None:
    out = [n - k + 1 for n, k in zip(x[2:], w[2:], strict=True)]
    slope = np.empty((1, w[0], *out), np.float32)
    other = np.empty(w if op == "ConvGradInput" else x, np.float32)
    attrs = {"input_shape": x} if op == "ConvGradInput" else {"kernel_shape": w[2:]}
    nbytes = get_op(op).workspace(make_query(op, [slope, other], attrs, scratch=limit))
    least = 4 * int(np.prod(w[2:]))  # one position of one channel
    assert least <= nbytes <= max(limit, least)


@pytest.mark.parametrize("op", OPS)
def test_there_is_no_scratch_where_none_is_needed_and_no_kernel_for_other_types(op: str) -> None:
    spec = get_op(op)
    for x, w, group in (((1, 8, 5, 5), (4, 8, 1, 1), 1), ((1, 8, 5, 5), (8, 1, 3, 3), 8)):
        query = make_query(op, *operands(op, floats(*x), floats(*w), {"group": group}))
        assert spec.workspace(query) == 0
        assert spec.kernel(query) is not None
    for x, w, dtype in (((1, 2, 5, 5, 5), (2, 2, 3, 3, 3), "float32"), ((1, 2, 5, 5), (2, 2, 3, 3), "float16")):
        query = make_query(op, *operands(op, floats(*x, dtype=dtype), floats(*w, dtype=dtype), {}))
        assert spec.workspace(query) == 0
        assert spec.kernel(query) is None
