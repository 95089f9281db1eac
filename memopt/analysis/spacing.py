"""Buffers taken apart row by row: the items of axis 0 move apart, as they lie in a tensor that they are a part of.

At batch sizes above 1 the parts of a Concat are no runs of its result: each lies in it row by row, one row an item.
What shares the buffer of such a part (in-place results, parts of a nested Concat) moves apart with it.

The safety argument. 1. Every tenant of the buffer has the same number of items, and item i of each lies in row i; so
moving row i moves item i of all, and what met before meets after, and nothing else.   2. Whoever writes or reads a
tenant has kernels for that (or ran as NumPy anyhow).   3. A view is a view after it, or the buffer stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from memopt.analysis.occupancy import Occupancy
from memopt.ir import Graph, Node, Value, Variable, lies_as_view
from memopt.ops import KernelQuery, choose_calls
from memopt.strides import Strides, canonical, extent, row_runs, row_strides
from memopt.types import itemsize

__all__ = ["Spacing", "has_kernel", "kernel_refusal", "spaced", "spacing_of"]

#: variable -> its strides after the buffer was taken apart.
Spacing = Mapping[Variable, Strides | None]


def spacing_of(graph: Graph, part: Value, strides: Strides) -> Spacing | str:
    """How everything in the buffer of `part` lies if `part` lies in `strides`; or why it cannot."""
    storage, shape = graph.storage, part.shape
    if shape[0] == 1 or canonical((1, *shape[1:]), (0, *strides[1:])) is not None:
        return "it lies there in more pieces than one for each item of axis 0"
    base, row = storage.variable(part).offset, math.prod(shape[1:])
    found: dict[Variable, Strides | None] = {}
    for variable in storage.variables_of(storage.buffer(part)):
        values = storage.values_of(variable)
        value, first = values[0], variable.offset - base
        size = itemsize(value.dtype)
        have = row_strides(value.shape) if variable.strides is None else variable.strides
        if len(values) > 1 or value.dtype != part.dtype or value.shape[:1] != shape[:1] or have[0] != row:
            return f"%{value.name} shares its bytes, and lies there otherwise"
        inner = extent((1, *value.shape[1:]), (0, *have[1:]))
        if first < 0 or first % size or first // size + inner > row:
            return f"%{value.name} shares its bytes, and its items lie across those of %{part.name}"
        found[variable] = canonical(value.shape, (strides[0], *have[1:]))
        if row_runs(value.shape, found[variable]) is None:
            return f"%{value.name} would be in too many pieces"
    return found


@contextmanager
def spaced(occupancy: Occupancy, spacing: Spacing) -> Iterator[None]:
    """For a while, the variables lie in these strides. Tenants and aliases are kept up, sizes and profiles are not."""
    before = {variable: variable.strides for variable in spacing}
    occupancy.space(spacing)
    try:
        yield
    finally:
        occupancy.space(before)


def kernel_refusal(occupancy: Occupancy, spacing: Spacing) -> str | None:
    """Why nodes cannot do with these variables lying as they do now; None if they can."""
    storage = occupancy.graph.storage
    views = {variable: lies_as_view(storage, storage.values_of(variable)[0]) for variable in spacing}
    nodes: dict[Node, Value] = {}
    for variable in spacing:
        value = storage.values_of(variable)[0]
        if value.producer is not None and not views[variable]:
            nodes.setdefault(value.producer, value)
        for use in value.data_uses:
            if not all(lies_as_view(storage, output) for _, output in use.node.real_outputs):
                nodes.setdefault(use.node, value)
    for node, value in nodes.items():
        if not has_kernel(occupancy, node):
            what = "makes it" if node is value.producer else "reads it"
            return f"the kernel of {node.op} ({node.name}), which {what}, takes no strides of %{value.name}"
    return None


def has_kernel(occupancy: Occupancy, node: Node) -> bool:
    """Whether kernels do `node` with its operands stored as they are, or it has none anyhow."""
    storage = occupancy.graph.storage
    steps = tuple(
        tuple(None if value is None else storage.variable(value).strides for value in values)
        for values in (node.inputs, node.outputs)
    )
    found = occupancy.kernels.get((node, steps))
    if found is None:
        types = tuple(node.input_types), tuple(node.output_types)
        query = KernelQuery(*types, node.attrs, strides=steps[0], out_strides=steps[1])
        found = choose_calls(node.spec, query) is not None or node.spec.kernel(KernelQuery(*types, node.attrs)) is None
        occupancy.kernels[node, steps] = found
    return found
