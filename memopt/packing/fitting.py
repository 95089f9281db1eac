# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: PLR0913 -- numba kernels take arrays and scalars
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
def fit_in_order(offset, order, size, align, first, lower, upper, fixed, limit, work):
    """Fill `offset` for `order` (its first `fixed` entries keep theirs); return the height.

    -1 if the height would pass `limit` or the steps `work`. Piece `i` in `first[b]:first[b + 1]` is active in
    `[lower[i], upper[i])`, any int64 times. Nothing wraps as long as `limit` <= 2^63 - 1 - the largest alignment.
    """
    n = order.size
    stack = order.copy()  # by offset; the first `k` entries are placed
    zero = np.int64(0)
    height = zero
    for k in range(n):
        b = order[k]
        at = offset[b] if k < fixed else zero
        if k >= fixed:
            for i in range(k):
                p = stack[i]
                work -= 1
                if offset[p] >= at and offset[p] - at >= size[b]:
                    break
                if offset[p] + size[p] > at and _meet(first, lower, upper, p, b):
                    at = (offset[p] + size[p] + align[b] - 1) // align[b] * align[b]
            if at > limit - size[b] or work < 0:
                return zero - 1
            offset[b] = at
        height = max(height, at + size[b])
        i = k
        while i > 0 and offset[stack[i - 1]] > at:
            stack[i] = stack[i - 1]
            i -= 1
        stack[i] = b
    return height
