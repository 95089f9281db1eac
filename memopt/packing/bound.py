"""Lower bounds of the height: what no placement can go below.

The bound at a time is the sum of the active sizes. Sharpened with alignment: every offset is a multiple of `g`, the
greatest common divisor of all alignments, so each buffer but the topmost takes its size rounded up to `g`; what the
topmost one saves is at most the largest slack of those active. A pinned buffer's own end is a bound, too.
O(n log n) time, linear memory, exact integers.
"""

from __future__ import annotations

import heapq
import math

from memopt.packing.problem import PackingProblem

__all__ = ["lower_bound", "peak"]


def lower_bound(problem: PackingProblem) -> int:
    """Bytes below which no valid placement of `problem` exists."""
    return peak(problem)[0]


def peak(problem: PackingProblem) -> tuple[int, tuple[str, ...]]:
    """The lower bound, and the ids of the buffers that force it."""
    unit = math.gcd(*(buffer.alignment for buffer in problem.buffers if buffer.size))
    best, when, single = 0, None, None
    for buffer in problem.buffers:
        if buffer.size and buffer.pieces and (buffer.offset or 0) + buffer.size > best:
            best, single = (buffer.offset or 0) + buffer.size, buffer.id
    events: list[tuple[int, int, int]] = []
    rounded = [-(-buffer.size // unit) * unit for buffer in problem.buffers] if unit else []
    for index, buffer in enumerate(problem.buffers):
        if buffer.size:
            for lower, upper in buffer.pieces:
                events.append((lower, 1, index))
                events.append((upper, 0, index))
    events.sort()
    total, alive, slacks = 0, [0] * len(problem.buffers), list[tuple[int, int]]()
    for position, (time, kind, index) in enumerate(events):
        alive[index] += 1 if kind else -1
        total += rounded[index] if kind else -rounded[index]
        if not kind:
            continue
        heapq.heappush(slacks, (problem.buffers[index].size - rounded[index], index))
        if position + 1 < len(events) and events[position + 1][0] == time:
            continue
        while not alive[slacks[0][1]]:
            heapq.heappop(slacks)
        if total + slacks[0][0] > best:
            best, when = total + slacks[0][0], time
    if when is None:
        return best, () if single is None else (single,)
    ids = (buffer.id for buffer in problem.buffers if buffer.size and any(a <= when < b for a, b in buffer.pieces))
    return best, tuple(ids)
