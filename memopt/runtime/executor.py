"""The executor: regions for a plan's slots, a table of rows, and runs.

Holds true: an executor never writes to the graph's parameter data (updated parameters are copied when it is made), nor
to the caller's arrays, but for `out` and donated feeds. Feeds and outputs have regions of the executor's own; a run of
a plan that was validated puts the caller's arrays in their place where it can, and takes them away again at its end. A
second run starts from the same bytes as the first, but for the parameters that the graph updates. `run` is safe to call
from several threads: runs of one executor queue up.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import ExecutionError, MissingValueError, OptionError
from memopt.kernels.blas import set_blas_threads
from memopt.plan import MemoryPlan
from memopt.runtime.fates import missing_message, option_names, value_fates
from memopt.runtime.feeds import CONSUMED, Feeds, same_bytes
from memopt.runtime.frames import Frames, load_frames
from memopt.runtime.memory import Region, allocate, borrow, touched_bytes
from memopt.runtime.outs import Outs
from memopt.runtime.reference import check_feeds, initial_state
from memopt.runtime.rows import Row, make_rows, operand_view
from memopt.runtime.sanitizer import Sanitizer
from memopt.runtime.vm import run_rows

__all__ = ["Executor", "Measured", "RunResult"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run really used, beside what was planned.

    arena_bytes         device -> bytes of the arena's pages that were touched (whole pages; None where the system
                        does not tell)
    planned_bytes       device -> the planned height        process_peak_bytes   the process's peak resident size so far
    seconds             the run itself, without copies in and out
    """

    arena_bytes: Mapping[str, int | None]
    planned_bytes: Mapping[str, int]
    process_peak_bytes: int
    seconds: float


