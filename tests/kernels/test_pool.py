"""Pooling kernels against the references and against themselves as plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_conv import windows


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference(data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2])), pool=True))
    attrs |= {"kernel_shape": kernel, "ceil_mode": data.draw(st.integers(0, 1))}
    op, layout = data.draw(st.sampled_from(["MaxPool", "AveragePool"])), data.draw(st.sampled_from(["NCHW", "NHWC"]))
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    x = floats(2, 3, *sizes)
    x[0, 0, ..., 0] = data.draw(st.sampled_from([0, np.nan, -np.inf]))
    try:
        wanted = reference(op, [x], attrs)
    except TypeInferenceError:
        assume(False)
    assert_close(run_by_kernel(op, [x], attrs, layout=layout), wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_plain_python_is_the_same_kernel(op: str, layout: str) -> None:
    x = floats(2, 2, 5, 7)
    attrs = {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (1, 1, 2, 0), "ceil_mode": 1}
    found = run_by_kernel(op, [x], attrs, layout=layout, plain=True)
    assert_close(found, reference(op, [x], attrs))
    assert_close(run_by_kernel(op, [x], attrs, layout=layout), found)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 1, 1), (2, 3, 1, 7)])
def test_global_pools(op: str, layout: str, shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    x[0, 0, 0, -1] = np.nan
    for plain in (False, True):
        assert_close(run_by_kernel(op, [x], layout=layout, plain=plain), reference(op, [x]))


def test_global_average_of_three_axes() -> None:
    x = floats(2, 3, 2, 3, 4)
    assert_close(run_by_kernel("GlobalAveragePool", [x]), reference("GlobalAveragePool", [x]))


def test_indices_and_other_types_are_host_calls() -> None:
    spec, attrs = get_op("MaxPool"), {"kernel_shape": (2, 2)}
    assert spec.kernel(make_query("MaxPool", [floats(1, 1, 4, 4)], attrs, outputs=2)) is None
    assert spec.kernel(make_query("MaxPool", [np.zeros((1, 1, 4, 4), np.int8)], attrs)) is None
    assert spec.kernel(make_query("MaxPool", [floats(1, 1, 4, 4, dtype="float64")], attrs)) is not None
