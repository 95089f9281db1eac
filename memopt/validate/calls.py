"""A call: what its kernel is given, what it reads, what it writes, and over what.

Holds true: after `run_call` every output's bytes hold that output, whatever was wrong with the inputs, so that one
mistake is reported once and not at everything computed from it. A call that has an output in strides is the exception:
no kernel runs for it and nothing is written, so all its outputs must be views whose bytes are there already.
"""

from __future__ import annotations

from typing import NamedTuple

from memopt.ir import Node, Value
from memopt.lowering.program import Call, Operand
from memopt.ops import ANY_LAYOUT, DEFAULT_LAYOUT, InplacePair, KernelQuery
from memopt.strides import Strides
from memopt.types import TensorType
from memopt.validate.explain import check_holds
from memopt.validate.images import stored_layout
from memopt.validate.spaces import Image, Place
from memopt.validate.state import State

__all__ = ["run_call"]


class Access(NamedTuple):
    """One operand of a call: input or output number `slot`, where its bytes are and what they hold (or will).

    `image` is None where in its strides no view of it lies; `dtype` is how it is stored. `reported` says that it is
    wrong in itself already, so that what the bytes hold is not asked.
    """

    slot: int
    value: Value
    place: Place
    image: Image | None
    dtype: str
    strides: Strides | None
    reported: bool


def run_call(state: State, index: int, call: Call) -> None:
    """Interpret one call."""
    node = _node(state, call)
    if node is None:
        return
    _check_device(state, node, call)
    if not _layout_known(state, node, call):
        return
    reads = _reads(state, node, call)
    _check_scratch(state, node, call, reads)
    writes = _writes(state, node, call)
    for read in reads:
        if not read.reported and read.image is not None:
            check_holds(state, read.place, read.value, read.image)
    if makes_views(call):
        _check_views(state, node, writes)
    else:
        _write(state, node, (reads, writes))
    state.called[node] = index


def makes_views(call: Call) -> bool:
    """Whether the call has an output in strides: then no kernel runs, and nothing is written."""
    return any(isinstance(operand, Operand) and operand.strides is not None for operand in call.outputs)


def _check_views(state: State, node: Node, outputs: list[Access]) -> None:
    """No kernel runs: each output must be there already, and be a view by what its op says."""
    for output in outputs:
        state.views.add(output.value)
        if output.reported:
            continue
        why = ""
        if node.spec.view_of(output.slot) is None:
            why = f"{node.op} declares no such view"
        elif output.image is None or not state.holds(output.place, output.image):
            why = "these bytes do not hold it"
        if why:
            what = f"output {output.slot}, %{output.value.name}, is said to be a view, so that no kernel runs"
            there = output.place.space.read(output.place.lo, output.place.hi)
            held = f"; they begin with {state.words.held(there[0].content)}" if there else ""
            message = f"{what}, but {why} [{state.words.place(output.place)}]{held}"
            state.say("false-view", output.value.name, message, output.place, ("false-view", output.value))


def _write(state: State, node: Node, operands: tuple[list[Access], list[Access]]) -> None:
    """The outputs' bytes hold them from here on, where they may be written."""
    _check_overlaps(state, node, operands)
    for write in operands[1]:
        if write.place.space.pinned:
            state.check_pinned(write.place, write.image)
    for write in operands[1]:
        if write.image is not None:
            state.write(write.place, write.value, write.image)


def _node(state: State, call: Call) -> Node | None:
    """The node that the call runs, if it may be interpreted at all."""
    if not isinstance(call.node, str) or not state.graph.has_node(call.node):
        state.say("malformed", "", f"graph {state.graph.name!r} has no node {call.node!r}")
        return None
    node = state.graph.node(call.node)
    if node.op != call.op:
        state.say("malformed", _first(node), f"node {node.name} is a {node.op}, but the call runs {call.op}")
        return None
    if not isinstance(call.inputs, tuple) or not isinstance(call.outputs, tuple):
        state.say("malformed", _first(node), f"the call of node {node.name} has no lists of operands")
        return None
    if node in state.called:
        earlier = state.words.instruction(state.called[node])
        state.say(
            "malformed",
            _first(node),
            f"runs node {node.name}, which makes %{_first(node)}, a second time, after {earlier}",
        )
    if len(call.inputs) != len(node.inputs) or len(call.outputs) != len(node.outputs):
        has = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        state.say(
            "malformed",
            _first(node),
            f"node {node.name} has {has}, the call {len(call.inputs)} and {len(call.outputs)}",
        )
    for before in node.controls:
        if before not in state.called:
            must = f"node {node.name} must run after {before.name} (control edge)"
            state.say("malformed", _first(node), f"{must}, which has not run")
    return node


def _first(node: Node) -> str:
    """The node's first result, to name it by."""
    return next((value.name for _, value in node.real_outputs), "")


