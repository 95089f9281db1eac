"""Calls that make views in strides: no kernel runs for them, and the bytes must be there already.

Holds true: whether a call makes views is told from its operands alone, by where they lie and by what the op says; the
runtime has the same rule. So an output in strides that lies anywhere else is one that a kernel writes.
"""

from __future__ import annotations

from memopt.ir import Node
from memopt.lowering.program import Call, Operand
from memopt.ops import View
from memopt.strides import Strided, Strides, canonical, row_strides
from memopt.types import itemsize
from memopt.validate.overlaps import Access
from memopt.validate.state import State

__all__ = ["check_views", "makes_views"]


def makes_views(node: Node, call: Call) -> bool:
    """Whether an output that has strides lies where it would as a view of its input, which lies where its operand says:
    then nothing is written.
    """
    return any(_lies_as_view(node, call, index, value.shape) for index, value in node.real_outputs)


def _lies_as_view(node: Node, call: Call, index: int, shape: tuple[int, ...]) -> bool:
    view = None if index in node.spec.updates else node.spec.view_of(index)
    if view is None or view.input >= len(call.inputs) or index >= len(call.outputs):
        return False
    source, output = call.inputs[view.input], call.outputs[index]
    if not isinstance(source, Operand) or not isinstance(output, Operand) or output.strides is None:
        return False
    steps = _view_steps(node, index, view, source.strides)
    if steps is None or source.placement != output.placement or not _are_strides(output.strides, len(shape)):
        return False
    offset = source.offset + steps.first * itemsize(source.placement.dtype)
    where = source.buffer, offset, canonical(shape, steps.strides)
    return where == (output.buffer, output.offset, canonical(shape, output.strides))


def _view_steps(node: Node, index: int, view: View, strides: Strides | None) -> Strided | None:
    """How output `index` steps through the storage of the view's input, which lies in `strides`; None where no strides
    say that.
    """
    source, value = node.input_types[view.input], node.output_types[index]
    if source is None or value is None or source.dtype != value.dtype or not value.nbytes:
        return None
    types = (node.input_types, node.output_types, node.attrs, index)
    if view.strides is not None:
        if strides is not None and not _are_strides(strides, source.rank):
            return None
        return view.strides(*types, row_strides(source.shape) if strides is None else strides)
    offset, size = view.byte_offset(*types) if strides is None else None, itemsize(value.dtype)
    return None if offset is None or offset % size else Strided(offset // size, row_strides(value.shape))


def _are_strides(strides: object, rank: int) -> bool:
    """Whether they are strides at all (what is wrong with an operand is reported elsewhere)."""
    return isinstance(strides, tuple) and len(strides) == rank and all(isinstance(step, int) for step in strides)


def check_views(state: State, node: Node, outputs: list[Access]) -> None:
    """No kernel runs: each output must be there already, and be a view by what its op says."""
    for output in outputs:
        state.views.add(output.value)
        if output.reported:
            continue
        why = ""
        if node.spec.view_of(output.slot) is None:
            why = f"{node.op} declares no such view"
        elif output.pieces is None or not state.holds(output.place, output.pieces):
            why = "these bytes do not hold it"
        if why:
            what = f"output {output.slot}, %{output.value.name}, is said to be a view, so that no kernel runs"
            there = output.place.space.read(output.place.lo, output.place.hi)
            held = f"; they begin with {state.words.held(there[0].content)}" if there else ""
            message = f"{what}, but {why} [{state.words.place(output.place)}]{held}"
            state.say("false-view", output.value.name, message, output.place, ("false-view", output.value))
