"""In-place methods: what `x.sin_()` and `x[1:] = y` add to the graph.

Holds true: 1. Everything is checked, then something is changed.   2. The graph stays SSA: a write makes new values,
and the handle and all that alias it mean them from here on.   3. What asked for whose bytes is noted in
`graph.inplace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from memopt.errors import GradientError, OptionError
from memopt.ir.graph import Graph
from memopt.ir.handle import HandleBuilder, Tensor
from memopt.ir.inplace import InplacePlace, InplaceRequest
from memopt.ir.value import Value
from memopt.ops import get_op
from memopt.types import TensorType

__all__ = ["WritingBuilder", "assign", "operand", "write_op"]


class WritingBuilder(HandleBuilder, Protocol):
    """What a write asks of the builder."""

    @property
    def graph(self) -> Graph: ...

    @property
    def records_grad(self) -> bool:
        """Whether gradients are recorded here (not under `no_grad`)."""

    def make_constant(self, number: Any, type: TensorType) -> Value:
        """A constant that holds `number` everywhere."""

    def track_grad(self, value: Value) -> None:
        """A gradient would be recorded for `value`."""


def write_op(builder: WritingBuilder, target: Tensor, op: str, others: Sequence[Any], attrs: dict[str, Any]) -> None:
    """`target.op_(*others, **attrs)`: the result of `op` takes the place of `target`."""
    method = f"{op.lower()}_"
    spec = get_op(op)
    _check_write(builder, target, method)
    if spec.updates:
        raise OptionError(f"{method}: {op} writes to its variable by definition; call b.{op.lower()}(x, ...) instead")
    types = [target.type, *(_type_of(other, target) for other in others)]
    made = spec.infer(types, spec.complete_attrs(attrs), 1)[0]
    if made != target.type:
        raise OptionError(
            f"{method}: the result is {made}, but an in-place method keeps the type of its handle, {target.type}; "
            f"write y = x.{op.lower()}(...) for a new value"
        )
    old = target.value
    new = builder.append(op, old, *(operand(builder, other, target) for other in others), **attrs)
    _write_through(builder, target, method, new, [_place(old, new)])


def assign(builder: WritingBuilder, target: Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`; the value is broadcast to the slice."""
    view = target[index]
    if isinstance(value, Tensor) and _is_same_view(view, value):
        return  # the second half of x[1:] += y
    method = "[...] ="
    _check_write(builder, view, method)
    type = _type_of(value, view)
    wanted = view.type
    if type is None or type.dtype != wanted.dtype or not _broadcasts(type.shape, wanted.shape):
        raise OptionError(f"{method}: the slice is {wanted}, the value {type}; want that dtype and a shape that fits")
    if isinstance(value, (Tensor, Value)):
        new = operand(builder, value, view)
        assert new is not None  # its type is known
        if type != wanted:
            new = builder.append("Expand", new, shape=wanted.shape)
    elif type.shape:
        new = builder.make_constant(np.broadcast_to(np.asarray(value), wanted.shape), wanted)
    else:
        new = builder.append("ConstantOfShape", shape=wanted.shape, value=float(value), dtype=wanted.dtype)
    _write_through(builder, view, method, new, [])


def operand(builder: WritingBuilder, other: Any, like: Tensor) -> Value | None:
    """`other` as a value: a handle's, itself, or a number (or an array) as a constant of the dtype of `like`."""
    if isinstance(other, Tensor):
        return other.value
    if other is None or isinstance(other, Value):
        return other
    type = _type_of(other, like)
    assert type is not None  # it is no None
    return builder.make_constant(other, type)


def _write_through(
    builder: WritingBuilder, target: Tensor, method: str, new: Value, places: list[InplacePlace]
) -> None:
    """`target` shows `new`: write it into what `target` is a view of, up to the cell."""
    cell, path = target.cell, target.path()
    handles, parts = [target], [new]
    for parent, step in path:
        source = parent.value
        written = step.write(builder.append, source, parts[-1])
        if written is not parts[-1] and (places or not step.moves_nothing):  # else it is a rebinding so far
            places.append(_place(source, written))
        handles.append(parent)
        parts.append(written)
    cell.value = parts[-1]
    cell.version += 1
    for i, (handle, part) in enumerate(zip(handles, parts, strict=True)):
        if all(step.is_bijective for _, step in path[i:]):
            handle.store(part)  # other views are read from the new base when they are next asked for
    if cell.leaf is not None and builder.requires_grad(cell.leaf):
        builder.track_grad(cell.value)
    builder.graph.inplace.requests.append(InplaceRequest(method, _shown(target, places), tuple(places)))


def _check_write(builder: WritingBuilder, target: Tensor, method: str) -> None:
    leaf = target.cell.leaf
    if leaf is not None and builder.records_grad and builder.requires_grad(leaf):
        kind = "parameter" if leaf in builder.graph.params else "feed"
        what = f"%{leaf.name}" if not target.path() else f"a view of %{leaf.name}"
        raise GradientError(
            f"{method} on {what}: %{leaf.name} is a {kind} that requires a gradient, and no op made it (it is a leaf). "
            "Its gradient belongs to the value that it has now, which would be gone. Nothing was changed. Either "
            "make a new value (y = x.sin() for x.sin_()), or write where no gradient is recorded: inside "
            "`with b.no_grad():`, or after b.stop_gradient(x)"
        )
    for parent, step in target.path():
        refusal = step.write_refusal(parent.type)
        if refusal is not None:
            raise OptionError(f"{method} on a view: {refusal}. Nothing was changed. Write to x.clone() instead")


def _place(old: Value, new: Value) -> InplacePlace:
    assert new.producer is not None  # it was appended just now
    return InplacePlace(new.producer.name, old.name, new.name)


def _shown(target: Tensor, places: Sequence[InplacePlace]) -> str:
    return places[0].old if places else target.value.name


def _is_same_view(view: Tensor, value: Tensor) -> bool:
    mine, theirs = ([step for _, step in one.path()] for one in (view, value))
    return value.cell is view.cell and mine == theirs


def _type_of(other: Any, like: Tensor) -> TensorType | None:
    """The type that `other` has, or will have as a constant beside `like`."""
    if other is None or isinstance(other, (Tensor, Value)):
        return None if other is None else other.type
    array = np.asarray(other)
    if array.dtype.kind not in "biuf":
        raise OptionError(f"{other!r} is no number; want a handle, a value, a number or an array of numbers")
    if not like.dtype.startswith("float") and not np.array_equal(array, array.astype(like.dtype)):
        raise OptionError(f"{other!r} is no {like.dtype}, which its handle holds")
    return TensorType.of(array.shape, like.dtype)


def _broadcasts(shape: Sequence[int], into: Sequence[int]) -> bool:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(into)) == tuple(into)
    except ValueError:
        return False
