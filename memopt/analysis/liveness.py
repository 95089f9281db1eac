"""When each value's bytes are needed, and how many bytes that makes at each step.

Holds true: intervals are half-open ranges of steps over `graph.nodes` as listed; no interval is empty.
1. A value is live from the step that defines it (feeds and parameters: from 0) to one past its last *data* reader; a
reader of the shape keeps nobody alive.   2. A value that nobody reads is live at its own step.   3. Outputs, feeds that
are not donated, and parameters are live to the end ("kept").   4. An update ends the old value at its own step; if the
old value is kept as a feed or parameter, its newest version is kept in its stead.   5. A buffer is live, at its full
size, from the first to the last step of its tenants, gaps included.

Linear in nodes and uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Buffer, Graph, Node, Value

__all__ = [
    "Interval",
    "Kept",
    "Liveness",
    "analyze_liveness",
    "buffer_interval",
    "buffer_size",
    "live_profile",
    "peak_bytes",
    "profile_of",
    "updated_value",
]


class Interval(NamedTuple):
    """Steps `[start, end)`."""

    start: int
    end: int

    def overlaps(self, other: Interval) -> bool:
        return self.start < other.end and other.start < self.end

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(min(self.start, other.start), max(self.end, other.end))


class Kept(StrEnum):
    """Why a value must hold to the end."""

    OUTPUT = "an output of the graph"
    FEED = "a feed that is not donated"
    PARAM = "a parameter"
    STATE = "the new state of a parameter or of a feed that is not donated"


@dataclass(frozen=True, slots=True)
class Liveness:
    """What `analyze_liveness` found of each value of a graph.

    intervals    when it is live                 last_reader   the last node that reads its bytes, if any
    kept         why it must hold to the end, for those that must      num_steps   the end (at least 1)
    """

    intervals: dict[Value, Interval]
    last_reader: dict[Value, Node]
    kept: dict[Value, Kept]
    num_steps: int


def updated_value(value: Value) -> Value | None:
    """The value whose variable `value` overwrites by definition (SGD's parameter), or None if it is no update."""
    if value.producer is None:
        return None
    index = value.producer.spec.updates.get(value.index)
    return None if index is None else value.producer.inputs[index]


def analyze_liveness(graph: Graph) -> Liveness:
    """Intervals of all values of `graph`, for its nodes as listed."""
    num_steps = max(len(graph.nodes), 1)
    start: dict[Value, int] = dict.fromkeys((*graph.inputs, *graph.params), 0)
    last_reader: dict[Value, Node] = {}
    last: dict[Value, int] = {}
    heir: dict[Value, Value] = {}
    for step, node in enumerate(graph.nodes):
        for _, value in node.data_inputs:
            last_reader[value] = node
            last[value] = step
        for _, value in node.real_outputs:
            start[value] = step
            old = updated_value(value)
            if old is not None:
                heir[old] = value
                last[old] = max(last.get(old, 0), step)
    kept = _kept(graph, heir)
    intervals = {
        value: Interval(begin, num_steps if value in kept else max(last.get(value, begin), begin) + 1)
        for value, begin in start.items()
    }
    return Liveness(intervals, last_reader, kept, num_steps)


def _kept(graph: Graph, heir: dict[Value, Value]) -> dict[Value, Kept]:
    params = set(graph.params)
    kept = dict.fromkeys(graph.outputs, Kept.OUTPUT)
    for value in (*graph.inputs, *graph.params):
        if value.name in graph.donated:
            continue
        newest = value
        while newest in heir:
            newest = heir[newest]
        own = Kept.PARAM if value in params else Kept.FEED
        kept.setdefault(newest, own if newest is value else Kept.STATE)
    return kept


def buffer_size(graph: Graph, buffer: Buffer) -> int:
    """Bytes of `buffer`: the end of the tenant that reaches furthest."""
    return max(
        variable.offset + graph.storage.extent_bytes(value)
        for variable in graph.storage.variables_of(buffer)
        for value in graph.storage.values_of(variable)
    )


def buffer_interval(graph: Graph, liveness: Liveness, buffer: Buffer) -> Interval:
    """From the first to the last step of `buffer`'s tenants, gaps included."""
    spans = [liveness.intervals[value] for value in graph.storage.tenants(buffer)]
    return Interval(min(span.start for span in spans), max(span.end for span in spans))


def profile_of(spans: Iterable[tuple[Interval, int]], num_steps: int) -> NDArray[np.int64]:
    """Live bytes at each step, shape (num_steps,), from intervals and their sizes in bytes."""
    change = np.zeros(num_steps + 1, np.int64)
    for span, num_bytes in spans:
        change[span.start] += num_bytes
        change[span.end] -= num_bytes
    return np.cumsum(change)[:-1]


def live_profile(graph: Graph, liveness: Liveness | None = None) -> NDArray[np.int64]:
    """Live bytes of all buffers at each step, feeds and parameters included, shape (num_steps,)."""
    liveness = liveness or analyze_liveness(graph)
    spans = [(buffer_interval(graph, liveness, b), buffer_size(graph, b)) for b in graph.storage.buffers]
    return profile_of(spans, liveness.num_steps)


def peak_bytes(graph: Graph, liveness: Liveness | None = None) -> int:
    """The largest sum of live bytes at a step."""
    return int(live_profile(graph, liveness).max())
