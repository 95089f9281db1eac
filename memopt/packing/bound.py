"""Lower bounds of the height: what no placement can go below.

The bound at a time is the sum of the active sizes. Sharpened with alignment: every offset is a multiple of `g`, the
greatest common divisor of all alignments, so each buffer but the topmost takes its size rounded up to `g`; what the
topmost one saves is at most the largest slack of those active. A pinned buffer's own end is a bound, too.
O(n log n) time, linear memory, exact integers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from memopt.packing.problem import MAX_BYTES, PackingProblem
from memopt.packing.table import Table

__all__ = ["lower_bound", "peak", "table_bound"]


def lower_bound(problem: PackingProblem) -> int:
    """Bytes below which no valid placement of `problem` exists."""
    return table_bound(Table.of(problem))[0]


def peak(problem: PackingProblem) -> tuple[int, tuple[str, ...]]:
    """The lower bound, and the ids of the buffers that force it."""
    table = Table.of(problem)
    bound, when = table_bound(table)
    if when is None:
        rows = [row for row in range(table.size.size) if max(int(table.pin[row]), 0) + int(table.size[row]) == bound][
            :1
        ]
    else:
        rows = table.owner[(table.lower <= when) & (when < table.upper)].tolist()
    return bound, tuple(problem.buffers[int(table.index[row])].id for row in rows)


def table_bound(table: Table) -> tuple[int, int | None]:
    """The lower bound of `table` and the time that shows it (None: a single buffer does)."""
    if not table.size.size:
        return 0, None
    single = int((np.maximum(table.pin, 0) + table.size).max())
    unit = table.unit()
    total = float(table.size.astype(np.float64).sum())
    exact = total > MAX_BYTES // 2 or (unit > 1 and bool((table.size % unit).any()))
    best, when = _sharp_peak(table, unit) if exact else _plain_peak(table)
    return (best, when) if best > single else (single, None)


def _plain_peak(table: Table) -> tuple[int, int]:
    """The largest sum of active sizes and its time, in NumPy."""
    sizes = table.size[table.owner]
    times = np.concatenate((table.lower, table.upper))
    change = np.concatenate((sizes, -sizes))
    order = np.lexsort((change, times))  # at one time, ends come before begins
    sums = np.cumsum(change[order])
    at = int(np.argmax(sums))
    return int(sums[at]), int(times[order[at]])


def _sharp_peak(table: Table, unit: int) -> tuple[int, int]:
    """The same in exact integers, with all but the topmost buffer rounded up to `unit`."""
    sizes = table.size.tolist()
    rooms = [-(-size // unit) * unit for size in sizes]
    active = [0] * len(sizes)
    slacks: list[tuple[int, int]] = []
    total, best, when = 0, -1, 0
    for time, row, begins in _events(table):
        active[row] += 1 if begins else -1
        total += rooms[row] if begins else -rooms[row]
        if not begins:
            continue
        heapq.heappush(slacks, (sizes[row] - rooms[row], row))
        while not active[slacks[0][1]]:
            heapq.heappop(slacks)
        # (a value in the middle of the begins of one time is the bound of a subset: still a bound)
        if total + slacks[0][0] > best:
            best, when = total + slacks[0][0], time
    return best, when


def _events(table: Table) -> Iterator[tuple[int, int, bool]]:
    owners = table.owner.tolist()
    begins = [(time, 1, row) for time, row in zip(table.lower.tolist(), owners, strict=True)]
    ends = [(time, 0, row) for time, row in zip(table.upper.tolist(), owners, strict=True)]
    for time, kind, row in sorted(begins + ends):
        yield time, row, bool(kind)
