"""Packing: buffers with lifetimes, sizes and alignments → offsets. Knows nothing of graphs or devices."""

from __future__ import annotations

from memopt.packing.bound import lower_bound
from memopt.packing.dialects import format_csv, parse_csv, parse_offsets, read_csv, write_csv
from memopt.packing.greedy import best_fit, first_fit
from memopt.packing.picture import plot_packing
from memopt.packing.portfolio import Effort, pack, pack_arrays
from memopt.packing.problem import MAX_BYTES, MAX_SIZE, PackingBuffer, PackingPlan, PackingProblem, Status
from memopt.packing.validate import Overlap, validate_packing

__all__ = [
    "MAX_BYTES",
    "MAX_SIZE",
    "Effort",
    "Overlap",
    "PackingBuffer",
    "PackingPlan",
    "PackingProblem",
    "Status",
    "best_fit",
    "first_fit",
    "format_csv",
    "lower_bound",
    "pack",
    "pack_arrays",
    "parse_csv",
    "parse_offsets",
    "plot_packing",
    "read_csv",
    "validate_packing",
    "write_csv",
]
