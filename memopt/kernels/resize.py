"""Kernels: resize two axes of an image seen as (outer, rows, columns * inner).

Holds true: position i of an axis lies at (i + before) * factor / divisor + after, in float32, as in
`memopt.ops.resize_tables`. `table` is scratch. No output is read before it is set.
"""

from __future__ import annotations

import numpy as np

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.movement import copy

__all__ = ["linear", "nearest"]


@register_jitable
def place(i, before, factor, divisor, after):
    """Where position i lies in the source."""
    scaled = (np.float32(i) + np.float32(before)) * np.float32(factor)
    return np.float32(np.float32(scaled / np.float32(divisor)) + np.float32(after))


@register_jitable
def taken(at, rounding, size):
    """The element nearest to the place `at`, the lower (0) or upper (1) of two; always the lower (2) or upper (3)."""
    wide = np.float64(at)
    if rounding == 0:
        found = np.ceil(wide - 0.5)
    elif rounding == 1:
        found = np.floor(wide + 0.5)
    elif rounding == 2:
        found = np.floor(wide)
    else:
        found = np.ceil(wide)
    return min(max(int(found), 0), size - 1)


@register_jitable
def take_table(table, size, rounding, before, factor, divisor, after):
    """table[j] = the element that position j takes."""
    for j in range(table.size):
        table[j] = taken(place(j, before, factor, divisor, after), rounding, size)


@register_jitable
def nearest(
    out, x, table, rounding, inner,
    row_before, row_factor, row_divisor, row_after, before, factor, divisor, after,
):  # fmt: skip
    """Each position takes the nearest element; a row that is the one before it is copied from there."""
    outer, rows, _ = out.shape
    h, w = x.shape[1], x.shape[2] // inner
    take_table(table, w, rounding, before, factor, divisor, after)
    for n in range(outer):
        last = -1
        for i in range(rows):
            line = taken(place(i, row_before, row_factor, row_divisor, row_after), rounding, h)
            to, source = out[n, i], x[n, line]
            if line == last:
                copy(to, out[n, i - 1])
            elif inner == 1:
                for j in range(table.size):
                    to[j] = source[table[j]]
            else:
                for j in range(table.size):
                    s = table[j] * inner
                    copy(to[j * inner : (j + 1) * inner], source[s : s + inner])
            last = line
    return STATUS_OK


@register_jitable
def clamped(at, size):
    """The place `at`, moved to the nearer end if it is outside."""
    return min(max(at, np.float32(0)), np.float32(size - 1))


@register_jitable
def share_table(table, size, before, factor, divisor, after):
    """table[:, j] = the lower of the two elements of which position j is made, and the share of the upper one."""
    for j in range(table.shape[1]):
        at = clamped(place(j, before, factor, divisor, after), size)
        table[0, j] = np.floor(at)
        table[1, j] = at - np.floor(at)


@register_jitable
def blend(to, top, bottom, share, table, inner, w):
    """One row of the result, of two rows of the source, the second with weight `share`."""
    one = to.dtype.type(1)
    for j in range(table.shape[1]):
        left = int(table[0, j]) * inner
        right = min(left + inner, (w - 1) * inner)
        part = table[1, j]
        for c in range(inner):
            above = (one - part) * top[left + c] + part * top[right + c]
            below = (one - part) * bottom[left + c] + part * bottom[right + c]
            to[j * inner + c] = (one - share) * above + share * below


@register_jitable
def linear(
    out, x, table, inner,
    row_before, row_factor, row_divisor, row_after, before, factor, divisor, after,
):  # fmt: skip
    """Each position is a weighted sum of its two neighbours on each axis."""
    outer, rows, _ = out.shape
    h, w = x.shape[1], x.shape[2] // inner
    share_table(table, w, before, factor, divisor, after)
    for i in range(rows):
        at = clamped(place(i, row_before, row_factor, row_divisor, row_after), h)
        line = int(at)
        share = out.dtype.type(at - np.floor(at))
        for n in range(outer):
            blend(out[n, i], x[n, line], x[n, min(line + 1, h - 1)], share, table, inner, w)
    return STATUS_OK
