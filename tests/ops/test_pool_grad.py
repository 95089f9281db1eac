"""The gradients of pooling against central differences, known answers and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_gradients import by_rule, by_torch, gradient_graph, op_differences
from tests.nn_harness import assert_close, floats, make_query, reference

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5, 6), {"kernel_shape": (2, 3), "strides": (2, 1)}),
    ((1, 2, 6, 5), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 7, 7), {"kernel_shape": (2, 2), "dilations": (3, 2), "strides": (2, 3), "ceil_mode": 1}),
    ((2, 3, 8), {"kernel_shape": (3,), "auto_pad": "SAME_UPPER", "strides": (2,)}),
    ((1, 2, 3, 4, 3), {"kernel_shape": (2, 2, 2), "pads": (0, 1, 0, 0, 1, 1)}),
]


def distinct(*shape: int) -> np.ndarray:
    """Numbers that lie so far apart that a small step changes no maximum."""
    return np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape).astype(np.float64)


@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("outputs", [1, 2])
def test_max_pool_by_central_differences(shape: tuple[int, ...], attrs: dict[str, Any], outputs: int) -> None:
    x = distinct(*shape)
    slope = floats(*reference("MaxPool", [x], attrs)[0].shape, dtype="float64")
    found = by_rule("MaxPool", [x], slope, attrs, outputs=outputs)
    assert_close(found, op_differences("MaxPool", [x], slope, attrs), 1e-6)


@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_by_central_differences(shape: tuple[int, ...], attrs: dict[str, Any], include: int) -> None:
    attrs, x = attrs | {"count_include_pad": include}, floats(*shape, dtype="float64")
    slope = floats(*reference("AveragePool", [x], attrs)[0].shape, dtype="float64", seed=1)
    found = by_rule("AveragePool", [x], slope, attrs)
    assert_close(found, op_differences("AveragePool", [x], slope, attrs), 1e-8)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 2, 2, 3, 2)])
def test_global_pools_by_central_differences(op: str, shape: tuple[int, ...]) -> None:
    x = distinct(*shape)
    slope = floats(*shape[:2], *(1,) * (len(shape) - 2), dtype="float64")
    assert_close(by_rule(op, [x], slope), op_differences(op, [x], slope), 1e-6)


def test_the_first_maximum_wins_and_nan_before_all() -> None:
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2)}
    nan, inf = np.nan, -np.inf
    x = np.array([[1, 1, nan, 2, inf, inf], [1, 1, 3, nan, inf, inf]], np.float32).reshape(1, 1, 2, 6)
    slope = np.array([5, 6, 7], np.float32).reshape(1, 1, 1, 3)
    (found,) = by_rule("MaxPool", [x], slope, attrs)
    np.testing.assert_array_equal(found[0, 0], [[5, 0, 6, 0, 7, 0], [0, 0, 0, 0, 0, 0]])


def test_each_gradient_reads_what_it_needs() -> None:
    x, attrs = floats(1, 2, 4, 4), {"kernel_shape": (2, 2)}
    for op, options, reads in (
        ("MaxPool", attrs, ["dy", "x0"]),
        ("GlobalMaxPool", {}, ["dy", "x0"]),
        ("AveragePool", attrs, ["dy"]),
        ("GlobalAveragePool", {}, ["dy"]),
    ):
        graph, _ = gradient_graph(op, [x], options)
        assert [value.name for _, value in graph.nodes[-1].data_inputs] == reads
        rule = get_op(op).gradient
        assert rule is not None
        assert rule.needs_inputs == ((0,) if "x0" in reads else ())


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("MaxPoolGrad", ((1, 2, 3, 3), (1, 2, 5, 5)), {"kernel_shape": (2, 2)}, r"is f32\[1,2,4,4\]"),
        ("AveragePoolGrad", ((1, 2, 3),), {"kernel_shape": (2,), "input_shape": (1, 2, 5)}, r"is f32\[1,2,4\]"),
        ("GlobalAveragePoolGrad", ((1, 2, 3),), {"input_shape": (1, 2, 5)}, "one number for each channel"),
    ],
)
def test_what_does_not_fit_is_named(op: str, shapes: Any, attrs: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        make_query(op, [floats(*shape) for shape in shapes], attrs)


@pytest.mark.parametrize(("kernel", "stride", "pad", "ceil"), [(3, 2, 1, False), (2, 2, 0, True), (3, 1, 1, False)])
def test_by_pytorch(kernel: int, stride: int, pad: int, ceil: bool) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    x = floats(2, 3, 7, 9).round(1)  # with equal maxima
    attrs = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4, "ceil_mode": int(ceil)}
    slope = floats(*reference("MaxPool", [x], attrs)[0].shape, seed=1)
    wanted = by_torch(lambda x: functional.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil), [x], slope)
    assert_close(by_rule("MaxPool", [x], slope, attrs), wanted)
    wanted = by_torch(
        lambda x: functional.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil, count_include_pad=True), [x], slope
    )
    assert_close(by_rule("AveragePool", [x], slope, attrs | {"count_include_pad": 1}), wanted)
    slope = floats(2, 3, 1, 1)
    wanted = by_torch(lambda x: functional.adaptive_max_pool2d(x, 1), [x], slope)
    assert_close(by_rule("GlobalMaxPool", [x], slope), wanted)
