"""Problems for the packing tests: a hypothesis strategy, guillotine cuts, and the slow twin that tries everything."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest
from hypothesis import strategies as st

from memopt.packing import PackingBuffer, PackingProblem

DATA = Path(__file__).parents[3] / "shared" / "data" / "packing"


def instance(name: str) -> PackingProblem:
    """A public instance; skips the test where the data is absent."""
    from memopt.packing import read_csv

    path = DATA / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"no data {path.name}")
    return read_csv(path)


@st.composite
def problems(
    draw: st.DrawFn, max_buffers: int = 7, pins: bool = True, gaps: bool = True, alignments: bool = True
) -> PackingProblem:
    """Small problems in which all that a problem can have occurs."""
    buffers = []
    for i in range(draw(st.integers(0, max_buffers))):
        start = draw(st.integers(-2, 6))
        end = draw(st.integers(start + 1, start + 7))
        alignment = draw(st.sampled_from((1, 1, 2, 3, 4))) if alignments else 1
        offset = alignment * draw(st.integers(0, 3)) if pins and draw(st.integers(0, 5)) == 0 else None
        holes: tuple[tuple[int, int], ...] = ()
        if gaps and draw(st.integers(0, 3)) == 0:
            lower = draw(st.integers(start, end - 1))
            holes = ((lower, draw(st.integers(lower + 1, end))),)
        buffers.append(PackingBuffer(f"b{i}", draw(st.integers(0, 5)), start, end, alignment, offset, holes))
    return PackingProblem(tuple(buffers))


def fits(problem: PackingProblem, capacity: int) -> bool:
    """The slow twin: try every offset of every buffer."""
    buffers = [b for b in problem.buffers if b.size and b.pieces]
    placed: list[tuple[PackingBuffer, int]] = []

    def clash(a: PackingBuffer, at: int) -> bool:
        return any(
            at < other + b.size
            and other < at + a.size
            and any(p < v and u < q for p, q in a.pieces for u, v in b.pieces)
            for b, other in placed
        )

    def place(i: int) -> bool:
        if i == len(buffers):
            return True
        b = buffers[i]
        for at in range(0, capacity - b.size + 1, b.alignment) if b.offset is None else (b.offset,):
            if at + b.size <= capacity and not clash(b, at):
                placed.append((b, at))
                if place(i + 1):
                    return True
                placed.pop()
        return False

    return place(0)


def pins_clash(problem: PackingProblem) -> bool:
    pinned = PackingProblem(tuple(b for b in problem.buffers if b.offset is not None))
    return not fits(pinned, 10**6)


def optimum(problem: PackingProblem) -> int:
    """The lowest height, by trying."""
    height = 0
    while not fits(problem, height):
        height += 1
    return height


def guillotine(num: int, seed: int, span: int = 10**6, height: int = 10**6) -> PackingProblem:
    """A rectangle of time × bytes cut into `num` boxes, the largest first; its optimum is `height`."""
    rng = random.Random(seed)
    boxes = [(-span * height, 0, span, 0, height)]
    while len(boxes) < num:
        _, start, end, low, high = heapq.heappop(boxes)
        if (rng.random() < 0.5 and end - start > 1) or high - low < 2:
            cut = rng.randrange(start + 1, end)
            parts = ((start, cut, low, high), (cut, end, low, high))
        else:
            cut = rng.randrange(low + 1, high)
            parts = ((start, end, low, cut), (start, end, cut, high))
        for a, b, c, d in parts:
            heapq.heappush(boxes, (-(b - a) * (d - c), a, b, c, d))
    rng.shuffle(boxes)
    return PackingProblem(tuple(PackingBuffer(str(i), d - c, a, b) for i, (_, a, b, c, d) in enumerate(boxes)))


def live_sums(num: int, seed: int, alignment: int = 1) -> PackingProblem:
    """Random buffers, about twenty of them live at once."""
    rng = random.Random(seed)
    buffers = []
    for i in range(num):
        start = rng.randrange(10 * num)
        buffers.append(PackingBuffer(str(i), rng.randrange(1, 10**6), start, start + rng.randrange(1, 400), alignment))
    return PackingProblem(tuple(buffers))
