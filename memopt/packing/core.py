"""A small core: few buffers that alone do not fit the capacity, found by leaving out as many as possible.

Every set that is kept has been proved not to fit by a complete search, so the core is always a reason; it is not always
the smallest one. Chunks are left out first, of half the buffers, then of fewer, down to single ones.
"""

from __future__ import annotations

import time

import numpy as np

from memopt.packing.bound import table_bound
from memopt.packing.probe import proves_infeasible
from memopt.packing.table import Ints, Part, Table

__all__ = ["searched_core"]

_NODES = 20_000  # nodes that one question may take


def searched_core(table: Table, rows: Ints, capacity: int, deadline: float) -> Ints:
    """Rows of `table`, among `rows`, that alone do not fit `capacity`; ends at `deadline`."""
    kept = rows
    chunk = max(1, rows.size // 2)
    while True:
        at, shrunk = 0, False
        while at < kept.size and kept.size > 1:
            if time.perf_counter() > deadline:
                return kept
            fewer = np.concatenate((kept[:at], kept[at + chunk :]))
            if fewer.size and _impossible(table.take(fewer), capacity, deadline):
                kept, shrunk = fewer, True
            else:
                at += chunk
        if chunk == 1 and not shrunk:
            return kept
        chunk = max(1, chunk // 2)


def _impossible(table: Table, capacity: int, deadline: float) -> bool:
    return table_bound(table)[0] > capacity or proves_infeasible(Part.of(table), capacity, _NODES, deadline)
