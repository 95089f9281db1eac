"""The fast planners over tables: skyline for plain problems, first-fit in many orders where there are pins or gaps.

Holds true: every returned placement is valid; runs that cannot beat `limit` end early and return None.
"""

from __future__ import annotations

import functools
import time

import numpy as np

from memopt.packing.fitting import fit_in_order
from memopt.packing.orders import Floats, blur, fit_keys, nudge, ranked, skyline_keys
from memopt.packing.problem import MAX_BYTES
from memopt.packing.skyline import SkylineInput, skyline
from memopt.packing.table import Ints, Part, Table
from memopt.packing.threads import num_workers, spread

__all__ = ["Placement", "Planner", "first_fit_by_size", "warm_up"]

Placement = tuple[int, Ints]
_FEW_ORDERS = 150_000  # a fast plan tries so many orders that their buffers add up to about this, and at least one
_ALWAYS_FIT = 10_000  # up to this many buffers first-fit runs to its end (quadratic at worst)
_WORK = 10_000_000  # steps that first-fit may take above that
_SPREAD = 1000  # from this many buffers on, two attempts run side by side
_ROOMY = 2**62  # the skyline stays below this, so that its sums cannot wrap


class Planner:
    """Plans `table` by numbered attempts: first each key as it is, then blurred keys and nudges of the best so far."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table, self.seed = table, seed
        self.given: SkylineInput | None = None
        self.elite: tuple[int, Floats, int] | None = None
        if table.simple:
            part = Part.of(table)
            self.given = SkylineInput.of(part)
            self.keys = skyline_keys(part)
        else:
            self.keys = [(key, 0) for key in fit_keys(table)]

    @property
    def first_attempts(self) -> range:
        """The attempts that a fast plan makes."""
        few = max(1, _FEW_ORDERS // max(self.table.size.size, 1))
        return range(min(len(self.keys), few))

    def attempt(self, number: int, limit: int) -> Placement | None:
        """(height, offsets) of attempt `number`, or None if it would be higher than `limit`."""
        return self._attempts(range(number, number + 1), limit)[0]

    def _attempts(self, numbers: range, limit: int) -> list[Placement | None]:
        """These attempts, side by side, none of which knows of the others."""

        def plan(choice: tuple[Floats, int]) -> Placement | None:
            key, mode = choice
            if self.given is None:
                return _fit(self.table, ranked(key), min(limit, _room(self.table)))
            height, offset = skyline(self.given, ranked(key), mode, min(limit, _room(self.table), _ROOMY))
            return None if height < 0 else (height, offset)

        choices = [self._key(number) for number in numbers]
        results = spread(plan, choices) if len(choices) > 1 else [plan(choice) for choice in choices]
        for choice, found in zip(choices, results, strict=True):
            if found is not None and (self.elite is None or found[0] <= self.elite[0]):
                self.elite = found[0], *choice
        return results

    def _key(self, number: int) -> tuple[Floats, int]:
        lap, place = divmod(number, len(self.keys))
        if lap and number % 4 and self.elite is not None:
            _, key, mode = self.elite
            return nudge(key, self.seed, number), mode
        key, mode = self.keys[place]
        return blur(key, self.seed, number) if lap else key, mode

    def best_of(self, best: Placement | None, bound: int, numbers: range, deadline: float) -> Placement | None:
        """The best of `best` and these attempts; ends at `bound` or at `deadline` (of `time.perf_counter`)."""
        step = num_workers() if self.table.size.size >= _SPREAD else 1
        for first in numbers[::step]:
            if best is not None and (best[0] <= bound or time.perf_counter() > deadline):
                break
            limit = MAX_BYTES if best is None else best[0]
            for found in self._attempts(range(first, min(first + step, numbers.stop)), limit):
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
        return best


def first_fit_by_size(table: Table, limit: int) -> Placement | None:
    """First-fit by decreasing size (pins first); None above `limit`, or where it would take too many steps."""
    order = np.lexsort((np.arange(table.size.size), -table.size))
    return _fit(table, order, min(limit, _room(table)))


def _fit(table: Table, order: Ints, limit: int) -> Placement | None:
    pinned = table.pin[order] >= 0
    order = np.concatenate((order[pinned], order[~pinned]))
    offset = np.maximum(table.pin, 0)
    fixed = int(pinned.sum())
    work = _WORK if order.size > _ALWAYS_FIT else MAX_BYTES
    shelf = np.empty((order.size, 5), np.int64)
    args = (order, table.size, table.align, _pieces(table), fixed, limit, work, shelf)
    height = int(fit_in_order(offset, *args))
    return None if height < 0 else (height, offset)


def _pieces(table: Table) -> tuple[Ints, Ints, Ints]:
    by_owner = np.argsort(table.owner, kind="stable")
    first = np.searchsorted(table.owner[by_owner], np.arange(table.size.size + 1)).astype(np.int64)
    return first, table.lower[by_owner], table.upper[by_owner]


def _room(table: Table) -> int:
    """The largest height for which aligning an offset cannot wrap."""
    return MAX_BYTES - int(table.align.max(initial=1))


@functools.cache
def warm_up() -> None:
    """Load the compiled planners, or compile them."""
    ones = np.ones(2, np.int64)
    zeros = np.zeros(2, np.int64)
    rows = np.arange(2)
    table = Table(rows, ones, ones, zeros - 1, zeros, ones, rows, zeros, ones)
    Planner(table, 0).attempt(0, 2)
    first_fit_by_size(table, 2)
