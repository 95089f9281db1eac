"""The door to the solvers: `pack` runs those that its effort allows and returns the best valid plan.

Holds true: deterministic for a given effort and seed, as long as no time limit cuts in; never worse than first-fit by
decreasing size; `optimal` and `infeasible` are said only with a proof. Small problems that the plain-Python planners
solve to the bound never load numba.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from memopt.errors import OptionError, PackingInputError
from memopt.packing.bound import peak, table_bound
from memopt.packing.greedy import best_fit, first_fit, first_fit_by_area
from memopt.packing.problem import MAX_BYTES, PackingBuffer, PackingPlan, PackingProblem, Status
from memopt.packing.table import Ints, Table
from memopt.packing.validate import validate_packing

__all__ = ["Effort", "pack", "pack_arrays"]

Effort = Literal["fast", "best", "prove"]
Watch = Callable[[int, int], None]
_PLAIN = 400  # up to this many buffers the plain-Python planners go first
LIVE_SUM = "the height equals the lower bound (sizes live at once)"
SEARCHED = "a complete search found nothing lower"


def pack(
    problem: PackingProblem,
    capacity: int | None = None,
    time_limit: float = 10.0,
    effort: Effort = "fast",
    seed: int = 0,
    watch: Watch | None = None,
) -> PackingPlan:
    """Place the buffers of `problem`, within `capacity` bytes if that is given here or in the problem.

    `fast` is near-linear and never worse than first-fit by size. `best` lowers the height by restarts and search until
    it meets the bound or `time_limit` (seconds) is over. `prove` decides the capacity (or, without one, the optimum):
    its status is `unknown` only if the time is over, and an infeasible answer names a small core of buffers.
    `watch(height, bound)` is called now and then. Compiling the engines, once per machine, is not search time.
    The plan is always valid; whether it fits the capacity, `status` (and `fits`) says.
    """
    if effort not in ("fast", "best", "prove"):
        raise OptionError(f"effort {effort!r} is not one of fast, best, prove")
    if not time_limit >= 0:
        raise OptionError(f"time_limit {time_limit!r} is not a number of seconds of 0 or more")
    if capacity is not None and not 0 <= capacity <= MAX_BYTES:
        raise PackingInputError(f"capacity {capacity} is not in 0 … 2^63 - 1")
    run = _Run.start(problem, problem.capacity if capacity is None else capacity, time_limit, seed, watch)
    clash = _pinned_clash(problem)
    if clash:
        return run.refuse(f"pinned buffers %{clash[0]} and %{clash[1]} overlap", clash)
    run.plain()
    if not run.met:
        run.fast()
    if effort != "fast":
        run.close(effort == "prove")
    return run.plan()


def pack_arrays(
    starts: ArrayLike, ends: ArrayLike, sizes: ArrayLike, alignment: int = 1, **options: Any
) -> PackingPlan:
    """`pack` for buffers given as three integer arrays of one length; their ids are `0`, `1`, …"""
    columns = (np.asarray(column).tolist() for column in (starts, ends, sizes))
    rows = enumerate(zip(*columns, strict=True))
    buffers = [PackingBuffer(str(i), size, start, end, alignment) for i, (start, end, size) in rows]
    return pack(PackingProblem(tuple(buffers)), **options)


def _pinned_clash(problem: PackingProblem) -> tuple[str, str] | None:
    pinned = tuple(buffer for buffer in problem.buffers if buffer.offset is not None)
    offsets = {buffer.id: buffer.offset or 0 for buffer in pinned}
    found = validate_packing(PackingProblem(pinned), offsets, findings="return") if pinned else []
    return (found[0].first, found[0].second) if found else None


@dataclass(slots=True)
class _Run:
    """One call of `pack`: the best placement so far, the bound, and what is proved."""

    problem: PackingProblem
    capacity: int | None
    deadline: float
    seed: int
    began: float
    table: Table
    bound: int
    watch: Watch | None
    height: int = MAX_BYTES + 1
    offsets: Ints | None = None
    searched: bool = False
    impossible: bool = False
    core: tuple[str, ...] = ()

    @staticmethod
    def start(problem: PackingProblem, capacity: int | None, time_limit: float, seed: int, watch: Watch | None) -> _Run:
        began = time.perf_counter()
        table = Table.of(problem)
        bound, _ = table_bound(table)
        if bound > MAX_BYTES:
            raise PackingInputError(f"the buffers need {bound} bytes at once: more than 2^63 - 1, an overflow")
        step = table.quantum()
        bound = min(-(-bound // step) * step, MAX_BYTES)
        return _Run(problem, capacity, began + time_limit, seed, began, table, bound, watch)

    @property
    def met(self) -> bool:
        return self.height <= self.bound

    def accept(self, height: int, offsets: Ints) -> None:
        if height < self.height:
            self.height, self.offsets = height, offsets
            self.tell(height)

    def tell(self, height: int) -> None:
        """Tell the watcher where we are."""
        if self.watch is not None:
            self.watch(height, self.bound)

    def plain(self) -> None:
        """The plain-Python planners: for small problems, and for those whose numbers numba could not hold."""
        huge = self.bound > 2**62 or int(self.table.align.max(initial=1)) > 2**61
        if self.table.size.size > _PLAIN and not huge:
            return
        for planner in (first_fit, first_fit_by_area, best_fit):
            found = planner(self.problem)
            offsets = [found[self.problem.buffers[row].id] for row in self.table.index.tolist()]
            height = max((at + size for at, size in zip(offsets, self.table.size.tolist(), strict=True)), default=0)
            if height < self.height and height <= MAX_BYTES:
                self.accept(height, np.array(offsets, np.int64))
            if self.met:
                return

    def fast(self) -> None:
        """The near-linear planners in numba."""
        self._warm("heuristics")
        from memopt.packing.heuristics import Planner, first_fit_by_size

        planner = Planner(self.table, self.seed)
        best = None if self.offsets is None else (self.height, self.offsets)
        best = planner.best_of(best, self.bound, planner.first_attempts, np.inf)
        if best is not None:
            self.accept(*best)
        if not self.met:
            found = first_fit_by_size(self.table, self.height - 1)
            if found is not None:
                self.accept(*found)
        if self.offsets is None:
            raise PackingInputError("no placement below 2^63 - 1 bytes was found: an overflow; use smaller sizes")

    def close(self, prove: bool) -> None:
        """Restarts and search, part by part, until bound, capacity or deadline is met."""
        if self.met or self.bound > 2**62 or (prove and (self.capacity or 0) > 2**62):
            return
        self._warm("improve")
        if prove and self.capacity is not None:
            self._decide(self.capacity)
        else:
            self._lower(prove)

    def _warm(self, module: str) -> None:
        """Load (or, once per machine, compile) an engine, and give the time back to the search."""
        began = time.perf_counter()
        importlib.import_module(f"memopt.packing.{module}").warm_up()
        self.deadline += time.perf_counter() - began

    def _lower(self, prove: bool) -> None:
        from memopt.packing.improve import Climb

        assert self.offsets is not None
        offsets, ends = self.offsets.copy(), self.offsets + self.table.size
        climbs = []
        for rows in self.table.parts():
            height = int(ends[rows].max())
            if height > self.bound:
                climbs.append(
                    (rows, Climb(self.table.take(rows), (height, offsets[rows]), self.bound, self.seed, self.tell))
                )
        for position, (rows, climb) in enumerate(climbs):
            now = time.perf_counter()
            climb.run(now + (self.deadline - now) / (len(climbs) - position), prove)
            offsets[rows] = climb.best[1]
        self.accept(int((offsets + self.table.size).max()), offsets)
        self.searched = any(climb.searched for _, climb in climbs)
        self.bound = max(self.bound, *(climb.bound for _, climb in climbs))

    def _decide(self, capacity: int) -> None:
        from memopt.packing.improve import decide
        from memopt.packing.probe import FAILED

        assert self.offsets is not None
        if self.height <= capacity or self.bound > capacity:
            return
        offsets, ends = self.offsets.copy(), self.offsets + self.table.size
        for rows in self.table.parts():
            if int(ends[rows].max()) <= capacity:
                continue
            status, found = decide(self.table.take(rows), capacity, self.seed, self.deadline)
            if found is not None:
                offsets[rows] = found[1]
            elif status == FAILED:
                self.impossible, self.searched = True, True
                self.bound = max(self.bound, capacity + 1)
                self.core = self._searched_core(rows, capacity)
                return
        self.accept(int((offsets + self.table.size).max()), offsets)

    def _searched_core(self, rows: Ints, capacity: int) -> tuple[str, ...]:
        from memopt.packing.core import searched_core

        kept = searched_core(self.table, rows, capacity, max(self.deadline, time.perf_counter() + 1.0))
        return tuple(self.problem.buffers[row].id for row in self.table.index[kept].tolist())

    def refuse(self, why: str, core: tuple[str, ...]) -> PackingPlan:
        """The answer where not even an unlimited arena helps."""
        seconds = time.perf_counter() - self.began
        return PackingPlan(self.problem, {}, 0, self.bound, "infeasible", why, seconds, core)

    def plan(self) -> PackingPlan:
        assert self.offsets is not None or not self.table.size.size
        offsets = {buffer.id: buffer.offset or 0 for buffer in self.problem.buffers}
        if self.offsets is not None:
            buffers = self.problem.buffers
            for row, offset in zip(self.table.index.tolist(), self.offsets.tolist(), strict=True):
                offsets[buffers[row].id] = offset
        height = self.height if self.table.size.size else 0
        status, proof = self._verdict(height)
        if status == "infeasible" and not self.core:
            self.core = _live_core(self.problem, self.capacity or 0)
        seconds = time.perf_counter() - self.began
        return PackingPlan(self.problem, offsets, height, self.bound, status, proof, seconds, self.core)

    def _verdict(self, height: int) -> tuple[Status, str]:
        if self.capacity is not None and height > self.capacity:
            if self.impossible:
                return "infeasible", f"a complete search found no placement within {self.capacity} bytes"
            short = self.bound - self.capacity
            if short > 0:
                why = f"every placement needs {self.bound} bytes or more: above the capacity by {short}"
                return "infeasible", why
            return "unknown", ""
        if height <= self.bound:
            return "optimal", SEARCHED if self.searched else LIVE_SUM
        return "feasible", ""


def _live_core(problem: PackingProblem, capacity: int) -> tuple[str, ...]:
    """Few of the buffers that are live at the peak: the largest ones, as many as it takes to pass `capacity`."""
    live = problem.subset(peak(problem)[1]).buffers
    largest = sorted(live, key=lambda buffer: -buffer.size)
    enough, few = len(largest), 1
    while few < enough:
        middle = (few + enough) // 2
        if peak(PackingProblem(tuple(largest[:middle])))[0] > capacity:
            enough = middle
        else:
            few = middle + 1
    kept = {buffer.id for buffer in largest[:enough]}
    return tuple(buffer.id for buffer in live if buffer.id in kept)
