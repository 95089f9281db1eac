"""Which values hold the same bytes by definition: views, what they are views of, and what is joined of parts.

Holds true: `root(value)` is `(r, d)` where `r` is no view, and `value`'s bytes are `r`'s bytes from `d` on, unchanged
and in order. `runs(value)` goes on through joins (`Concat`): it cuts the value into the fewest runs of bytes of values
that are neither views nor joined, at most `MOST_RUNS`. What a value *holds* is said here; where it is *stored* is
`graph.storage`, which counts where a value is stored in strides: `placed(value)` says what lies in the bytes from its
first to its last element, gaps left out. A view of very many runs is said to hold all bytes between as well. Two values
hold the same content in bytes that both cover if what is placed there says so; `agree` asks that. Linear in nodes and
runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from memopt.ir import Graph, Storage, Value, lies_as_view, stepped_view, view_steps
from memopt.strides import MOST_RUNS, Strided, Strides, canonical, row_runs, row_strides
from memopt.types import itemsize

__all__ = [
    "Aliases",
    "JoinedPart",
    "Run",
    "analyze_aliases",
    "joined_at",
    "joined_in",
    "view_in",
    "view_source",
]


class Run(NamedTuple):
    """Bytes `[low, high)` of a value are bytes of `root` from `at` on."""

    low: int
    high: int
    root: Value
    at: int


def view_source(value: Value) -> tuple[Value, int] | None:
    """The value that `value` is a direct view of, and where in it, in bytes; None if it is no view for these types."""
    node = value.producer
    if node is None:
        return None
    view = node.spec.view_of(value.index)
    source = node.inputs[view.input] if view is not None and view.input < len(node.inputs) else None
    if view is None or source is None:
        return None
    offset = view.byte_offset(node.input_types, node.output_types, node.attrs, value.index)
    return None if offset is None else (source, offset)


def joined_at(value: Value) -> list[tuple[int, Value, int]]:
    """(number of the input, the input, where its bytes lie in `value`) for each non-empty input that `value` joins."""
    node = value.producer
    join = None if node is None else node.spec.join_of(value.index)
    if node is None or join is None:
        return []
    found = []
    types = (node.input_types, node.output_types, node.attrs)
    for index, source in enumerate(node.inputs):
        offset = None if source is None else join.byte_offset(*types, index)
        if source is not None and offset is not None and source.nbytes:
            found.append((index, source, offset))
    return found


def view_in(storage: Storage, value: Value) -> tuple[Value, int] | None:
    """As `view_source`, by how the source is stored: where in its bytes `value` is one run of them."""
    view = stepped_view(storage, value)
    if view is None:
        return view_source(value) if not value.nbytes else None
    return None if view.strides is not None else (view.source, view.first * itemsize(value.dtype))


class JoinedPart(NamedTuple):
    """Input number `number` of a join, `source`, begins `offset` bytes after the result and steps on by `strides`
    (canonical), as the result is stored.
    """

    number: int
    source: Value
    offset: int
    strides: Strides | None


def joined_in(storage: Storage, value: Value) -> list[JoinedPart]:
    """Where the non-empty inputs that `value` joins belong in its storage."""
    return _parts(value, storage.variable(value).strides)


def _parts(value: Value, strides: Strides | None) -> list[JoinedPart]:
    node = value.producer
    join = None if node is None else node.spec.join_of(value.index)
    if node is None or join is None:
        return []
    found = []
    types, size = (node.input_types, node.output_types, node.attrs), itemsize(value.dtype)
    for index, source in enumerate(node.inputs):
        if source is None or not source.nbytes or source.dtype != value.dtype:
            continue
        steps: Strided | None = None
        if join.strides is not None:
            steps = join.strides(*types, index, row_strides(value.shape) if strides is None else strides)
        elif strides is None:
            offset = join.byte_offset(*types, index)
            steps = None if offset is None else Strided(offset // size, row_strides(source.shape))
        if steps is not None:
            found.append(JoinedPart(index, source, steps.first * size, canonical(source.shape, steps.strides)))
    return found


class Aliases:
    """The root of each value, the values of each root, both in the order of definition, the runs of each value, and
    what lies where it is stored.
    """

    def __init__(self, graph: Graph) -> None:
        self._storage = graph.storage
        self._roots: dict[Value, tuple[Value, int]] = {}
        self._runs: dict[Value, tuple[Run, ...]] = {}
        self._placed: dict[Value, tuple[Run, ...]] = {}
        self._views: dict[Value, list[Value]] = {}
        for value in graph.values:
            self._enter(value)

    def root(self, value: Value) -> tuple[Value, int]:
        """`(root, offset in bytes)`; a value that is no view is its own root."""
        return self._roots[value]

    def family(self, value: Value) -> tuple[Value, ...]:
        """Every value with the same root, itself included."""
        return tuple(self._views[self._roots[value][0]])

    def runs(self, value: Value) -> tuple[Run, ...]:
        """What the value's bytes are, in its own order and without gaps; none if it has no bytes."""
        return self._runs[value]

    def placed(self, value: Value) -> tuple[Run, ...]:
        """What lies where the value is stored, counted from its first byte, gaps left out."""
        return self._placed[value]

    def place(self, value: Value) -> None:
        """The storage of `value`, or of what it is a view of, was changed: its strides, or whether it lies as a view.
        Roots stay as they were.
        """
        if view_steps(value, None) is not None:
            self._runs[value] = self._holds(value, self._lender(value))
        self._placed[value] = self._lies(value)

    def agree(self, a: Value, b: Value, shift: int) -> bool:
        """Whether both hold the same content in all bytes that both cover, `b` starting at byte `shift` of `a`."""
        runs_a, runs_b = self._placed[a], self._placed[b]
        low, high = max(0, shift), min(_end(runs_a), shift + _end(runs_b))
        if low >= high:
            return True
        i, j = max(_run_at(runs_a, low), 0), max(_run_at(runs_b, low - shift), 0)
        while i < len(runs_a) and j < len(runs_b):
            run_a, run_b = runs_a[i], runs_b[j]
            if max(run_a.low, run_b.low + shift) >= high:
                break
            ends = run_a.high, run_b.high + shift
            if max(run_a.low, run_b.low + shift) < min(ends) and (
                run_a.root is not run_b.root or run_a.at - run_a.low != run_b.at - run_b.low - shift
            ):
                return False
            i, j = i + (ends[0] <= ends[1]), j + (ends[1] <= ends[0])
        return True

    def _enter(self, value: Value) -> None:
        source = self._lender(value)
        root, offset = (value, 0) if source is None else self._roots[source[0]]
        self._roots[value] = (root, offset + (0 if source is None else source[1]))
        self._runs[value] = self._holds(value, source)
        self._placed[value] = self._lies(value)
        self._views.setdefault(root, []).append(value)

    def _lender(self, value: Value) -> tuple[Value, int] | None:
        """The value of whose bytes, as stored, `value` is one run, and where in them."""
        return None if self._storage.variable(value).strides is not None else view_in(self._storage, value)

    def _holds(self, value: Value, source: tuple[Value, int] | None) -> tuple[Run, ...]:
        if source is None:
            return self._stepped(value) or self._joined(value)
        lender, low = source
        found = _cut(self._placed[lender], low, low + value.nbytes, -low)
        whole = sum(run.high - run.low for run in found) == value.nbytes
        return tuple(found) if whole else (Run(0, value.nbytes, value, 0),)

    def _stepped(self, value: Value) -> tuple[Run, ...] | None:
        """The runs of a value that is stored as a view in strides, if they are not too many."""
        view = stepped_view(self._storage, value) if lies_as_view(self._storage, value) else None
        rows = None if view is None else row_runs(value.shape, view.strides)
        if view is None or rows is None:
            return None
        size, placed = itemsize(value.dtype), self._placed[view.source]
        found: list[Run] = []
        for at, element, count in rows:
            low = (view.first + at) * size
            found += _cut(placed, low, low + count * size, element * size - low)
        whole = sum(run.high - run.low for run in found) == value.nbytes
        return tuple(_merged(found)) if whole and len(found) <= MOST_RUNS else None

    def _joined(self, value: Value) -> tuple[Run, ...]:
        """The runs of a value that is no view: those of the inputs that it joins, and its own bytes between them."""
        own = (Run(0, value.nbytes, value, 0),) if value.nbytes else ()
        size = itemsize(value.dtype)
        parts: list[tuple[int, Value, int, int]] = []
        for part in _parts(value, None):
            rows = row_runs(part.source.shape, part.strides)
            if rows is None or len(parts) + len(rows) > MOST_RUNS:
                return own
            for at, element, count in rows:
                parts.append((part.offset + at * size, part.source, element * size, count * size))
        found: list[Run] = []
        end = 0
        for low, source, at, count in sorted(parts, key=lambda one: one[0]):
            if low > end:
                found.append(Run(end, low, value, end))
            found += _cut(self._runs[source], at, at + count, low - at)
            end = low + count
        if end < value.nbytes:
            found.append(Run(end, value.nbytes, value, end))
        return tuple(_merged(found)) if len(found) <= MOST_RUNS else own

    def _lies(self, value: Value) -> tuple[Run, ...]:
        strides = self._storage.variable(value).strides
        if strides is None:
            return self._runs[value]
        size, rows = itemsize(value.dtype), row_runs(value.shape, strides)
        if lies_as_view(self._storage, value):
            view = stepped_view(self._storage, value)
            assert view is not None, "it lies as a view"
            low, placed = view.first * size, self._placed[view.source]
            spans = [(at * size, (at + count) * size) for at, _, count in rows or ()]
            spans = spans or [(0, self._storage.extent_bytes(value))]
            return tuple(run for a, b in sorted(spans) for run in _cut(placed, low + a, low + b, -low))
        runs = self._runs[value]
        assert rows is not None, "what is written in strides has few runs"
        found: list[Run] = []
        for at, element, count in rows:
            found += _cut(runs, element * size, (element + count) * size, (at - element) * size)
        return tuple(sorted(found, key=lambda run: run.low))


def analyze_aliases(graph: Graph) -> Aliases:
    """The aliases of all values of `graph`."""
    return Aliases(graph)


def _cut(runs: tuple[Run, ...], low: int, high: int, move: int) -> list[Run]:
    """Bytes `[low, high)` of `runs`, counted from `low + move` on."""
    found = []
    for index in range(max(_run_at(runs, low), 0), len(runs)):
        run = runs[index]
        if run.low >= high:
            break
        a, b = max(run.low, low), min(run.high, high)
        if a < b:
            found.append(Run(a + move, b + move, run.root, run.at + a - run.low))
    return found


def _merged(runs: Iterable[Run]) -> list[Run]:
    """The same with neighbours made one where the root runs on."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].root is run.root and found[-1].at + found[-1].high - found[-1].low == run.at:
            found[-1] = found[-1]._replace(high=run.high)
        else:
            found.append(run)
    return found


def _end(runs: tuple[Run, ...]) -> int:
    return runs[-1].high if runs else 0


def _run_at(runs: tuple[Run, ...], byte: int) -> int:
    return bisect_right(runs, byte, key=lambda run: run.low) - 1
