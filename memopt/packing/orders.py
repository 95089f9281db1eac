"""Priorities: in which order the planners consider buffers. Deterministic for a given seed.

Each key puts large things first. Which one serves a problem best is not known beforehand, so the portfolio tries them
all and then blurs them: every key is multiplied by log-normal noise drawn from (seed, attempt).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memopt.packing.table import Ints, Part, Table

__all__ = ["Floats", "blur", "blurred", "fit_keys", "nudge", "part_keys", "ranked", "skyline_keys"]

Floats = NDArray[np.float64]
_NOISE = (0.05, 0.2, 0.5)


def part_keys(part: Part) -> list[Floats]:
    """Keys for the search: section width with and without the fullest section, size, start, duration, area, both."""
    size, duration, width, start = _measures(part)
    full = _fullest(part) ** 8
    return [full * width, size, start, width, full * duration * size, duration, duration * size]


def skyline_keys(part: Part) -> list[tuple[Floats, int]]:
    """(key, mode) for the skyline, such that the first few differ much and are good on many problems."""
    size, duration, width, start = _measures(part)
    area, spread = duration * size, width * size
    first = [(width, 1), (start, 1), (area, 0), (spread, 0), (width, 2), (area, 2)]
    return [*first, (start, 0), (duration, 0), (spread, 2), (start, 2), (area, 1), (spread, 1)]


def fit_keys(table: Table) -> list[Floats]:
    """Keys for first-fit: size, area, duration, start."""
    size = table.size.astype(np.float64)
    duration = (table.end - table.start).astype(np.float64)
    return [size, duration * size, duration, _earliest(table)]


def _measures(part: Part) -> tuple[Floats, Floats, Floats, Floats]:
    """Size, duration, width in sections, and earliness of each buffer."""
    table = part.table
    width = (part.upper[part.first[1:] - 1] - part.lower[part.first[:-1]]).astype(np.float64)
    return table.size.astype(np.float64), (table.end - table.start).astype(np.float64), width, _earliest(table)


def blurred(key: Floats, seed: int, attempt: int) -> Ints:
    """Rows by decreasing key; attempt 0 is the plain order, the others are blurred more and less in turn."""
    return ranked(blur(key, seed, attempt) if attempt else key)


def blur(key: Floats, seed: int, attempt: int) -> Floats:
    """`key` with a little, some or much noise."""
    noise = _NOISE[attempt % len(_NOISE)]
    blurred_key: Floats = key * np.exp(noise * np.random.default_rng((seed, attempt)).standard_normal(key.size))
    return blurred_key


def nudge(key: Floats, seed: int, attempt: int) -> Floats:
    """`key` with noise on a few of its entries."""
    rng = np.random.default_rng((seed, attempt))
    chosen = rng.random(key.size) < rng.choice((0.01, 0.03, 0.1)) + 1.0 / key.size
    nudged: Floats = key * np.exp(np.where(chosen, rng.choice((0.1, 0.5, 2.0)) * rng.standard_normal(key.size), 0.0))
    return nudged


def ranked(key: Floats) -> Ints:
    """Rows by decreasing key."""
    return np.argsort(-key, kind="stable")


def _earliest(table: Table) -> Floats:
    """Positive and larger for what starts earlier."""
    start = table.start.astype(np.float64)
    return (start.max() - start) + 0.05 * (start.max() - start.min()) + 1.0 if start.size else start


def _fullest(part: Part) -> Floats:
    """For each buffer, the sum of sizes in the fullest section that it meets, relative to the largest such sum."""
    sums = part.sums(part.table.size)
    owner = np.repeat(np.arange(part.table.size.size), np.diff(part.first))
    best = np.zeros(part.table.size.size)
    for piece, row in enumerate(owner.tolist()):
        best[row] = max(best[row], sums[part.lower[piece] : part.upper[piece]].max())
    relative: Floats = best / best.max()
    return relative
