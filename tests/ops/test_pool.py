"""Pooling references against onnxruntime, and their types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_onnxruntime
from tests.ops.test_conv import windows


def _pool_attrs(data: st.DataObject) -> tuple[np.ndarray, dict[str, Any]]:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2, 3])), pool=True))
    attrs |= {"kernel_shape": kernel, "ceil_mode": data.draw(st.integers(0, 1))}
    return floats(2, 3, *sizes), attrs


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_max_pool_equals_onnxruntime(data: st.DataObject) -> None:
    x, attrs = _pool_attrs(data)
    outputs = data.draw(st.integers(1, 2))
    if outputs == 2:
        attrs["storage_order"] = data.draw(st.integers(0, 1))
    try:
        found = reference("MaxPool", [x], attrs, outputs=outputs)
    except TypeInferenceError:
        return
    assert_close(found, run_by_onnxruntime("MaxPool", [x], attrs, outputs=outputs))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_average_pool_equals_onnxruntime(data: st.DataObject) -> None:
    x, attrs = _pool_attrs(data)
    attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    try:
        found = reference("AveragePool", [x], attrs)
    except TypeInferenceError:
        return
    assert_close(found, run_by_onnxruntime("AveragePool", [x], attrs))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2)])
def test_global_pools_equal_onnxruntime(op: str, shape: tuple[int, ...]) -> None:
    assert_close(reference(op, [floats(*shape)]), run_by_onnxruntime(op, [floats(*shape)]))


def test_a_maximum_over_nan_is_nan_and_padding_is_never_one() -> None:
    x = np.full((1, 1, 4, 4), -5, np.float32)
    x[0, 0, 3, 3] = np.nan
    found = reference("MaxPool", [x], {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)})[0]
    np.testing.assert_array_equal(found[0, 0], [[-5, -5, -5], [-5, -5, -5], [-5, -5, np.nan]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16"])
def test_max_pool_of_other_types(dtype: str) -> None:
    x = np.arange(-8, 8).astype(dtype).reshape(1, 1, 4, 4)
    found, places = reference("MaxPool", [x], {"kernel_shape": (2, 2), "pads": (1, 1, 0, 0)}, outputs=2)
    np.testing.assert_array_equal(found.ravel(), x.ravel()[places.ravel()])
    assert found.dtype == np.dtype(dtype)


def test_an_extreme_value_has_an_index_in_the_data() -> None:
    x = np.full((1, 1, 3, 3), np.iinfo(np.int8).min, np.int8)
    _, places = reference("MaxPool", [x], {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}, outputs=2)
    assert places.min() >= 0


@pytest.mark.parametrize(
    ("shape", "attrs", "words"),
    [
        ((1, 2, 4, 4), {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, ["pads = (2, 0, 0, 0)", "only padding"]),
        ((1, 2, 4, 4), {"kernel_shape": (2,)}, ["kernel_shape = (2,)"]),
        ((1, 2, 4, 4), {"kernel_shape": (5, 1)}, ["kernel_shape = (5, 1)", "empty"]),
        ((1, 2, 4, 4), {}, ["kernel_shape"]),
        ((1, 2), {"kernel_shape": ()}, ["spatial"]),
    ],
)
def test_errors_name_the_attribute(shape: tuple[int, ...], attrs: Any, words: list[str]) -> None:
    for op in ("MaxPool", "AveragePool"):
        with pytest.raises(TypeInferenceError) as error:
            make_query(op, [np.zeros(shape, np.float32)], attrs)
        for word in words:
            assert word in str(error.value)
