"""Gradient rules of the matrix products: each reads the other operand, and nothing else.

A transposed operand is an attribute of the product, never a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from memopt.ops.gradients import reshape_to, sum_to
from memopt.ops.spec import GradientRule

__all__ = ["GRADIENTS"]


def _product(builder: Any, a: Any, b: Any, options: tuple[Any, Any, float]) -> Any:
    """alpha op(a) op(b), `options` being (transA, transB, alpha); two matrices are a Gemm."""
    trans_a, trans_b, alpha = options
    if len(a.shape) == len(b.shape) == 2:
        return builder.op("Gemm", a, b, transA=trans_a, transB=trans_b, alpha=alpha)
    return builder.op("FusedMatMul", a, b, transA=trans_a, transB=trans_b, alpha=alpha)


def _weights_grad(builder: Any, a: Any, grad: Any, alpha: float) -> Any:
    """The gradient of a matrix that a whole batch of `a` was multiplied with: one product over all its rows."""
    rows = math.prod(a.shape[:-1])
    left = reshape_to(builder, a, (rows, a.shape[-1]))
    return builder.op("Gemm", left, reshape_to(builder, grad, (rows, grad.shape[-1])), transA=1, alpha=alpha)


def _matmul(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """Y = alpha op(A) op(B): vectors are matrices of one row (A) or one column (B)."""
    a, b = node.inputs
    trans_a, trans_b = (int(bool(node.attrs.get(name, 0))) for name in ("transA", "transB"))
    alpha = float(node.attrs.get("alpha", 1.0))
    left = a if len(a.shape) > 1 else reshape_to(builder, a, (1, *a.shape))
    right = b if len(b.shape) > 1 else reshape_to(builder, b, (*b.shape, 1))
    rows, columns = left.shape[-1 if trans_a else -2], right.shape[-2 if trans_b else -1]
    batch = node.outputs[0].shape[: len(node.outputs[0].shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    grad = reshape_to(builder, grads[0], (*batch, rows, columns))
    found: list[Any] = [None, None]
    if builder.wants(0):
        options = (trans_b, 1, alpha) if trans_a else (0, 1 - trans_b, alpha)
        part = _product(builder, *((right, grad) if trans_a else (grad, right)), options)
        found[0] = reshape_to(builder, sum_to(builder, part, left.shape), a.shape)
    if builder.wants(1):
        if len(right.shape) == 2 and not trans_a and not trans_b and left.shape[:-2] == batch:
            part = _weights_grad(builder, left, grad, alpha)
        else:
            options = (1, trans_a, alpha) if trans_b else (1 - trans_a, 0, alpha)
            part = _product(builder, *((grad, left) if trans_b else (left, grad)), options)
        found[1] = reshape_to(builder, sum_to(builder, part, right.shape), b.shape)
    return found


def _gemm(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """Y = alpha op(A) op(B) + beta C."""
    (a, b), grad = node.inputs[:2], grads[0]
    trans_a, trans_b = (int(bool(node.attrs[name])) for name in ("transA", "transB"))
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])
    found: list[Any] = [None] * len(node.inputs)
    if builder.wants(0):
        options = (trans_b, 1, alpha) if trans_a else (0, 1 - trans_b, alpha)
        found[0] = _product(builder, *((b, grad) if trans_a else (grad, b)), options)
    if builder.wants(1):
        options = (1, trans_a, alpha) if trans_b else (1 - trans_a, 0, alpha)
        found[1] = _product(builder, *((grad, a) if trans_b else (a, grad)), options)
    if builder.wants(2):
        summed = sum_to(builder, grad, node.inputs[2].shape)
        found[2] = summed if beta == 1 else builder.op("Scale", summed, factor=beta)
    return found


GRADIENTS: dict[str, GradientRule] = {
    "MatMul": GradientRule(_matmul, needs_inputs=(0, 1)),
    "FusedMatMul": GradientRule(_matmul, needs_inputs=(0, 1)),
    "Gemm": GradientRule(_gemm, needs_inputs=(0, 1)),
}
