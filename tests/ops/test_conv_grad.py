"""The gradients of Conv and ConvTranspose against central differences, against each other, and against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_gradients import by_rule, by_torch, gradient_graph, op_differences
from tests.nn_harness import assert_close, floats, make_query, reference
from tests.ops.test_conv import windows


def wide(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, seed=seed, dtype="float64")


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 4, 5), (4, 3, 3, 2), {"pads": (1, 0, 1, 1), "strides": (1, 2)}),
    ((1, 4, 5, 5), (4, 2, 3, 3), {"group": 2, "dilations": (2, 1), "auto_pad": "SAME_UPPER"}),
    ((2, 3, 4), (3, 1, 2), {"group": 3, "strides": (2,)}),
    ((1, 2, 3, 3, 2), (2, 2, 2, 2, 1), {}),
    ((2, 3, 2, 2), (2, 3, 1, 1), {"kernel_shape": (1, 1)}),
]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), CASES)
def test_conv_by_central_differences(x: Any, w: Any, attrs: Any, has_bias: bool) -> None:
    arrays = [wide(*x), wide(*w, seed=1), *([wide(w[0], seed=2)] if has_bias else [])]
    slope = wide(*reference("Conv", arrays, attrs)[0].shape, seed=3)
    assert_close(by_rule("Conv", arrays, slope, attrs), op_differences("Conv", arrays, slope, attrs), 1e-8)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_gradients_are_the_adjoints_of_conv(data: st.DataObject) -> None:
    # Y is linear in X and in W: <dY, conv(X, W)> = <dX, X> = <dW, W>.
    sizes, kernel, attrs = data.draw(windows(data.draw(st.sampled_from([1, 2, 3]))))
    group = data.draw(st.integers(1, 3))
    channels, maps = group * data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 3))
    x, w = wide(2, channels, *sizes), wide(maps, channels // group, *kernel, seed=1)
    attrs = attrs | {"group": group}
    try:
        y = reference("Conv", [x, w], attrs)[0]
    except TypeInferenceError:
        assume(False)
    slope = wide(*y.shape, seed=2)
    dx, dw = by_rule("Conv", [x, w], slope, attrs)
    assert dx is not None
    assert dw is not None
    wanted = float((slope * y).sum())
    np.testing.assert_allclose([(dx * x).sum(), (dw * w).sum()], [wanted, wanted], rtol=1e-9, atol=1e-9)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 3, 2), (3, 2, 2, 3), {"strides": (2, 1), "pads": (1, 0, 0, 1)}),
    ((1, 4, 3), (4, 1, 2), {"group": 2, "strides": (2,), "output_padding": (1,)}),
    ((1, 2, 3), (2, 2, 2), {"strides": (2,), "dilations": (2,), "output_padding": (3,)}),
    ((1, 2, 3, 3), (2, 1, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose_by_central_differences(x: Any, w: Any, attrs: Any) -> None:
    bias = w[1] * attrs.get("group", 1)
    arrays = [wide(*x), wide(*w, seed=1), wide(bias, seed=2)]
    slope = wide(*reference("ConvTranspose", arrays, attrs)[0].shape, seed=3)
    wanted = op_differences("ConvTranspose", arrays, slope, attrs)
    assert_close(by_rule("ConvTranspose", arrays, slope, attrs), wanted, 1e-8)


def test_each_gradient_reads_the_other_operand_only() -> None:
    graph, _ = gradient_graph("Conv", [floats(1, 2, 4, 4), floats(3, 2, 3, 3), floats(3)], {"pads": (1, 1, 1, 1)})
    reads = {node.op: [value.name for _, value in node.data_inputs] for node in graph.nodes}
    assert reads["ConvGradInput"] == ["dy", "x1"]
    assert reads["ConvGradWeight"] == ["dy", "x0"]
    assert reads["ReduceSum"] == ["dy"]


def test_half_precision_is_computed_in_single() -> None:
    x, w, slope = (floats(*shape, dtype="float16") for shape in ((1, 8, 6, 6), (4, 8, 3, 3), (1, 4, 4, 4)))
    half = by_rule("Conv", [x, w], slope)
    single = by_rule("Conv", [x.astype("float32"), w.astype("float32")], slope.astype("float32"))
    assert_close(half, [None if a is None else a.astype("float16") for a in single], 1e-3)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("ConvGradInput", ((1, 4, 3, 3), (4, 2, 3, 3)), {"input_shape": (1, 2, 6, 5)}, r"has shape \[1, 4, 4, 3\]"),
        ("ConvGradInput", ((1, 4, 3, 3), (4, 2, 3, 3)), {"input_shape": (1, 3, 5, 5)}, "group = 1 does not fit"),
        ("ConvGradWeight", ((1, 4, 3, 3), (1, 2, 5, 5)), {"kernel_shape": (2, 2)}, r"has shape \[1, 4, 4, 4\]"),
        ("ConvGradWeight", ((1, 4, 3, 3), (1, 3, 5, 5)), {"kernel_shape": (3, 3), "group": 2}, "group = 2 does not"),
        ("ConvGradWeight", ((1, 4, 3, 3), (1, 3, 5)), {"kernel_shape": (3,)}, "of one rank"),
    ],
)
def test_what_does_not_fit_is_named(op: str, shapes: Any, attrs: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        make_query(op, [floats(*shape) for shape in shapes], attrs)


@pytest.mark.parametrize(("x", "w", "attrs"), [case for case in CASES if "auto_pad" not in case[2]])
def test_conv_by_pytorch(x: Any, w: Any, attrs: Any) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    arrays = [floats(*x), floats(*w, seed=1), floats(w[0], seed=2)]
    rank = len(x) - 2
    pads = attrs.get("pads", (0,) * 2 * rank)
    around = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    convolve = getattr(functional, f"conv{rank}d")
    slope = floats(*reference("Conv", arrays, attrs)[0].shape, seed=3)

    def function(x: Any, w: Any, b: Any) -> Any:
        options = {"stride": attrs.get("strides", 1), "dilation": attrs.get("dilations", 1)}
        return convolve(functional.pad(x, around), w, b, groups=attrs.get("group", 1), **options)

    assert_close(by_rule("Conv", arrays, slope, attrs), by_torch(function, arrays, slope))


def test_the_ops_say_what_they_need() -> None:
    for name in ("Conv", "ConvTranspose"):
        rule = get_op(name).gradient
        assert rule is not None
        assert (rule.needs_inputs, rule.needs_outputs) == ((0, 1), ())