def _check_device(state: State, node: Node, call: Call) -> None:
    device = state.devices.get(call.device)
    if device is None:
        state.say(
            "wrong-device",
            _first(node),
            f"the machine has no device {call.device!r}; it has {', '.join(state.devices)}",
        )
        return
    if node.op in device.lacks:
        state.say("wrong-device", _first(node), f"{call.device} has no kernel for {node.op}")
    wanted = state.devices.get(node.device) if node.device is not None else None
    host = state.plan.machine.host
    if wanted is None or device is wanted or (device is host and node.op in wanted.lacks):
        return
    state.say("wrong-device", _first(node), f"node {node.name} is placed on {node.device}, not on {call.device}")


def _layout_known(state: State, node: Node, call: Call) -> bool:
    if call.layout == DEFAULT_LAYOUT or (call.layout == "NHWC" and {ANY_LAYOUT, "NHWC"} & set(node.spec.layouts)):
        return True
    kind = "wrong-form" if call.layout == "NHWC" else "malformed"
    state.say(kind, _first(node), f"there is no kernel of {node.op} for the layout {call.layout!r}")
    return kind == "wrong-form"


def _check_scratch(state: State, node: Node, call: Call, reads: list[Access]) -> None:
    """The call plans at least the workspace that its kernel takes (a call without a kernel takes none)."""
    spec, device = node.spec, state.devices.get(call.device)
    if device is None or makes_views(call):
        return
    inputs, outputs = (
        tuple(None if type is None else type.with_dtype(device.kernel_dtype(type.dtype)) for type in types)
        for types in (node.input_types, node.output_types)
    )
    steps = {read.slot: read.strides for read in reads}
    strides = tuple(steps.get(slot) for slot in range(len(inputs)))
    query = KernelQuery(inputs, outputs, node.attrs, call.layout, state.program.scratch_limit, strides)
    need = spec.workspace(query)
    if need and need > call.scratch_bytes and spec.kernel_for(query) is not None:
        message = f"the kernel of {node.op} needs {need} bytes of scratch; the call plans {call.scratch_bytes}"
        state.say("out-of-bounds", _first(node), message)


# -- operands ------------------------------------------------------------------------------------------------------


def _reads(state: State, node: Node, call: Call) -> list[Access]:
    reads = []
    layout_inputs = None if ANY_LAYOUT in node.spec.layouts else node.spec.layout_inputs
    for slot, (value, operand) in enumerate(zip(node.inputs, call.inputs, strict=False)):
        if value is None:
            if operand is not None:
                state.say("malformed", "", f"input {slot} of node {node.name} is absent, but has an operand")
            continue
        if not node.spec.reads_data(slot):
            if isinstance(operand, Operand) and operand.strides is not None:
                why = f"input {slot}, %{value.name}, is read for its shape only, but is in strides {operand.strides!r}"
                state.say("malformed", value.name, why)
            continue
        layout = call.layout if layout_inputs is None or slot in layout_inputs else DEFAULT_LAYOUT
        access = _access(state, call, (slot, "input", layout), value, operand)
        if access is not None:
            reads.append(access)
    return reads


def _writes(state: State, node: Node, call: Call) -> list[Access]:
    writes = []
    for slot, (value, operand) in enumerate(zip(node.outputs, call.outputs, strict=False)):
        if value is None:
            if operand is not None:
                state.say("malformed", "", f"output {slot} of node {node.name} is absent, but has an operand")
            continue
        access = _access(state, call, (slot, "output", call.layout), value, operand)
        if access is not None:
            writes.append(access)
    return writes


def _access(
    state: State, call: Call, role: tuple[int, str, str], value: Value, operand: Operand | None
) -> Access | None:
    """The operand's bytes, and what they are taken for; None if it is no operand at all."""
    slot, kind, layout = role
    place = state.place(operand, value, kind, slot)
    if place is None or operand is None:
        return None
    placed = operand.placement
    device = state.devices.get(call.device)
    dtype = value.dtype if device is None else device.kernel_dtype(value.dtype)
    reported = place.freed
    if place.space.device != call.device or placed.device != call.device:
        where = f"{placed} in {state.words.place(place)}"
        message = f"{kind} {slot}, %{value.name}, is {where}, but the call runs on {call.device}"
        state.say("wrong-device", value.name, message, place)
        reported = True
    elif placed.dtype != dtype or not _fits(value, operand, layout):
        message = f"{kind} {slot}, %{value.name}, is stored as {placed}, but the kernel takes it as {dtype}/{layout}"
        state.say("wrong-form", value.name, f"{message} [{state.words.place(place)}]", place)
        reported = True
    image = state.image(place, value, operand)
    if image is None and kind == "input":
        message = f"{kind} {slot}, %{value.name}, is {state.words.no_view(value, operand)}"
        state.say("wrong-form", value.name, f"{message} [{state.words.place(place)}]", place)
    return Access(slot, value, place, image, placed.dtype, operand.strides, reported)


