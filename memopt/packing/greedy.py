"""The simple planners: first-fit and best-fit by decreasing size. Plain Python, exact at any size, quadratic.

They are the baselines that the others are measured against, and the slow twin of the fast ones.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

from memopt.packing.problem import PackingBuffer, PackingProblem

__all__ = ["best_fit", "first_fit", "first_fit_by_area"]

Hole = Callable[[PackingBuffer, list[tuple[int, int]]], int]
Key = Callable[[PackingBuffer], int]


def first_fit(problem: PackingProblem) -> dict[str, int]:
    """Offsets (by id): pinned buffers first, then by decreasing size, each in the lowest hole that takes it."""
    return _place(problem, _lowest_hole, _by_size)


def first_fit_by_area(problem: PackingProblem) -> dict[str, int]:
    """Offsets (by id): as `first_fit`, but by decreasing size × lifetime."""
    return _place(problem, _lowest_hole, _by_area)


def best_fit(problem: PackingProblem) -> dict[str, int]:
    """Offsets (by id): as `first_fit`, but each in the tightest hole between others; on top if there is none."""
    return _place(problem, _tightest_hole, _by_size)


def _by_size(buffer: PackingBuffer) -> int:
    return buffer.size


def _by_area(buffer: PackingBuffer) -> int:
    return buffer.size * (buffer.end - buffer.start)


class _Timeline:
    """Which placed buffers are active in which elementary segment of time."""

    def __init__(self, buffers: Iterable[PackingBuffer]) -> None:
        self.times = sorted({time for buffer in buffers for piece in buffer.pieces for time in piece})
        self.placed: list[list[int]] = [[] for _ in self.times]

    def segments(self, buffer: PackingBuffer) -> Iterable[list[int]]:
        for lower, upper in buffer.pieces:
            yield from self.placed[bisect.bisect_left(self.times, lower) : bisect.bisect_left(self.times, upper)]


def _place(problem: PackingProblem, hole: Hole, key: Key) -> dict[str, int]:
    buffers = problem.buffers
    timeline = _Timeline(buffers)
    offsets = [buffer.offset or 0 for buffer in buffers]
    order = sorted(
        (index for index, buffer in enumerate(buffers) if buffer.active),
        key=lambda index: (buffers[index].offset is None, -key(buffers[index]), index),
    )
    for index in order:
        buffer = buffers[index]
        segments = list(timeline.segments(buffer))
        if buffer.offset is None:
            others = set().union(*segments)
            taken = sorted((offsets[other], offsets[other] + buffers[other].size) for other in others)
            offsets[index] = hole(buffer, taken)
        for segment in segments:
            segment.append(index)
    return {buffer.id: offset for buffer, offset in zip(buffers, offsets, strict=True)}


def _holes(buffer: PackingBuffer, taken: list[tuple[int, int]]) -> Iterable[tuple[int, int | None]]:
    """(aligned offset, bytes left over below the next buffer; None on top) of each hole that takes `buffer`."""
    at = 0
    for lower, upper in taken:
        if at + buffer.size <= lower:
            yield at, lower - at - buffer.size
        if upper > at:
            at = -(-upper // buffer.alignment) * buffer.alignment
    yield at, None


def _lowest_hole(buffer: PackingBuffer, taken: list[tuple[int, int]]) -> int:
    return next(iter(_holes(buffer, taken)))[0]


def _tightest_hole(buffer: PackingBuffer, taken: list[tuple[int, int]]) -> int:
    *inner, top = _holes(buffer, taken)
    return min(((left or 0, at) for at, left in inner), default=(0, top[0]))[1]
