"""Kernels of gradients along an axis, over flat arrays seen as (outer, axis, inner).

Holds true: sums accumulate in float64; a whole column is read for its sum before any of it is written, and each element
is read just before it is written, so dx may be the bytes of dy or of y.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.elementwise_scalar import exp
from memopt.kernels.local import BLOCK, block_like, block_wide, like
from memopt.kernels.reduction import RUN

__all__ = ["log_softmax_grad", "softmax_grad"]


@register_jitable
def softmax_grad(dx, dy, y, outer, axis, inner):
    """dx = y * (dy - sum(dy * y))."""
    total, block = block_wide(dy), block_like(dy)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            base = o * axis * inner + i
            _sums(total, dy, y, base, axis, inner, width, True)
            if inner == 1:
                for k in range(0, axis, BLOCK):
                    size = min(BLOCK, axis - k)
                    grad, value, out = dy[base + k : base + k + size], y[base + k : base + k + size], dx[base + k :]
                    for j in range(size):
                        block[j] = like(value[j] * (grad[j] - total[0]), block[0])
                    for j in range(size):
                        out[j] = block[j]
            else:
                for k in range(axis):
                    at = base + k * inner
                    grad, value, out = dy[at : at + width], y[at : at + width], dx[at:]
                    for j in range(width):
                        block[j] = like(value[j] * (grad[j] - total[j]), block[0])
                    for j in range(width):
                        out[j] = block[j]
    return STATUS_OK


@register_jitable
def log_softmax_grad(dx, dy, y, outer, axis, inner):
    """dx = dy - exp(y) * sum(dy)."""
    total, block = block_wide(dy), block_like(dy)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            base = o * axis * inner + i
            _sums(total, dy, y, base, axis, inner, width, False)
            if inner == 1:
                for k in range(0, axis, BLOCK):
                    size = min(BLOCK, axis - k)
                    grad, value, out = dy[base + k : base + k + size], y[base + k : base + k + size], dx[base + k :]
                    for j in range(size):
                        block[j] = like(grad[j] - exp(value[j]) * total[0], block[0])
                    for j in range(size):
                        out[j] = block[j]
            else:
                for k in range(axis):
                    at = base + k * inner
                    grad, value, out = dy[at : at + width], y[at : at + width], dx[at:]
                    for j in range(width):
                        block[j] = like(grad[j] - exp(value[j]) * total[j], block[0])
                    for j in range(width):
                        out[j] = block[j]
    return STATUS_OK


@register_jitable
def _sums(total, dy, y, base, axis, inner, width, weighted):
    """total[j] = the sum of dy (times y, if `weighted`) along the axis at column j."""
    for j in range(width):
        total[j] = 0.0
    if inner == 1:
        lanes = min(RUN, axis)
        for j in range(lanes):
            total[j] = 0.0
        for k in range(0, axis, RUN):
            size = min(RUN, axis - k)
            grad, value = dy[base + k : base + k + size], y[base + k : base + k + size]
            for j in range(size):
                wide = like(grad[j], total[0])
                total[j] += wide * value[j] if weighted else wide
        for j in range(1, lanes):
            total[0] += total[j]
    else:
        for k in range(axis):
            at = base + k * inner
            grad, value = dy[at : at + width], y[at : at + width]
            for j in range(width):
                wide = like(grad[j], total[0])
                total[j] += wide * value[j] if weighted else wide
