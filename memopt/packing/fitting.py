# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: PLR0913, SIM102 -- numba kernels take arrays and scalars
"""First-fit in a given order, in numba: handles pins, gaps and alignments; no conflict graph, linear memory.

The placed buffers stand in one list by offset. A new one walks it from below, over those that it meets in time, and
stops at the first hole that takes it: at most as many steps as buffers are placed, few when holes are low.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["fit_in_order"]


@njit(cache=True, nogil=True)
def _meet(first, lower, upper, a, b):
    """Whether any piece of `a` overlaps any piece of `b` in time."""
    for i in range(first[a], first[a + 1]):
        for j in range(first[b], first[b + 1]):
            if lower[i] < upper[j] and lower[j] < upper[i]:
                return True
    return False


@njit(cache=True, nogil=True)
def _insert(shelf, k, row):
    """Put `row` (offset, top, start, end, buffer) into the first `k` rows of `shelf`, which lie by offset; how far."""
    i = k
    while i > 0 and shelf[i - 1, 0] > row[0]:
        for column in range(5):
            shelf[i, column] = shelf[i - 1, column]
        i -= 1
    for column in range(5):
        shelf[i, column] = row[column]
    return k - i


@njit(cache=True, nogil=True)
def fit_in_order(offset, order, size, align, pieces, fixed, limit, work, shelf):
    """Fill `offset` for `order` (its first `fixed` entries keep theirs); return the height.

    -1 if the height would pass `limit` or the steps `work`. `pieces`: first piece of each buffer; piece `i` in
    `first[b]:first[b + 1]` is active in `[lower[i], upper[i])`, any int64 times. `shelf`: scratch, (buffers, 5).
    Nothing wraps as long as `limit` <= 2^63 - 1 - the largest alignment.
    """
    first, lower, upper = pieces
    height = np.int64(0)
    for k in range(order.size):
        b = order[k]
        start, end = lower[first[b]], upper[first[b + 1] - 1]
        at = offset[b] if k < fixed else np.int64(0)
        if k >= fixed:
            i = 0
            while i < k and (shelf[i, 0] < at or shelf[i, 0] - at < size[b]):
                if shelf[i, 1] > at and shelf[i, 2] < end and shelf[i, 3] > start:
                    if _meet(first, lower, upper, shelf[i, 4], b):
                        at = (shelf[i, 1] + align[b] - 1) // align[b] * align[b]
                i += 1
            work -= i
            offset[b] = at
        if at > limit - size[b] or work < 0:
            return np.int64(-1)
        height = max(height, at + size[b])
        work -= _insert(shelf, k, (at, at + size[b], start, end, b))
    return height
