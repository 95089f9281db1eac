"""Slow twins by definition: liveness, aliases, and what storage does when nodes run in the listed order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Node, Value, lies_as_view
from memopt.types import itemsize

__all__ = ["content", "is_live", "labels", "must_hold_at_the_end", "storage_faults"]


def must_hold_at_the_end(graph: Graph) -> set[Value]:
    """Outputs, feeds that are not donated, and the newest state of parameters."""
    kept = set(graph.outputs)
    for value in (*graph.inputs, *graph.params):
        if value.name not in graph.donated:
            while new := _update_of(graph, value):
                value = new
            kept.add(value)
    return kept


def _update_of(graph: Graph, value: Value) -> Value | None:
    """The value that overwrites `value` by definition, if there is one."""
    for node in graph.nodes:
        for output, source in node.spec.updates.items():
            if output < len(node.outputs) and node.outputs[output] is not None and node.inputs[source] is value:
                return node.outputs[output]
    return None


def is_live(graph: Graph, value: Value, step: int) -> bool:
    """Whether `value`'s bytes are needed at `step`: by definition."""
    start = 0 if value.producer is None else graph.nodes.index(value.producer)
    if step < start:
        return False
    if step == start or value in must_hold_at_the_end(graph):
        return True
    update = _update_of(graph, value)
    later = graph.nodes[step:]
    read = any(v is value and node.spec.reads_data(i) for node in later for i, v in enumerate(node.inputs))
    return read or (update is not None and update.producer in later)


def content(value: Value) -> tuple[Value, int]:
    """(root, offset): whose bytes `value` holds."""
    node = value.producer
    view = None if node is None else node.spec.view_of(value.index)
    if node is None or view is None or view.input >= len(node.inputs):
        return value, 0
    source = node.inputs[view.input]
    offset = view.byte_offset(node.input_types, node.output_types, node.attrs, value.index)
    if source is None or offset is None:
        return value, 0
    root, inner = content(source)
    return root, inner + offset


def labels(value: Value, *, moved: bool = False) -> list[tuple[Value, int]]:
    """(root, byte of it) for each byte of `value`, through views and joins; `moved`: through what moves elements too.
    """
    root, offset = content(value)
    if root is not value:
        return labels(root, moved=moved)[offset : offset + value.nbytes]
    looked = _looked_up(value, moved)
    return [(value, i) for i in range(value.nbytes)] if looked is None else looked


