# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""How high each section will reach at least: a segment tree in numba, for range add and the place of the maximum.

Holds true: with `n = press.size // 2` leaves, leaf n + s holds the pressure of section s without the additions that the
nodes above it keep in `added`; an inner node holds the maximum below it, its own addition included. O(log n) each.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from memopt.packing.table import Ints

__all__ = ["add_pressure", "make_pressure", "most_pressed", "pressure_of"]


def make_pressure(sums: Ints) -> tuple[Ints, Ints]:
    """(press, added) for sections whose pressure begins at `sums`."""
    leaves = 1 << max(0, int(sums.size - 1).bit_length())
    press = np.full(2 * leaves, -1, np.int64)
    press[leaves : leaves + sums.size] = sums
    level = leaves
    while level > 1:
        level //= 2
        press[level : 2 * level] = press[2 * level : 4 * level].reshape(-1, 2).max(axis=1)
    return press, np.zeros(2 * leaves, np.int64)


@njit(cache=True, nogil=True)
def _repair(press, added, node):
    node >>= 1
    while node >= 1:
        press[node] = max(press[2 * node], press[2 * node + 1]) + added[node]
        node >>= 1


@njit(cache=True, nogil=True)
def add_pressure(press, added, lower, upper, amount):
    """Add `amount` to the sections [lower, upper)."""
    leaves = press.size // 2
    left, right = lower + leaves, upper + leaves
    while left < right:
        if left & 1:
            press[left] += amount
            added[left] += amount
            left += 1
        if right & 1:
            right -= 1
            press[right] += amount
            added[right] += amount
        left >>= 1
        right >>= 1
    _repair(press, added, lower + leaves)
    _repair(press, added, upper - 1 + leaves)


@njit(cache=True, nogil=True)
def _total(press, added, node):
    total = press[node]
    node >>= 1
    while node >= 1:
        total += added[node]
        node >>= 1
    return total


@njit(cache=True, nogil=True)
def pressure_of(press, added, section):
    """The pressure of one section."""
    return _total(press, added, section + press.size // 2)


@njit(cache=True, nogil=True)
def most_pressed(press, added, lower, upper):
    """The section in [lower, upper) with the largest pressure."""
    leaves = press.size // 2
    left, right = lower + leaves, upper + leaves
    best = left
    most = _total(press, added, left)
    while left < right:
        if left & 1:
            total = _total(press, added, left)
            if total > most:
                best, most = left, total
            left += 1
        if right & 1:
            right -= 1
            total = _total(press, added, right)
            if total > most:
                best, most = right, total
        left >>= 1
        right >>= 1
    while best < leaves:
        best = 2 * best if press[2 * best] >= press[2 * best + 1] else 2 * best + 1
    return best - leaves
