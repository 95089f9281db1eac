"""Spaces "output:<name>": arrays of the caller's, in which a run leaves one output each and nothing else.

A run without a fault gives such an array to the caller as it is. So, whatever the program did there: the space is on
the host, one buffer lies in it, and at the end that buffer holds the output of its name, as the graph types it, from
the first byte to the last; no other result, feed or parameter is found there.
"""

from __future__ import annotations

from memopt.ir import Value
from memopt.lowering.program import Operand, ProgramBuffer
from memopt.ops import DEFAULT_LAYOUT
from memopt.validate.slots import Site
from memopt.validate.spaces import ByteMap
from memopt.validate.state import State

__all__ = ["check_output_spaces"]


def check_output_spaces(state: State) -> None:
    """Report what is wrong with the spaces of outputs; what their bytes hold is asked of every result elsewhere."""
    holders: dict[ByteMap, ProgramBuffer] = {}
    for buffer, site in zip(state.program.buffers, state.sites, strict=False):
        if site is None or buffer.space != "output":
            continue
        first = holders.setdefault(site.space, buffer)
        if first is buffer:
            _check_space(state, buffer, site)
        else:
            text = f"{state.words.buffer(first.id)} and {state.words.buffer(buffer.id)} share {_name(site)}"
            state.say("overlap", "", f"{text}, which is for one of them")


def _check_space(state: State, buffer: ProgramBuffer, site: Site) -> None:
    output = site.space.name.removeprefix("output:")
    value = next((value for value in state.graph.outputs if value.name == output), None)
    what = f"{state.words.buffer(buffer.id)} is in {_name(site)}"
    if value is None:
        state.say("malformed", output, f"{what}, but the graph has no output %{output}")
        return
    if site.space.device != state.plan.machine.host.name:
        state.say("wrong-device", output, f"{what}, but the caller's arrays are on {state.plan.machine.host.name}")
    sizes = {buffer.size_bytes, state.plan.slots[buffer.id].size}
    if sizes != {value.nbytes}:
        text = f"{what}, whose array has {value.nbytes} bytes; it has {', '.join(map(str, sorted(sizes)))}"
        state.say("out-of-bounds", output, text)
    _check_results(state, buffer, value, what)


def _check_results(state: State, buffer: ProgramBuffer, value: Value, what: str) -> None:
    """The output of that name, and no other result, is found there."""
    program = state.program
    mine = [one for one in program.results if _is_in(one.operand, buffer)]
    entering = [one for one in (*program.feeds, *program.params) if _is_in(one.operand, buffer)]
    for other in (*(one for one in mine if one.name != value.name), *entering):
        state.say("overlap", other.name, f"{what}, but %{other.name} is found there too")
    found = [one.operand for one in mine if one.name == value.name]
    for operand in found:
        placed = operand.placement
        plain = placed.dtype == value.dtype and placed.layout == DEFAULT_LAYOUT and operand.strides is None
        if operand.offset != 0 or not plain:
            text = f"{what}, but output %{value.name} is there as {placed} from byte {operand.offset} on"
            state.say("wrong-form", value.name, text)
    if not found:
        state.say("lost-output", value.name, f"{what}, but the program does not find output %{value.name} there")


def _is_in(operand: object, buffer: ProgramBuffer) -> bool:
    return isinstance(operand, Operand) and operand.buffer == buffer.id


def _name(site: Site) -> str:
    return f"{site.space.device} {site.space.name}"
