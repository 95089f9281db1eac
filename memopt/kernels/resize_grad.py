"""Kernels: the gradient of resizing two axes; images and geometry as in `memopt.kernels.resize`.

Holds true: dX is set, not added to; each of its elements sums what it gave in the order of dY.
"""

from __future__ import annotations

import numpy as np

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.resize import clamped, place, share_table, take_table, taken

__all__ = ["linear", "nearest"]


@register_jitable
def clear(dx):
    """dx = 0, a matrix."""
    for i in range(dx.shape[0]):
        for j in range(dx.shape[1]):
            dx[i, j] = 0


@register_jitable
def nearest(
    dx, dy, table, rounding, inner,
    row_before, row_factor, row_divisor, row_after, before, factor, divisor, after,
):  # fmt: skip
    """Each element gathers the gradients of the positions that took it."""
    outer, rows, _ = dy.shape
    h, w = dx.shape[1], dx.shape[2] // inner
    take_table(table, w, rounding, before, factor, divisor, after)
    for n in range(outer):
        clear(dx[n])
        for i in range(rows):
            line = taken(place(i, row_before, row_factor, row_divisor, row_after), rounding, h)
            to, source = dx[n, line], dy[n, i]
            for j in range(table.size):
                s = table[j] * inner
                for c in range(inner):
                    to[s + c] += source[j * inner + c]
    return STATUS_OK


@register_jitable
def spread(to, source, share, table, inner, w):
    """Add one row of dY, times `share`, to the columns that it is made of."""
    one = to.dtype.type(1)
    for j in range(table.shape[1]):
        left = int(table[0, j]) * inner
        right = min(left + inner, (w - 1) * inner)
        part = table[1, j]
        for c in range(inner):
            value = share * source[j * inner + c]
            to[left + c] += (one - part) * value
            to[right + c] += part * value


@register_jitable
def linear(
    dx, dy, table, inner,
    row_before, row_factor, row_divisor, row_after, before, factor, divisor, after,
):  # fmt: skip
    """Each position gives its gradient back to its two neighbours on each axis, in the shares that it took."""
    outer, rows, _ = dy.shape
    h, w = dx.shape[1], dx.shape[2] // inner
    share_table(table, w, before, factor, divisor, after)
    for n in range(outer):
        clear(dx[n])
        for i in range(rows):
            at = clamped(place(i, row_before, row_factor, row_divisor, row_after), h)
            line, share = int(at), dx.dtype.type(at - np.floor(at))
            spread(dx[n, line], dy[n, i], dx.dtype.type(1) - share, table, inner, w)
            spread(dx[n, min(line + 1, h - 1)], dy[n, i], share, table, inner, w)
    return STATUS_OK
