"""Conv's reference against onnxruntime, and its types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_onnxruntime


@st.composite
def windows(draw: st.DrawFn, axes: int, *, pool: bool = False) -> tuple[list[int], list[int], dict[str, Any]]:
    """Spatial sizes, a kernel and window attributes; the output may turn out empty."""

    def per_axis(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(axes)]

    sizes, kernel = per_axis(1, 9), per_axis(1, 4)
    attrs: dict[str, Any] = {"strides": per_axis(1, 3), "dilations": per_axis(1, 3)}
    attrs["auto_pad"] = draw(st.sampled_from(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if attrs["auto_pad"].startswith("SAME"):
        attrs["dilations"] = [1] * axes  # onnxruntime has no other
        if pool:  # and pads negatively where a stride skips data
            attrs["strides"] = [min(s, k) for s, k in zip(attrs["strides"], kernel, strict=True)]
    if attrs["auto_pad"] == "NOTSET":
        pads = per_axis(0, 2) + per_axis(0, 2)
        attrs["pads"] = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)] if pool else pads
    return sizes, kernel, attrs


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_reference_equals_onnxruntime(data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2, 3]))))
    group = data.draw(st.integers(1, 3))
    channels, maps = group * data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 5))
    x, w = floats(2, channels, *sizes), floats(maps, channels // group, *kernel)
    arrays = [x, w, floats(maps)] if data.draw(st.booleans()) else [x, w]
    attrs["group"] = group
    try:
        found = reference("Conv", arrays, attrs)
    except TypeInferenceError:
        return
    assert_close(found, run_by_onnxruntime("Conv", arrays, attrs))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_transpose_equals_onnxruntime(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 2))

    def per_axis(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(axes)]

    sizes, kernel, strides, dilations = per_axis(1, 5), per_axis(1, 4), per_axis(1, 3), per_axis(1, 2)
    group, way = data.draw(st.integers(1, 2)), data.draw(st.sampled_from(["pads", "shape", "SAME_UPPER", "SAME_LOWER"]))
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    if way == "pads":
        attrs["pads"] = per_axis(0, 2) + per_axis(0, 2)
        attrs["output_padding"] = [data.draw(st.integers(0, s - 1)) for s in strides]
    elif way == "shape":
        attrs["output_shape"] = per_axis(1, 9)
    else:
        attrs["auto_pad"] = way
    x, w = floats(2, 2 * group, *sizes), floats(2 * group, 3, *kernel, seed=1)
    arrays = [x, w, floats(3 * group)] if data.draw(st.booleans()) else [x, w]
    try:
        found = reference("ConvTranspose", arrays, attrs)
    except TypeInferenceError:
        return
    assert_close(found, run_by_onnxruntime("ConvTranspose", arrays, attrs))


def test_float64_and_float16() -> None:
    x, w, b = floats(1, 3, 6, 5), floats(4, 3, 3, 2), floats(4)
    exact = reference("Conv", [x.astype("f8"), w.astype("f8"), b.astype("f8")], {"pads": (1, 0, 1, 1)})[0]
    assert exact.dtype == np.float64
    half = reference("Conv", [x.astype("f2"), w.astype("f2"), b.astype("f2")], {"pads": (1, 0, 1, 1)})[0]
    np.testing.assert_allclose(half, exact, atol=0.05)


@pytest.mark.parametrize(
    ("shapes", "attrs", "words"),
    [
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"group": 2}, ["group = 2"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"group": 0}, ["group = 0"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"strides": (0, 1)}, ["strides = (0, 1)"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"strides": (1,)}, ["strides = (1,)"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"pads": (1, 1)}, ["pads = (1, 1)"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"pads": (-1, 0, 0, 0)}, ["pads = (-1, 0, 0, 0)"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"dilations": (3, 1)}, ["dilations = (3, 1)", "axis 0", "empty"]),
        (((1, 4, 5, 0), (6, 4, 3, 3)), {}, ["axis 1", "empty"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"auto_pad": "SAME"}, ["auto_pad = 'SAME'"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"auto_pad": "VALID", "pads": (1, 1, 1, 1)}, ["auto_pad = 'VALID'", "pads"]),
        (((1, 4, 5, 5), (6, 4, 3, 3)), {"kernel_shape": (3, 2)}, ["kernel_shape = (3, 2)"]),
        (((1, 4, 5, 5), (6, 4, 3, 3), (5,)), {}, ["B has shape [5]", "[6]"]),
        (((1, 4, 5, 5), (6, 4, 3)), {}, ["W"]),
    ],
)
def test_errors_name_the_attribute(shapes: Any, attrs: Any, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query("Conv", [np.zeros(shape, np.float32) for shape in shapes], attrs)
    for word in words:
        assert word in str(error.value)
