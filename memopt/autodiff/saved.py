"""Strict mode: does an in-place method overwrite bytes that the backward still reads?

Frameworks count versions: a saved tensor of which any element was written since is refused. Here it goes by bytes.

Holds true: 1. A value lies where it would lie if every in-place method were honoured: a new value over the old one, a
view (contiguous) over its source, all else apart.   2. A write at step s conflicts with a value that was made before s,
if the backward reads that value after s and a byte of it is written. So disjoint slices of a saved tensor may be
written, and so may anything after its last backward reader.   3. A slice that is no contiguous run is a copy in memopt,
and is apart.

Linear in nodes and uses, and in the number of runs that a strided write has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memopt.analysis import view_source
from memopt.errors import GradientError
from memopt.ir import Graph, InplacePlace, InplaceRequest, Node, Value
from memopt.ops import get_op
from memopt.types import itemsize

__all__ = ["check_reads"]


class _Location(NamedTuple):
    """Bytes `[low, low + size)` of the memory that `root` was made in."""

    root: Value
    low: int
    size: int


class _Write(NamedTuple):
    step: int
    request: InplaceRequest
    place: InplacePlace
    location: _Location
    runs: NDArray[np.int64]  # shape (n, 2): [low, high) within the root, by their start


def check_reads(graph: Graph, backward: Sequence[Node]) -> None:
    """Raise `GradientError` if a node of `backward` reads bytes that an in-place method has overwritten by then."""
    steps = graph.steps()
    readers = _last_readers(backward, steps)
    locations = _locations(graph)
    by_root: dict[Value, list[Value]] = {}
    for value in readers:
        by_root.setdefault(locations[value].root, []).append(value)
    conflicts: dict[tuple[InplaceRequest, Value], str] = {}  # one for each method and value
    for write in _writes(graph, steps, locations):
        for value in by_root.get(write.location.root, ()):
            made = -1 if value.producer is None else steps[value.producer]
            if made < write.step < steps[readers[value]]:
                overlap = _overlap(write.runs, locations[value])
                if overlap is not None:
                    conflicts.setdefault((write.request, value), _say(write, value, readers[value], overlap))
    if conflicts:
        first, *others = conflicts.values()
        error = GradientError(
            f"{first}. Nothing was changed. Either write a new value (y = x.sin() for x.sin_()), or write after "
            "the gradient is taken, or build without strict=True: then the old value is kept, and plan.decisions say "
            "what that costs"
        )
        for conflict in others:
            error.add_note(f"also: {conflict}")
        raise error


def _last_readers(backward: Sequence[Node], steps: dict[Node, int]) -> dict[Value, Node]:
    """value -> the last of `backward` that reads its bytes, for the values that none of them makes."""
    ours = set(backward)
    last: dict[Value, Node] = {}
    for node in sorted(backward, key=lambda one: steps[one]):
        for _, value in node.data_inputs:
            if value.producer not in ours:
                last[value] = node
    return last


def _locations(graph: Graph) -> dict[Value, _Location]:
    """Where each value would lie if every in-place method were honoured."""
    over = {place.new: place.old for request in graph.inplace.requests for place in request.places}
    found: dict[Value, _Location] = {}
    for value in graph.values:
        old = over.get(value.name)
        source = view_source(value)
        if old is not None and graph.has_value(old) and graph.value(old) in found:
            root, low, _ = found[graph.value(old)]
        elif source is not None:
            root, low = found[source[0]].root, found[source[0]].low + source[1]
        else:
            root, low = value, 0
        found[value] = _Location(root, low, value.nbytes)
    return found


def _writes(graph: Graph, steps: dict[Node, int], locations: dict[Value, _Location]) -> list[_Write]:
    """What in-place methods write where; a reshape of what was written before writes nothing."""
    found = []
    for request in graph.inplace.requests:
        for place in request.places:
            if not (graph.has_node(place.node) and graph.has_value(place.old)):
                continue  # removed since
            node, old = graph.node(place.node), locations[graph.value(place.old)]
            if node.spec.views and node.op != "Transpose":
                continue
            runs = _runs(node, old)
            if len(runs):
                found.append(_Write(steps[node], request, place, old, runs))
    return found


def _runs(node: Node, old: _Location) -> NDArray[np.int64]:
    """The runs of bytes that `node` writes of its output, which lies at `old`."""
    if node.op != "SliceAssign":
        return np.array([[old.low, old.low + old.size]] if old.size else np.empty((0, 2)), np.int64).reshape(-1, 2)
    data = node.inputs[0]
    assert data is not None  # SliceAssign has no optional input
    positions = _slice_positions(node, data)
    ends = np.flatnonzero(np.diff(positions, append=-2) != 1)  # a run ends where the next position does not follow
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    runs = np.stack([positions[starts], positions[ends] + 1], axis=1)
    return np.asarray(runs * itemsize(data.dtype) + old.low, np.int64)


def _slice_positions(node: Node, data: Value) -> NDArray[np.int64]:
    """The positions, in elements, that the slice takes of `data`, in rising order."""
    positions: NDArray[Any] = np.arange(data.type.num_elements, dtype=np.int64).reshape(data.shape)
    (taken,) = get_op("Slice").reference([positions], node.attrs, [data.type])
    return np.sort(taken.reshape(-1))


def _overlap(runs: NDArray[np.int64], location: _Location) -> tuple[int, int] | None:
    """The first bytes of `location`, counted from its start, that `runs` write; None if there are none."""
    low, high = location.low, location.low + location.size
    hit = runs[(runs[:, 0] < high) & (low < runs[:, 1])]
    if not len(hit):
        return None
    return int(max(hit[0, 0], low)) - low, int(min(hit[-1, 1], high)) - low


def _say(write: _Write, value: Value, reader: Node, overlap: tuple[int, int]) -> str:
    maker = write.place.node
    return (
        f"strict: {write.request.method} on %{write.request.target} (node {maker}) overwrites bytes "
        f"[{overlap[0]}, {overlap[1]}) of %{value.name}, which the backward still reads (node {reader.name}, "
        f"{reader.op})"
    )
