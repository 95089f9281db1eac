"""A device's arena as a packing problem, and which of its buffers must not overlap though they are never live at once.

Holds true: two buffers of the problem conflict exactly if they are live at the same instruction, or are a pair that is
to be kept apart. For such pairs there are *moments* after the program's end, at which only buffers are live that
conflict with each other anyway: so nothing else is asked, and the lower bound counts them together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from memopt.lowering import Program, ProgramBuffer
from memopt.packing import PackingBuffer, PackingProblem

__all__ = ["Pairs", "packing_problem"]

#: Numbers of buffers that must not overlap.
Pairs = Sequence[tuple[int, int]]


def packing_problem(program: Program, device: str, alignment: int = 1, apart: Pairs = ()) -> PackingProblem:
    """The arena of `device` as a packing problem: one buffer for each of the program's; ids are buffer numbers.

    The two buffers of each pair in `apart` get bytes of their own, whenever they are live.
    """
    mine = [b for b in program.buffers if b.device == device and b.space == "arena"]
    pieces = {b.id: [_live(b)] for b in mine}
    for moment, numbers in enumerate(_cliques(mine, apart), len(program.instructions) + 1):
        for number in numbers:
            pieces[number].append((moment, moment + 1))
    buffers = []
    for b in mine:
        live = pieces[b.id]
        gaps = tuple((a[1], b[0]) for a, b in itertools.pairwise(live) if a[1] < b[0])
        buffers.append(PackingBuffer(str(b.id), b.size_bytes, live[0][0], live[-1][1], alignment, gaps=gaps))
    return PackingProblem(tuple(buffers))


def _live(buffer: ProgramBuffer) -> tuple[int, int]:
    return buffer.start, max(buffer.end, buffer.start + 1)


def _cliques(buffers: Sequence[ProgramBuffer], apart: Pairs) -> list[list[int]]:
    """Sets of buffers that all conflict with each other, so that each pair in `apart` is in one of them."""
    live = {b.id: _live(b) for b in buffers}
    near: dict[int, set[int]] = {}
    for a, b in apart:
        if a in live and b in live:
            near.setdefault(a, set()).add(b)
            near.setdefault(b, set()).add(a)

    def conflict(a: int, b: int) -> bool:
        return b in near[a] or (live[a][0] < live[b][1] and live[b][0] < live[a][1])

    found: list[list[int]] = []
    for pair in apart:
        if pair[0] in live and not any(pair[0] in one and pair[1] in one for one in found):
            found.append(list(pair))
            for other in near:
                if other not in pair and all(conflict(other, one) for one in found[-1]):
                    found[-1].append(other)
    return found
