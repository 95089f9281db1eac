"""What the bytes of each graph value are, by the graph alone: their root, and their image for a dtype and layout.

Holds true: two values have one root exactly if op entries (views) say that both are contiguous runs of one value's
bytes; then either name may be read from the same bytes. An update's output is new content. Offsets within a root are
counted in elements, so that they hold for any stored dtype.
"""

from __future__ import annotations

from memopt.ir import Graph, Node, Value
from memopt.ops import DEFAULT_LAYOUT
from memopt.types import itemsize
from memopt.validate.spaces import NCHW, Image, Layout

__all__ = ["Images", "stored_layout"]


def stored_layout(shape: tuple[int, ...], layout: str, first: int = 0) -> Layout:
    """The canonical layout of a tensor from element `first` of its root on: () where bytes are in logical order."""
    if layout == DEFAULT_LAYOUT or len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1:
        return NCHW
    return (first, *shape)


class Images:
    """The graph's values as bytes."""

    def __init__(self, graph: Graph) -> None:
        self._roots: dict[Value, tuple[Value, int]] = {}
        for node in graph.nodes:
            for index, value in node.real_outputs:
                root = self._view(node, index, value)
                if root is not None:
                    self._roots[value] = root

    def root(self, value: Value) -> Value:
        """The value whose bytes `value` is made of (itself, unless it is a view)."""
        return self._roots[value][0] if value in self._roots else value

    def image(self, value: Value, dtype: str, layout: str) -> Image:
        """What bytes hold if they hold `value`, stored as `dtype` in `layout`."""
        root, first = self._roots.get(value, (value, 0))
        order = stored_layout(value.shape, layout, first)
        return Image(root, dtype, order, 0 if order else first * itemsize(dtype))

    def same_content(self, root: Value) -> list[Value]:
        """The values that are views of `root`, and itself (slow; for messages)."""
        return [root, *(value for value, (other, _) in self._roots.items() if other is root)]

    def _view(self, node: Node, index: int, value: Value) -> tuple[Value, int] | None:
        view = node.spec.view_of(index)
        if view is None or index in node.spec.updates or view.input >= len(node.inputs):
            return None
        source = node.inputs[view.input]
        if source is None or source.dtype != value.dtype:
            return None
        offset = view.byte_offset(node.input_types, node.output_types, node.attrs, index)
        if offset is None or offset % itemsize(value.dtype):
            return None
        root, first = self._roots.get(source, (source, 0))
        return root, first + offset // itemsize(value.dtype)