class RunResult(dict[str, Array]):
    """Output name -> array. `host_calls` are the nodes that ran as NumPy; `measured` is set by `measure=True`.

    `feeds` says of each feed, and `outputs` of each output, whether the caller's array was used: "in place", or
    "copied: " and why. `kept` holds the values of `compile(keep=...)`. Asking for a value that is gone raises
    `MissingValueError`, which says how to keep it.
    """

    host_calls: tuple[str, ...] = ()
    measured: Measured | None = None
    seconds: float = 0.0
    kept: Mapping[str, Array] = MappingProxyType({})
    feeds: Mapping[str, str] = MappingProxyType({})
    outputs: Mapping[str, str] = MappingProxyType({})
    _fates: Mapping[str, str] = MappingProxyType({})

    def __missing__(self, name: str) -> Array:
        if name in self.kept:
            return self.kept[name]
        raise MissingValueError(missing_message(name, [*self, *self.kept], self._fates))


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays of one run: feeds, and why they are copied in ("": used in place); `out`, and what is made there."""

    feeds: Mapping[str, Array]
    copied: Mapping[str, str]
    out: Mapping[str, Array]
    made: Mapping[str, Array]


class Executor:
    """Runs one plan. Compiles (or loads from the cache) the kernels that the plan needs when it is made.

    `threads` is how many BLAS may use (default: `$MEMOPT_THREADS`, or one: BLAS threads wait by spinning, and where
    others hold the cores that makes a run ten times slower rather than twice as fast).
    """

    def __init__(self, plan: MemoryPlan, threads: int | None = None) -> None:
        self.plan = plan
        self.threads = _threads() if threads is None else threads
        self._lock = threading.Lock()
        self._initial = initial_state(plan.graph)
        self._fates = value_fates(plan)
        self._written = {result.name for result in plan.program.finals if result.operand.value != result.name}
        try:
            self.regions = self._allocate()
            self._own = {key: region for key, region in self.regions.items() if _is_lent(key[1])}
            self._loaded = self._load()
            self._feeds, self._outs = Feeds(plan, self.regions, self._borrowed), Outs(plan)
        except (KeyError, IndexError) as error:  # only a plan that nobody validated gets here
            raise ExecutionError(f"the plan is malformed ({error}); memopt.validate(plan) says where") from error

    # -- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        copy_feeds: bool = False,
        measure: bool = False,
        sanitize: bool = False,
    ) -> RunResult:
        """One step: feeds in, instructions, outputs out.

        `out` gives arrays (of an output's shape and dtype) to be filled; if the run fails, what they hold is undefined.
        A feed that is C-contiguous and aligned is used in place, unless `copy_feeds` is set; leave it alone while it is
        read. A donated one may be overwritten: it is then *consumed*, and must be refilled before it is fed again.
        `measure` reports what was really used; `sanitize` steps through the rows one at a time, poisons freed bytes,
        watches who owns what, and checks that host calls leave their inputs alone. Raises `FeedError` or
        `ExecutionError`.
        """
        given, out = check_feeds(self.plan.graph, feeds or {}), dict(out or {})
        self._outs.check(out)
        with self._lock:
            CONSUMED.check(given.items())
            if measure:
                self._renew_arenas()
            copied = self._feeds.why_copied(given, out, self._outs.returned, copy_feeds)
            arrays = _Arrays(given, copied, out, self._outs.made(out))
            try:
                self._enter(arrays)
                seconds = self._timed(sanitize)
                results = self._fetch(out, arrays.made)
            finally:
                self._leave(arrays)
            if measure:
                results.measured = self._measured(seconds)
        results.host_calls, results.seconds = self._loaded.host_calls, seconds
        results.feeds = {name: _how(reason) for name, reason in copied.items()}
        return results

    def _enter(self, arrays: _Arrays) -> None:
        """Put the caller's arrays where the plan has feeds and outputs; copy in the feeds that cannot be there."""
        for feed in self._feeds.entries:
            if arrays.copied[feed.name]:
                self._view(feed.operand, feed.name)[...] = arrays.feeds[feed.name]
            else:
                self._move(feed.key, borrow(arrays.feeds[feed.name]))
        for name, array in arrays.made.items():
            self._move(self._outs.direct[name], borrow(array))

    def _leave(self, arrays: _Arrays) -> None:
        """Take the caller's arrays away again; those that were overwritten are consumed, but where `out` is filled."""
        for key, region in self._own.items():
            self._move(key, region)
        for feed in self._feeds.entries:
            array, in_place = arrays.feeds[feed.name], not arrays.copied[feed.name]
            if in_place and feed.use.taken_by and not any(same_bytes(array, to) for to in arrays.out.values()):
                CONSUMED.add(array, feed.use.taken_by)

    def _move(self, key: tuple[str, str], region: Region) -> None:
        self.regions[key] = region
        self._loaded.move(key, region.address)

    def _timed(self, sanitize: bool) -> float:
        """Run all rows; returns the seconds that it took."""
        before = set_blas_threads(self.threads)
        start = time.perf_counter()
        try:
            if sanitize:
                Sanitizer(self.plan, self.regions).run(self._loaded.rows, self._step)
            else:
                self._run_all()
        finally:
            seconds = time.perf_counter() - start
            if before is not None:
                set_blas_threads(before)
        return seconds

    def state(self) -> dict[str, Array]:
        """parameter name -> its value now (copies for those that the graph updates)."""
        with self._lock:
            finals = {result.name: result.operand for result in self.plan.program.finals}
            return {
                value.name: np.array(self._view(finals[value.name], value.name))
                if value.name in self._written
                else self._initial[value.name]
                for value in self.plan.graph.params
            }

    def reset(self) -> None:
        """Give the updated parameters their first values again."""
        with self._lock:
            self._fill_params()

    def _run_all(self) -> None:
        rows, table = self._loaded.rows, self._loaded.table
        status = np.zeros(1, np.int64)
        at, end = 0, len(rows)
        while at < end:
            at = run_rows(table, at, end, status)
            if at == end:
                return
            self._stopped(rows[at], int(status[0]))
            at += 1

    def step(self, instruction: int) -> None:
        """Do one instruction of the plan, whatever came before it (for tests and traces)."""
        for index in self._loaded.by_instruction.get(instruction, ()):
            self._step(index)

    def _step(self, index: int) -> None:
        status = np.zeros(1, np.int64)
        if run_rows(self._loaded.table, index, index + 1, status) == index:
            self._stopped(self._loaded.rows[index], int(status[0]), check=True)

    @staticmethod
    def _stopped(row: Row, status: int, *, check: bool = False) -> None:
        """Do a host call, or report a kernel's failure."""
        if row.host is not None:
            row.host(check)
            return
        from memopt.kernels.abi import STATUS_MESSAGES

        raise ExecutionError(f"{row.label}: {STATUS_MESSAGES.get(status, f'the kernel failed with status {status}')}")

    # -- bytes --------------------------------------------------------------------------------------------------

    def _allocate(self) -> dict[tuple[str, str], Region]:
        regions: dict[tuple[str, str], Region] = {}
        for device, use in self.plan.devices.items():
            regions[device, "arena"] = allocate(use.height_bytes, pages=True)
            regions[device, "scratch"] = allocate(use.scratch_bytes)
        program = self.plan.program
        for slot in self.plan.slots:
            key = slot.device, slot.space
            if _is_lent(slot.space) and (key not in regions or regions[key].data.size < slot.size):
                regions[key] = allocate(slot.size)
        self._borrowed: dict[str, Array] = {}
        for result in program.params:
            slot = self.plan.slots[result.operand.buffer]
            data = self._initial[result.name]
            read_only = result.name not in self._written and data.flags.c_contiguous and data.size > 0
            regions[slot.device, slot.space] = borrow(data) if read_only else allocate(slot.size)
            if read_only:
                self._borrowed[result.name] = data
        self.regions = regions
        self._fill_params()
        return regions

    def _fill_params(self) -> None:
        for result in self.plan.program.params:
            slot = self.plan.slots[result.operand.buffer]
            if self.regions[slot.device, slot.space].owner is not self._initial[result.name]:
                self._view(result.operand, result.name)[...] = self._initial[result.name]

    def _renew_arenas(self) -> None:
        """Fresh arenas, none of whose pages was touched yet."""
        for device, use in self.plan.devices.items():
            self.regions[device, "arena"] = allocate(use.height_bytes, pages=True)
        self._loaded = self._load()

    def _load(self) -> Frames:
        return load_frames(self.plan, make_rows(self.plan, self.regions), self.regions)

    def _view(self, operand: Any, value: str) -> Array:
        return operand_view(self.plan, self.regions, operand, self.plan.graph.value(value).shape)

    def _fetch(self, out: Mapping[str, Array], made: Mapping[str, Array] = MappingProxyType({})) -> RunResult:
        """The outputs: those in `made` are there already, the others are copied out, to `out` if it has them."""
        results, how = RunResult(), {}
        for result in self.plan.program.results:
            name = result.name
            how[name] = _how("" if name in made else self._outs.why_copied(name, out.get(name)))
            if name in made:
                results[name] = made[name]
                continue
            array = self._view(result.operand, name)
            if name not in out:
                results[name] = np.array(array, dtype=self.plan.graph.value(name).dtype, order="C")
                continue
            results[name] = out[name]
            if name in self._outs.returned and same_bytes(array, out[name]):  # the feed's own array
                how[name] = _how("")
            else:
                out[name][...] = array
        results.outputs = how
        options = self.plan.options
        results.kept = {name: results[name] for name in option_names(options, "keep")}
        for name in option_names(options, "extra_outputs"):
            del results[name]
        results._fates = self._fates
        return results

    def _measured(self, seconds: float) -> Measured:
        devices = self.plan.devices
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Measured(
            {name: touched_bytes(self.regions[name, "arena"]) for name in devices},
            {name: use.height_bytes for name, use in devices.items()},
            peak,
            seconds,
        )


def _threads() -> int:
    """The number of threads that the environment asks for."""
    text = os.environ.get("MEMOPT_THREADS", "1")
    if not text.isdigit() or int(text) < 1:
        raise OptionError(f"MEMOPT_THREADS={text!r} is not a number of threads, 1 or more")
    return int(text)


def _is_lent(space: object) -> bool:
    """Whether arrays of the caller's can take the place of this space's region."""
    return str(space).startswith(("feed:", "output:"))


def _how(reason: str) -> str:
    return f"copied: {reason}" if reason else "in place"
