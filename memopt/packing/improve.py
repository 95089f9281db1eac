"""Closing the gap: restarts of the planners and of the exact search, for one part after the other.

Holds true: `Climb.best` only gets lower and is always valid; `Climb.bound` only rises, and only by a finished search.
Targets: the bound itself first (that is where most problems fall); then, as long as it resists, heights between the
bound and the best, nearer to the bound after a success and farther after a failure.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from memopt.packing.heuristics import Placement, Planner
from memopt.packing.probe import FAILED, FOUND, Hunt, Probe
from memopt.packing.table import Part, Table

__all__ = ["Climb", "decide", "warm_up"]

_AT_BOUND = 12  # rounds at the bound before other targets get their turn
_SEARCHABLE = 40_000  # above this many buffers a dive of the search takes longer than it is worth
_MANY = 1_000_000
_WHOLE = 600  # up to this many buffers `best` also runs one complete search beside the restarts


class Climb:
    """The search for a low placement of one part, from `best` (height, offsets) down to `bound`."""

    def __init__(
        self, table: Table, best: Placement, bound: int, seed: int, tell: Callable[[int], None] = lambda height: None
    ) -> None:
        self.table, self.best, self.seed, self.tell = table, best, seed, tell
        self.quantum = table.quantum()
        self.bound = -(-bound // self.quantum) * self.quantum
        self.searched = False  # whether a finished search raised the bound

    @property
    def done(self) -> bool:
        return self.best[0] <= self.bound

    def run(self, deadline: float, thorough: bool) -> None:
        """Improve until `deadline`; `thorough` spends more of the time on one complete search at the bound."""
        began = time.perf_counter()
        planner = Planner(self.table, self.seed)
        share, attempts = _shares(self.table.size.size)
        self._replan(planner, range(attempts), began + share * (deadline - began))
        if self.table.size.size <= _SEARCHABLE and self._representable():
            self._search(deadline, thorough)
        else:
            self._replan(planner, range(attempts, _MANY), deadline)

    def _representable(self) -> bool:
        return self.best[0] + int(self.table.align.max(initial=1)) < 2**63 - 1

    def _replan(self, planner: Planner, numbers: range, deadline: float) -> None:
        best = planner.best_of(self.best, self.bound, numbers, deadline)
        assert best is not None
        self.best = best

    def _search(self, deadline: float, thorough: bool) -> None:
        hunt = Hunt(Part.of(self.table), self.seed)
        whole = _Whole(hunt, thorough)
        reach, rounds = 0.5, 0
        while not self.done and time.perf_counter() < deadline:
            rounds += 1
            self.tell(self.best[0])
            at_bound = rounds <= _AT_BOUND or rounds % 4 == 0
            target = self.bound if at_bound else self._target(reach)
            status, offsets = hunt.round(target, deadline)
            if status == FOUND and offsets is not None:
                self.best = (int((offsets + self.table.size).max()), offsets)
            elif status == FAILED:
                self._raise_bound(target)
            if not at_bound:
                reach = reach * 0.6 if status == FOUND else min(1.0, reach * 1.25 + 0.02)
            if not self.done and (thorough or self.table.size.size <= _WHOLE):
                self._step(whole, deadline)

    def _target(self, reach: float) -> int:
        """A height between the bound and the best, on the grid of possible heights; always below the best."""
        steps = (self.best[0] - 1 - self.bound) // self.quantum
        return self.bound + int(steps * reach) * self.quantum

    def _step(self, whole: _Whole, deadline: float) -> None:
        status = whole.step(self.bound, deadline)
        if status == FOUND:
            offsets = whole.probe.offsets()
            self.best = (int((offsets + self.table.size).max()), offsets)
        elif status == FAILED:
            self._raise_bound(self.bound)

    def _raise_bound(self, failed: int) -> None:
        self.bound, self.searched = max(self.bound, failed + self.quantum), True


def _shares(num: int) -> tuple[float, int]:
    """The share of the time that the planners get before the search, and their attempts at most."""
    if num < 1000:
        return 0.15, 150
    return (0.4, 300) if num < 4000 else (0.85, _MANY)


class _Whole:
    """One complete search at a capacity, a slice at a time."""

    def __init__(self, hunt: Hunt, thorough: bool) -> None:
        self.hunt = hunt
        self.nodes = hunt.budget(1) * (3 if thorough else 1)
        self.capacity = -1
        self.probe: Probe

    def step(self, capacity: int, deadline: float) -> int:
        if capacity != self.capacity:
            self.capacity = capacity
            self.probe = self.hunt.probe(1, capacity)
        return self.probe.run(self.nodes, deadline)


def decide(table: Table, capacity: int, seed: int, deadline: float) -> tuple[int, Placement | None]:
    """Whether `table` fits `capacity`: (FOUND, placement), (FAILED, None) with a proof, (PAUSED, None) when late."""
    hunt = Hunt(Part.of(table), seed)
    whole = _Whole(hunt, thorough=True)
    while True:
        status, offsets = hunt.round(capacity, deadline)
        if status not in (FOUND, FAILED):
            status = whole.step(capacity, deadline)
            offsets = whole.probe.offsets() if status == FOUND else None
        if offsets is not None:
            return FOUND, (int((offsets + table.size).max()), np.asarray(offsets))
        if status == FAILED or time.perf_counter() > deadline:
            return status, None


@functools.cache
def warm_up() -> None:
    """Load the compiled search, or compile it."""
    ones = np.ones(2, np.int64)
    zeros = np.zeros(2, np.int64)
    rows = np.arange(2)
    table = Table(rows, ones, ones, zeros - 1, zeros, ones, rows, zeros, ones)
    decide(table, 2, 0, time.perf_counter() + 3600.0)
