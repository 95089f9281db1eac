"""Who is in which bytes of which buffer when: the table that passes consult and keep as they edit the storage.

Holds true between edits, for every buffer: its tenants are listed by the end of their interval, its span runs from the
first to the last of them, its size is where the furthest reaches. A buffer's home is the device to which the node that
makes its first tenant is pinned (None: not pinned, or a feed or parameter). Each home has a profile: the sum of sizes
over spans, and of the copies of operands that a node reads from another pinned device. `share` and `rename` are the
only edits; both move whole buffers, and change `graph.storage` and the table together.

A merge costs O(k log n + moves) for the k tenants that move; the peak after it O(n) by NumPy.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memopt.analysis.alias import analyze_aliases
from memopt.analysis.liveness import Interval, analyze_liveness, profile_of
from memopt.ir import Buffer, Graph, Node, SteppedView, Value, Variable
from memopt.strides import Strides
from memopt.types import itemsize

__all__ = ["Body", "Occupancy", "Tenant"]


class Tenant(NamedTuple):
    """A value in bytes `[low, high)` of its buffer during steps `[start, end)`; `order` makes the listing unique."""

    end: int
    start: int
    order: int
    low: int
    high: int
    value: Value


class Body(NamedTuple):
    """A buffer that starts at byte `at` of a buffer that is to be (or before it: only differences count), and has
    `size` bytes there (None: as many as it has).
    """

    buffer: Buffer
    at: int
    size: int | None = None


def _maker(value: Value) -> str | None:
    """The device to which the node that makes `value` is pinned."""
    return None if value.producer is None else value.producer.device


def _transferred(node: Node) -> list[Value]:
    """The operands of a pinned node that nodes on another pinned device make: it reads a copy of them."""
    if node.device is None:
        return []
    operands = dict.fromkeys(value for _, value in node.data_inputs)
    return [v for v in operands if v.producer is not None and v.producer.device not in (None, node.device)]


class Occupancy:
    """The tenants of every buffer of a graph, and the live bytes that result."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.liveness = analyze_liveness(graph)
        self.aliases = analyze_aliases(graph)
        #: Whether kernels do a node with operands in these strides: kept for `spacing.has_kernel`.
        self.kernels: dict[tuple[Node, tuple[tuple[Strides | None, ...], ...]], bool] = {}
        self._tenants: dict[Buffer, list[Tenant]] = {}
        self._span: dict[Buffer, Interval] = {}
        self._size: dict[Buffer, int] = {}
        self._first: dict[Buffer, tuple[int, int, Value]] = {}
        order = {value: i for i, value in enumerate(graph.values)}
        for buffer in graph.storage.buffers:
            tenants = []
            for variable in graph.storage.variables_of(buffer):
                for value in graph.storage.values_of(variable):
                    start, end = self.liveness.intervals[value]
                    low = variable.offset
                    high = low + graph.storage.extent_bytes(value)
                    tenants.append(Tenant(end, start, order[value], low, high, value))
            self._tenants[buffer] = sorted(tenants)
            self._span[buffer] = Interval(min(t.start for t in tenants), max(t.end for t in tenants))
            self._size[buffer] = max(t.high for t in tenants)
            self._first[buffer] = min((t.start, t.order, t.value) for t in tenants)
        spans: dict[str | None, list[tuple[Interval, int]]] = {}
        for buffer, span in self._span.items():
            spans.setdefault(self.home(buffer), []).append((span, self._size[buffer]))
        for step, node in enumerate(graph.nodes):
            for value in _transferred(node):
                spans.setdefault(node.device, []).append((Interval(step, step + 1), value.nbytes))
        self._profiles = {home: profile_of(found, self.liveness.num_steps) for home, found in spans.items()}
        self._peaks: dict[str | None, int] = {}
        self._mixed = {b for b, tenants in self._tenants.items() if len({_maker(t.value) for t in tenants}) > 1}

    # -- reading ------------------------------------------------------------------------------------------------

    def span(self, buffer: Buffer) -> Interval:
        """When `buffer` is live, gaps included."""
        return self._span[buffer]

    def size(self, buffer: Buffer) -> int:
        """The bytes of `buffer`."""
        return self._size[buffer]

    def tenants(self, buffer: Buffer) -> tuple[Tenant, ...]:
        """Every tenant of `buffer`, by the end of its interval."""
        return tuple(self._tenants[buffer])

    def tenants_after(self, buffer: Buffer, step: int) -> list[Tenant]:
        """The tenants of `buffer` that are live after `step` has begun."""
        tenants = self._tenants[buffer]
        return tenants[bisect.bisect_left(tenants, (step + 1,)) :]

    def home(self, buffer: Buffer) -> str | None:
        """The device on which the first tenant of `buffer` is made, if it is known."""
        return _maker(self._first[buffer][2])

    def is_mixed(self, buffer: Buffer) -> bool:
        """Whether tenants of `buffer` have several homes, so that lowering will move it or take it apart."""
        return buffer in self._mixed

    def profile(self, home: str | None) -> NDArray[np.int64]:
        """Live bytes at each step of the buffers of one home, shape (num_steps,); not to be written."""
        return self._profiles[home]

    def peak(self, home: str | None) -> int:
        """The largest sum of live bytes of one home at a step."""
        if home not in self._peaks:
            self._peaks[home] = int(self._profiles[home].max())
        return self._peaks[home]

    @property
    def homes(self) -> tuple[str | None, ...]:
        """Every home, in the order of first use."""
        return tuple(self._profiles)

    def begins(self, value: Value) -> bool:
        """Whether no tenant of `value`'s buffer comes before `value`: it has borrowed no bytes."""
        return self._first[self.graph.storage.buffer(value)][2] is value

    def same_content(self, a: Tenant, b: Tenant) -> bool:
        """Whether both hold the same content in the bytes that both have."""
        return self.aliases.agree(a.value, b.value, b.low - a.low)

    def clashes(self, moving: Buffer, into: Buffer, shift: int) -> Iterator[tuple[Tenant, Tenant]]:
        """Pairs (tenant of `moving`, tenant of `into`) that overlap in time and, `moving` shifted, in bytes, and do not
        hold the same content."""
        others = self.tenants_after(into, self._span[moving].start)
        if not others:
            return
        for tenant in self._tenants[moving]:
            moved = tenant._replace(low=tenant.low + shift, high=tenant.high + shift)
            for other in others:
                apart_in_time = moved.end <= other.start or other.end <= moved.start
                apart_in_bytes = moved.high <= other.low or other.high <= moved.low or other.low == other.high
                if not (apart_in_time or apart_in_bytes or moved.low == moved.high or self.same_content(moved, other)):
                    yield moved, other

    def rise(self, moving: Buffer, into: Buffer, shift: int) -> int:
        """By how many bytes the peak rises if `moving` goes into `into`; 0 or less if it does not.

        The peak of their home; where they have two, the peak of all homes together.
        """
        size, old, other = self._merged_size(moving, into, shift), self._span[into], self._span[moving]
        if size == self._size[into] == self._size[moving] and old.end >= other.start and other.end >= old.start:
            return 0
        span = old.hull(other)
        home = self.home(into)
        if home == self.home(moving):
            part, peak = self._profiles[home][span.start : span.end] + size, self.peak(home)
        else:
            total = np.sum(list(self._profiles.values()), axis=0)
            part, peak = total[span.start : span.end] + size, int(total.max())
        part[old.start - span.start : old.end - span.start] -= self._size[into]
        part[other.start - span.start : other.end - span.start] -= self._size[moving]
        return int(part.max()) - peak

    def rise_without(self, gone: Sequence[Buffer], holder: Buffer) -> int:
        """By how many bytes the peak (of all homes together) rises if `holder` lives as long as the buffers that are
        `gone` in its stead; 0 or less if it does not.
        """
        profile = np.sum(list(self._profiles.values()), axis=0)
        before = int(profile.max())
        held, size = self._span[holder], self._size[holder]
        for buffer in gone:
            start, end = self._span[buffer]
            profile[start:end] -= self._size[buffer]
        profile[held.end : max(held.end, *(self._span[buffer].end for buffer in gone))] += size
        return int(profile.max()) - before

    def meets(self, tenant: Tenant, into: Buffer) -> Tenant | None:
        """The first tenant of `into` that needs bytes of `tenant` for other content while `tenant` is live."""
        for other in self.tenants_after(into, tenant.start):
            apart = tenant.end <= other.start or tenant.high <= other.low or other.high <= tenant.low
            if not (apart or other.low == other.high or self.same_content(tenant, other)):
                return other
        return None

    def peak_with(self, bodies: Sequence[Body]) -> int:
        """The peak of their home if the bodies, which all have one home, became one buffer."""
        home = self.home(bodies[0].buffer)
        profile = self._profiles[home].copy()
        base = min(body.at for body in bodies)
        for body in bodies:
            start, end = self._span[body.buffer]
            profile[start:end] -= self._size[body.buffer]
        start, end = min(self._span[b.buffer].start for b in bodies), max(self._span[b.buffer].end for b in bodies)
        profile[start:end] += max((body.size or self._size[body.buffer]) + body.at for body in bodies) - base
        return int(profile.max())

    def clash(self, a: Body, b: Body) -> tuple[Tenant, Tenant] | None:
        """The first pair of tenants that would need the same bytes at the same time for different content."""
        return next(self.clashes(a.buffer, b.buffer, a.at - b.at), None)

    # -- edits --------------------------------------------------------------------------------------------------

    def share(self, value: Value, buffer: Buffer, low: int) -> None:
        """Put the buffer of `value` into `buffer`, so that `value` lies at byte `low`. All variables stay."""
        storage = self.graph.storage
        moving = storage.buffer(value)
        shift = low - storage.variable(value).offset
        self._merge(moving, buffer, shift)
        for variable in storage.variables_of(moving):
            storage.share(variable, buffer, variable.offset + shift)

    def lay(self, value: Value, view: SteppedView) -> None:
        """Put `value`, which has a buffer of its own, where it is a view in strides. All variables stay."""
        variable, source = self.graph.storage.variable(value), self.graph.storage.variable(view.source)
        buffer, low = variable.buffer, source.offset + view.first * itemsize(value.dtype)
        variable.strides = view.strides
        size = self.graph.storage.extent_bytes(value)
        (tenant,) = self._tenants[buffer]
        span = self._span[buffer]
        self._profiles[self.home(buffer)][span.start : span.end] += size - self._size[buffer]
        self._tenants[buffer], self._size[buffer] = [tenant._replace(high=tenant.low + size)], size
        self.share(value, source.buffer, low)
        self.aliases.place(value)

    @contextmanager
    def as_if(self, value: Value, view: SteppedView) -> Iterator[Tenant]:
        """For a while, `value` lies where it is a view: its tenant there. Nothing else is kept up."""
        variable, source = self.graph.storage.variable(value), self.graph.storage.variable(view.source)
        before = variable.buffer, variable.offset, variable.strides
        (tenant,) = self._tenants[variable.buffer]
        variable.buffer, variable.strides = source.buffer, view.strides
        variable.offset = source.offset + view.first * itemsize(value.dtype)
        self.aliases.place(value)
        try:
            high = variable.offset + self.graph.storage.extent_bytes(value)
            yield tenant._replace(low=variable.offset, high=high)
        finally:
            variable.buffer, variable.offset, variable.strides = before
            self.aliases.place(value)

    def space(self, strides: Mapping[Variable, Strides | None]) -> int:
        """Let the variables, all that one buffer has, lie in these strides. Returns how far the last of them reaches;
        `resize` says that the buffer is that large.
        """
        storage = self.graph.storage
        buffer = next(iter(strides)).buffer
        for variable, steps in strides.items():
            variable.strides = steps
        tenants = []
        for tenant in sorted(self._tenants[buffer], key=lambda one: one.order):  # what is viewed before its views
            self.aliases.place(tenant.value)
            tenants.append(tenant._replace(high=tenant.low + storage.extent_bytes(tenant.value)))
        self._tenants[buffer] = sorted(tenants)
        return max(tenant.high for tenant in tenants)

    def resize(self, buffer: Buffer) -> None:
        """The buffer is as large as its tenants reach."""
        size = max(tenant.high for tenant in self._tenants[buffer])
        span = self._span[buffer]
        self._profiles[self.home(buffer)][span.start : span.end] += size - self._size[buffer]
        self._peaks.pop(self.home(buffer), None)
        self._size[buffer] = size

    def join(self, bodies: Sequence[Body]) -> None:
        """Make one buffer of the bodies: of the first one that starts lowest."""
        anchor = min(bodies, key=lambda body: body.at)
        for body in bodies:
            if body is not anchor:
                variable = self.graph.storage.variables_of(body.buffer)[0]
                value = self.graph.storage.values_of(variable)[0]
                self.share(value, anchor.buffer, variable.offset + body.at - anchor.at)

    def rename(self, value: Value, variable: Variable) -> None:
        """Bind the values of `value`'s variable to `variable`; whatever else is in its buffer comes along."""
        storage = self.graph.storage
        renamed = storage.variable(value)
        moving = renamed.buffer
        shift = variable.offset - renamed.offset
        self._merge(moving, variable.buffer, shift)
        for other in storage.variables_of(moving):
            if other is not renamed:
                storage.share(other, variable.buffer, other.offset + shift)
        storage.rename(renamed, into=variable)

    def _merged_size(self, moving: Buffer, into: Buffer, shift: int) -> int:
        return max(self._size[into], self._size[moving] + shift)

    def _merge(self, moving: Buffer, into: Buffer, shift: int) -> None:
        size = self._merged_size(moving, into, shift)
        for buffer in (moving, into):
            start, end = self._span[buffer]
            self._profiles[self.home(buffer)][start:end] -= self._size[buffer]
            self._peaks.pop(self.home(buffer), None)
        span = self._span[into].hull(self._span.pop(moving))
        home = _maker(min(self._first[into], self._first[moving])[2])
        self._profiles[home][span.start : span.end] += size
        if self.home(moving) != self.home(into) or moving in self._mixed:
            self._mixed.add(into)
        self._mixed.discard(moving)
        self._span[into], self._size[into] = span, size
        del self._size[moving]
        self._first[into] = min(self._first[into], self._first.pop(moving))
        tenants = self._tenants[into]
        for tenant in self._tenants.pop(moving):
            bisect.insort(tenants, tenant._replace(low=tenant.low + shift, high=tenant.high + shift))
