"""Conv's kernels against the reference and against themselves as plain Python, in the scratch they planned."""

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


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference(data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2]))))
    group = data.draw(st.integers(1, 3))
    channels, maps = group * data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 5))
    x, w = floats(2, channels, *sizes), floats(maps, channels // group, *kernel)
    arrays = [x, w, floats(maps)] if data.draw(st.booleans()) else [x, w, None]
    layout, scratch = data.draw(st.sampled_from(["NCHW", "NHWC"])), data.draw(st.sampled_from([0, 100, 700, 1 << 20]))
    try:
        wanted = reference("Conv", arrays, attrs | {"group": group})
    except TypeInferenceError:
        assume(False)
    found = run_by_kernel("Conv", arrays, attrs | {"group": group}, layout=layout, scratch=scratch)
    assert_close(found, wanted)


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ((2, 4, 5, 6), (8, 4, 1, 1), {}, "conv_pointwise"),
    ((2, 4, 5, 6), (8, 2, 1, 1), {"group": 2}, "conv_pointwise"),
    ((1, 3, 6, 7), (5, 3, 3, 2), {"strides": (2, 1), "pads": (1, 0, 2, 1)}, "conv_gemm"),
    ((1, 4, 5, 5), (8, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}, "conv_gemm"),
    ((1, 4, 5, 5), (8, 1, 3, 3), {"group": 4, "dilations": (2, 1)}, "conv_direct"),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("x", "w", "attrs", "kernel"), CASES)
def test_plain_python_is_the_same_kernel(x: Any, w: Any, attrs: Any, kernel: str, layout: str) -> None:
    arrays = [floats(*x), floats(*w, seed=1), floats(w[0], seed=2)]
    call = get_op("Conv").kernel(make_query("Conv", arrays, attrs, layout=layout))
    assert call is not None
    assert call.kernel == f"conv.{kernel}{'_nhwc' if layout == 'NHWC' else ''}"
    found = run_by_kernel("Conv", arrays, attrs, layout=layout, scratch=200, plain=True)
    assert_close(found, reference("Conv", arrays, attrs))
    assert_close(run_by_kernel("Conv", arrays, attrs, layout=layout, scratch=200), found)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_float64(layout: str) -> None:
    arrays = [floats(1, 3, 6, 7, dtype="float64"), floats(5, 3, 3, 3, dtype="float64"), None]
    attrs = {"pads": (1, 1, 1, 1)}
    assert_close(run_by_kernel("Conv", arrays, attrs, layout=layout), reference("Conv", arrays, attrs), 1e-12)


@pytest.mark.parametrize("limit", [1 << 20, 40_000, 5_000, 37, 0])
@pytest.mark.parametrize(
    ("x", "w"), [((1, 512, 28, 28), (512, 512, 3, 3)), ((1, 3, 224, 224), (64, 3, 7, 7)), ((1, 8, 5), (4, 8, 3))]
)
def test_scratch_is_bounded(x: tuple[int, ...], w: tuple[int, ...], limit: int) -> None:
    query = make_query("Conv", [np.empty(x, np.float32), np.empty(w, np.float32)], {}, scratch=limit)
    nbytes = get_op("Conv").workspace(query)
    least = 4 * int(np.prod(w[2:]))  # one position of one channel
    assert least <= nbytes <= max(limit, least)
    if limit >= 1 << 20 and nbytes < 4 * int(np.prod(w[1:])):
        pytest.fail("a whole output position fits, but is not planned")


def test_there_is_no_scratch_where_none_is_needed_and_no_kernel_for_other_types() -> None:
    spec = get_op("Conv")
    for x, w, group in (
        ((1, 8, 5, 5), (4, 8, 1, 1), 1),
        ((1, 8, 5, 5), (8, 1, 3, 3), 8),
        ((1, 2, 5, 5, 5), (2, 2, 3, 3, 3), 1),
    ):
        query = make_query("Conv", [floats(*x), floats(*w)], {"group": group})
        assert spec.workspace(query) == 0
        assert (spec.kernel(query) is None) == (len(x) == 5)
    half = make_query("Conv", [floats(1, 2, 5, 5, dtype="float16"), floats(2, 2, 3, 3, dtype="float16")])
    assert spec.kernel(half) is None
    assert spec.workspace(half) == 0
