"""What the bytes of each graph value are, by the graph alone: their root, and their images for a dtype and layout.

Holds true: two values have one root only if op entries (views) say that both are contiguous runs of one value's
bytes; then either name may be read from the same bytes. A value that joins others (Concat) consists of *their* roots'
bytes where they lie in logical order, run by run; stored in another order, or if that were more than `MOST_RUNS` runs,
it has itself as root. An update's output is new content. Offsets within a root are counted in elements, so that they
hold for any stored dtype.

Views say besides how a value steps through values that it is no run of. So a value has *relatives*: roots of which it
is made, element by element. Each says something true of the value's elements, whether or not others are known: with
fewer relatives fewer plans are found right, and none that is wrong. Its own root is the furthest of those in which it
is one run.

Bytes in strides hold a value in either of two ways: as a *hull*, all bytes from the first element to the last being a
run of a relative that the value steps through so; or, in few enough runs, as *rows*, the bytes of its elements being
those of a relative, and the bytes between anything. Two images are *alike* if both are the same elements of one
relative.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from memopt.ir import Graph, Node, Value
from memopt.ops import DEFAULT_LAYOUT, Join, View
from memopt.strides import MOST_RUNS, Strided, Strides, canonical, extent, row_runs, row_strides
from memopt.types import itemsize
from memopt.validate.spaces import NCHW, Image, Layout, Pieces, Span, apart, is_same, meets, within

__all__ = ["Images", "stored_layout"]


def stored_layout(shape: tuple[int, ...], layout: str, first: int = 0) -> Layout:
    """The canonical layout of a tensor from element `first` of its root on: () where bytes are in logical order."""
    if layout == DEFAULT_LAYOUT or len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1:
        return NCHW
    return (first, *shape)


#: How many relatives of a value are kept, at most: its root and the furthest. Only chains of steps that no strides
#: undo (slices of slices of …) have more.
_MOST_RELATIVES = 8
#: Parts of a value whose inputs lie in it in rows, joins of joins looked into.
_MOST_PARTS = 16 * MOST_RUNS


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
        self._others: dict[tuple[Value, str, _Relative], Pieces | None] = {}  # roots as rows of their relatives
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

    def rows(self, value: Value, dtype: str, strides: Strides | None, hulls: bool = True) -> Iterator[Pieces]:
        """All that the bytes of its elements may hold to be read as `value` in `strides`, in the default layout; the
        first is its own image, if it can lie so (no two elements share a byte, and they are few enough runs). Without
        `hulls`, the relatives that it steps through in these strides are left out.
        """
        steps = canonical(value.shape, strides)
        own = _Relative(*self._roots.get(value, (value, 0)), None)
        others = (relative for relative in reversed(self._relatives.get(value, [])) if relative != own)
        for relative in (own, *others):
            if hulls or relative.strides != steps:
                found = self._rows(value, dtype, steps, relative)
                if found is not None:
                    yield found

    def ways(self, value: Value, dtype: str, layout: str, strides: Strides | None = None) -> Iterator[Pieces]:
        """All that bytes may hold to be read as `value`: the candidates, then the rows of other relatives."""
        num_bytes = extent(value.shape, strides) * itemsize(dtype)
        for image in self.candidates(value, dtype, layout, strides):
            yield self.pieces(image, num_bytes)
        if stored_layout(value.shape, layout) == NCHW:
            yield from self.rows(value, dtype, strides, hulls=False)

    def images(self, value: Value, dtype: str, layout: str) -> Pieces:
        """What bytes hold if they hold `value`: (first byte, end, image) of each piece, in order and without gaps."""
        image = self.image(value, dtype, layout)
        return self.pieces(image, value.type.num_elements * itemsize(dtype))

    def pieces(self, image: Image, num_bytes: int) -> Pieces:
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

    def alike(self, one: Span, other: Span) -> bool:
        """Whether two pieces say the same of the bytes that they share, by the graph: as they are, or as elements of a
        relative of both.
        """
        if is_same(one, other):
            return True
        roots = {one[2].root, other[2].root}
        if one[2][1:3] != other[2][1:3] or one[2].layout != NCHW or not roots & self._relatives.keys():
            return False
        lo, hi = max(one[0], other[0]), min(one[1], other[1])
        theirs = list(self._forms(other, lo, hi))
        for mine in self._forms(one, lo, hi):
            for form in theirs:
                if all(is_same(a, b) for a, b in meets(mine, form)):
                    return True
        return False

    def _forms(self, piece: Span, lo: int, hi: int) -> Iterator[Pieces]:
        """Bytes `[lo, hi)` of a piece in its own terms and in those of each relative of its root."""
        start, _, image = piece
        yield [(lo, hi, image._replace(at=image.at + lo - start))]
        for relative in self._relatives.get(image.root, ()):
            key = image.root, image.dtype, relative
            if relative.root is not image.root and key not in self._others:
                self._others[key] = self._rows(image.root, image.dtype, None, relative)
            whole = self._others.get(key)
            if whole is not None:
                yield within(whole, image.at - start, lo, hi)

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

    def _rows(self, value: Value, dtype: str, steps: Strides | None, relative: _Relative) -> Pieces | None:
        """The elements of `value` as those of `relative`; None if one byte would have to be two of them."""
        runs, size, found = _common_runs(value.shape, steps, relative.strides), itemsize(dtype), []
        for start, element, count in () if runs is None else runs:
            at, image = start * size, Image(relative.root, dtype, NCHW, (relative.first + element) * size)
            found += [(at + lo, at + hi, piece) for lo, hi, piece in self.pieces(image, count * size)]
        return None if runs is None else apart(found)

    def _join(self, node: Node, index: int, value: Value) -> None:
        """Note the parts of a value that joins others; its own bytes fill the gaps."""
        join = node.spec.join_of(index)
        if join is None:
            return
        runs: list[tuple[int, int, int, Value]] = []
        for number, source in enumerate(node.inputs):
            if source is None or not source.nbytes or source.dtype != value.dtype:
                continue
            found = _joined_runs(node, join, number, (source, value))
            if found is None or len(runs) + len(found) > max(MOST_RUNS, len(node.inputs)):
                return
            runs += [(*run, source) for run in found]
        parts: list[_Part] = []
        at = 0
        for start, element, count, source in sorted(runs, key=lambda run: run[0]):
            if start > at:
                parts.append(_Part(at, start, value, at))
            parts += self._leaves(source, element, count, start)
            at = start + count
            if len(runs) > len(node.inputs) and len(parts) > _MOST_PARTS:
                return
        if runs:
            rest = value.type.num_elements
            self._joined[value] = _merged([*parts, *([_Part(at, rest, value, at)] if at < rest else [])])

    def _leaves(self, source: Value, element: int, count: int, start: int) -> Iterator[_Part]:
        """`count` elements of `source`, from `element` on, as parts from `start` on."""
        root, first = self._roots.get(source, (source, 0))
        first += element
        end = first + count
        for lo, hi, leaf, at in _cut(self._joined.get(root, [_Part(0, end, root, 0)]), first, end):
            yield _Part(lo - first + start, hi - first + start, leaf, at)


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


def _joined_runs(node: Node, join: Join, number: int, ends: tuple[Value, Value]) -> list[tuple[int, int, int]] | None:
    """(element of the joined value, element of input `number`, how many) of each run; none where the op says nothing,
    None if they are too many.
    """
    source, value = ends
    types = (node.input_types, node.output_types, node.attrs)
    offset = join.byte_offset(*types, number)
    if offset is not None:
        found: Strided | None = Strided(offset // itemsize(value.dtype), row_strides(source.shape))
    else:
        found = None if join.strides is None else join.strides(*types, number, row_strides(value.shape))
    if found is None:
        return []
    runs = row_runs(source.shape, canonical(source.shape, found.strides))
    return None if runs is None else [(found.first + start, element, count) for start, element, count in runs]


def _common_runs(
    shape: tuple[int, ...], steps: Strides | None, others: Strides | None
) -> list[tuple[int, int, int]] | None:
    """(element in storage, element in the other, how many) for each run of the elements of a tensor that follow each
    other in a storage in `steps` and in another in `others`; None if there are more than `MOST_RUNS`.
    """
    rows, run = row_strides(shape), 1
    axes = list(zip(shape, rows if steps is None else steps, rows if others is None else others, strict=True))
    if 0 in shape:
        return []
    while axes and (axes[-1][0] == 1 or axes[-1][1:] == (run, run)):
        run *= axes.pop()[0]
    axes = [(dim, step, other) for dim, step, other in axes if dim != 1 and (step or other)]
    if math.prod(dim for dim, _, _ in axes) > MOST_RUNS:
        return None
    starts = [(0, 0)]
    for dim, step, other in axes:
        starts = [(start + i * step, at + i * other) for start, at in starts for i in range(dim)]
    return [(start, at, run) for start, at in starts]


def _cut(parts: list[_Part], lo: int, hi: int) -> list[_Part]:
    """Elements `[lo, hi)` of the parts, which are in order and without gaps."""
    found = []
    for number in range(max(bisect_right(parts, lo, key=attrgetter("lo")) - 1, 0), len(parts)):
        part = parts[number]
        if part.lo >= hi:
            break
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
