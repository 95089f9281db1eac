"""Resize's kernels against the reference and against themselves as plain Python, in the scratch they planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_resize import COORDINATES, ROUNDINGS


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """An image, and the attributes of a Resize of its last two axes that has a kernel."""
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))]
    attrs: dict[str, Any] = {
        "mode": draw(st.sampled_from(["nearest", "linear"])),
        "nearest_mode": draw(st.sampled_from(ROUNDINGS)),
        "coordinate_transformation_mode": draw(st.sampled_from([*COORDINATES, "tf_half_pixel_for_nn"])),
        "sizes": (*shape[:2], draw(st.integers(1, 17)), draw(st.integers(1, 17))),
    }
    return floats(*shape, dtype=draw(st.sampled_from(["float32", "float64"]))), attrs


LAYOUTS = st.sampled_from(["NCHW", "NHWC"])


@settings(max_examples=120, deadline=None)
@given(case=cases(), layout=LAYOUTS)
def test_kernels_equal_the_reference(case: tuple[np.ndarray, dict[str, Any]], layout: str) -> None:
    x, attrs = case
    if attrs["sizes"] == x.shape:
        assert get_op("Resize").kernel(make_query("Resize", [x], attrs)).kernel == "movement.copy"
        return
    found = run_by_kernel("Resize", [x], attrs, layout=layout)
    assert_close(found, reference("Resize", [x], attrs), 0.0 if attrs["mode"] == "nearest" else 1e-6)


@settings(max_examples=120, deadline=None)
@given(case=cases(), layout=LAYOUTS)
def test_gradients_equal_the_reference(case: tuple[np.ndarray, dict[str, Any]], layout: str) -> None:
    x, attrs = case
    slope, attrs = floats(*attrs["sizes"], dtype=x.dtype.name), attrs | {"shape": x.shape}
    assert_close(run_by_kernel("ResizeGrad", [slope], attrs, layout=layout), reference("ResizeGrad", [slope], attrs))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [(2, 3, 7, 11), (2, 3, 2, 6), (2, 3, 4, 3)])
def test_plain_python_is_the_same_kernel(sizes: tuple[int, ...], mode: str, layout: str) -> None:
    x, attrs = floats(2, 3, 4, 6), {"mode": mode, "sizes": sizes}
    found = run_by_kernel("Resize", [x], attrs, layout=layout, plain=True)
    assert_close(found, run_by_kernel("Resize", [x], attrs, layout=layout), 1e-6)
    slope, attrs = floats(*sizes, seed=1), attrs | {"shape": x.shape}
    grad = run_by_kernel("ResizeGrad", [slope], attrs, layout=layout, plain=True)
    assert_close(grad, run_by_kernel("ResizeGrad", [slope], attrs, layout=layout), 1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bool"])
def test_nearest_moves_any_dtype(dtype: str) -> None:
    x, attrs = (floats(2, 3, 4) * 50).astype(dtype), {"scales": (2.0, 1.0, 1.0)}
    assert_close(run_by_kernel("Resize", [x], attrs), reference("Resize", [x], attrs))


def test_other_forms_have_no_kernel() -> None:
    x = floats(1, 2, 3, 4)
    for attrs in (
        {"sizes": (1, 2, 5, 5), "mode": "cubic"},
        {"sizes": (1, 2, 2, 2), "mode": "linear", "antialias": 1},
        {"sizes": (2, 2, 5, 4)},  # the first axis and the third
        {"sizes": (1, 2, 0, 4)},
    ):
        query = make_query("Resize", [x], attrs)
        assert get_op("Resize").kernel(query) is None
        assert get_op("Resize").workspace(query) == 0
        slope = np.zeros(attrs["sizes"], np.float32)
        assert get_op("ResizeGrad").kernel(make_query("ResizeGrad", [slope], attrs | {"shape": x.shape})) is None
    half = make_query("Resize", [x.astype(np.float16)], {"sizes": (1, 2, 5, 5), "mode": "linear"})
    assert get_op("Resize").kernel(half) is None
