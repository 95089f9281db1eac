"""Transfers, rebinds and frees: bytes that move without being computed.

Holds true: a copy moves what the source bytes *hold*, whatever the instruction says they are; where it converts bytes
that are not in the form that it converts from, the result is spoilt content, which nobody may read. A source in strides
is read element by element: its name says in which shape, and the bytes must hold a value that lies so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from memopt.devices import Placement
from memopt.ir import Value
from memopt.lowering.program import Free, Operand, Rebind, Transfer
from memopt.ops import DEFAULT_LAYOUT
from memopt.types import itemsize
from memopt.validate.images import stored_layout
from memopt.validate.spaces import NCHW, Content, Image, Pieces, Place, is_same, meets
from memopt.validate.state import State

__all__ = ["run_free", "run_rebind", "run_transfer"]


class Part(NamedTuple):
    """Bytes `[lo, hi)` of a copy, counted from its start, and what they hold."""

    lo: int
    hi: int
    image: Image | None
    content: Content | None
    fault: str


def run_transfer(state: State, transfer: Transfer) -> None:
    """Interpret one copy."""
    values = [
        _value(state, operand, role) for operand, role in ((transfer.source, "source"), (transfer.target, "target"))
    ]
    if values[0] is None or values[1] is None:
        return
    if values[0].shape != values[1].shape:
        text = " to ".join(f"%{value.name} {value.type}" for value in values if value is not None)
        state.say("malformed", values[0].name, f"copies {text}: the shapes differ")
        return
    source = state.place(transfer.source, values[0], "the source")
    target = state.place(transfer.target, values[1], "the target")
    if source is None or target is None:
        return
    _check_kind(state, transfer, values[0], (source, target))
    if transfer.target.strides is not None:
        why = f"writes %{values[1].name} in strides {transfer.target.strides}; the target has to be contiguous"
        state.say("malformed", values[1].name, why, target)
        state.drop(target)
        return
    if source.overlaps(target):
        state.say(
            "overlap",
            values[1].name,
            f"the source, {state.words.place(source)}, and the target, {target}, share bytes",
            target,
        )
    if target.space.pinned:
        state.check_pinned(target, None)
    if source.freed:
        state.drop(target)
        return
    parts = _parts(source) if transfer.source.strides is None else _gathered(state, source, values[0], transfer.source)
    parts = _relayout(state, parts, values[0], (transfer.source.placement, transfer.target.placement))
    for part in parts:
        place = target._replace(lo=target.lo + part.lo, hi=target.lo + part.hi)
        content = part.content
        if part.image is None or content is None or content.value is None:
            state.drop(place)
        else:
            state.write(place, content.value, state.pieces(place, part.image), content, part.fault)


def _value(state: State, operand: Operand, role: str) -> Value | None:
    """The value whose number of elements says how many bytes the operand has."""
    name = getattr(operand, "value", None)
    if not isinstance(name, str) or not state.graph.has_value(name.removeprefix("%")):
        state.say("malformed", str(name or ""), f"the {role} is {operand!r}, which names no value of the graph")
        return None
    return state.graph.value(name)


def _check_kind(state: State, transfer: Transfer, value: Value, places: tuple[Place, Place]) -> None:
    """What changes must be what the kind of transfer says, and the placements must be on the bytes' devices."""
    before, after = transfer.source.placement, transfer.target.placement
    for placed, place in ((before, places[0]), (after, places[1])):
        if placed.device != place.space.device:
            state.say("wrong-device", value.name, f"calls {state.words.place(place)} {placed}", place)
    changes = [name for name in ("layout", "dtype", "device") if getattr(before, name) != getattr(after, name)]
    text = f"copies {before} in {state.words.place(places[0])} to {after} in {state.words.place(places[1])}"
    if transfer.kind == "home":
        if places[1] not in state.homes.values():
            state.say("malformed", value.name, f"{text}, which is the home of no parameter", places[1])
        if len(changes) > 1:
            state.say("wrong-form", value.name, f"{text}; one transfer changes one of layout, dtype, device", places[1])
    elif transfer.kind not in ("layout", "dtype", "device"):
        state.say(
            "malformed",
            value.name,
            f"is a transfer of kind {transfer.kind!r}; there are layout, dtype, device and home",
        )
    elif changes != [transfer.kind]:
        kind = "wrong-device" if "device" in (*changes, transfer.kind) else "wrong-form"
        state.say(kind, value.name, f"{text}; a {transfer.kind} transfer changes that and nothing else", places[1])
    if "layout" in changes and len(value.shape) != 4:
        state.say("wrong-form", value.name, f"{text}, but %{value.name} is {value.type}, not of rank 4", places[1])


def _parts(source: Place) -> list[Part]:
    """What the source holds, counted from its start."""
    parts = []
    for lo, hi, content, shift in source.space.read(source.lo, source.hi):
        image = None
        if content is not None and content.root is not None:
            image = Image(content.root, content.dtype, content.layout, lo + shift)
        parts.append(Part(lo - source.lo, hi - source.lo, image, content, "" if content is None else content.fault))
    return parts


