"""FusedConv's kernels: against the reference, in place, as plain Python, in planned scratch; and against the kernels of
the separate ops, bit by bit."""

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
from tests.ops.test_conv_fused import operands

PARTS = st.sets(st.sampled_from(["B", "norm", "Z", "Relu"]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference_in_every_layout(data: st.DataObject) -> None:
    check_kernels(data, ["NCHW", "NHWC"])


def check_kernels(data: st.DataObject, layouts: list[str]) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2]))))
    group = data.draw(st.integers(1, 3))
    channels, maps = group * data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 5))
    parts = data.draw(PARTS)
    attrs |= {"group": group, "activation": "Relu" if "Relu" in parts else ""}
    layout, scratch = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from([0, 100, 700, 1 << 20]))
    try:
        arrays = operands(floats(2, channels, *sizes), floats(maps, channels // group, *kernel), parts, attrs)
    except TypeInferenceError:
        assume(False)
    found = run_by_kernel("FusedConv", arrays, attrs, layout=layout, scratch=scratch)
    assert_close(found, reference("FusedConv", arrays, attrs))
    if "Z" in parts:
        over = run_by_kernel("FusedConv", arrays, attrs, layout=layout, scratch=scratch, inplace={0: 7})
        np.testing.assert_array_equal(over[0].view(np.uint32), found[0].view(np.uint32))


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ((2, 4, 5, 6), (8, 2, 1, 1), {"group": 2}, "pointwise_blocks"),
    ((1, 4, 5, 5), (8, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}, "gemm_blocks"),
    ((1, 4, 5, 5), (8, 1, 3, 3), {"group": 4, "dilations": (2, 1)}, "direct"),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("x", "w", "attrs", "kernel"), CASES)
def test_plain_python_is_the_same_kernel(x: Any, w: Any, attrs: Any, kernel: str, layout: str) -> None:
    arrays = operands(floats(*x), floats(*w, seed=1), ["B", "norm", "Z"], attrs)
    attrs = attrs | {"activation": "Relu"}
    call = get_op("FusedConv").kernel(make_query("FusedConv", arrays, attrs, layout=layout))
    assert call is not None
    assert call.kernel == f"conv_fused.{kernel}{'_nhwc' if layout == 'NHWC' else ''}"
    found = run_by_kernel("FusedConv", arrays, attrs, layout=layout, scratch=200, plain=True, inplace={0: 7})
    assert_close(found, reference("FusedConv", arrays, attrs))
    assert_close(run_by_kernel("FusedConv", arrays, attrs, layout=layout, scratch=200), found)


def test_float64() -> None:
    arrays = operands(floats(1, 3, 6, 7, dtype="float64"), floats(5, 3, 3, 3, dtype="float64"), ["norm", "Z"], {})
    assert_close(run_by_kernel("FusedConv", arrays), reference("FusedConv", arrays), 1e-12)


def _separately(arrays: list[Any], attrs: Any) -> np.ndarray:
    """What the kernels of Conv, BatchNormalization, Add and Relu make, one after the other."""
    (made,) = run_by_kernel("Conv", arrays[:3], attrs)
    (made,) = run_by_kernel("BatchNormalization", [made, *arrays[3:7]])
    (made,) = run_by_kernel("Add", [made, arrays[7]])
    (made,) = run_by_kernel("Relu", [made])
    return made


@pytest.mark.parametrize(("x", "w", "attrs"), [case[:3] for case in CASES])
@pytest.mark.parametrize("bias", [True, False])
def test_in_one_block_the_bits_are_those_of_the_separate_kernels(x: Any, w: Any, attrs: Any, bias: bool) -> None:
    arrays = operands(floats(*x), floats(*w, seed=1), ["norm", "Z", *["B"] * bias], attrs)
    (found,) = run_by_kernel("FusedConv", arrays, attrs | {"activation": "Relu"})
    np.testing.assert_array_equal(found.view(np.uint32), _separately(arrays, attrs).view(np.uint32))


@pytest.mark.parametrize("size", [1, 3])
def test_in_other_blocks_only_the_products_are_rounded_otherwise(size: int) -> None:
    """BLAS may sum a product of another width in another order; nothing else differs."""
    attrs = {"pads": (size // 2,) * 4}
    arrays = operands(floats(1, 32, 14, 14), floats(48, 32, size, size, seed=1) / 16, ["norm", "Z"], attrs)
    (found,) = run_by_kernel("FusedConv", arrays, attrs | {"activation": "Relu"}, scratch=30_000)
    apart = np.abs(found - _separately(arrays, attrs)).max()
    assert apart <= 8 * np.finfo(np.float32).eps * np.abs(found).max()


def test_nan_and_infinity_go_through() -> None:
    arrays = operands(floats(1, 2, 2, 2), floats(2, 2, 1, 1), ["norm", "Z"], {})
    arrays[7][0, 0, 0] = [np.nan, -np.inf]
    (found,) = run_by_kernel("FusedConv", arrays, {"activation": "Relu"})
    assert np.isnan(found[0, 0, 0, 0])
    assert found[0, 0, 0, 1] == 0


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("limit", [1 << 20, 40_000, 37, 0])
@pytest.mark.parametrize(
    ("x", "w", "group"),
    [
        ((1, 512, 28, 28), (512, 512, 3, 3), 1),
        ((1, 64, 56, 56), (256, 64, 1, 1), 1),
        ((1, 64, 56, 56), (64, 1, 3, 3), 64),
        ((1, 8, 5), (4, 8, 3), 1),
    ],
)
def test_scratch_is_bounded(x: Any, w: Any, group: int, limit: int, layout: str) -> None:
    arrays = [np.empty(x, np.float32), np.empty(w, np.float32)]
    query = make_query("FusedConv", arrays, {"group": group}, scratch=limit, layout=layout)
    nbytes = get_op("FusedConv").workspace(query)
    row = query.outputs[0].shape[-1]
    least = 4 * (2 * w[0] + int(np.prod(w[2:])) + row)  # a pixel or a row of the result, factors, one position
    assert 0 < nbytes <= max(limit, least)
    if limit >= 1 << 20 and group == 1:
        assert nbytes >= min(limit // 2, 4 * query.outputs[0].num_elements)


def test_there_is_no_kernel_for_other_types() -> None:
    spec = get_op("FusedConv")
    for arrays in (
        [floats(1, 2, 5, 5, 5), floats(2, 2, 3, 3, 3)],
        [floats(1, 2, 5, 5, dtype="float16"), floats(2, 2, 3, 3, dtype="float16")],
    ):
        query = make_query("FusedConv", arrays)
        assert spec.kernel(query) is None
        assert spec.workspace(query) == 0
