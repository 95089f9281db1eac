"""What the bytes of each graph value are, by the graph alone: their root, and their images for a dtype and layout.

Holds true: two values have one root exactly if op entries (views) say that both are contiguous runs of one value's
bytes; then either name may be read from the same bytes. A value that joins others (Concat) consists of *their* roots'
bytes where they lie in logical order; stored in another order it has itself as root. An update's output is new
content. Offsets within a root are counted in elements, so that they hold for any stored dtype.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Part(NamedTuple):
    """Elements `[lo, hi)` of a joined value are those of `root`, from `first` on."""

    lo: int
    hi: int
    root: Value
    first: int


class Images:
    """The graph's values as bytes."""

    def __init__(self, graph: Graph) -> None:
        self._roots: dict[Value, tuple[Value, int]] = {}
        self._joined: dict[Value, list[_Part]] = {}  # of roots only
        for node in graph.nodes:
            for index, value in node.real_outputs:
                root = self._view(node, index, value)
                if root is not None:
                    self._roots[value] = root
                elif index not in node.spec.updates:
                    self._join(node, index, value)

    def root(self, value: Value) -> Value:
        """The value whose bytes `value` is made of (itself, unless it is a view)."""
        return self._roots[value][0] if value in self._roots else value

    def image(self, value: Value, dtype: str, layout: str) -> Image:
        """What bytes hold if they hold `value`, stored as `dtype` in `layout`, joins not looked into."""
        root, first = self._roots.get(value, (value, 0))
        order = stored_layout(value.shape, layout, first)
        return Image(root, dtype, order, 0 if order else first * itemsize(dtype))

    def images(self, value: Value, dtype: str, layout: str) -> list[tuple[int, int, Image]]:
        """What bytes hold if they hold `value`: (first byte, end, image) of each piece, in order and without gaps."""
        image = self.image(value, dtype, layout)
        return self.pieces(image, value.type.num_elements * itemsize(dtype))

    def pieces(self, image: Image, num_bytes: int) -> list[tuple[int, int, Image]]:
        """`num_bytes` of `image`, joins looked into."""
        parts = self._joined.get(image.root)
        if parts is None or image.layout != NCHW:
            return [(0, num_bytes, image)]
        size = itemsize(image.dtype)
        found = []
        for lo, hi, root, first in _cut(parts, image.at // size, (image.at + num_bytes) // size):
            at = lo * size - image.at
            found.append((at, at + (hi - lo) * size, Image(root, image.dtype, NCHW, first * size)))
        return found or [(0, num_bytes, image)]

    def same_content(self, root: Value) -> list[Value]:
        """The values that are views of `root`, and itself (slow; for messages)."""
        return [root, *(value for value, (other, _) in self._roots.items() if other is root)]

    def _join(self, node: Node, index: int, value: Value) -> None:
        """Note the parts of a value that joins others; its own bytes fill the gaps."""
        join = node.spec.join_of(index)
        if join is None:
            return
        parts: list[_Part] = []
        at, size = 0, itemsize(value.dtype)
        inputs = []
        for number, source in enumerate(node.inputs):
            offset = join.byte_offset(node.input_types, node.output_types, node.attrs, number) if source else None
            if source is not None and offset is not None and source.nbytes and source.dtype == value.dtype:
                inputs.append((offset // size, source))
        for start, source in sorted(inputs, key=lambda one: one[0]):
            if start > at:
                parts.append(_Part(at, start, value, at))
            root, first = self._roots.get(source, (source, 0))
            end = first + source.type.num_elements
            for lo, hi, leaf, element in _cut(self._joined.get(root, [_Part(0, end, root, 0)]), first, end):
                parts.append(_Part(lo - first + start, hi - first + start, leaf, element))
            at = start + source.type.num_elements
        if inputs:
            rest = value.type.num_elements
            self._joined[value] = _merged([*parts, *([_Part(at, rest, value, at)] if at < rest else [])])

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


def _cut(parts: list[_Part], lo: int, hi: int) -> list[_Part]:
    """Elements `[lo, hi)` of the parts."""
    found = []
    for part in parts:
        a, b = max(part.lo, lo), min(part.hi, hi)
        if a < b:
            found.append(_Part(a, b, part.root, part.first + a - part.lo))
    return found


def _merged(parts: list[_Part]) -> list[_Part]:
    """Neighbours made one where the root runs on, so that equal bytes have equal parts."""
    found: list[_Part] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and last.root is part.root and last.first + last.hi - last.lo == part.first:
            found[-1] = last._replace(hi=part.hi)
        else:
            found.append(part)
    return found
