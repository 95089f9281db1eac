# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: C901, PLR0913, SIM110, SIM102 -- numba kernels are loops over arrays and scalars
"""The exact search in numba: does a placement within a capacity exist?

Model. Time is cut into *sections*, the maximal sets of buffers active together. `low[b]` is the lowest offset that
buffer b may still take, `high[b]` the highest (capacity - size, or its pin). `left[s]` is the sum of the sizes not
placed yet in section s, and `floor[s]` the smallest `low` of those buffers: nothing more can lie below it in s.

Branching. A node takes one section s and asks: who lies on its floor f? Either one of the buffers that cover s and may
lie at f, or nobody, and then the floor of s rises to the next offset at which a buffer of s could lie: the top of
something else, or the least `low` above f. The answers exclude each other, so no placement is met twice.

Why it is complete (numbers stand in the code):
  (1) every feasible placement can be pushed down until each buffer that is not pinned rests on byte 0, or, up to its
      alignment, on a buffer below it; it stays feasible. So it is enough to look at such placements.
  (2) a buffer placed at f lies on the floor of all its sections, and `floor` is a lower bound, so nothing placed later
      goes below it: whoever meets it goes above.
  (3) where nobody lies on the floor of s at f, the lowest buffer of s rests on a buffer outside s, or is one whose
      `low` was above f; a pinned buffer whose pin is f lies there in every placement.
  (4) floor[s] + left[s] > capacity, or low[b] > high[b], cannot be completed.
Memory is linear in the buffers and sections; a node takes O(buffers + sections log sections).
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["FAILED", "FOUND", "FULL", "PAUSED", "advance"]

PAUSED, FOUND, FAILED, FULL = 0, 1, 2, 3
_FAR = np.int64(2**63 - 1)
_DEAD_END, _COMPLETE = np.int64(-1), np.int64(-2)
# columns of the stack: section, floor, last buffer tried, length of the log, buffer placed (-1: floor raised)
_SECTION, _FLOOR, _TRIED, _LOG, _PLACED = 0, 1, 2, 3, 4


@njit(cache=True, nogil=True)
def _floors(grid, log2, low, high, placed, pieces):
    """grid[0, s] = the smallest `low` of what is not placed in s; False where a buffer cannot fit any more (4).

    A piece [a, b) writes into the row of the largest power of two within b - a; then each row is pushed down.
    """
    first, lower, upper = pieces
    rows, sections = grid.shape
    grid[:] = _FAR
    for b in range(low.size):
        if placed[b]:
            continue
        value = low[b]
        if value > high[b]:
            return False
        for piece in range(first[b], first[b + 1]):
            row = log2[upper[piece] - lower[piece]]
            i = lower[piece]
            grid[row, i] = min(grid[row, i], value)
            i = upper[piece] - (1 << row)
            grid[row, i] = min(grid[row, i], value)
    for row in range(rows - 1, 0, -1):
        half = 1 << (row - 1)
        for i in range(sections - 2 * half + 1):
            value = grid[row, i]
            if value < grid[row - 1, i]:
                grid[row - 1, i] = value
            if value < grid[row - 1, i + half]:
                grid[row - 1, i + half] = value
    return True


@njit(cache=True, nogil=True)
def _count_lowest(count, level, low, placed, pieces):
    """count[s] as differences: how many buffers may lie at `level` in s."""
    first, lower, upper = pieces
    count[:] = 0
    for b in range(low.size):
        if low[b] == level and not placed[b]:
            for piece in range(first[b], first[b + 1]):
                count[lower[piece]] += 1
                count[upper[piece]] -= 1


@njit(cache=True, nogil=True)
def _count_valleys(count, valley, floor, left, low, placed, pieces):
    """As `_count_lowest` for every valley (a run of equal floors between higher ones); valley[s] is its start or -1."""
    _, lower, upper = pieces
    sections = left.size
    s = 0
    while s < sections:
        if left[s] == 0:
            valley[s] = -1
            s += 1
            continue
        stop = s + 1
        while stop < sections and left[stop] > 0 and floor[stop] == floor[s]:
            stop += 1
        closed = s == 0 or left[s - 1] == 0 or floor[s - 1] > floor[s]
        closed = closed and (stop == sections or left[stop] == 0 or floor[stop] > floor[s])
        for i in range(s, stop):
            valley[i] = s if closed else -1
        s = stop
    count[:] = 0
    for b in range(low.size):
        if not placed[b]:
            v = valley[lower[b]]
            if v >= 0 and valley[upper[b] - 1] == v and low[b] == floor[v]:
                count[lower[b]] += 1
                count[upper[b]] -= 1


@njit(cache=True, nogil=True)
def _choose(rule, count, valley, floor, left, ceiling, lowest):
    """The section to branch on: the one with the fewest answers, or with the least slack, as `rule` says.

    Rules 0, 1: among the lowest floors (fewest answers; least slack). Rules 2, 3: among the valleys, likewise. Rule 4:
    among the valleys, forced ones first, then the lowest.
    """
    best, best_a, best_b, best_c = -1, _FAR, _FAR, _FAR
    running = np.int64(0)
    for s in range(left.size):
        running += count[s]
        if left[s] == 0:
            continue
        if rule < 2:
            if floor[s] != lowest:
                continue
        elif valley[s] < 0:
            continue
        slack = ceiling - floor[s] - left[s]
        answers = running + (1 if slack > 0 else 0)
        if rule == 0:
            a, b, c = running, slack, np.int64(0)
        elif rule == 1:
            a, b, c = slack, running, np.int64(0)
        elif rule == 2:
            a, b, c = answers, floor[s], slack
        elif rule == 3:
            a, b, c = slack, answers, floor[s]
        else:
            a, b, c = min(answers, 2), floor[s], slack
        if a < best_a or (a == best_a and (b < best_b or (b == best_b and c < best_c))):
            best, best_a, best_b, best_c = s, a, b, c
    return best


@njit(cache=True, nogil=True)
def _covers(pieces, b, s):
    first, lower, upper = pieces
    for piece in range(first[b], first[b + 1]):
        if lower[piece] <= s < upper[piece]:
            return True
    return False


@njit(cache=True, nogil=True)
def _meet(pieces, a, b):
    first, lower, upper = pieces
    for i in range(first[a], first[a + 1]):
        for j in range(first[b], first[b + 1]):
            if lower[i] < upper[j] and lower[j] < upper[i]:
                return True
    return False


@njit(cache=True, nogil=True)
def _raised(s, level, low, size, pinned, placed, pieces):
    """The next floor of section `s` when nobody lies at `level` (3), or a huge number when somebody has to."""
    first, lower, upper = pieces
    rise = _FAR
    start, stop = _FAR, np.int64(-1)
    for b in range(low.size):
        if placed[b] or not _covers(pieces, b, s):
            continue
        if low[b] > level:
            rise = min(rise, low[b])
        elif pinned[b]:
            return _FAR
        else:
            start = min(start, lower[first[b]])
            stop = max(stop, upper[first[b + 1] - 1])
    for b in range(low.size):
        if placed[b] or low[b] + size[b] >= rise or _covers(pieces, b, s):
            continue
        if lower[first[b]] < stop and upper[first[b + 1] - 1] > start:
            rise = low[b] + size[b]
    return rise


@njit(cache=True, nogil=True)
def _lift(b, least, low, align, log_who, log_low, log):
    """Raise low[b] to at least `least`, aligned, and remember what it was."""
    log_who[log], log_low[log] = b, low[b]
    step = align[b]
    low[b] = least if step == 1 else (least + step - 1) // step * step
    return log + 1


@njit(cache=True, nogil=True)
def _mark(b, sign, left, room, pieces):
    """Take buffer `b` out of what is waiting in its sections (sign -1), or put it back (1)."""
    first, lower, upper = pieces
    for piece in range(first[b], first[b + 1]):
        for s in range(lower[piece], upper[piece]):
            left[s] += sign * room[b]


@njit(cache=True, nogil=True)
def _open(data, pieces, state, scratch, ceiling, rule):
    """The section to branch on, or _DEAD_END by (4), or _COMPLETE."""
    low, placed, left = state[0], state[1], state[2]
    grid, log2, count, valley = scratch
    floor = grid[0]
    if not _floors(grid, log2, low, data[4], placed, pieces):
        return _DEAD_END
    lowest = _FAR
    for s in range(left.size):
        if left[s] > 0:
            if left[s] > ceiling - floor[s]:
                return _DEAD_END
            lowest = min(lowest, floor[s])
    if lowest == _FAR:
        return _COMPLETE
    if rule < 2:
        _count_lowest(count, lowest, low, placed, pieces)
    else:
        _count_valleys(count, valley, floor, left, low, placed, pieces)
    return _choose(rule, count, valley, floor, left, ceiling, lowest)


@njit(cache=True, nogil=True)
def _place(b, level, data, pieces, state, log):
    """Put buffer `b` at `level` and lift all that it meets (2); the new length of the log."""
    size, room, align = data[0], data[1], data[2]
    low, placed, left, _, log_who, log_low = state
    first, lower, upper = pieces
    placed[b] = True
    _mark(b, -1, left, room, pieces)
    top = level + size[b]
    start, stop = lower[first[b]], upper[first[b + 1] - 1]
    for x in range(size.size):
        if low[x] < top and not placed[x] and lower[first[x]] < stop and upper[first[x + 1] - 1] > start:
            if _meet(pieces, x, b):
                log = _lift(x, top, low, align, log_who, log_low, log)
    return log


@njit(cache=True, nogil=True)
def _answer(frame, data, pieces, state, ceiling, log):
    """Take the next answer of the node in `frame`: the new length of the log, or -1 if there is none left."""
    size, _, align, pinned, _ = data
    low, placed, left, _, log_who, log_low = state
    n = size.size
    s, level, b = frame[_SECTION], frame[_FLOOR], frame[_TRIED] + 1
    if b > n:
        return np.int64(-1)
    while b < n and (placed[b] or low[b] != level or not _covers(pieces, b, s)):
        b += 1
    frame[_TRIED] = b
    if b < n:
        frame[_PLACED] = b
        return _place(b, level, data, pieces, state, log)
    frame[_PLACED] = -1
    slack = ceiling - level - left[s]
    rise = _raised(s, level, low, size, pinned, placed, pieces) if slack > 0 else _FAR
    if slack <= 0 or rise - level > slack:
        return np.int64(-1)
    for x in range(n):
        if low[x] < rise and not placed[x] and _covers(pieces, x, s):
            log = _lift(x, rise, low, align, log_who, log_low, log)
    return log


@njit(cache=True, nogil=True)
def _undo(frame, data, pieces, state, log):
    """Take back the answer of the node in `frame`; the length that the log had."""
    low, placed, left, _, log_who, log_low = state
    while log > frame[_LOG]:
        log -= 1
        low[log_who[log]] = log_low[log]
    if frame[_PLACED] >= 0:
        placed[frame[_PLACED]] = False
        _mark(frame[_PLACED], 1, left, data[1], pieces)
    return log


@njit(cache=True, nogil=True)
def advance(control, data, pieces, state, scratch, ceiling, rule, budget):
    """Search on for `budget` nodes and return PAUSED, FOUND (the offsets are in `low`), FAILED or FULL (out of log).

    control: depth, log length, nodes so far. data: size, room (size up to the common alignment), align, pinned, high.
    pieces: first piece of each buffer, lower and upper section of each piece.
    state: low, placed, left, stack, log_who, log_low. scratch: grid, log2, count, valley.
    `ceiling`: capacity up to the common alignment. Each turn opens the node at `depth`, then takes the next answer
    there, or of the nearest node below it that has one left.
    """
    stack, log_who = state[3], state[4]
    depth, log = control[0], control[1]
    for _ in range(budget):
        if depth + 1 >= stack.shape[0] or log + data[0].size >= log_who.size:
            return FULL
        control[2] += 1
        s = _open(data, pieces, state, scratch, ceiling, rule)
        if s == _COMPLETE:
            return FOUND
        after = np.int64(-1)
        if s >= 0:
            stack[depth, _SECTION], stack[depth, _FLOOR] = s, scratch[0][0, s]
            stack[depth, _TRIED], stack[depth, _LOG] = -1, log
            after = _answer(stack[depth], data, pieces, state, ceiling, log)
        while after < 0:
            depth -= 1
            if depth < 0:
                return FAILED
            log = _undo(stack[depth], data, pieces, state, log)
            after = _answer(stack[depth], data, pieces, state, ceiling, log)
        depth += 1
        log = after
        control[0], control[1] = depth, log
    return PAUSED
