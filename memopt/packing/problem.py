"""What the packer reads and what it answers: buffers, a problem, a plan. Plain frozen data, no algorithm.

Holds true: intervals are half-open, sizes and offsets are exact integers in bytes that fit a signed 64-bit word; a
buffer's gaps lie inside its interval, in order and apart. A buffer of zero bytes, and one that its gaps cover wholly,
conflicts with nobody. Two buffers conflict when they are both active at some time, and then their bytes must be apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from memopt.errors import PackingInputError

__all__ = ["MAX_BYTES", "MAX_SIZE", "PackingBuffer", "PackingPlan", "PackingProblem", "Status", "find_fault"]

#: The largest size of one buffer.
MAX_SIZE = 2**62
#: The largest offset or height; anything above it is an overflow, and an error.
MAX_BYTES = 2**63 - 1

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True)
class PackingBuffer:
    """`size` bytes, live in `[start, end)` except in its `gaps`; its offset is a multiple of `alignment`.

    `offset` pins it there. In a gap, its bytes may be used by others (its content does not survive the gap).
    Raises `PackingInputError` where a number is out of range.
    """

    id: str
    size: int
    start: int
    end: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        plain = self.alignment == 1 and self.offset is None and not self.gaps
        if plain and 0 <= self.size <= MAX_SIZE and -MAX_SIZE <= self.start < self.end <= MAX_SIZE:
            return
        fault = find_fault(self.size, self.start, self.end, self.alignment, self.offset, self.gaps)
        if fault is not None:
            raise PackingInputError(f"buffer %{self.id}: {fault[1]}")

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """The half-open intervals in which the buffer is active: its interval without its gaps."""
        if not self.gaps:
            return ((self.start, self.end),)
        pieces, at = [], self.start
        for lower, upper in self.gaps:
            if lower > at:
                pieces.append((at, lower))
            at = upper
        if at < self.end:
            pieces.append((at, self.end))
        return tuple(pieces)

    @property
    def active(self) -> bool:
        """Whether it ever takes a byte: it has a size, and its gaps leave some of its interval."""
        return self.size > 0 and (not self.gaps or bool(self.pieces))

    def __str__(self) -> str:
        return f"%{self.id} [{self.start}, {self.end})"


def find_fault(
    size: int, start: int, end: int, alignment: int, offset: int | None, gaps: tuple[tuple[int, int], ...]
) -> tuple[str, str] | None:
    """The first field of a buffer that is out of range, and why; None if all are well."""
    checks = (
        ("size", size >= 0, f"size {size} is negative"),
        ("size", size <= MAX_SIZE, f"size {size} is beyond 2^62"),
        ("start", abs(start) <= MAX_SIZE, f"start {start} is beyond 2^62"),
        ("end", abs(end) <= MAX_SIZE, f"end {end} is beyond 2^62"),
        ("end", start < end, f"interval [{start}, {end}) is empty; want start < end"),
        ("alignment", 1 <= alignment <= MAX_SIZE, f"alignment {alignment} is not in 1 … 2^62"),
    )
    for name, good, why in checks:
        if not good:
            return name, why
    return _pin_fault(offset, size, alignment) or _gaps_fault(start, end, gaps)


def _pin_fault(offset: int | None, size: int, alignment: int) -> tuple[str, str] | None:
    if offset is None:
        return None
    if not 0 <= offset <= MAX_BYTES - size:
        return "offset", f"pinned offset {offset} with size {size} is not in 0 … 2^63 - 1"
    if offset % alignment:
        return "offset", f"pinned offset {offset} is not a multiple of its alignment {alignment}"
    return None


def _gaps_fault(start: int, end: int, gaps: tuple[tuple[int, int], ...]) -> tuple[str, str] | None:
    at = start
    for lower, upper in gaps:
        if not at <= lower < upper <= end:
            why = "gaps are non-empty, in order, apart and inside the interval"
            return "gaps", f"gap [{lower}, {upper}) does not fit [{start}, {end}): {why}"
        at = upper
    return None


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """Buffers with distinct ids, and the capacity in bytes that a plan should fit (None: as low as possible)."""

    buffers: tuple[PackingBuffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.buffers, tuple):
            object.__setattr__(self, "buffers", tuple(self.buffers))
        if self.capacity is not None and not 0 <= self.capacity <= MAX_BYTES:
            raise PackingInputError(f"capacity {self.capacity} is not in 0 … 2^63 - 1")
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.id in seen:
                raise PackingInputError(f"buffer id %{buffer.id} occurs twice; ids are distinct")
            seen.add(buffer.id)

    def height(self, offsets: dict[str, int]) -> int:
        """Bytes of the arena that `offsets` (id -> offset) need."""
        return max((offsets[buffer.id] + buffer.size for buffer in self.buffers if buffer.active), default=0)

    def subset(self, ids: Sequence[str]) -> PackingProblem:
        """The same problem with only the buffers in `ids`, in the order of this problem."""
        wanted = frozenset(ids)
        return PackingProblem(tuple(buffer for buffer in self.buffers if buffer.id in wanted), self.capacity)

    def __len__(self) -> int:
        return len(self.buffers)


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """The answer: an offset for each buffer, and what is known about it.

    `offsets` is the best valid placement found, `height` its bytes, `lower_bound` what no placement can go below.
    `status`: `optimal` (no lower plan exists), `feasible` (valid, and fits the capacity if there is one), `infeasible`
    (no plan fits the capacity), `unknown` (this one does not fit the capacity, and nothing is proved). `proof` says
    in words how the status is known, `core` names a small set of buffers that makes the capacity impossible.
    """

    problem: PackingProblem
    offsets: dict[str, int]
    height: int
    lower_bound: int
    status: Status
    proof: str
    seconds: float
    core: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether the plan is one to use: there is no capacity, or its height is within it."""
        return self.status in ("optimal", "feasible")

    @property
    def ratio(self) -> float:
        """Height over the lower bound; 1.0 for an empty problem."""
        return self.height / self.lower_bound if self.lower_bound else 1.0
