"""The executor: regions for a plan's slots, a table of rows, and runs.

Holds true: an executor never writes to the caller's arrays or to the graph's parameter data (updated parameters are
copied when it is made); feeds are copied in, outputs are copied out; a second run starts from the same bytes as the
first, but for the parameters that the graph updates. `run` is safe to call from several threads: runs of one executor
queue up.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import ExecutionError, MissingValueError, OptionError
from memopt.ir import Graph
from memopt.kernels.blas import set_blas_threads
from memopt.plan import MemoryPlan
from memopt.runtime.entry import entry_address, frame_words
from memopt.runtime.fates import missing_message, option_names, value_fates
from memopt.runtime.memory import Region, allocate, borrow, touched_bytes
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

    `kept` holds the values of `compile(keep=...)`. Asking for a value that is gone raises `MissingValueError`, which
    says how to keep it.
    """

    host_calls: tuple[str, ...] = ()
    measured: Measured | None = None
    seconds: float = 0.0
    kept: Mapping[str, Array] = MappingProxyType({})
    _fates: Mapping[str, str] = MappingProxyType({})

    def __missing__(self, name: str) -> Array:
        if name in self.kept:
            return self.kept[name]
        raise MissingValueError(missing_message(name, [*self, *self.kept], self._fates))


@dataclass(slots=True)
class _Loaded:
    rows: list[Row]
    table: NDArray[np.int64]
    frames: NDArray[np.int64] = field(repr=False)
    host_calls: tuple[str, ...]


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
            self._loaded = _load(make_rows(plan, self.regions))
        except (KeyError, IndexError) as error:  # only a plan that nobody validated gets here
            raise ExecutionError(f"the plan is malformed ({error}); memopt.validate(plan) says where") from error

    # -- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        measure: bool = False,
        sanitize: bool = False,
    ) -> RunResult:
        """One step: feeds in, instructions, outputs out.

        `out` gives arrays (of an output's shape and dtype) to be filled. `measure` reports what was really used;
        `sanitize` steps through the rows one at a time, poisons freed bytes, watches who owns what, and checks that
        host calls leave their inputs alone. Raises `FeedError` or `ExecutionError`.
        """
        arrays = check_feeds(self.plan.graph, feeds or {})
        self._check_out(out or {})
        with self._lock:
            if measure:
                self._renew_arenas()
            for result in self.plan.program.feeds:
                self._view(result.operand, result.name)[...] = arrays[result.name]
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
            results = self._fetch(out or {})
            if measure:
                results.measured = self._measured(seconds)
        results.host_calls = self._loaded.host_calls
        results.seconds = seconds
        return results

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
        for result in program.feeds:
            slot = self.plan.slots[result.operand.buffer]
            regions[slot.device, slot.space] = allocate(slot.size)
        for result in program.params:
            slot = self.plan.slots[result.operand.buffer]
            data = self._initial[result.name]
            read_only = result.name not in self._written and data.flags.c_contiguous and data.size > 0
            regions[slot.device, slot.space] = borrow(data) if read_only else allocate(slot.size)
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
        self._loaded = _load(make_rows(self.plan, self.regions))

    def _view(self, operand: Any, value: str) -> Array:
        return operand_view(self.plan, self.regions, operand, self.plan.graph.value(value).shape)

    def _fetch(self, out: Mapping[str, Array]) -> RunResult:
        results = RunResult()
        for result in self.plan.program.results:
            value = self.plan.graph.value(result.name)
            array = self._view(result.operand, result.name)
            if result.name in out:
                out[result.name][...] = array
                results[result.name] = out[result.name]
            else:
                results[result.name] = np.array(array, dtype=value.dtype, order="C")
        options = self.plan.options
        results.kept = {name: results[name] for name in option_names(options, "keep")}
        for name in option_names(options, "extra_outputs"):
            del results[name]
        results._fates = self._fates
        return results

    def _check_out(self, out: Mapping[str, Array]) -> None:
        graph: Graph = self.plan.graph
        names = {value.name: value for value in graph.outputs}
        for name, array in out.items():
            if name not in names:
                raise ExecutionError(f"out={name!r} is not an output; the outputs are {', '.join(names) or 'none'}")
            value = names[name]
            if not isinstance(array, np.ndarray) or array.shape != value.shape or array.dtype.name != value.dtype:
                raise ExecutionError(f"out={name!r} must be an array like {value.type}")
            if not array.flags.writeable:
                raise ExecutionError(f"out={name!r} is read-only")

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


def _load(rows: Iterable[Row]) -> _Loaded:
    """The table and the frames of `rows`: one allocation each."""
    rows = list(rows)
    frames: list[int] = []
    starts: list[int] = []
    for row in rows:
        starts.append(len(frames))
        if row.call is not None:
            frames.extend(frame_words(row.call, row.addresses))
    words = np.array(frames or [0], np.int64)
    table = np.zeros((len(rows), 2), np.int64)
    for index, row in enumerate(rows):
        if row.call is not None:
            table[index] = entry_address(row.call), words.ctypes.data + 8 * starts[index]
    return _Loaded(rows, table, words, tuple(row.label for row in rows if row.host is not None))
