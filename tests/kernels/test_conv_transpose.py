"""ConvTranspose's kernel against the reference and against itself as plain Python, in the scratch it planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_kernel_equals_the_reference(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 2))

    def per_axis(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(axes)]

    sizes, kernel, strides, dilations = per_axis(1, 6), per_axis(1, 4), per_axis(1, 3), per_axis(1, 2)
    group, way = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["pads", "shape", "SAME_UPPER", "SAME_LOWER"]))
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    if way == "pads":
        attrs["pads"] = per_axis(0, 2) + per_axis(0, 2)
        attrs["output_padding"] = per_axis(0, 2)
    elif way == "shape":
        attrs["output_shape"] = per_axis(1, 9)
    else:
        attrs["auto_pad"] = way
    channels, maps = group * data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    x, w = floats(2, channels, *sizes), floats(channels, maps, *kernel, seed=1)
    arrays = [x, w, floats(maps * group)] if data.draw(st.booleans()) else [x, w, None]
    scratch = data.draw(st.sampled_from([0, 100, 700, 1 << 20]))
    try:
        wanted = reference("ConvTranspose", arrays, attrs)
    except TypeInferenceError:
        assume(False)
    assert_close(run_by_kernel("ConvTranspose", arrays, attrs, scratch=scratch), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain_python_is_the_same_kernel(dtype: str) -> None:
    arrays = [floats(2, 4, 5, 3, dtype=dtype), floats(4, 3, 2, 3, dtype=dtype), floats(6, dtype=dtype)]
    attrs = {"strides": (2, 3), "group": 2, "pads": (1, 0, 0, 1)}
    found = run_by_kernel("ConvTranspose", arrays, attrs, scratch=200, plain=True)
    assert_close(found, reference("ConvTranspose", arrays, attrs), 1e-12 if dtype == "float64" else 2e-5)
    assert_close(
        run_by_kernel("ConvTranspose", arrays, attrs, scratch=200), found, 1e-12 if dtype == "float64" else 2e-5
    )


@pytest.mark.parametrize("limit", [1 << 20, 5_000, 0])
def test_scratch_is_bounded(limit: int) -> None:
    arrays = [np.empty((1, 24, 80, 80), np.float32), np.empty((24, 24, 2, 2), np.float32)]
    nbytes = get_op("ConvTranspose").workspace(make_query("ConvTranspose", arrays, {"strides": (2, 2)}, scratch=limit))
    assert 16 <= nbytes <= max(limit, 16)


def test_other_types_have_no_kernel() -> None:
    spec = get_op("ConvTranspose")
    for x, w, dtype in (
        ((1, 2, 3, 3, 3), (2, 2, 1, 1, 1), np.float32),
        ((1, 2, 3, 3), (2, 2, 1, 1), np.float16),
    ):
        query = make_query("ConvTranspose", [np.zeros(x, dtype), np.zeros(w, dtype)], {})
        assert spec.kernel(query) is None
        assert spec.workspace(query) == 0
