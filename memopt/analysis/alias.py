"""Which values hold the same bytes by definition: views and the values that they are views of.

Holds true: `root(value)` is `(r, d)` where `r` is no view, and `value`'s bytes are `r`'s bytes from `d` on, unchanged
and in order. Two values with one root hold the same content wherever their bytes, placed by those offsets, coincide.
What a value *holds* is said here; where it is *stored* is `graph.storage`. Linear in nodes.
"""

from __future__ import annotations

from memopt.ir import Graph, Value

__all__ = ["Aliases", "analyze_aliases", "view_source"]


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


class Aliases:
    """The root of each value and the values of each root, both in the order of definition."""

    def __init__(self, roots: dict[Value, tuple[Value, int]]) -> None:
        self._roots = roots
        self._views: dict[Value, list[Value]] = {}
        for value, (root, _) in roots.items():
            self._views.setdefault(root, []).append(value)

    def root(self, value: Value) -> tuple[Value, int]:
        """`(root, offset in bytes)`; a value that is no view is its own root."""
        return self._roots[value]

    def family(self, value: Value) -> tuple[Value, ...]:
        """Every value with the same root, itself included."""
        return tuple(self._views[self._roots[value][0]])


def analyze_aliases(graph: Graph) -> Aliases:
    """The aliases of all values of `graph`."""
    roots: dict[Value, tuple[Value, int]] = {}
    for value in graph.values:
        source = view_source(value)
        if source is None:
            roots[value] = (value, 0)
        else:
            root, offset = roots[source[0]]
            roots[value] = (root, offset + source[1])
    return Aliases(roots)
