"""The kernels of pooling's gradients against the references and as plain Python."""

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
from tests.ops.test_pool_grad import CASES

SHAPES = [*CASES[:-1], ((1, 2, 3, 600), {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (0, 1, 1, 1)})]


def operands(op: str, x: np.ndarray, attrs: dict[str, Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The inputs and attributes of the gradient `op` of a pool of `x`."""
    slope = floats(*reference(op.removesuffix("Grad"), [x], attrs)[0].shape, seed=1, dtype=x.dtype.name)
    return ([slope, x], attrs) if op == "MaxPoolGrad" else ([slope], attrs | {"input_shape": x.shape})


@pytest.mark.parametrize("op", ["MaxPoolGrad", "AveragePoolGrad"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_kernels_equal_the_reference(op: str, data: st.DataObject) -> None:
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 2])), pool=True))
    attrs |= {"kernel_shape": kernel, "ceil_mode": data.draw(st.integers(0, 1))}
    if op == "AveragePoolGrad":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    x = floats(2, 3, *sizes).round(1)  # with equal maxima
    try:
        arrays, attrs = operands(op, x, attrs)
    except TypeInferenceError:
        assume(False)
    assert_close(run_by_kernel(op, arrays, attrs), reference(op, arrays, attrs))


@pytest.mark.parametrize("op", ["MaxPoolGrad", "AveragePoolGrad"])
@pytest.mark.parametrize(("shape", "attrs"), SHAPES)
def test_plain_python_is_the_same_kernel(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = floats(*shape)
    x.reshape(-1)[::7] = np.nan
    arrays, attrs = operands(op, x, attrs)
    wanted = reference(op, arrays, attrs)
    assert_close(run_by_kernel(op, arrays, attrs, plain=True), wanted)
    assert_close(run_by_kernel(op, arrays, attrs), wanted)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 2, 3, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_global_average(shape: tuple[int, ...], dtype: str, plain: bool) -> None:
    slope, attrs = floats(*shape[:2], *(1,) * (len(shape) - 2), dtype=dtype), {"input_shape": shape}
    found = run_by_kernel("GlobalAveragePoolGrad", [slope], attrs, plain=plain)
    assert_close(found, reference("GlobalAveragePoolGrad", [slope], attrs))


@pytest.mark.parametrize("op", ["MaxPoolGrad", "AveragePoolGrad"])
def test_there_is_no_kernel_for_three_axes_and_half_precision(op: str) -> None:
    for shape, dtype in (((1, 2, 3, 3, 3), "float32"), ((1, 2, 4, 4), "float16")):
        arrays, attrs = operands(op, floats(*shape, dtype=dtype), {"kernel_shape": (2,) * (len(shape) - 2)})
        assert get_op(op).kernel(make_query(op, arrays, attrs)) is None
        assert reference(op, arrays, attrs)[0].shape == shape
