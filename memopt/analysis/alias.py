"""Which values hold the same bytes by definition: views, what they are views of, and what is joined of parts.

Holds true: `root(value)` is `(r, d)` where `r` is no view, and `value`'s bytes are `r`'s bytes from `d` on, unchanged
and in order. `runs(value)` goes on through joins (`Concat`): it cuts the value into the fewest runs of bytes of values
that are neither views nor joined. Two values hold the same content in bytes that both cover if their runs say so;
`agree` asks that. What a value *holds* is said here; where it is *stored* is `graph.storage`, which counts in one case:
a value that is stored in strides covers, from its first to its last element, bytes of the value that it is a view of,
and is said to hold those. Linear in nodes and runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from memopt.ir import Graph, Storage, Value, stepped_view
from memopt.types import itemsize

__all__ = ["Aliases", "Run", "analyze_aliases", "joined_at", "joined_in", "view_in", "view_source"]


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


def joined_in(storage: Storage, value: Value) -> list[tuple[int, Value, int]]:
    """As `joined_at`, without inputs that are stored in strides."""
    return [part for part in joined_at(value) if storage.variable(part[1]).strides is None]


class Aliases:
    """The root of each value, the values of each root, both in the order of definition, and the runs of each value."""

    def __init__(self, roots: dict[Value, tuple[Value, int]], runs: dict[Value, tuple[Run, ...]]) -> None:
        self._roots, self._runs = roots, runs
        self._views: dict[Value, list[Value]] = {}
        for value, (root, _) in roots.items():
            self._views.setdefault(root, []).append(value)

    def root(self, value: Value) -> tuple[Value, int]:
        """`(root, offset in bytes)`; a value that is no view is its own root."""
        return self._roots[value]

    def family(self, value: Value) -> tuple[Value, ...]:
        """Every value with the same root, itself included."""
        return tuple(self._views[self._roots[value][0]])

    def runs(self, value: Value) -> tuple[Run, ...]:
        """What the value's bytes are, without gaps and in order; none if it has no bytes."""
        return self._runs[value]

    def lay(self, value: Value, source: Value, low: int, num_bytes: int) -> tuple[Run, ...]:
        """`value` is stored in strides, over bytes `[low, low + num_bytes)` of `source`. Returns its runs before."""
        before = self._runs[value]
        self._runs[value] = tuple(_cut(self._runs[source], low, low + num_bytes, -low))
        return before

    def take_back(self, value: Value, runs: tuple[Run, ...]) -> None:
        """Undo `lay`."""
        self._runs[value] = runs

    def agree(self, a: Value, b: Value, shift: int) -> bool:
        """Whether both hold the same content in all bytes that both cover, `b` starting at byte `shift` of `a`."""
        runs_a, runs_b = self._runs[a], self._runs[b]
        low, high = max(0, shift), min(_end(runs_a), shift + _end(runs_b))
        if low >= high:
            return True
        i, j = _run_at(runs_a, low), _run_at(runs_b, low - shift)
        while i < len(runs_a) and j < len(runs_b):
            run_a, run_b = runs_a[i], runs_b[j]
            if max(run_a.low, run_b.low + shift) >= high:
                break
            if run_a.root is not run_b.root or run_a.at - run_a.low != run_b.at - run_b.low - shift:
                return False
            ends = run_a.high, run_b.high + shift
            i, j = i + (ends[0] <= ends[1]), j + (ends[1] <= ends[0])
        return True


def analyze_aliases(graph: Graph) -> Aliases:
    """The aliases of all values of `graph`."""
    roots: dict[Value, tuple[Value, int]] = {}
    runs: dict[Value, tuple[Run, ...]] = {}
    storage = graph.storage
    for value in graph.values:
        source = view_in(storage, value)
        if storage.variable(value).strides is not None:
            view = stepped_view(storage, value)
            assert view is not None, "a value in strides is a view"
            low = view.first * itemsize(value.dtype)
            roots[value] = (value, 0)
            runs[value] = tuple(_cut(runs[view.source], low, low + storage.extent_bytes(value), -low))
        elif source is None:
            roots[value] = (value, 0)
            runs[value] = _joined(value, runs, storage)
        else:
            root, offset = roots[source[0]]
            roots[value] = (root, offset + source[1])
            runs[value] = tuple(_cut(runs[source[0]], source[1], source[1] + value.nbytes, -source[1]))
    return Aliases(roots, runs)


def _joined(value: Value, runs: dict[Value, tuple[Run, ...]], storage: Storage) -> tuple[Run, ...]:
    """The runs of a value that is no view: those of the inputs that it joins, and its own bytes between them."""
    found: list[Run] = []
    at = 0
    for _, source, offset in sorted(joined_in(storage, value), key=lambda part: part[2]):
        if offset > at:
            found.append(Run(at, offset, value, at))
        found += _cut(runs[source], 0, source.nbytes, offset)
        at = offset + source.nbytes
    if at < value.nbytes:
        found.append(Run(at, value.nbytes, value, at))
    return tuple(_merged(found))


def _cut(runs: tuple[Run, ...], low: int, high: int, move: int) -> list[Run]:
    """Bytes `[low, high)` of `runs`, counted from `low + move` on."""
    found = []
    for run in runs:
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
