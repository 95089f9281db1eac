"""Priorities: in which order the planners consider buffers. Deterministic for a given seed.

Each key puts large things first. Which one serves a problem best is not known beforehand, so the portfolio tries them
all and then blurs them: every key is multiplied by log-normal noise drawn from (seed, attempt).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memopt.packing.table import Ints, Part, Table

__all__ = ["blurred", "part_keys", "table_keys"]

Floats = NDArray[np.float64]
_NOISE = (0.05, 0.2, 0.5)


def table_keys(table: Table) -> list[Floats]:
    """Keys that need no sections: area, time steps × size, start, duration, size."""
    size = table.size.astype(np.float64)
    first, last, _ = table.ranks()
    duration = (table.end - table.start).astype(np.float64)
    steps = (last - first).astype(np.float64)
    return [duration * size, steps * size, _earliest(table), duration, size]


def part_keys(part: Part) -> list[Floats]:
    """Keys for the search: section width with and without the fullest section, size, start, duration, area, both."""
    size = part.table.size.astype(np.float64)
    duration = (part.table.end - part.table.start).astype(np.float64)
    width = (part.upper[part.first[1:] - 1] - part.lower[part.first[:-1]]).astype(np.float64)
    full = _fullest(part) ** 8
    return [full * width, size, _earliest(part.table), width, full * duration * size, duration, duration * size]


def blurred(key: Floats, seed: int, attempt: int) -> Ints:
    """Rows by decreasing key; attempt 0 is the plain order, the others are blurred more and less in turn."""
    if attempt:
        noise = _NOISE[attempt % len(_NOISE)]
        key = key * np.exp(noise * np.random.default_rng((seed, attempt)).standard_normal(key.size))
    return np.argsort(-key, kind="stable")


def _earliest(table: Table) -> Floats:
    """Positive and larger for what starts earlier."""
    start = table.start.astype(np.float64)
    return (start.max() - start) + 0.05 * (start.max() - start.min()) + 1.0 if start.size else start


def _fullest(part: Part) -> Floats:
    """For each buffer, the sum of sizes in the fullest section that it meets, relative to the largest such sum."""
    size = part.table.size.astype(np.float64)
    change = np.zeros(part.num_sections + 1)
    owner = np.repeat(np.arange(size.size), np.diff(part.first))
    np.add.at(change, part.lower, size[owner])
    np.subtract.at(change, part.upper, size[owner])
    sums = np.cumsum(change)[:-1]
    best = np.zeros(size.size)
    for piece, row in enumerate(owner.tolist()):
        best[row] = max(best[row], sums[part.lower[piece] : part.upper[piece]].max())
    relative: Floats = best / best.max()
    return relative
