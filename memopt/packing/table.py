"""A packing problem as int64 arrays: what the fast planners and the search read.

Holds true: buffers without bytes or without an active time are left out (they conflict with nobody); `index` leads back
to the problem's buffers. A `Part` is a stretch of time at whose ends nothing is live, so parts are packed apart and
the height is that of the tallest. Sections are the maximal sets of buffers that are active together, in time order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memopt.packing.problem import PackingProblem

__all__ = ["Ints", "Part", "Table"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of the buffers that matter. `pin` is -1 where there is none; `owner`, `lower`, `upper`: the pieces."""

    index: Ints
    size: Ints
    align: Ints
    pin: Ints
    start: Ints
    end: Ints
    owner: Ints
    lower: Ints
    upper: Ints

    @staticmethod
    def of(problem: PackingProblem) -> Table:
        """The table of `problem`."""
        buffers = problem.buffers
        index = np.array([i for i, b in enumerate(buffers) if b.size and (not b.gaps or b.pieces)], np.int64)
        kept = [buffers[i] for i in index.tolist()]
        num = len(kept)
        size = np.fromiter((b.size for b in kept), np.int64, num)
        align = np.fromiter((b.alignment for b in kept), np.int64, num)
        pin = np.fromiter((-1 if b.offset is None else b.offset for b in kept), np.int64, num)
        start = np.fromiter((b.start for b in kept), np.int64, num)
        end = np.fromiter((b.end for b in kept), np.int64, num)
        owner, lower, upper = np.arange(num), start, end
        if any(b.gaps for b in kept):
            pieces = [(row, a, b) for row, buffer in enumerate(kept) for a, b in buffer.pieces]
            owner, lower, upper = np.array(pieces, np.int64).reshape(-1, 3).T.copy()
        return Table(index, size, align, pin, start, end, owner, lower, upper)

    @property
    def simple(self) -> bool:
        """Neither gaps nor pins."""
        return not self.gaps and not bool((self.pin >= 0).any())

    @property
    def gaps(self) -> bool:
        return bool(
            self.owner.size != self.size.size or (self.lower != self.start).any() or (self.upper != self.end).any()
        )

    def take(self, rows: Ints) -> Table:
        """The table of these rows only (ascending)."""
        place = np.full(self.size.size, -1, np.int64)
        place[rows] = np.arange(rows.size)
        pieces = np.flatnonzero(place[self.owner] >= 0)
        return Table(
            index=self.index[rows],
            size=self.size[rows],
            align=self.align[rows],
            pin=self.pin[rows],
            start=self.start[rows],
            end=self.end[rows],
            owner=place[self.owner[pieces]],
            lower=self.lower[pieces],
            upper=self.upper[pieces],
        )

    def parts(self) -> list[Ints]:
        """The rows of each part, in time order."""
        order = np.lexsort((self.end, self.start))
        reach = np.maximum.accumulate(self.end[order]) if order.size else self.end
        cuts = np.flatnonzero(self.start[order][1:] >= reach[:-1]) + 1
        return [np.sort(rows) for rows in np.split(order, cuts)] if order.size else []

    def ranks(self) -> tuple[Ints, Ints, int]:
        """`start` and `end` as ranks 0 … span of the times at which something begins or ends."""
        times = np.unique(np.concatenate((self.start, self.end)))
        return np.searchsorted(times, self.start), np.searchsorted(times, self.end), max(times.size - 1, 0)

    def quantum(self) -> int:
        """A number that divides the height of every pushed-down placement."""
        sizes = int(np.gcd.reduce(self.size)) if self.size.size else 1
        pins = self.pin[self.pin > 0]
        step = math.gcd(sizes, int(np.gcd.reduce(pins)) if pins.size else 0)
        aligned = all(step % align == 0 or align % step == 0 for align in self.alignments())
        return step if aligned else 1

    def alignments(self) -> list[int]:
        """The different alignments, ascending."""
        if not self.align.size or int(self.align.max()) == 1:
            return [1]
        return [int(align) for align in np.unique(self.align)]

    def unit(self) -> int:
        """A number that divides every offset: the greatest common divisor of the alignments."""
        return math.gcd(*self.alignments())


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A table with its sections: `first[b]:first[b + 1]` are the pieces of b, as `[lower, upper)` of sections."""

    table: Table
    first: Ints
    lower: Ints
    upper: Ints
    num_sections: int

    @staticmethod
    def of(table: Table) -> Part:
        """Find the sections of `table`: the times where a begin is followed by an end."""
        times = np.unique(np.concatenate((table.lower, table.upper)))
        begins = np.zeros(times.size, np.bool_)
        ends = np.zeros(times.size, np.bool_)
        begins[np.searchsorted(times, table.lower)] = True
        ends[np.searchsorted(times, table.upper)] = True
        sections = times[:-1][begins[:-1] & ends[1:]]
        by_owner = np.lexsort((table.lower, table.owner))
        lower = np.searchsorted(sections, table.lower[by_owner], "left").astype(np.int64)
        upper = np.searchsorted(sections, table.upper[by_owner], "left").astype(np.int64)
        first = np.searchsorted(table.owner[by_owner], np.arange(table.size.size + 1)).astype(np.int64)
        return Part(table, first, lower, upper, sections.size)

    def sums(self, amounts: Ints) -> Ints:
        """For each section, the sum of `amounts` (one a buffer) over the buffers that are active in it."""
        amounts = np.repeat(amounts, np.diff(self.first))
        change = np.zeros(self.num_sections + 1, np.int64)
        np.add.at(change, self.lower, amounts)
        np.subtract.at(change, self.upper, amounts)
        return np.cumsum(change)[:-1].copy()

    def permuted(self, order: Ints) -> tuple[Ints, Ints, Ints]:
        """(first, lower, upper) with the buffers renumbered by `order`."""
        counts = np.diff(self.first)[order]
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        source = np.repeat(self.first[:-1][order] - first[:-1], counts) + np.arange(int(first[-1]))
        return first, self.lower[source], self.upper[source]
