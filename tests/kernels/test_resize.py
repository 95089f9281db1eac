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


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference(data: st.DataObject) -> None:
    shape = [data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), *(data.draw(st.integers(1, 9)) for _ in "hw")]
    attrs: dict[str, Any] = {
        "mode": data.draw(st.sampled_from(["nearest", "linear"])),
        "nearest_mode": data.draw(st.sampled_from(ROUNDINGS)),
        "coordinate_transformation_mode": data.draw(st.sampled_from([*COORDINATES, "tf_half_pixel_for_nn"])),
        "sizes": (*shape[:2], data.draw(st.integers(1, 17)), data.draw(st.integers(1, 17))),
    }
    layout = data.draw(st.sampled_from(["NCHW", "NHWC"]))
    x = floats(*shape, dtype=data.draw(st.sampled_from(["float32", "float64"])))
    if attrs["sizes"] == tuple(shape):
        assert get_op("Resize").kernel(make_query("Resize", [x], attrs)).kernel == "movement.copy"
        return
    found = run_by_kernel("Resize", [x], attrs, layout=layout)
    assert_close(found, reference("Resize", [x], attrs), 0.0 if attrs["mode"] == "nearest" else 1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [(2, 3, 7, 11), (2, 3, 2, 6), (2, 3, 4, 3)])
def test_plain_python_is_the_same_kernel(sizes: tuple[int, ...], mode: str, layout: str) -> None:
    x, attrs = floats(2, 3, 4, 6), {"mode": mode, "sizes": sizes}
    found = run_by_kernel("Resize", [x], attrs, layout=layout, plain=True)
    assert_close(found, run_by_kernel("Resize", [x], attrs, layout=layout), 1e-6)


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
    half = make_query("Resize", [x.astype(np.float16)], {"sizes": (1, 2, 5, 5), "mode": "linear"})
    assert get_op("Resize").kernel(half) is None
