"""The skyline planner in numba: near-linear, linear memory, no conflict graph.

The skyline is the list of plateaus (a stretch of time and the lowest free byte above it). Each turn takes the lowest
plateau and sets on it, of the buffers whose lifetimes lie within it, the one of highest priority; where there is none,
the plateau is raised to its lower neighbour. Every buffer is looked up in a k-d tree over (start, end) whose nodes hold
the bounds and the best priority of what is not placed yet: O(log n) to O(sqrt n) a look-up, O(n) memory. The idea of
filling the lowest line goes back to Burke et al. (2004) and, for lifetimes, Sekiyama et al. (2018).

Holds true: `offset` is a valid placement for whole lifetimes (gaps are not used) without pins; a height above
`limit` ends the run early and returns -1, and nothing wraps as long as `limit` <= 2^63 - 1 - the largest alignment.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["build_tree", "skyline"]

LEAF = 8  # buffers in a leaf of the tree


@njit(cache=True, nogil=True)
def _select(perm, low, high, middle, key):
    """Partition `perm[low:high]` so that the entry at `middle` is the one that sorting by `key` puts there."""
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
def build_tree(start, end):
    """The k-d tree over `start` and `end`: (perm, where, bounds); node i covers perm[bounds[i, 0]:bounds[i, 1]]."""
    n = start.size
    depth = 0
    while (LEAF << depth) < n:
        depth += 1
    nodes = (2 << depth) - 1
    bounds = np.zeros((nodes, 2), np.int64)
    bounds[0, 1] = n
    perm = np.arange(n)
    where = np.zeros(n, np.int64)
    first_leaf = (1 << depth) - 1
    level = 0
    for node in range(nodes):
        low, high = bounds[node]
        while node >= (2 << level) - 1:
            level += 1
        if node >= first_leaf:
            for i in range(low, high):
                where[perm[i]] = node
            continue
        middle = (low + high) // 2
        if high - low > 1:
            _select(perm, low, high, middle, start if level % 2 == 0 else end)
        bounds[2 * node + 1, 0], bounds[2 * node + 1, 1] = low, middle
        bounds[2 * node + 2, 0], bounds[2 * node + 2, 1] = middle, high
    return perm, where, bounds


@njit(cache=True, nogil=True)
def _refresh(box, node, left, right):
    """box columns: smallest start, largest start, smallest end, largest end, best rank."""
    box[node, 0] = min(box[left, 0], box[right, 0])
    box[node, 1] = max(box[left, 1], box[right, 1])
    box[node, 2] = min(box[left, 2], box[right, 2])
    box[node, 3] = max(box[left, 3], box[right, 3])
    box[node, 4] = min(box[left, 4], box[right, 4])


@njit(cache=True, nogil=True)
def _refresh_leaf(box, node, low, high, perm, start, end, rank, placed):
    far = np.int64(1) << 62
    box[node, 0], box[node, 1], box[node, 2], box[node, 3], box[node, 4] = far, -far, far, -far, far
    for i in range(low, high):
        b = perm[i]
        if placed[b]:
            continue
        box[node, 0] = min(box[node, 0], start[b])
        box[node, 1] = max(box[node, 1], start[b])
        box[node, 2] = min(box[node, 2], end[b])
        box[node, 3] = max(box[node, 3], end[b])
        box[node, 4] = min(box[node, 4], rank[b])


@njit(cache=True, nogil=True)
def _find(box, bounds, perm, first_leaf, stack, start, end, rank, placed, lower, upper):
    """The rank of the best buffer not placed that lives within [lower, upper), or a huge number."""
    best = np.int64(1) << 62
    stack[0] = 0
    top = 1
    while top > 0:
        top -= 1
        node = stack[top]
        if box[node, 4] >= best or box[node, 1] < lower or box[node, 2] > upper:
            continue
        if box[node, 0] >= lower and box[node, 3] <= upper:
            best = box[node, 4]
        elif node >= first_leaf:
            for i in range(bounds[node, 0], bounds[node, 1]):
                b = perm[i]
                if rank[b] < best and start[b] >= lower and end[b] <= upper and not placed[b]:
                    best = rank[b]
        else:
            left, right = 2 * node + 1, 2 * node + 2
            if box[left, 4] < box[right, 4]:
                left, right = right, left
            stack[top], stack[top + 1] = left, right  # the better one on top
            top += 2
    return best


@njit(cache=True, nogil=True)
def _push(heap, count, height, node, plateau):
    """Add plateau `node` to the binary heap ordered by (height, left end)."""
    i = count
    while i > 0:
        parent = (i - 1) // 2
        other = heap[parent]
        if height[other] < height[node] or (height[other] == height[node] and plateau[other] <= plateau[node]):
            break
        heap[i] = other
        i = parent
    heap[i] = node
    return count + 1


@njit(cache=True, nogil=True)
def _pop(heap, count, height, left):
    """Remove and return the lowest entry; `count` shrinks by one."""
    first = heap[0]
    count -= 1
    node = heap[count]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        other = heap[child]
        if child + 1 < count:
            rival = heap[child + 1]
            if height[rival] < height[other] or (height[rival] == height[other] and left[rival] < left[other]):
                child += 1
                other = rival
        if height[node] < height[other] or (height[node] == height[other] and left[node] <= left[other]):
            break
        heap[i] = other
        i = child
    heap[i] = node
    return first


@njit(cache=True, nogil=True)
def skyline(offset, start, end, size, align, rank, order, tree, span, limit):
    """Fill `offset` by the skyline rule and return the height, or -1 where it would pass `limit`.

    `start` and `end` are int64 in [0, span], `rank[b]` is the place of buffer b in `order`, `tree` is from `build_tree`.
    """
    n = size.size
    perm, where, bounds = tree
    nodes = bounds.shape[0]
    first_leaf = nodes // 2
    placed = np.zeros(n, np.bool_)
    box = np.empty((nodes, 5), np.int64)
    for node in range(nodes - 1, -1, -1):
        if node >= first_leaf:
            _refresh_leaf(box, node, bounds[node, 0], bounds[node, 1], perm, start, end, rank, placed)
        else:
            _refresh(box, node, 2 * node + 1, 2 * node + 2)
    stack = np.empty(128, np.int64)
    # plateaus: at most two new ones a buffer and one a raise; slots are reused through `free`
    slots = 2 * n + 4
    left = np.empty(slots, np.int64)
    right = np.empty(slots, np.int64)
    height = np.empty(slots, np.int64)
    before = np.empty(slots, np.int64)
    after = np.empty(slots, np.int64)
    heap = np.empty(slots, np.int64)
    free = np.empty(slots, np.int64)
    dead = np.zeros(slots, np.bool_)
    free_count = 0
    used = 1
    left[0], right[0], height[0], before[0], after[0] = 0, span, 0, -1, -1
    count = _push(heap, 0, height, 0, left)
    todo = n
    tallest = np.int64(0)
    none = np.int64(1) << 62
    while todo > 0:
        node = _pop(heap, count, height, left)
        count -= 1
        if dead[node]:
            dead[node] = False
            free[free_count] = node
            free_count += 1
            continue
        best = _find(box, bounds, perm, first_leaf, stack, start, end, rank, placed, left[node], right[node])
        a, c = before[node], after[node]
        if best == none:
            level = none * 2 - 1
            if a >= 0:
                level = height[a]
            if c >= 0 and height[c] < level:
                level = height[c]
            height[node] = level
        else:
            b = order[best]
            at = height[node]
            if align[b] > 1:
                at = (at + align[b] - 1) // align[b] * align[b]
            if at > limit - size[b]:
                return np.int64(-1)
            offset[b] = at
            placed[b] = True
            todo -= 1
            tallest = max(tallest, at + size[b])
            leaf = where[b]
            _refresh_leaf(box, leaf, bounds[leaf, 0], bounds[leaf, 1], perm, start, end, rank, placed)
            while leaf > 0:
                leaf = (leaf - 1) // 2
                _refresh(box, leaf, 2 * leaf + 1, 2 * leaf + 2)
            if start[b] > left[node]:
                if free_count > 0:
                    free_count -= 1
                    new = free[free_count]
                else:
                    new = used
                    used += 1
                left[new], right[new], height[new], before[new], after[new] = left[node], start[b], height[node], a, node
                if a >= 0:
                    after[a] = new
                before[node] = new
                a = new
                count = _push(heap, count, height, new, left)
            if end[b] < right[node]:
                if free_count > 0:
                    free_count -= 1
                    new = free[free_count]
                else:
                    new = used
                    used += 1
                left[new], right[new], height[new], before[new], after[new] = end[b], right[node], height[node], node, c
                if c >= 0:
                    before[c] = new
                after[node] = new
                c = new
                count = _push(heap, count, height, new, left)
            left[node], right[node] = start[b], end[b]
            height[node] = at + size[b]
        # merge with neighbours of the same height; they stay in the heap as dead entries
        if a >= 0 and height[a] == height[node]:
            dead[a] = True
            left[node] = left[a]
            before[node] = before[a]
            if before[a] >= 0:
                after[before[a]] = node
        if c >= 0 and height[c] == height[node]:
            dead[c] = True
            right[node] = right[c]
            after[node] = after[c]
            if after[c] >= 0:
                before[after[c]] = node
        count = _push(heap, count, height, node, left)
    return tallest
