"""The start and the end: how feeds and parameters arrive, and what must be where when the program has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from memopt.ir import Graph, Value
from memopt.lowering.program import Result
from memopt.ops import DEFAULT_LAYOUT
from memopt.validate.explain import check_holds
from memopt.validate.outputs import check_output_spaces
from memopt.validate.spaces import NCHW, Image, Place
from memopt.validate.state import State

__all__ = ["begin", "finish", "last_values"]


def last_values(graph: Graph) -> dict[Value, Value]:
    """parameter -> its last value, by the chain of updates."""
    last = {param: param for param in graph.params}
    owner = {param: param for param in graph.params}
    for node in graph.nodes:
        for output, source in node.spec.updates.items():
            new = node.outputs[output] if output < len(node.outputs) else None
            old = node.inputs[source] if source < len(node.inputs) else None
            if new is not None and old is not None and old in owner:
                owner[new] = owner[old]
                last[owner[old]] = new
    return last


def begin(state: State) -> None:
    """Feeds and parameters are in the bytes where the program says that they arrive."""
    machine, last = state.plan.machine, last_values(state.graph)
    feeds = _results(state, state.program.feeds, state.graph.inputs, "feed")
    params = _results(state, state.program.params, state.graph.params, "param")
    for value in (*state.graph.inputs, *state.graph.params):
        kind: Literal["feed", "param"] = "feed" if value in feeds else "param"
        result = feeds.get(value) or params.get(value)
        place = None if result is None else _arrival(state, value, result, kind)
        if place is None:
            continue
        device = machine.host.name if kind == "feed" else state.graph.param_devices.get(value.name, machine.default)
        if place.space.device != device:
            state.say(
                "wrong-device", value.name, f"{kind} %{value.name} is at {place}, but it lives on {device}", place
            )
        state.write(place, value, state.pieces(place, Image(value, value.dtype, NCHW, 0)))
        state.homes[value] = place
        if value.name not in state.graph.donated if kind == "feed" else last[value] is value:
            place.space.pinned.append((place.lo, place.hi, value))


def _results(state: State, results: Sequence[Result], values: Sequence[Value], kind: str) -> dict[Value, Result]:
    """value -> its entry; reports missing, unknown and double ones."""
    found: dict[Value, Result] = {}
    known = {value.name: value for value in values}
    for result in results:
        value = known.get(result.name)
        if value is None or value in found:
            state.say(
                "malformed",
                str(result.name),
                f"the program's {kind} %{result.name} is {'unknown' if value is None else 'there twice'}",
            )
            continue
        found[value] = result
    lost = "lost-output" if kind == "output" else "malformed"
    for value in values:
        if value not in found:
            state.say(lost, value.name, f"the program does not say where {kind} %{value.name} is")
    return found


def _arrival(state: State, value: Value, result: Result, kind: str) -> Place | None:
    """The bytes in which a feed or parameter arrives, if that is a place for it."""
    place = state.place(result.operand, value, f"{kind}")
    if place is None:
        return None
    if result.operand.strides is not None:
        why = f"{kind} %{value.name} arrives in strides {result.operand.strides}; it has to be contiguous"
        state.say("malformed", value.name, why, place)
        return None
    placed = result.operand.placement
    if place.space.name != f"{kind}:{value.name}":
        state.say(
            "malformed",
            value.name,
            f"{kind} %{value.name} is at {place}, not in a space of its own, {kind}:{value.name}",
            place,
        )
    if (placed.dtype, placed.layout) != (value.dtype, DEFAULT_LAYOUT):
        state.say(
            "wrong-form",
            value.name,
            f"{kind} %{value.name} arrives as {value.dtype}/{DEFAULT_LAYOUT}, not as {placed}",
            place,
        )
        return None
    if placed.device != place.space.device:
        state.say("wrong-device", value.name, f"{kind} %{value.name} is at {place}, not {placed}", place)
    for piece in place.space.read(place.lo, place.hi):
        if piece.content is not None:
            state.say(
                "overlap",
                value.name,
                f"{kind} %{value.name} and {state.words.held(piece.content)} share {place}",
                place,
            )
    return place


def finish(state: State) -> None:
    """Every node has run; outputs, last values of parameters, and undonated feeds are where they must be."""
    for node in state.graph.nodes:
        if node not in state.called:
            name = next((value.name for _, value in node.real_outputs), "")
            state.say("malformed", name, f"node {node.name} ({node.op}) never runs")
    for value, result in _results(state, state.program.results, state.graph.outputs, "output").items():
        _check_output(state, value, result)
    check_output_spaces(state)
    last_of = last_values(state.graph)
    for param, last in last_of.items():
        _check_home(state, param, last, "lost-parameter")
    for param, result in _results(state, state.program.finals, state.graph.params, "last value of").items():
        _check_final(state, param, last_of[param], result)
    for feed in state.graph.inputs:
        if feed.name not in state.graph.donated:
            _check_home(state, feed, feed, "lost-feed")


def _check_output(state: State, value: Value, result: Result) -> None:
    place = state.place(result.operand, value, "output")
    if place is None or place.freed:
        return
    placed = result.operand.placement
    if placed.device != place.space.device:
        state.say("wrong-device", value.name, f"output %{value.name} is at {place}, not {placed}", place)
    forms = {value.dtype, *(device.kernel_dtype(value.dtype) for device in state.devices.values())}
    if placed.dtype not in forms:
        state.say("wrong-form", value.name, f"output %{value.name} is {value.type}, but is fetched as {placed}", place)
        return
    pieces = state.read(place, value, result.operand)
    if pieces is None:
        why = f"output %{value.name} is {state.words.no_view(value, result.operand)} [{state.words.place(place)}]"
        state.say("wrong-form", value.name, why, place)
    else:
        check_holds(state, place, value, pieces, "lost-output")


def _check_final(state: State, param: Value, last: Value, result: Result) -> None:
    """The program says that the parameter's last value is at its home, and which value that is (runs go by both)."""
    place = state.place(result.operand, param, "last value of")
    home = state.homes.get(param)
    if place is None or home is None:
        return
    placed = result.operand.placement
    if result.operand.strides is not None:
        text = f"the program says that parameter %{param.name} ends in strides {result.operand.strides}"
        state.say("malformed", param.name, f"{text}; it has to be contiguous", place)
    elif place[:3] != home[:3] or (placed.dtype, placed.layout) != (param.dtype, DEFAULT_LAYOUT):
        text = f"the program says that parameter %{param.name} ends at {place} as {placed}, but its home is {home}"
        state.say("lost-parameter", param.name, text, place, ("final", param))
    elif result.operand.value != last.name:
        text = f"parameter %{param.name} ends as %{result.operand.value}, says the program, but that is %{last.name}"
        state.say("lost-parameter", param.name, text, place, ("final", param))


def _check_home(state: State, value: Value, last: Value, kind: str) -> None:
    """A feed's or parameter's own bytes hold its last value (unless a forbidden write to them was reported)."""
    place = state.homes.get(value)
    if place is not None and not state.report.knows(("pinned", value)):
        image = state.images.image(last, value.dtype, DEFAULT_LAYOUT)
        check_holds(state, place, last, state.pieces(place, image), kind)
