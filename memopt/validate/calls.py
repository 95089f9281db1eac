"""A call: what its kernel is given, what it reads, what it writes, and over what.

Holds true: after `run_call` every output's bytes hold that output, whatever was wrong with the inputs, so that one
mistake is reported once and not at everything computed from it. There are two exceptions. For a call that makes views
in strides no kernel runs and nothing is written, so all its outputs must be views whose bytes are there already. And an
output in strides in which no kernel can write it is nowhere.
"""

from __future__ import annotations

from memopt.ir import Node, Value
from memopt.lowering.program import Call, Operand
from memopt.ops import ANY_LAYOUT, DEFAULT_LAYOUT, KernelQuery, scratch_bytes
from memopt.strides import canonical
from memopt.validate.explain import check_holds
from memopt.validate.images import stored_layout
from memopt.validate.overlaps import Access, check_overlaps
from memopt.validate.state import State
from memopt.validate.viewing import check_views, makes_views

__all__ = ["run_call"]


def run_call(state: State, index: int, call: Call) -> None:
    """Interpret one call."""
    node = _node(state, call)
    if node is None:
        return
    _check_device(state, node, call)
    if not _layout_known(state, node, call):
        return
    views = makes_views(node, call)
    reads = _reads(state, node, call)
    writes = _writes(state, node, call, views)
    if not views:
        _check_scratch(state, node, call, (reads, writes))
    for read in reads:
        if not read.reported and read.pieces is not None:
            check_holds(state, read.place, read.value, read.pieces)
    if views:
        check_views(state, node, writes)
    else:
        _write(state, node, (reads, writes))
    state.called[node] = index


def _write(state: State, node: Node, operands: tuple[list[Access], list[Access]]) -> None:
    """The outputs' bytes hold them from here on, where they may be written."""
    check_overlaps(state, node, operands)
    for write in operands[1]:
        if write.place.space.pinned:
            # A view written onto itself is read there by the same call; bytes from elsewhere may have been rounded.
            itself = any(_within(write, read) for read in operands[0])
            state.check_pinned(write.place, write.pieces, itself)
    for write in operands[1]:
        if write.pieces is not None:
            state.write(write.place, write.value, write.pieces)
            if write.steps is not None:
                state.strided.add((write.value, write.steps))


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


def _within(write: Access, read: Access) -> bool:
    """Whether the write lies within what the call reads, first byte to last."""
    mine, theirs = write.place, read.place
    return mine.space is theirs.space and theirs.lo <= mine.lo and mine.hi <= theirs.hi


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


def _check_scratch(state: State, node: Node, call: Call, operands: tuple[list[Access], list[Access]]) -> None:
    """The call plans at least the workspace that its kernel takes (a call without a kernel takes none)."""
    device = state.devices.get(call.device)
    if device is None:
        return
    types = [
        tuple(None if type is None else type.with_dtype(device.kernel_dtype(type.dtype)) for type in side)
        for side in (node.input_types, node.output_types)
    ]
    steps = [{access.slot: access.strides for access in side} for side in operands]
    strides = [tuple(known.get(slot) for slot in range(len(side))) for known, side in zip(steps, types, strict=True)]
    query = KernelQuery(
        types[0], types[1], node.attrs, call.layout, state.program.scratch_limit, strides[0], strides[1]
    )
    in_strides = any(strides[0]) or any(strides[1])  # perhaps item by item, with another workspace
    need = scratch_bytes(node.spec, query) if in_strides or node.spec.workspace(query) else 0
    if need and need > call.scratch_bytes:
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


def _writes(state: State, node: Node, call: Call, views: bool) -> list[Access]:
    writes = []
    for slot, (value, operand) in enumerate(zip(node.outputs, call.outputs, strict=False)):
        if value is None:
            if operand is not None:
                state.say("malformed", "", f"output {slot} of node {node.name} is absent, but has an operand")
            continue
        access = _access(state, call, (slot, "view" if views else "output", call.layout), value, operand)
        if access is not None:
            writes.append(access)
    return writes


def _access(
    state: State, call: Call, role: tuple[int, str, str], value: Value, operand: Operand | None
) -> Access | None:
    """The operand's bytes, and what they are taken for; None if it is no operand at all."""
    slot, kind, layout = role[0], "input" if role[1] == "input" else "output", role[2]
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
    pieces = (state.written if role[1] == "output" else state.read)(place, value, operand)
    if pieces is None and role[1] != "view":
        why = state.words.no_view(value, operand) if kind == "input" else state.words.no_strides(operand)
        message = f"{kind} {slot}, %{value.name}, is {why} [{state.words.place(place)}]"
        state.say("wrong-form", value.name, message, place)
    steps = canonical(value.shape, operand.strides)
    return Access(slot, value, place, pieces, placed.dtype, operand.strides, steps, reported)


def _fits(value: Value, operand: Operand, layout: str) -> bool:
    """Whether the operand lies as `layout` has it; strides count in the default layout."""
    if operand.strides is not None and len(value.shape) == 4 and layout != DEFAULT_LAYOUT:
        return False
    return stored_layout(value.shape, operand.placement.layout) == stored_layout(value.shape, layout)
