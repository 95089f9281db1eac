"""What names mean while a program is lowered: variable -> location, graph buffer -> program buffer.

Holds true: a location is a byte range of one program buffer and how it is stored. The scope knows no values: like the
frameworks whose semantics it follows, it finds a value's bytes through its variable's name, whatever they hold by
then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from memopt.analysis import Interval, Kept, analyze_liveness
from memopt.devices import Placement
from memopt.ir import Buffer, Graph, Node, Value, Variable
from memopt.lowering.program import Operand, Space
from memopt.ops import DEFAULT_LAYOUT
from memopt.strides import Strides
from memopt.types import itemsize

__all__ = ["Draft", "Location", "Scope", "is_odd", "placed_bytes"]


@dataclass(frozen=True, slots=True)
class Location:
    """`buffer` (a program buffer's id) from byte `offset` on, stored as `placement`, in `strides` if it is a view that
    steps through others' bytes.
    """

    buffer: int
    offset: int
    placement: Placement
    strides: Strides | None = None

    def operand(self, variable: str, value: str) -> Operand:
        return Operand(self.buffer, self.offset, self.placement, variable, value, self.strides)


@dataclass(slots=True)
class Draft:
    """A program buffer in the making; `limit` is the size to which later tenants may grow it, `home` how a parameter
    lies in it.
    """

    name: str
    device: str
    space: Space
    size: int
    limit: int
    transfer: bool = False
    pinned: bool = False
    home: Placement | None = None


class Holder(NamedTuple):
    """Bytes [low, high) of a graph buffer are at `buffer`, from `offset` on."""

    low: int
    high: int
    buffer: int
    offset: int


@dataclass(slots=True)
class Scope:
    """The outer scope, and the buffers made so far.

    `holders` lists where a graph buffer's ranges are, the newest last: one place as a rule, more when tenants were
    put apart. `odd` are the buffers with a tenant that is stored in another layout or dtype than the graph says.
    """

    graph: Graph
    drafts: list[Draft] = field(default_factory=list)
    locations: dict[Variable, Location] = field(default_factory=dict)
    holders: dict[Buffer, list[Holder]] = field(default_factory=dict)
    versions: dict[Variable, int] = field(default_factory=dict)
    odd: set[Buffer] = field(default_factory=set)
    _nominal: dict[Buffer, int] = field(default_factory=dict)
    _lives: dict[Value, Interval] = field(default_factory=dict)
    _kept: dict[Value, Kept] = field(default_factory=dict)
    _steps: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        liveness = analyze_liveness(self.graph)
        self._lives, self._kept = liveness.intervals, liveness.kept
        self._steps = self.graph.steps()

    def locate(self, value: Value) -> Location:
        """Where the variable of `value` is now."""
        return self.locations[self.graph.storage.variable(value)]

    def new_buffer(self, draft: Draft) -> int:
        self.drafts.append(draft)
        return len(self.drafts) - 1

    def bind(self, variable: Variable, location: Location, num_bytes: int) -> None:
        """From here on `variable`, with a value of `num_bytes`, means `location`; its graph buffer's bytes are there
        too (not if it is a view in strides that was given up: those bytes are its own).
        """
        self.locations[variable] = location
        self.versions[variable] = self.versions.get(variable, 0) + 1
        if is_odd(location.placement, self.graph.storage.values_of(variable)[0]):
            self.odd.add(variable.buffer)
        if variable.strides is not None and location.strides is None:
            return
        found = self.holders.setdefault(variable.buffer, [])
        low, high = variable.offset, variable.offset + num_bytes
        if not found and location.offset == low:
            low, high = 0, max(high, self.nominal_bytes(variable.buffer))
        for holder in found:
            if holder.buffer == location.buffer and holder.offset - holder.low == location.offset - variable.offset:
                found.remove(holder)
                low, high = min(low, holder.low), max(high, holder.high)
                break
        found.append(Holder(low, high, location.buffer, location.offset - (variable.offset - low)))

    def holder(self, variable: Variable, num_bytes: int) -> tuple[int, int] | None:
        """(program buffer, offset) where a new tenant of `num_bytes` would lie with those that share its graph
        buffer.
        """
        for holder in reversed(self.holders.get(variable.buffer, ())):
            if holder.low <= variable.offset and variable.offset + num_bytes <= holder.high:
                return holder.buffer, holder.offset + variable.offset - holder.low
        return None

    def needed_beside(self, variable: Variable, node: Node) -> Iterator[tuple[Value, Location]]:
        """The values that other variables of the same graph buffer hold now, and that are needed after `node`."""
        step, storage = self._steps[node], self.graph.storage
        for other in storage.variables_of(variable.buffer):
            location = self.locations.get(other)
            if other is variable or location is None:
                continue
            for value in storage.values_of(other):
                life = self._lives[value]
                if life.start <= step and (life.end > step + 1 or value in self._kept):
                    yield value, location

    def nominal_bytes(self, buffer: Buffer) -> int:
        """The size of a graph buffer: where its furthest tenant ends."""
        size = self._nominal.get(buffer)
        if size is None:
            storage = self.graph.storage
            size = max(
                v.offset + storage.extent_bytes(value)
                for v in storage.variables_of(buffer)
                for value in storage.values_of(v)
            )
            self._nominal[buffer] = size
        return size

    def fits(self, buffer: int, device: str, end: int) -> bool:
        """Whether bytes up to `end` on `device` can be had in program buffer `buffer`, growing it if need be."""
        draft = self.drafts[buffer]
        return draft.device == device and end <= max(draft.size, draft.limit)

    def grow(self, buffer: int, end: int) -> None:
        self.drafts[buffer].size = max(self.drafts[buffer].size, end)


def is_odd(placement: Placement, value: Value) -> bool:
    """Whether `value` is stored otherwise than the graph says."""
    return placement.layout != DEFAULT_LAYOUT or placement.dtype != value.dtype


def placed_bytes(value: Value, placement: Placement) -> int:
    """Bytes of `value` as stored under `placement`."""
    return value.type.num_elements * itemsize(placement.dtype)
