"""The validator of placements: a stranger to the solvers, which reads only the problem and the offsets.

It sweeps time once and keeps, of the buffers that are active, the list sorted by offset; a new one can only clash with
its neighbours in that list as long as the list is free of clashes. O(n log n) comparisons on valid placements.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from memopt.errors import ConflictError, OptionError
from memopt.packing.problem import PackingBuffer, PackingProblem

__all__ = ["Overlap", "validate_packing"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """One way in which a placement is wrong. `kind`: overlap, missing, pin, alignment, range or capacity.

    `second` is the other party of an overlap (else empty); `[lower, upper)` are the bytes in question.
    """

    kind: str
    first: str
    second: str
    lower: int
    upper: int
    message: str


def validate_packing(
    problem: PackingProblem,
    offsets: Mapping[str, int],
    capacity: int | None = None,
    findings: Literal["raise", "return"] = "raise",
) -> list[Overlap]:
    """Check `offsets` (id -> offset) against `problem`; an empty list means that the placement is right.

    Raises `ConflictError` with the first finding (the others as a note), or with `findings="return"` gives them all.
    The capacity is checked when it is given here.
    """
    if findings not in ("raise", "return"):
        raise OptionError(f"findings {findings!r} is not one of 'raise', 'return'")
    found = _each_alone(problem, offsets, capacity)
    found += _pairs([buffer for buffer in problem.buffers if buffer.active and buffer.id in offsets], offsets)
    if found and findings == "raise":
        error = ConflictError(found[0].message)
        for other in found[1:6]:
            error.add_note(other.message)
        raise error
    return found


def _each_alone(problem: PackingProblem, offsets: Mapping[str, int], capacity: int | None) -> list[Overlap]:
    found = []

    def report(kind: str, buffer: PackingBuffer, lower: int, why: str) -> None:
        upper = lower + buffer.size
        found.append(Overlap(kind, buffer.id, "", lower, upper, f"buffer {_name(buffer)} {why}"))

    for buffer in problem.buffers:
        at = offsets.get(buffer.id)
        if at is None:
            report("missing", buffer, 0, "has no offset")
            continue
        if at < 0:
            report("range", buffer, at, f"has the negative offset {at}")
        if buffer.offset is not None and at != buffer.offset:
            report("pin", buffer, at, f"is pinned at {buffer.offset} but placed at {at}")
        if buffer.active and at % buffer.alignment:
            report("alignment", buffer, at, f"is placed at {at}, not a multiple of its alignment {buffer.alignment}")
        if capacity is not None and buffer.active and at + buffer.size > capacity:
            report("capacity", buffer, at, f"ends at byte {at + buffer.size}, above the capacity {capacity}")
    return found


def _pairs(buffers: list[PackingBuffer], offsets: Mapping[str, int]) -> list[Overlap]:
    events = []
    for index, buffer in enumerate(buffers):
        for lower, upper in buffer.pieces:
            events.append((lower, 1, index))
            events.append((upper, 0, index))
    events.sort()
    active: list[tuple[int, int, int]] = []  # (offset, end offset, index), sorted, apart
    aside: list[tuple[int, int, int]] = []  # those that clash with one in `active`: rare
    pairs: dict[tuple[int, int], Overlap] = {}
    for _, kind, index in events:
        at = offsets[buffers[index].id]
        entry = (at, at + buffers[index].size, index)
        if not kind:
            _remove(active, aside, entry)
            continue
        clashes = _clashes(active, entry) + [other for other in aside if other[0] < entry[1] and entry[0] < other[1]]
        for other in clashes:
            pair = (min(index, other[2]), max(index, other[2]))
            pairs.setdefault(pair, _overlap(buffers, pair, max(at, other[0]), min(entry[1], other[1])))
        if clashes:
            aside.append(entry)
        else:
            bisect.insort(active, entry)
    return list(pairs.values())


def _clashes(active: list[tuple[int, int, int]], entry: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Those of `active` (sorted, apart) whose bytes meet those of `entry`: one stretch of neighbours."""
    at = bisect.bisect_left(active, entry)
    first = at - 1 if at and active[at - 1][1] > entry[0] else at
    last = at
    while last < len(active) and active[last][0] < entry[1]:
        last += 1
    return active[first:last]


def _remove(active: list[tuple[int, int, int]], aside: list[tuple[int, int, int]], entry: tuple[int, int, int]) -> None:
    if entry in aside:
        aside.remove(entry)
    else:
        del active[bisect.bisect_left(active, entry)]


def _overlap(buffers: list[PackingBuffer], pair: tuple[int, int], lower: int, upper: int) -> Overlap:
    first, second = buffers[pair[0]], buffers[pair[1]]
    message = f"buffers {_name(first)} and {_name(second)} overlap at bytes [{lower}, {upper})"
    return Overlap("overlap", first.id, second.id, lower, upper, message)


def _name(buffer: PackingBuffer) -> str:
    return f"%{buffer.id} [{buffer.start}, {buffer.end})"