def _gathered(state: State, source: Place, value: Value, operand: Operand) -> list[Part]:
    """What a copy of a source in strides holds: `value`, spoilt unless the source holds it in these strides."""
    dtype, wanted = operand.placement.dtype, state.read(source, value, operand)
    there = [piece.content for piece in source.space.read(source.lo, source.hi)]
    content = next((content for content in there if content is not None and content.value is not None), None)
    fault = ""
    if wanted is None:
        fault = state.words.no_view(value, operand)
    elif not state.holds(source, wanted):
        fault = f"read in strides {operand.strides} from bytes that did not hold %{value.name} in these"
    made = None if content is None else replace(content, value=value)
    pieces = state.images.images(value, dtype, DEFAULT_LAYOUT)
    return [Part(lo, hi, piece, made, fault) for lo, hi, piece in pieces]


def _relayout(state: State, parts: list[Part], value: Value, placements: tuple[Placement, Placement]) -> list[Part]:
    """The parts after the copy's conversion: first of the layout, then of the dtype."""
    before, after = placements
    orders = stored_layout(value.shape, before.layout), stored_layout(value.shape, after.layout)
    if orders[0] != orders[1] and parts:
        parts = [_reordered(state, parts, value, before, orders[1] == NCHW)]
    if before.dtype != after.dtype:
        sizes = itemsize(before.dtype), itemsize(after.dtype)
        parts = [_cast(state, part, placements, sizes) for part in parts]
    return parts


def _reordered(state: State, parts: list[Part], value: Value, before: Placement, to_nchw: bool) -> Part:
    """The whole copy as one part in the other layout; spoilt unless the source is one tensor in the layout named."""
    end = parts[-1].hi
    first = parts[0]
    image = first.image
    for own in () if to_nchw else state.images.candidates(value, before.dtype, DEFAULT_LAYOUT):
        if _consists_of(parts, state.images.pieces(own, end)):
            order = (own.at // itemsize(own.dtype), *value.shape)
            return Part(0, end, Image(own.root, own.dtype, order, 0), first.content, "")
    if image is None:
        return Part(0, end, None, first.content, "")
    size = itemsize(image.dtype)
    start = image.layout[0] if image.layout else image.at // size
    order = (start, *value.shape)
    expected = (
        Image(image.root, before.dtype, order, 0) if to_nchw else Image(image.root, before.dtype, NCHW, start * size)
    )
    result = (
        Image(image.root, before.dtype, NCHW, start * size) if to_nchw else Image(image.root, before.dtype, order, 0)
    )
    fault = first.fault
    if len(parts) > 1 or image != expected:
        fault = fault or f"reordered as {before}, which it was not"
    return Part(0, end, result, first.content, fault)


def _consists_of(parts: list[Part], pieces: Pieces) -> bool:
    """Whether the parts hold exactly these images, however both are cut."""
    held = [(part.lo, part.hi, part.image) for part in parts if part.image is not None and not part.fault]
    return len(held) == len(parts) and all(is_same(one, other) for one, other in meets(held, pieces))


def _cast(state: State, part: Part, placements: tuple[Placement, Placement], sizes: tuple[int, int]) -> Part:
    """One part in the other dtype; spoilt if it is not in the dtype it is said to have, or the new one is of no use."""
    before, after = placements
    lo, hi = part.lo * sizes[1] // sizes[0], part.hi * sizes[1] // sizes[0]
    image, fault = part.image, part.fault
    if image is None:
        return part._replace(lo=lo, hi=hi)
    if image.dtype != before.dtype or part.lo % sizes[0] or part.hi % sizes[0] or image.at % sizes[0]:
        fault = fault or f"converted from {before.dtype}, which it was not"
    elif after.dtype not in _forms(state, image.root):
        fault = fault or f"converted to {after.dtype}, in which no kernel of this machine takes {image.root.dtype}"
    return part._replace(
        lo=lo, hi=hi, image=image._replace(dtype=after.dtype, at=image.at // sizes[0] * sizes[1]), fault=fault
    )


def _forms(state: State, root: Value) -> set[str]:
    """The dtypes in which a value may be stored: its own, and those in which kernels want it."""
    return {root.dtype, *(device.kernel_dtype(root.dtype) for device in state.devices.values())}


def run_rebind(state: State, index: int, rebind: Rebind) -> None:
    """No bytes move; remember what the variable means now, for messages."""
    if state.site(getattr(rebind.target, "buffer", None)) is None:
        state.say(
            "malformed",
            "",
            f"variable {rebind.variable} is bound to {rebind.target!r}, which has no place in this plan",
        )
        return
    state.rebinds.setdefault(rebind.variable, []).append((index, rebind))


def run_free(state: State, index: int, free: Free) -> None:
    """The buffer's bytes hold no value from here on."""
    site = state.site(free.buffer)
    if site is None:
        state.say("malformed", "", f"buffer #{free.buffer} has no place in this plan")
        return
    place = Place(site.space, site.offset, site.offset + site.size, free.buffer)
    if free.buffer in state.freed:
        before = state.words.instruction(state.freed[free.buffer])
        state.say("malformed", "", f"{state.words.buffer(free.buffer)} was freed already, by {before}", place)
    if site.space.name != "arena":
        state.say("malformed", "", f"{state.words.place(place)} is no arena's: it lives all the time", place)
        return
    state.freed[free.buffer] = index
    state.drop(place)
