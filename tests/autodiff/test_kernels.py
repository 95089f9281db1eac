"""Kernels of the gradient ops and losses: against the reference, in place over every operand, and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.errors import ExecutionError
from memopt.ops import get_op
from tests.kernels.checks import call_of, check_kernel, execute
from tests.ops.test_elementwise import random

HARD = np.array([1, -1, 0, -0.0, 0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 20, -20, np.inf, -np.inf, np.nan, 1e-8], "float32")
OF_ONE = ("ReluGrad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SigmoidGrad", "TanhGrad", "SqrtGrad", "ReciprocalGrad",
          "SoftplusGrad", "SoftsignGrad", "HardSigmoidGrad", "ClipGrad", "HardSwishGrad", "SinGrad", "CosGrad",
          "ErfGrad", "GeluGrad", "AbsGrad", "PReluGradSlope", "DivOrZero")  # fmt: skip


@pytest.mark.parametrize("op", OF_ONE)
def test_of_one_value(op):
    grad, y = random((600,), seed=1), random((600,))
    check_kernel(op, [grad, np.abs(y) + 0.1 if op == "SqrtGrad" else y], plain=False)
    check_kernel(op, [random((HARD.size,), seed=2), HARD])


@pytest.mark.parametrize("op", ["ReluGrad", "GeluGrad"])
def test_broadcast(op):
    check_kernel(op, [random((1, 20), "float64", 3), random((20, 1), "float64")], plain=False)


def test_attributes():
    grad, x = random((50,), seed=1), random((50,))
    check_kernel("EluGrad", [grad, x], alpha=-0.5, of="input")
    check_kernel("SeluGrad", [grad, x], gamma=-1.5, of="input")
    check_kernel("GeluGrad", [grad, x], approximate="tanh")
    for limits in ({"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}):
        check_kernel("ClipGrad", [grad, np.clip(x, -0.5, 0.5)], **limits)


def test_of_several():
    a, b, c = (random((3, 4), seed=seed) for seed in range(3))
    check_kernel("PReluGrad", [a, b, c])
    check_kernel("DivGrad", [a, b, c])
    check_kernel("MSELossGrad", [a, b, c], factor=0.25)
    check_kernel("MSELossGrad", [random(()), b, c])
    check_kernel("Scale", [a], factor=-3.0)
    for invert in (0, 1):
        check_kernel("Masked", [a, random((4,), "bool")], invert=invert)
    for exponent in (c, np.array([[0, 1, 2, -1]], "int32")):
        check_kernel("PowGrad", [a, np.abs(b), exponent])
        check_kernel("PowGradExponent", [a, np.abs(b), exponent])
    x = np.round(random((2, 6), seed=5))
    check_kernel("ExtremumGrad", [random((2, 6)), np.maximum(x, 0), x, np.zeros(6, "f"), x], index=1)
    x = np.array([[0, 2, 3], [1, -2, 3], [0, 0, 4]], "f")
    rest, zeros = np.array([[6], [-6], [4]], "f"), np.array([[1], [0], [2]], "f")
    check_kernel("ReduceProdGrad", [random((3, 1)), rest, zeros, x])


@pytest.mark.parametrize("op", ["SoftmaxGrad", "LogSoftmaxGrad"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3), 1), ((4, 300), -1), ((300, 3), 0), ((2, 5, 290), 1), ((2, 0), 1), ((7,), 0)]
)
def test_along_an_axis(op, shape, axis):
    y = np.abs(random(shape)) / 4
    check_kernel(op, [random(shape, seed=1), y - 2 if op == "LogSoftmaxGrad" else y], axis=axis, plain=y.size < 100)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 2, 2), (300, 2), (1, 300), (0, 3)])
def test_cross_entropy(reduction, shape):
    rng = np.random.default_rng(3)
    scores = random(shape)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    small = {"plain": scores.size < 100, "reduction": reduction}
    (loss,) = check_kernel("SoftmaxCrossEntropyLoss", [scores, labels], **small)
    log_prob = np.log(np.abs(random(shape)) + 0.01)
    check_kernel("SoftmaxCrossEntropyLossGrad", [np.asarray(loss), log_prob, labels.astype("int32")], **small)
    if labels.size:
        ignored = {**small, "ignore_index": int(labels.flat[0])}
        check_kernel("SoftmaxCrossEntropyLoss", [scores, labels], **ignored)
        check_kernel("SoftmaxCrossEntropyLossGrad", [np.asarray(loss), log_prob, labels], **ignored)


def test_cross_entropy_with_log_prob_in_place():
    scores, labels = random((4, 5)), np.array([0, 4, 2, 2])
    spec = get_op("SoftmaxCrossEntropyLoss")
    from memopt.ops import KernelQuery
    from tests.kernels.checks import types_of

    attrs = spec.complete_attrs({})
    outputs = tuple(spec.infer(types_of([scores, labels]), attrs, 2))
    call = spec.kernel(KernelQuery(types_of([scores, labels]), outputs, attrs))
    want = spec.reference([scores, labels], attrs, outputs)
    loss, log_prob, over = np.empty((), "f"), np.empty((4, 5), "f"), scores.copy()
    execute(call, [scores, labels], [loss, log_prob])
    np.testing.assert_allclose(loss, want[0], rtol=1e-6)
    np.testing.assert_allclose(log_prob, want[1], rtol=1e-5)
    execute(call, [over, labels], [loss, over])
    np.testing.assert_array_equal(over, log_prob)


def test_a_label_out_of_range():
    scores, labels = random((2, 3)), np.array([0, 3])
    call, _, outputs, attrs = call_of("SoftmaxCrossEntropyLoss", [scores, labels % 3])
    with pytest.raises(AssertionError):
        execute(call, [scores, labels], [np.empty((), "f")])
    with pytest.raises(ExecutionError, match=r"not in \[0, 3\)"):
        get_op("SoftmaxCrossEntropyLoss").reference([scores, labels], attrs, outputs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_squared_error(reduction):
    check_kernel("MSELoss", [random((3, 4)), random((3, 4), seed=1)], reduction=reduction)
    check_kernel("MSELoss", [random((700,)), random((700,), seed=1)], reduction=reduction, plain=False)


def test_movement():
    check_kernel("GatherGrad", [random((2, 2, 3)), np.array([[0, 2], [2, -1]])], shape=(4, 3))
    check_kernel("GatherGrad", [random((2, 3, 5)), np.array([1, 1, 0], "int32")], shape=(2, 4, 5), axis=1)
    check_kernel("GatherGrad", [random((0, 5)), np.zeros(0, "int64")], shape=(4, 5))
    check_kernel("SliceGrad", [random((2, 3))], shape=(4, 5), starts=(0, -1), ends=(4, -9), steps=(2, -2))
    check_kernel("SliceGrad", [random((0, 5))], shape=(4, 5), starts=(3,), ends=(1,), steps=(2,))
    check_kernel("PadGrad", [random((6, 8))], shape=(3, 4), pads=(2, 1, 1, 3), mode="reflect")
    check_kernel("PadGrad", [random((2, 4, 8))], shape=(2, 3, 4), pads=(0, 2, 1, 0, -1, 3), mode="edge")
    check_kernel("PadGrad", [random((4, 2))], shape=(3, 4), pads=(1, -1, 0, -1))
    assert call_of("GatherGrad", [random((1, 3)), np.array([0])], shape=(4, 3))[0] is not None


@pytest.mark.parametrize("batches", [((), ()), ((2,), ()), ((), (2,)), ((2, 1), (1, 3))])
@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(batches, trans):
    a = random((*batches[0], *((4, 3) if trans[0] else (3, 4))))
    b = random((*batches[1], *((5, 4) if trans[1] else (4, 5))), seed=1)
    for x, y in (
        (a, b),
        (a[..., :1, :] if not trans[0] else a[..., :1], b),
        (a, b[..., :1, :] if trans[1] else b[..., :1]),
    ):
        check_kernel(
            "FusedMatMul",
            [np.ascontiguousarray(x), np.ascontiguousarray(y)],
            transA=trans[0],
            transB=trans[1],
            alpha=0.5,
        )
