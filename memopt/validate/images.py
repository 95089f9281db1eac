"""What the bytes of each graph value are, by the graph alone: their root, and their images for a dtype and layout.

Holds true: two values have one root only if op entries (views) say that both are contiguous runs of one value's
bytes; then either name may be read from the same bytes. A value that joins others (Concat) consists of *their* roots'
bytes where they lie in logical order; stored in another order it has itself as root. An update's output is new
content. Offsets within a root are counted in elements, so that they hold for any stored dtype.

Views say besides how a value steps through values that it is no run of. So a value has *relatives*: roots of which it
is made, element by element. Each says something true of the value's elements, whether or not others are known: with
fewer relatives fewer plans are found right, and none that is wrong. Its own root is the furthest of those in which it
is one run.
"""

from __future__ import annotations

from typing import NamedTuple

from memopt.ir import Graph, Node, Value
from memopt.ops import DEFAULT_LAYOUT, View
from memopt.strides import Strides, canonical, row_strides
from memopt.types import itemsize
from memopt.validate.spaces import NCHW, Image, Layout

__all__ = ["Images", "stored_layout"]


def stored_layout(shape: tuple[int, ...], layout: str, first: int = 0) -> Layout:
    """The canonical layout of a tensor from element `first` of its root on: () where bytes are in logical order."""
    if layout == DEFAULT_LAYOUT or len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1:
        return NCHW
    return (first, *shape)


#: How many relatives of a value are kept, at most: its root and the furthest. Only chains of steps that no strides
#: undo (slices of slices of …) have more.
_MOST_RELATIVES = 8


class _Relative(NamedTuple):
    """Element `i` of a value is element `first + i . strides` of `root`, in logical order; None: they are one run."""

    root: Value
    first: int
    strides: Strides | None


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
        self._relatives: dict[Value, list[_Relative]] = {}  # of views, nearest first
        self._joined: dict[Value, list[_Part]] = {}  # of roots only
        for node in graph.nodes:
            for index, value in node.real_outputs:
                if index in node.spec.updates:
                    continue
                relatives = self._views(node, index, value)
                if relatives:
                    self._relate(value, relatives)
                if value not in self._roots:
                    self._join(node, index, value)

    def root(self, value: Value) -> Value:
        """The value whose bytes `value` is made of (itself, unless it is one run of another)."""
        return self._roots[value][0] if value in self._roots else value

    def image(self, value: Value, dtype: str, layout: str) -> Image:
        """What bytes hold if they hold `value`, stored as `dtype` in `layout`, joins not looked into."""
        root, first = self._roots.get(value, (value, 0))
        return _image(value, dtype, layout, _Relative(root, first, None))

    def candidates(self, value: Value, dtype: str, layout: str, strides: Strides | None = None) -> list[Image]:
        """All that bytes may hold to be read as `value`, in `strides` from their first element on; the first is the
        furthest relative's, `image` where the value is contiguous. Of strides, all `extent` elements hold the image.
        """
        steps = canonical(value.shape, strides)
        if value not in self._relatives:
            return [self.image(value, dtype, layout)] if steps is None else []
        found = [relative for relative in reversed(self._relatives[value]) if relative.strides == steps]
        return [_image(value, dtype, layout if steps is None else DEFAULT_LAYOUT, relative) for relative in found]

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

    def _relate(self, value: Value, relatives: list[_Relative]) -> None:
        """Note the relatives of a value, itself among them unless it is one run of another, and its root."""
        found = list(dict.fromkeys(relatives))
        root = next((relative for relative in reversed(found) if relative.strides is None), None)
        if root is None:
            root = _Relative(value, 0, None)
            found.insert(0, root)
        else:
            self._roots[value] = root.root, root.first
        others = [relative for relative in found if relative is not root][1 - _MOST_RELATIVES :]
        self._relatives[value] = [relative for relative in found if relative is root or relative in others]

    def _views(self, node: Node, index: int, value: Value) -> list[_Relative]:
        """What the op's view entry makes of the relatives of its input."""
        view = node.spec.view_of(index)
        source = node.inputs[view.input] if view is not None and view.input < len(node.inputs) else None
        if view is None or source is None or source.dtype != value.dtype:
            return []
        before = self._relatives.get(source, [_Relative(source, 0, None)])
        after = [_through(node, index, view, relative) for relative in before]
        return [relative for relative in after if relative is not None]

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


def _image(value: Value, dtype: str, layout: str, relative: _Relative) -> Image:
    """The image of a relative from the element on that is the value's first."""
    order = stored_layout(value.shape, layout, relative.first)
    return Image(relative.root, dtype, order, 0 if order else relative.first * itemsize(dtype))


def _through(node: Node, index: int, view: View, relative: _Relative) -> _Relative | None:
    """How output `index` steps through `relative`, a relative of the view's input; None where no strides say that."""
    source, value = node.input_types[view.input], node.output_types[index]
    assert source is not None
    assert value is not None
    types, (root, first, strides) = (node.input_types, node.output_types, node.attrs), relative
    if strides is None:
        offset = view.byte_offset(*types, index)
        if offset is not None and offset % itemsize(value.dtype) == 0:
            return _Relative(root, first + offset // itemsize(value.dtype), None)
        strides = row_strides(source.shape)
    found = None if view.strides is None else view.strides(*types, index, strides)
    if found is None:
        return None
    return _Relative(root, first + found.first, canonical(value.shape, found.strides))


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
