"""Strides: how the elements of a tensor step through its storage. Arithmetic only; the ground, like `types`.

Holds true: strides are counted in elements, one for each axis, and are 0 or more; element `i` lies at
`first + sum(i[k] * strides[k])`. `canonical` strides are None where the elements lie one after the other in logical
order, else have 0 for every axis of length 1, so that equal placements compare equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "MOST_RUNS",
    "Strided",
    "Strides",
    "canonical",
    "extent",
    "has_gaps",
    "meet_themselves",
    "reshaped",
    "row_runs",
    "row_strides",
]

Strides = tuple[int, ...]
#: A value in more runs than this is not looked into run by run.
MOST_RUNS = 1024


class Strided(NamedTuple):
    """Element `i` is element `first + sum(i[k] * strides[k])` of a storage."""

    first: int
    strides: Strides


def row_strides(shape: Sequence[int]) -> Strides:
    """The strides of a contiguous tensor of `shape`."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def canonical(shape: Sequence[int], strides: Strides | None) -> Strides | None:
    """The one spelling of `strides`: None if the elements lie in logical order without gaps."""
    if strides is None or 0 in shape:
        return None
    rows = row_strides(shape)
    if all(dim == 1 or step == row for dim, step, row in zip(shape, strides, rows, strict=True)):
        return None
    return tuple(0 if dim == 1 else step for dim, step in zip(shape, strides, strict=True))


def extent(shape: Sequence[int], strides: Strides | None) -> int:
    """How many elements of storage lie between the first and the last element, both included."""
    if strides is None or 0 in shape:
        return math.prod(shape)
    return 1 + sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))


def row_runs(shape: Sequence[int], strides: Strides | None, most: int = MOST_RUNS) -> list[tuple[int, int, int]] | None:
    """(element in storage, element of the tensor, how many) for each longest run of elements that follow each other in
    both, in the order of the tensor; None if there are more than `most`. A tensor without elements has none.
    """
    if 0 in shape:
        return []
    if strides is None:
        return [(0, 0, math.prod(shape))]
    axes, run = list(zip(shape, strides, strict=True)), 1
    while axes and (axes[-1][0] == 1 or axes[-1][1] == run):
        run *= axes.pop()[0]
    if math.prod(dim for dim, _ in axes) > most:
        return None
    starts = [0]
    for dim, step in axes:
        starts = [start + i * step for start in starts for i in range(dim)]
    return [(start, i * run, run) for i, start in enumerate(starts)]


def meet_themselves(shape: Sequence[int], strides: Strides) -> bool:
    """Whether two elements may lie in one place: not if each stride is longer than all that smaller ones span."""
    span = 0
    for step, dim in sorted((step, dim) for dim, step in zip(shape, strides, strict=True) if dim > 1):
        if step <= span:
            return True
        span += (dim - 1) * step
    return False


def has_gaps(shape: Sequence[int], strides: Strides | None) -> bool:
    """Whether storage within the extent belongs to no element (of strides that let no two others meet)."""
    if strides is None:
        return False
    distinct = math.prod(dim for dim, step in zip(shape, strides, strict=True) if step)
    return distinct != extent(shape, strides)


def reshaped(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of the same elements in the same order under the shape `new`, or None if no strides say that.

    As NumPy's `reshape` without a copy: axes of both shapes are matched from the last on, in groups of equal numbers of
    elements; the old axes of a group must run on from each other.
    """
    if 0 in shape:
        return row_strides(new)
    old = [(dim, step) for dim, step in zip(shape, strides, strict=True) if dim != 1]
    found = [0] * len(new)
    todo = [axis for axis, dim in enumerate(new) if dim != 1]
    while todo and old:
        axis, (count, step) = todo.pop(), old.pop()
        inner, size = step, new[axis]
        found[axis] = step
        while size != count:
            if size < count:
                if not todo:
                    return None
                found[todo[-1]] = inner * size
                size *= new[todo.pop()]
            else:
                if not old or old[-1][1] != inner * count:
                    return None
                count *= old.pop()[0]
    return None if todo or old else tuple(found)