def _fits(value: Value, operand: Operand, layout: str) -> bool:
    """Whether the operand lies as `layout` has it; strides count in the default layout."""
    if operand.strides is not None and len(value.shape) == 4 and layout != DEFAULT_LAYOUT:
        return False
    return stored_layout(value.shape, operand.placement.layout) == stored_layout(value.shape, layout)


# -- overlaps ------------------------------------------------------------------------------------------------------


def _check_overlaps(state: State, node: Node, operands: tuple[list[Access], list[Access]]) -> None:
    """Two outputs are apart; an output meets an input only where the op allows it."""
    reads, writes = operands
    for i, write in enumerate(writes):
        for other in writes[:i]:
            if write.place.overlaps(other.place):
                pair = f"outputs %{other.value.name} ({other.place}) and %{write.value.name}"
                state.say(
                    "overlap", write.value.name, f"{pair} ({state.words.place(write.place)}) share bytes", write.place
                )
        met = [read for read in reads if read.place.overlaps(write.place) and not _same_bytes(state, read, write)]
        if met:
            _check_inplace(state, node, write, met, operands)


def _same_bytes(state: State, read: Access, write: Access) -> bool:
    """Whether the write leaves every byte that it shares with the read as it was: a view onto itself, or an input where
    it is joined. Of a read in strides these are the bytes between its elements too."""
    if read.image is None or write.image is None:
        return False
    for a_lo, a_hi, a in _placed(state, read):
        for b_lo, b_hi, b in _placed(state, write):
            same = a[:3] == b[:3] and a.at - a_lo == b.at - b_lo
            if not same and a_lo < b_hi and b_lo < a_hi:
                return False
    return True


def _placed(state: State, access: Access) -> list[tuple[int, int, Image]]:
    """The pieces of an operand, where they lie in its space."""
    start = access.place.lo
    pieces = [] if access.image is None else state.images.pieces(access.image, access.place.hi - start)
    return [(start + lo, start + hi, image) for lo, hi, image in pieces]


def _check_inplace(
    state: State, node: Node, write: Access, met: list[Access], operands: tuple[list[Access], list[Access]]
) -> None:
    types = _placed_types(node, operands)
    refusals = {read.slot: _refusal(node, write, read, types) for read in met}
    repeatable = {read.value for read in met if refusals[read.slot] is None and _pair_repeats(node, write, read)}
    for read in met:
        kind, why = "illegal-inplace", refusals[read.slot]
        if read.place.lo != write.place.lo or (why is not None and read.place.hi != write.place.hi):
            kind = "overlap"
        elif why is not None and read.value in repeatable and read.strides is None:
            continue
        elif why is None and len(met) > 1 and read.value not in repeatable:
            why = "another input is read from the same bytes"
        if why is None:
            continue
        output = f"output %{write.value.name} ({state.words.place(write.place)})"
        over = f"over input {read.slot}, %{read.value.name} ({read.place})"
        state.say(kind, write.value.name, f"writes {output} {over}: {why}", write.place)
        return


def _refusal(
    node: Node, write: Access, read: Access, types: tuple[list[TensorType | None], list[TensorType | None]]
) -> str | None:
    """Why this output must not be written over this input, or None where it may."""
    if read.strides is not None:
        return "it is read in strides"
    same_start = read.place.lo == write.place.lo
    if node.spec.updates.get(write.slot) == read.slot and same_start and read.place.hi == write.place.hi:
        return None
    pair = _pair(node, write.slot, read.slot)
    if pair is None:
        return f"{node.op} declares no such in-place pair"
    if not same_start or (read.place.hi != write.place.hi and (pair.equal_bytes or write.place.hi > read.place.hi)):
        return "they share a part of their bytes only"
    return None if pair.condition is None else pair.condition(types[0], types[1], node.attrs)


def _pair(node: Node, output: int, source: int) -> InplacePair | None:
    return next((pair for pair in node.spec.inplace if pair.output == output and pair.input == source), None)


def _pair_repeats(node: Node, write: Access, read: Access) -> bool:
    pair = _pair(node, write.slot, read.slot)
    return pair is not None and pair.repeats


def _placed_types(
    node: Node, operands: tuple[list[Access], list[Access]]
) -> tuple[list[TensorType | None], list[TensorType | None]]:
    """The node's types with the dtypes in which the operands are stored."""
    inputs, outputs = list(node.input_types), list(node.output_types)
    for types, accesses in ((inputs, operands[0]), (outputs, operands[1])):
        for access in accesses:
            types[access.slot] = access.value.type.with_dtype(access.dtype)
    return inputs, outputs