def _looked_up(value: Value, moved: bool) -> list[tuple[Value, int]] | None:
    """The labels of what joins values, or, if `moved`, moves elements (Transpose, Slice, Split, Expand): what its op's
    reference makes of the numbers of its sources' bytes.
    """
    node = value.producer
    if node is None or not value.nbytes:
        return None
    view, join = node.spec.view_of(value.index), node.spec.join_of(value.index)
    if join is None and (not moved or view is None or view.strides is None):
        return None
    sources = node.inputs if join is not None else node.inputs[view.input : view.input + 1]
    if any(source is None or source.dtype != value.dtype for source in sources):
        return None
    size, known, numbers = itemsize(value.dtype), [], []
    for source in sources:
        numbers.append(len(known) // size + np.arange(source.type.num_elements).reshape(source.shape))
        known += labels(source, moved=moved)
    inputs = numbers if join is not None else [*[None] * view.input, *numbers, *[None] * len(node.inputs)]
    found = node.spec.reference(inputs[: len(node.inputs)], node.attrs, list(node.output_types))[value.index]
    return [known[size * int(element) + byte] for element in found.ravel() for byte in range(size)]


def storage_faults(graph: Graph) -> list[str]:
    """Run the nodes over labelled bytes; every read that does not find its value, and every forbidden overwrite."""
    return list(_Bytes(graph).run())


class _Bytes:
    """Each byte of each buffer bears the label (root value, index) of what it holds."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._number = {value: i + 1 for i, value in enumerate(graph.values)}
        self._labels: dict[Value, NDArray[np.int64]] = {}
        ends: dict[Any, int] = {}
        for value in graph.values:
            buffer, where = graph.storage.buffer(value), self._where(value)
            ends[buffer] = max(ends.get(buffer, 0), int(where.max(initial=-1)) + 1)
        self._bytes = {buffer: np.zeros(end, np.int64) for buffer, end in ends.items()}

    def run(self) -> Iterator[str]:
        for value in (*self._graph.inputs, *self._graph.params):
            self._write(value)
        for value in (*self._graph.inputs, *self._graph.params):
            yield from self._check(value, "arrived")
        for node in self._graph.nodes:
            for _, value in node.data_inputs:
                yield from self._check(value, f"read by {node.name}")
            for _, value in node.real_outputs:
                if self._graph.storage.variable(value).strides is not None and lies_as_view(self._graph.storage, value):
                    yield from self._check(value, f"looked at by {node.name}")  # nobody writes it
            yield from self._overwrites(node)
            for _, value in node.real_outputs:
                self._write(value)
            for _, value in node.real_outputs:
                yield from self._check(value, f"written by {node.name}")
        for value in must_hold_at_the_end(self._graph):
            yield from self._check(value, "kept")

    def _where(self, value: Value) -> NDArray[np.int64]:
        """The numbers of the bytes in its buffer in which `value` lies, in its logical order."""
        variable, size = self._graph.storage.variable(value), itemsize(value.dtype)
        elements = np.arange(value.type.num_elements)
        if variable.strides is not None:
            steps = np.array(variable.strides, np.int64).reshape(-1, *[1] * len(value.shape))
            elements = (np.indices(value.shape) * steps).sum(axis=0).ravel()
        return (variable.offset + elements[:, None] * size + np.arange(size)).ravel()

    def _read(self, value: Value) -> NDArray[np.int64]:
        return self._bytes[self._graph.storage.buffer(value)][self._where(value)]

    def _write(self, value: Value) -> None:
        self._bytes[self._graph.storage.buffer(value)][self._where(value)] = self._label(value)

    def _label(self, value: Value) -> NDArray[np.int64]:
        found = self._labels.get(value)
        if found is None:
            found = np.array([(self._number[root] << 32) + i for root, i in labels(value, moved=True)], np.int64)
            self._labels[value] = found
        return found

    def _check(self, value: Value, when: str) -> Iterator[str]:
        if not np.array_equal(self._read(value), self._label(value)):
            yield f"%{value.name}, {when}, is not there"

    def _overwrites(self, node: Node) -> Iterator[str]:
        """Outputs that lie over inputs in a way that the op does not allow."""
        storage = self._graph.storage
        for number, output in node.real_outputs:
            over = [(i, v) for i, v in node.data_inputs if self._is_changed(v, output)]  # the rest is there already
            if not over:
                continue
            place = storage.variable(output).offset, storage.variable(output).strides
            if any((storage.variable(v).offset, storage.variable(v).strides) != place for _, v in over):
                yield f"%{output.name} lies across an input of {node.name}"
            allowed = [i for i, _ in over if self._allows(node, number, i, alone=len(over) == 1)]
            if not allowed or any(v.type != node.inputs[allowed[0]].type for _, v in over):
                yield f"%{output.name} overwrites an input of {node.name}"

    def _is_changed(self, value: Value, output: Value) -> bool:
        """Whether writing `output` changes bytes in which `value` lies."""
        storage = self._graph.storage
        if storage.buffer(value) is not storage.buffer(output):
            return False
        changed = self._where(output)[self._read(output) != self._label(output)]
        return bool(np.isin(changed, self._where(value)).any())

    @staticmethod
    def _allows(node: Node, output: int, index: int, *, alone: bool) -> bool:
        if node.spec.updates.get(output) == index:
            return True
        types = (node.input_types, node.output_types, node.attrs)
        pairs = [p for p in node.spec.inplace if (p.output, p.input) == (output, index) and (alone or p.repeats)]
        return any(p.condition is None or p.condition(*types) is None for p in pairs)
