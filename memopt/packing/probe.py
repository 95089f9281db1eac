"""Probes: one run each of the exact search, with its own order and rule, that can be paused and resumed.

A `Hunt` looks for a placement of one part within a capacity by many short probes (restarts): the time that the search
needs for a given order has a heavy tail, so many short ones find what a long one misses. A probe that comes to its end
proves that there is none. Rounds may use two threads (the loops release the GIL); the result of a round is that of its
lowest attempt, so that it does not depend on timing.
"""

from __future__ import annotations

import time

import numpy as np

from memopt.packing.orders import blurred, part_keys
from memopt.packing.search import FAILED, FOUND, FULL, PAUSED, advance
from memopt.packing.table import Ints, Part
from memopt.packing.threads import num_workers, spread

__all__ = ["FAILED", "FOUND", "FULL", "PAUSED", "Hunt", "Probe", "proves_infeasible"]

_MAX_INT = 2**63 - 1
_ROUND = 4  # attempts a worker makes in a round
_SMALL = 40  # below this many buffers threads do not pay


class Probe:
    """The state of one search for a placement of `part` within `capacity` bytes."""

    def __init__(self, part: Part, order: Ints, rule: int, capacity: int) -> None:
        table = part.table
        num, sections = order.size, part.num_sections
        unit = table.unit()
        size, pin = table.size[order], table.pin[order]
        room = (size + (unit - 1)) // unit * unit
        high = np.where(pin >= 0, pin, capacity - size)
        high = np.where(pin + size > capacity, -1, high)
        self.order, self.rule = order, rule
        self.ceiling = -(-capacity // unit) * unit
        self.pieces = part.permuted(order)
        self.data = (size, room, table.align[order], pin >= 0, high)
        left = part.sums((table.size + (unit - 1)) // unit * unit)
        low = np.maximum(pin, 0)
        log = np.empty(256 * num + 1024, np.int64), np.empty(256 * num + 1024, np.int64)
        self.state = (low, np.zeros(num, np.bool_), left, np.empty((8 * num + 64, 5), np.int64), *log)
        log2 = np.array([max(width, 1).bit_length() - 1 for width in range(sections + 1)], np.int64)
        grid = np.empty((int(log2[-1]) + 1, sections), np.int64)
        self.scratch = (grid, log2, np.empty(sections + 1, np.int64), np.empty(sections, np.int64))
        self.control = np.zeros(3, np.int64)
        self.stride = max(16, 3_000_000 // (num + sections))

    @property
    def nodes(self) -> int:
        """Nodes visited so far."""
        return int(self.control[2])

    def run(self, nodes: int, deadline: float) -> int:
        """Search on for `nodes` nodes or until `deadline` (of `time.perf_counter`)."""
        while nodes > 0:
            budget = min(nodes, self.stride)
            args = (self.control, self.data, self.pieces, self.state, self.scratch, self.ceiling, self.rule, budget)
            status = int(advance(*args))
            if status != PAUSED or time.perf_counter() > deadline:
                return status
            nodes -= budget
        return PAUSED

    def offsets(self) -> Ints:
        """After FOUND: the offset of each row of the part's table."""
        offsets = np.empty(self.order.size, np.int64)
        offsets[self.order] = self.state[0]
        return offsets


class Hunt:
    """Restarts over one part. Attempts are numbered, and their orders depend on the number and the seed only."""

    def __init__(self, part: Part, seed: int, workers: int | None = None) -> None:
        self.part, self.seed = part, seed
        self.rules = (0, 1) if part.table.gaps else (2, 3, 0, 1, 4)
        self.keys = part_keys(part)
        self.attempt = 0
        threads = num_workers() if workers is None else workers
        self.workers = threads if part.table.size.size >= _SMALL else 1

    def probe(self, attempt: int, capacity: int) -> Probe:
        """The probe number `attempt`: each key with each rule once, then blurred ones."""
        keys, rules = len(self.keys), len(self.rules)
        lap, place = divmod(attempt, keys * rules)
        order = blurred(self.keys[place % keys], self.seed, lap and attempt)
        return Probe(self.part, order, self.rules[(place + place // keys) % rules], capacity)

    def budget(self, attempt: int) -> int:
        """Nodes for an attempt: a few dives, and now and then more."""
        num = self.part.table.size.size
        return (3 * num + 100) // (1 if attempt % 4 == 0 else 2) * (1 if attempt % 64 else 4)

    def round(self, capacity: int, deadline: float) -> tuple[int, Ints | None]:
        """A few attempts at `capacity`: (FOUND, offsets), (FAILED, None) with a proof, or (PAUSED, None)."""
        first = self.attempt
        self.attempt += _ROUND * self.workers
        stop = [self.attempt]  # no attempt from this number on matters any more

        def work(worker: int) -> tuple[int, int, Ints | None]:
            for attempt in range(first + worker, self.attempt, self.workers):
                if attempt >= stop[0] or time.perf_counter() > deadline:
                    break
                probe = self.probe(attempt, capacity)
                status = probe.run(self.budget(attempt), deadline)
                if status in (FOUND, FAILED):
                    stop[0] = min(stop[0], attempt)
                    return attempt, status, probe.offsets() if status == FOUND else None
            return _MAX_INT, PAUSED, None

        if self.workers == 1:
            return work(0)[1:]
        results = spread(work, range(self.workers))
        return min(results, key=lambda result: result[0])[1:]


def proves_infeasible(part: Part, capacity: int, nodes: int, deadline: float) -> bool:
    """Whether one complete search of at most `nodes` nodes shows that `part` does not fit `capacity`."""
    order = np.argsort(-part.table.size.astype(np.float64), kind="stable")
    return Probe(part, order, 0, capacity).run(nodes, deadline) == FAILED
