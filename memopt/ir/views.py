"""Views of handles: how part of a tensor is read from it, and how it is written back into it.

Holds true for a step s, a value x and a part p of the type `s.type_of(x.type)`: reading s from `s.write(x, p)` gives p,
and leaves the elements of x that s does not show as they were. (Except for `Expand`, which cannot be written.) So a
write through a view is: make the new part, then write it into what it is part of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, SupportsIndex

from memopt.errors import OptionError
from memopt.ir.value import Value
from memopt.ops import get_op
from memopt.types import TensorType

__all__ = ["VIEW_OPS", "Emit", "ViewStep", "index_steps", "split_steps"]

#: `emit(op, *inputs, **attrs) -> value`: append a node of one output.
Emit = Callable[..., Value]

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Ops that make a view when they are called on a handle.
VIEW_OPS = _RESHAPES | {"Transpose", "Slice", "Expand"}


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view op with its attributes."""

    op: str
    attrs: Mapping[str, Any]

    @property
    def moves_nothing(self) -> bool:
        """Whether the view is the same bytes in the same order."""
        return self.op in _RESHAPES

    @property
    def is_bijective(self) -> bool:
        """Whether the view shows every element once, so that a new part is a whole new value."""
        return self.moves_nothing or self.op == "Transpose"

    def type_of(self, source: TensorType) -> TensorType:
        """The type of the view of a value of type `source`; raises `TypeInferenceError`."""
        spec = get_op(self.op)
        return spec.infer([source], spec.complete_attrs(self.attrs), 1)[0]

    def read(self, emit: Emit, source: Value) -> Value:
        return emit(self.op, source, **self.attrs)

    def write_refusal(self, source: TensorType) -> str | None:
        """Why nothing may be written through this view, or None."""
        shown = self.type_of(source)
        if self.op == "Expand" and shown.num_elements != source.num_elements:
            return (
                f"it is expanded from {source} to {shown}: several of its elements are one element in memory, and a "
                "write would reach it more than once"
            )
        return None

    def write(self, emit: Emit, source: Value, part: Value) -> Value:
        """The value of `source` with `part` in the place of this view of it."""
        if self.op == "Slice":
            return emit("SliceAssign", source, part, **self.attrs)
        if self.op == "Transpose":
            rank = len(source.shape)
            perm = [axis % rank for axis in self.attrs.get("perm") or range(rank - 1, -1, -1)]
            return emit("Transpose", part, perm=tuple(perm.index(axis) for axis in range(rank)))
        if part.type == source.type:
            return part
        return emit("Reshape", part, shape=source.shape, allowzero=1)


def index_steps(index: Any, shape: Sequence[int]) -> list[ViewStep]:
    """`x[index]` as views of an x of `shape`: integers, slices, `...` and None, as NumPy's basic indexing."""
    items = _without_ellipsis(index if isinstance(index, tuple) else (index,), shape)
    axes: list[tuple[int, int, int, int]] = []  # (axis, start, end, step) of those that are cut
    dropped: list[int] = []
    added: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            added.append(axis - len(dropped) + len(added))
            continue
        dim = shape[axis]
        if isinstance(item, slice):
            cut = _cut(item, dim)
        else:
            cut = _one(item, dim, axis)
            dropped.append(axis)
        if cut is not None and cut != (0, dim, 1):
            axes.append((axis, *cut))
        axis += 1
    steps: list[ViewStep] = []
    if axes:
        names = ("axes", "starts", "ends", "steps")
        steps.append(ViewStep("Slice", dict(zip(names, map(tuple, zip(*axes, strict=True)), strict=True))))
    if dropped:
        steps.append(ViewStep("Squeeze", {"axes": tuple(dropped)}))
    if added:
        steps.append(ViewStep("Unsqueeze", {"axes": tuple(added)}))
    return steps


def split_steps(sizes: Sequence[int], axis: int) -> list[ViewStep]:
    """The parts of a Split into `sizes` along `axis`, each as a slice."""
    steps, start = [], 0
    for size in sizes:
        steps.append(ViewStep("Slice", {"axes": (axis,), "starts": (start,), "ends": (start + size,), "steps": (1,)}))
        start += size
    return steps


def _without_ellipsis(items: tuple[Any, ...], shape: Sequence[int]) -> list[Any]:
    for item in items:
        if not isinstance(item, (slice, EllipsisType, type(None), SupportsIndex)) or isinstance(item, bool):
            raise OptionError(
                f"index {item!r}: a handle is indexed by integers, slices, ... and None; use b.gather for positions "
                "that are data"
            )
    taken = sum(item is not None and item is not ... for item in items)
    places = [i for i, item in enumerate(items) if item is ...]
    if taken > len(shape) or len(places) > 1:
        raise OptionError(f"index {items!r} does not fit the shape {list(shape)}")
    at = places[0] if places else len(items)
    return [*items[:at], *[slice(None)] * (len(shape) - taken), *items[at + 1 :]]


def _cut(item: slice, dim: int) -> tuple[int, int, int]:
    """(start, end, step) in ONNX's words: an end before the first element is `-dim - 1`, nothing is (0, 0, 1)."""
    if item.step == 0:
        raise OptionError("a slice's step is 0")
    start, end, step = item.indices(dim)
    if not len(range(start, end, step)):
        return 0, 0, 1
    return start, end if end >= 0 else -dim - 1, step


def _one(item: Any, dim: int, axis: int) -> tuple[int, int, int]:
    at = operator.index(item)
    if not -dim <= at < dim:
        raise OptionError(f"index {at} is not on axis {axis}, which has {dim} elements")
    return at % dim, at % dim + 1, 1
