# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: PLR0913 -- numba kernels take arrays and scalars
"""The skyline planner in numba: near-linear time, linear memory, no conflict graph.

The skyline is a chain of plateaus (a stretch of time, and the lowest free byte above it). Each turn takes the lowest
plateau and sets on it, of the buffers whose lifetimes lie within it, the one of best rank (`tree`); where there is
none, the plateau is raised to its lower neighbour. Time is counted in sections (`table.Part`). Filling the lowest
line goes back to Burke et al. (2004) and, for lifetimes, to Sekiyama et al. (2018).

Holds true: plateaus cover the whole span, neighbours have different heights, and each lies once in a heap by (height,
left end), or is dead there and its slot is reused once it is popped. The result is valid for whole lifetimes (gaps are
not used) without pins. Nothing wraps as long as `limit` <= 2^63 - 1 - the largest alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from memopt.packing.pressure import add_pressure, make_pressure, most_pressed, pressure_of
from memopt.packing.table import Ints, Part
from memopt.packing.tree import NONE, best_within, build_tree, fill_boxes, remove

__all__ = ["SkylineInput", "skyline"]

# columns of a plateau
_LEFT, _RIGHT, _HEIGHT, _BEFORE, _AFTER, _DEAD = 0, 1, 2, 3, 4, 5
_TOP = np.int64(2**63 - 1)
_TRIES = 8


@njit(cache=True, nogil=True)
def _lower(plateaus, a, b):
    if plateaus[a, _HEIGHT] != plateaus[b, _HEIGHT]:
        return plateaus[a, _HEIGHT] < plateaus[b, _HEIGHT]
    return plateaus[a, _LEFT] < plateaus[b, _LEFT]


@njit(cache=True, nogil=True)
def _push(heap, count, plateaus, node):
    """Add `node`; the new count."""
    i = count
    while i > 0 and _lower(plateaus, node, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = node
    return count + 1


@njit(cache=True, nogil=True)
def _pop(heap, count, plateaus):
    """Remove and return the lowest entry; the caller counts down."""
    lowest, node = heap[0], heap[count - 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count - 1:
            break
        if child + 1 < count - 1 and _lower(plateaus, heap[child + 1], heap[child]):
            child += 1
        if not _lower(plateaus, heap[child], node):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = node
    return lowest


@njit(cache=True, nogil=True)
def _insert(plateaus, new, before, after, left, right, height):
    """Put plateau `new` between its neighbours (-1: none)."""
    plateaus[new, _LEFT], plateaus[new, _RIGHT], plateaus[new, _HEIGHT] = left, right, height
    plateaus[new, _BEFORE], plateaus[new, _AFTER], plateaus[new, _DEAD] = before, after, 0
    if before >= 0:
        plateaus[before, _AFTER] = new
    if after >= 0:
        plateaus[after, _BEFORE] = new


@njit(cache=True, nogil=True)
def _merge(plateaus, node):
    """Swallow the neighbours of `node` that have its height; they stay in the heap, dead."""
    a, c = plateaus[node, _BEFORE], plateaus[node, _AFTER]
    if a >= 0 and plateaus[a, _HEIGHT] == plateaus[node, _HEIGHT]:
        plateaus[a, _DEAD] = 1
        plateaus[node, _LEFT] = plateaus[a, _LEFT]
        plateaus[node, _BEFORE] = plateaus[a, _BEFORE]
        if plateaus[a, _BEFORE] >= 0:
            plateaus[plateaus[a, _BEFORE], _AFTER] = node
    if c >= 0 and plateaus[c, _HEIGHT] == plateaus[node, _HEIGHT]:
        plateaus[c, _DEAD] = 1
        plateaus[node, _RIGHT] = plateaus[c, _RIGHT]
        plateaus[node, _AFTER] = plateaus[c, _AFTER]
        if plateaus[c, _AFTER] >= 0:
            plateaus[plateaus[c, _AFTER], _BEFORE] = node


@njit(cache=True, nogil=True)
def _raise(plateaus, node):
    """Lift `node` to its lower neighbour."""
    level = _TOP
    if plateaus[node, _BEFORE] >= 0:
        level = plateaus[plateaus[node, _BEFORE], _HEIGHT]
    if plateaus[node, _AFTER] >= 0:
        level = min(level, plateaus[plateaus[node, _AFTER], _HEIGHT])
    plateaus[node, _HEIGHT] = level


@njit(cache=True, nogil=True)
def _split(plateaus, node, start, end, heap, count, free, spare):
    """Cut what lies outside [start, end) off `node` as plateaus of their own; (heap count, spare slots left)."""
    left, right, height = plateaus[node, _LEFT], plateaus[node, _RIGHT], plateaus[node, _HEIGHT]
    if start > left:
        spare -= 1
        _insert(plateaus, free[spare], plateaus[node, _BEFORE], node, left, start, height)
        count = _push(heap, count, plateaus, free[spare])
    if end < right:
        spare -= 1
        _insert(plateaus, free[spare], node, plateaus[node, _AFTER], end, right, height)
        count = _push(heap, count, plateaus, free[spare])
    plateaus[node, _LEFT], plateaus[node, _RIGHT] = start, end
    return count, spare


@njit(cache=True, nogil=True)
def _pick_tight(lower, upper, flush, buffers, rank, nodes, where, pressure):
    """The best rank that covers the most pressed section of [lower, upper) that anything can cover, or NONE.

    `flush` prefers what fills the plateau to both ends, then what reaches one end.
    """
    start, end = buffers[0], buffers[1]
    bounds = nodes[1]
    box, stack = where
    press, added = pressure
    s = most_pressed(press, added, lower, upper)
    if flush:
        best = best_within(box, bounds, stack, start, end, rank, lower, lower, upper, upper)
        if best == NONE:
            best = best_within(box, bounds, stack, start, end, rank, lower, lower, s + 1, upper)
            best = min(best, best_within(box, bounds, stack, start, end, rank, lower, s, upper, upper))
        if best != NONE:
            return best
    left, right = lower, upper
    for _ in range(_TRIES):
        best = best_within(box, bounds, stack, start, end, rank, lower, s, s + 1, upper)
        if best != NONE or not flush:
            return best
        a = most_pressed(press, added, left, s) if s > left else np.int64(-1)
        c = most_pressed(press, added, s + 1, right) if s + 1 < right else np.int64(-1)
        if a < 0 and c < 0:
            return NONE
        if c < 0 or (a >= 0 and pressure_of(press, added, a) >= pressure_of(press, added, c)):
            right, s = s, a
        else:
            left, s = s + 1, c
    return NONE


@njit(cache=True, nogil=True)
def _pick(plateaus, node, buffers, rank, nodes, where, pressure, mode):
    """The buffer to set on plateau `node`, or -1."""
    lower, upper = plateaus[node, _LEFT], plateaus[node, _RIGHT]
    best = NONE
    if mode > 0:
        best = _pick_tight(lower, upper, mode > 1, buffers, rank, nodes, where, pressure)
    if best == NONE:
        start, end = buffers[0], buffers[1]
        best = best_within(where[0], nodes[1], where[1], start, end, rank, lower, upper, lower, upper)
    return np.int64(-1) if best == NONE else buffers[4][best]


@njit(cache=True, nogil=True)
def _run(offset, buffers, rank, nodes, where, queue, pressure, mode, span, limit):
    """The loop of `skyline` over arrays that the caller allocated."""
    start, end, size, align, _ = buffers
    plateaus, heap, free = queue
    fill_boxes(where[0], nodes[1], start, end, rank)
    spare = free.size - 1
    _insert(plateaus, free[spare], -1, -1, 0, span, 0)
    count = _push(heap, 0, plateaus, free[spare])
    todo, height = size.size, np.int64(0)
    while todo > 0:
        node = _pop(heap, count, plateaus)
        count -= 1
        if plateaus[node, _DEAD]:
            free[spare] = node
            spare += 1
            continue
        b = _pick(plateaus, node, buffers, rank, nodes, where, pressure, mode)
        at = plateaus[node, _HEIGHT]
        if b < 0:
            _raise(plateaus, node)
            waste = plateaus[node, _HEIGHT] - at
        else:
            waste = -at
            if align[b] > 1:
                at = (at + align[b] - 1) // align[b] * align[b]
            waste += at
            if at > limit - size[b]:
                return np.int64(-1)
            offset[b], rank[b] = at, NONE
            todo -= 1
            remove(where[0], nodes[0][b], nodes[1], start, end, rank)
            count, spare = _split(plateaus, node, start[b], end[b], heap, count, free, spare)
            plateaus[node, _HEIGHT] = at + size[b]
            height = max(height, at + size[b])
        if mode > 0 and waste > 0:
            add_pressure(pressure[0], pressure[1], plateaus[node, _LEFT], plateaus[node, _RIGHT], waste)
        _merge(plateaus, node)
        count = _push(heap, count, plateaus, node)
    return height


@dataclass(frozen=True, slots=True, eq=False)
class SkylineInput:
    """What stays the same from run to run, with the buffers numbered as in the tree.

    `buffers`: start and end (sections, in 0 … `span`), size, align; `nodes`: leaf and bounds of the tree; `perm[i]` is
    the row of buffer i and `place` the reverse; `sums`: all sizes that are active in each section.
    """

    buffers: tuple[Ints, Ints, Ints, Ints]
    span: int
    nodes: tuple[Ints, Ints]
    perm: Ints
    place: Ints
    sums: Ints

    @staticmethod
    def of(part: Part) -> SkylineInput:
        """The input for a part without gaps."""
        perm, leaf, bounds = build_tree(part.lower, part.upper)
        place = np.empty_like(perm)
        place[perm] = np.arange(perm.size)
        table = part.table
        buffers = (part.lower[perm], part.upper[perm], table.size[perm], table.align[perm])
        return SkylineInput(buffers, part.num_sections, (leaf, bounds), perm, place, part.sums(table.size))


def skyline(given: SkylineInput, order: Ints, mode: int, limit: int) -> tuple[int, Ints]:
    """(height, offsets by row) with the rows ranked by `order`; the height is -1 where it would pass `limit`.

    Mode 0 takes the best rank. Modes 1 and 2 serve the most pressed section of a plateau first (the one whose floor and
    waiting sizes add up to most); mode 2 prefers what ends flush with the plateau, and then tries less pressed ones.
    """
    num = order.size
    ranked = given.place[order]
    rank = np.empty(num, np.int64)
    rank[ranked] = np.arange(num)
    offset = np.zeros(num, np.int64)
    where = (np.empty((given.nodes[1].shape[0], 5), np.int64), np.empty(128, np.int64))
    slots = 2 * num + 2
    queue = (np.empty((slots, 6), np.int64), np.empty(slots, np.int64), np.arange(slots)[::-1].copy())
    pressure = make_pressure(given.sums if mode else given.sums[:1])
    args = ((*given.buffers, ranked), rank, given.nodes, where, queue, pressure, mode, given.span, limit)
    height = int(_run(offset, *args))
    return height, offset[given.place]
