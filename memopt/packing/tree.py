# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: PLR0913 -- numba kernels take arrays and scalars
"""A k-d tree over (start, end) in numba: the best buffer that lives within a stretch of time.

Holds true: buffers are numbered as `build_tree` says, so that node i covers `bounds[i, 0]:bounds[i, 1]`; it has the
children 2 i + 1 and 2 i + 2; `box[i]` holds, of the buffers below it that are not placed yet, the smallest and
largest start, the smallest and largest end and the best (smallest) rank. A look-up takes O(sqrt n) nodes at worst and
mostly O(log n); memory is O(n).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from memopt.packing.table import Ints

__all__ = ["NONE", "best_within", "build_tree", "fill_boxes", "remove"]

LEAF = 8  # buffers in a leaf
NONE = np.int64(2**62)  # the rank of no buffer


@njit(cache=True, nogil=True)
def _select(perm, low, high, middle, key):
    """Reorder `perm[low:high]` so that `perm[middle]` is what sorting by `key` puts there (quickselect)."""
    high -= 1
    while low < high:
        pivot = key[perm[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            while key[perm[i]] < pivot:
                i += 1
            while key[perm[j]] > pivot:
                j -= 1
            if i <= j:
                perm[i], perm[j] = perm[j], perm[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@njit(cache=True, nogil=True)
def _split(perm, leaf, bounds, depth, start, end):
    """Halve the nodes level by level, by start and end in turn."""
    level = 0
    for node in range(bounds.shape[0]):
        low, high = bounds[node, 0], bounds[node, 1]
        while node >= (2 << level) - 1:
            level += 1
        if level == depth:
            leaf[low:high] = node
            continue
        middle = (low + high) // 2
        if high - low > 1:
            _select(perm, low, high, middle, start if level % 2 == 0 else end)
        bounds[2 * node + 1, 0], bounds[2 * node + 1, 1] = low, middle
        bounds[2 * node + 2, 0], bounds[2 * node + 2, 1] = middle, high


def build_tree(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """(perm, leaf, bounds): buffer `perm[i]` gets the number i, `leaf[i]` is its leaf."""
    num = start.size
    depth = max(0, (max(num - 1, 0) // LEAF).bit_length())
    bounds = np.zeros(((2 << depth) - 1, 2), np.int64)
    bounds[0, 1] = num
    perm, leaf = np.arange(num), np.zeros(num, np.int64)
    _split(perm, leaf, bounds, depth, start, end)
    return perm, leaf, bounds


@njit(cache=True, nogil=True)
def _join(box, node):
    left, right = 2 * node + 1, 2 * node + 2
    box[node, 0] = min(box[left, 0], box[right, 0])
    box[node, 1] = max(box[left, 1], box[right, 1])
    box[node, 2] = min(box[left, 2], box[right, 2])
    box[node, 3] = max(box[left, 3], box[right, 3])
    box[node, 4] = min(box[left, 4], box[right, 4])


@njit(cache=True, nogil=True)
def _fill_leaf(box, node, low, high, start, end, rank):
    box[node, 0], box[node, 1], box[node, 2], box[node, 3], box[node, 4] = NONE, -NONE, NONE, -NONE, NONE
    for b in range(low, high):
        if rank[b] != NONE:
            box[node, 0] = min(box[node, 0], start[b])
            box[node, 1] = max(box[node, 1], start[b])
            box[node, 2] = min(box[node, 2], end[b])
            box[node, 3] = max(box[node, 3], end[b])
            box[node, 4] = min(box[node, 4], rank[b])


@njit(cache=True, nogil=True)
def fill_boxes(box, bounds, start, end, rank):
    """Set the boxes of all nodes from `rank` (NONE: placed)."""
    nodes = bounds.shape[0]
    for node in range(nodes - 1, -1, -1):
        if node >= nodes // 2:
            _fill_leaf(box, node, bounds[node, 0], bounds[node, 1], start, end, rank)
        else:
            _join(box, node)


@njit(cache=True, nogil=True)
def remove(box, node, bounds, start, end, rank):
    """Bring leaf `node` and all above it up to date after the rank of one of its buffers became NONE."""
    _fill_leaf(box, node, bounds[node, 0], bounds[node, 1], start, end, rank)
    while node > 0:
        node = (node - 1) // 2
        _join(box, node)


@njit(cache=True, nogil=True)
def best_within(box, bounds, stack, start, end, rank, low, high, lower, upper):
    """The smallest rank of a buffer with low <= start <= high and lower <= end <= upper, or NONE."""
    best = NONE
    leaves = bounds.shape[0] // 2
    stack[0] = 0
    top = 1
    while top > 0:
        top -= 1
        node = stack[top]
        if box[node, 4] >= best or box[node, 1] < low or box[node, 2] > upper:
            continue
        if box[node, 0] > high or box[node, 3] < lower:
            continue
        if box[node, 0] >= low and box[node, 1] <= high and box[node, 2] >= lower and box[node, 3] <= upper:
            best = box[node, 4]
        elif node >= leaves:
            for b in range(bounds[node, 0], bounds[node, 1]):
                if rank[b] < best and low <= start[b] <= high and lower <= end[b] <= upper:
                    best = rank[b]
        else:
            left, right = 2 * node + 1, 2 * node + 2
            if box[left, 4] < box[right, 4]:
                left, right = right, left
            stack[top], stack[top + 1] = left, right  # the more promising one on top
            top += 2
    return best
