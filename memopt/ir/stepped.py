"""How a view steps through the storage of its source, by what its op says and by how the source is stored.

Holds true: nothing is said of an update, nor across a change of dtype. A view whose strides are contiguous is one too:
its elements follow each other in the source's storage, though the source itself may lie there in strides.
"""

from __future__ import annotations

from typing import NamedTuple

from memopt.ir.storage import Storage
from memopt.ir.value import Value
from memopt.strides import Strided, Strides, canonical, row_strides
from memopt.types import itemsize

__all__ = ["SteppedView", "lies_as_view", "stepped_view", "view_input", "view_steps"]


class SteppedView(NamedTuple):
    """The view's element 0 is element `first` from where `source` starts, and its elements step through the source's
    storage by `strides` (canonical: None for one after the other).
    """

    source: Value
    first: int
    strides: Strides | None


def view_input(value: Value) -> tuple[int, Value] | None:
    """(number, value) of the input that `value` is declared to be a view of, for some types."""
    node = value.producer
    view = None if node is None else node.spec.view_of(value.index)
    if node is None or view is None or value.index in node.spec.updates or view.input >= len(node.inputs):
        return None
    source = node.inputs[view.input]
    return None if source is None else (view.input, source)


def view_steps(value: Value, strides: Strides | None) -> Strided | None:
    """How `value` steps through the storage of its `view_input`, which lies in `strides`; None if it is no such view,
    or no strides say it.
    """
    found, node = view_input(value), value.producer
    if found is None or node is None or found[1].dtype != value.dtype or not value.nbytes:
        return None
    view, types = node.spec.view_of(value.index), (node.input_types, node.output_types, node.attrs, value.index)
    assert view is not None, "it has a view input"
    if view.strides is not None:
        return view.strides(*types, row_strides(found[1].shape) if strides is None else strides)
    offset, size = view.byte_offset(*types) if strides is None else None, itemsize(value.dtype)
    return None if offset is None or offset % size else Strided(offset // size, row_strides(value.shape))


def stepped_view(storage: Storage, value: Value) -> SteppedView | None:
    """How `value` would lie in the storage of the value that it is a view of."""
    found = view_input(value)
    steps = None if found is None else view_steps(value, storage.variable(found[1]).strides)
    if found is None or steps is None:
        return None
    return SteppedView(found[1], steps.first, canonical(value.shape, steps.strides))


def lies_as_view(storage: Storage, value: Value) -> bool:
    """Whether `value` is stored where its elements are already, in the storage of what it is a view of."""
    view, mine = stepped_view(storage, value), storage.variable(value)
    if view is None:
        return False
    source = storage.variable(view.source)
    offset = source.offset + view.first * itemsize(value.dtype)
    return (source.buffer, offset, view.strides) == (mine.buffer, mine.offset, mine.strides)
