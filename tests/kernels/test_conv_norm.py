"""NormConv's kernel: against the reference, as plain Python, in planned scratch; against the kernels of the separate
ops, bit by bit; and item by item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ops import choose_calls, get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_conv_norm import operands

ALL = ("B", "gain", "offset")
RELU = {"activation": "Relu"}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_kernel_equals_the_reference(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    batch, channels, maps = (data.draw(st.integers(1, most)) for most in (2, 7, 5))
    parts = data.draw(st.sets(st.sampled_from([*ALL, "Relu"])))
    arrays = operands(floats(batch, channels, *sizes), floats(maps, channels, *(1,) * len(sizes), seed=1), parts)
    attrs = {"activation": "Relu" if "Relu" in parts else "", "epsilon": 0.01}
    found = run_by_kernel("NormConv", arrays, attrs, scratch=data.draw(st.sampled_from([0, 30, 100, 400, 1 << 20])))
    assert_close(found, reference("NormConv", arrays, attrs))


@pytest.mark.parametrize("parts", [(), ALL])
def test_plain_python_is_the_same_kernel(parts: Any) -> None:
    arrays = operands(floats(2, 5, 3, 4), floats(3, 5, 1, 1, seed=1), parts)
    for scratch in (50, 1 << 20):
        found = run_by_kernel("NormConv", arrays, RELU, scratch=scratch, plain=True)
        assert_close(found, reference("NormConv", arrays, RELU))
        assert_close(run_by_kernel("NormConv", arrays, RELU, scratch=scratch), found)


def test_float64() -> None:
    arrays = operands(floats(1, 3, 6, 7, dtype="float64"), floats(5, 3, 1, 1, dtype="float64"), ALL)
    assert_close(run_by_kernel("NormConv", arrays, RELU), reference("NormConv", arrays, RELU), 1e-12)


def _separately(arrays: list[Any]) -> np.ndarray:
    """What the kernels of BatchNormalization, Mul, Add, Relu and Conv make, one after the other."""
    (made,) = run_by_kernel("BatchNormalization", arrays[:5])
    (made,) = run_by_kernel("Mul", [made, arrays[7]])
    (made,) = run_by_kernel("Add", [made, arrays[8]])
    (made,) = run_by_kernel("Relu", [made])
    (made,) = run_by_kernel("Conv", [made, *arrays[5:7]])
    return made


@pytest.mark.parametrize("bias", [True, False])
def test_in_one_block_the_bits_are_those_of_the_separate_kernels(bias: bool) -> None:
    arrays = operands(floats(2, 12, 6, 7), floats(9, 12, 1, 1, seed=1), ALL if bias else ALL[1:])
    (found,) = run_by_kernel("NormConv", arrays, RELU)
    np.testing.assert_array_equal(found.view(np.uint32), _separately(arrays).view(np.uint32))


def test_in_other_blocks_only_the_products_are_rounded_otherwise() -> None:
    """BLAS may sum a product of another width in another order; nothing else differs."""
    arrays = operands(floats(1, 32, 14, 14), floats(48, 32, 1, 1, seed=1), ALL)
    for scratch in (9_000, 1_000):
        (found,) = run_by_kernel("NormConv", arrays, RELU, scratch=scratch)
        apart = np.abs(found - _separately(arrays)).max()
        assert apart <= 16 * np.finfo(np.float32).eps * np.abs(found).max()


def test_nan_goes_through_and_minus_infinity_is_clipped() -> None:
    arrays = operands(floats(1, 2, 2, 2), np.ones((1, 2, 1, 1), np.float32), ())
    arrays[1] = np.ones(2, np.float32)
    arrays[0][0, 0, 0] = [np.nan, -np.inf]
    (found,) = run_by_kernel("NormConv", arrays, RELU)
    assert np.isnan(found[0, 0, 0, 0])
    assert np.isfinite(found[0, 0, 0, 1])


@pytest.mark.parametrize("limit", [1 << 20, 40_000, 37, 0])
@pytest.mark.parametrize(("x", "maps"), [((1, 256, 56, 56), 128), ((2, 1024, 7, 7), 128), ((1, 8, 5), 3)])
def test_scratch_is_bounded_and_no_larger_than_the_input(x: Any, maps: int, limit: int) -> None:
    arrays = operands(np.empty(x, np.float32), np.empty((maps, x[1], *(1,) * (len(x) - 2)), np.float32), ())
    nbytes = get_op("NormConv").workspace(make_query("NormConv", arrays, scratch=limit))
    assert 0 < nbytes <= max(limit, 4)
    assert nbytes <= arrays[0].nbytes
    if limit == 1 << 20:
        assert nbytes >= min(limit // 2, arrays[0].nbytes // x[0])


@pytest.mark.parametrize(
    ("w", "attrs", "dtype"),
    [
        ((6, 4, 3, 3), {}, "float32"),
        ((6, 4, 1, 1), {"strides": (2, 2)}, "float32"),
        ((6, 4, 1, 1), {"pads": (0, 1, 0, 0)}, "float32"),
        ((6, 2, 1, 1), {"group": 2}, "float32"),
        ((6, 4, 1, 1), {}, "float16"),
    ],
)
def test_there_is_no_kernel_for_other_windows_and_types(w: Any, attrs: Any, dtype: str) -> None:
    query = make_query("NormConv", operands(floats(1, 4, 5, 5, dtype=dtype), floats(*w, dtype=dtype), ALL), attrs)
    spec = get_op("NormConv")
    assert spec.kernel(query) is None
    assert spec.workspace(query) == 0
    assert spec.kernel(replace(query, layout="NHWC")) is None


def test_items_may_lie_apart() -> None:
    query = make_query("NormConv", operands(floats(3, 4, 5, 5), floats(6, 4, 1, 1), ALL))
    calls = choose_calls(get_op("NormConv"), replace(query, strides=((400, 25, 5, 1), *[None] * 8)))
    assert calls is not None
    assert (calls.times, calls.in_steps[0], calls.out_steps) == (3, 400, (150,))
    assert not any(calls.in_steps[1:])
