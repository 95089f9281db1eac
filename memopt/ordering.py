"""`compile(order="any")`: what a plan needs to hold under every order of its calls and transfers.

Passes with `order="any"` add the edges that *storage* needs. A plan shares more: packing puts buffers at one place one
after the other, and lowering moves shares to other devices. The validator knows which accesses no path orders. Of each
such pair, say `first` and, listed after it, `second`:

1. A control edge between their nodes orders the pair. Edges point forwards in the listed order, so it stays one of the
   orders. A transfer home belongs to no node: it comes after the call that made what it brings home, and the edge leads
   to that call, if it is listed after `first`.
2. Where no such edge can be (two transfers of one node; a transfer home, and what is listed after the call that it
   waits for), no plan of this program in which the two buffers overlap holds under every order. So they are *kept
   apart*: packing gives them bytes of their own, for a decision that says what that costs.

Holds true: 2. comes before 1., for another packing has other pairs. Each round keeps at least one more pair of buffers
apart, and pairs once apart stay so; hence it ends. Bytes that packing does not place (parameters, donated feeds) need
no 2.: who reads a parameter is listed before its update, which the transfer home waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from memopt.analysis import WantedEdge, add_edges
from memopt.arena import Pairs
from memopt.ir import Node
from memopt.lowering import Call, Instruction, Operand, Transfer
from memopt.pipeline import Decision
from memopt.plan import DeviceUse, MemoryPlan, Slot
from memopt.strides import extent
from memopt.types import itemsize
from memopt.validate import Finding, dependencies, validate

__all__ = ["Place", "order_plan"]

#: Packs a program with these pairs apart: a slot for each buffer, and what each device needs then.
Place = Callable[[Pairs], tuple[tuple[Slot, ...], Mapping[str, DeviceUse]]]
_Plan = TypeVar("_Plan", bound=MemoryPlan)


class _Clash(NamedTuple):
    """No path leads from instruction `first` to `second`, though they touch the same bytes; `waits` is the node that
    an edge should lead to."""

    finding: Finding
    first: int
    second: int
    waits: Node | None


class _Overlap(NamedTuple):
    """The buffers `pair` share bytes: of value `written` by the clash's second, and of `touched` by its first."""

    pair: tuple[int, int]
    clash: _Clash
    written: str
    touched: str


def order_plan(plan: _Plan, place: Place) -> _Plan:
    """`plan` as it holds under every order: `plan.graph` gets control edges, and what no edge can order other slots.

    Both are decisions of the result. A plan that is wrong as listed is left as it is.
    """
    apart: dict[tuple[int, int], None] = {}
    while True:
        clashes = _clashes(plan)
        stuck = [overlap for clash in clashes if not _edge(plan, clash) for overlap in _overlaps(plan, clash)]
        new = {overlap.pair: overlap for overlap in stuck if overlap.pair not in apart}
        if not new:
            return replace(plan, decisions=(*plan.decisions, *_add_edges(plan, clashes)))
        apart |= dict.fromkeys(new)
        before = plan.devices
        slots, devices = place(tuple(apart))
        plan = replace(plan, slots=slots, devices=devices)
        plan = replace(plan, decisions=(*plan.decisions, *_kept_apart(plan, new.values(), before)))


def _clashes(plan: MemoryPlan) -> list[_Clash]:
    """The pairs of instructions that the validator objects to."""
    found = []
    before: Sequence[Sequence[int]] | None = None
    for finding in validate(plan, findings="return", order="any"):
        if finding.kind == "unordered" and finding.culprit is not None and finding.instruction is not None:
            before = before or dependencies(plan)
            waits = _waits(plan, before, finding.instruction)
            found.append(_Clash(finding, finding.culprit, finding.instruction, waits))
    return found


def _waits(plan: MemoryPlan, before: Sequence[Sequence[int]], index: int) -> Node | None:
    """The node whose edges an instruction waits for: its own, or for a transfer home the last call that it follows."""
    name = getattr(plan.program.instructions[index], "node", "")
    if name:
        return plan.graph.node(name)
    nodes = [_waits(plan, before, other) for other in before[index]]
    steps = plan.graph.steps()
    return max((node for node in nodes if node is not None), key=lambda node: steps[node], default=None)


def _edge(plan: MemoryPlan, clash: _Clash) -> WantedEdge | None:
    """The control edge that orders the two instructions; None if there can be none."""
    second = plan.program.instructions[clash.second]
    name = getattr(plan.program.instructions[clash.first], "node", "")
    if not name or clash.waits is None:
        return None
    node, steps = plan.graph.node(name), plan.graph.steps()
    if steps[node] >= steps[clash.waits]:
        return None
    return WantedEdge(node, clash.waits, clash.finding.value, isinstance(second, Transfer) and bool(second.node))


def _add_edges(plan: MemoryPlan, clashes: Iterable[_Clash]) -> Iterator[Decision]:
    wanted = [edge for edge in (_edge(plan, clash) for clash in clashes) if edge is not None]
    steps = plan.graph.steps()
    for edge in add_edges(plan.graph, wanted):
        text = f"control edge {edge.before.name} -> {edge.node.name}: both use the bytes of %{edge.why}"
        yield Decision("order", edge.node.name, (edge.why,), True, text, 0, steps[edge.node], "control-edge")


# -- what no edge can order --------------------------------------------------------------------------------------------


def _overlaps(plan: MemoryPlan, clash: _Clash) -> Iterator[_Overlap]:
    """The arena buffers through which the two meet."""
    instructions = plan.program.instructions
    for written in _touched(instructions[clash.second])[1]:
        for touched in (operand for some in _touched(instructions[clash.first]) for operand in some):
            if written.buffer != touched.buffer and _meet(plan, written, touched):
                pair = min(written.buffer, touched.buffer), max(written.buffer, touched.buffer)
                yield _Overlap(pair, clash, written.value, touched.value)


def _touched(instruction: Instruction) -> tuple[Sequence[Operand], Sequence[Operand]]:
    """What it reads, and what it writes."""
    if isinstance(instruction, Transfer):
        return (instruction.source,), (instruction.target,)
    assert isinstance(instruction, Call), "only calls and transfers move bytes"
    return tuple(o for o in instruction.inputs if o is not None), tuple(o for o in instruction.outputs if o is not None)


def _meet(plan: MemoryPlan, one: Operand, other: Operand) -> bool:
    """Whether two operands share bytes of an arena."""
    a, b = plan.slots[one.buffer], plan.slots[other.buffer]
    if a.space != "arena" or (a.device, a.space) != (b.device, b.space):
        return False
    lower, upper = (s.offset + o.offset for s, o in ((a, one), (b, other)))
    return lower < upper + _num_bytes(plan, other) and upper < lower + _num_bytes(plan, one)


def _num_bytes(plan: MemoryPlan, operand: Operand) -> int:
    return extent(plan.graph.value(operand.value).shape, operand.strides) * itemsize(operand.placement.dtype)


def _kept_apart(
    plan: MemoryPlan, overlaps: Iterable[_Overlap], before: Mapping[str, DeviceUse]
) -> Iterator[Decision]:
    """A refusal for each pair of buffers; the first of a device says what this round of them costs there."""
    steps = plan.graph.steps()
    told: set[str] = set()
    for one in overlaps:
        first, second = (plan.program.instructions[at] for at in (one.clash.first, one.clash.second))
        device = plan.program.buffers[one.pair[0]].device
        cost = 0 if device in told else max(0, plan.devices[device].height_bytes - before[device].height_bytes)
        node = one.clash.waits
        name, step = ("", 0) if node is None else (node.name, steps[node])
        text = f"kept apart: no edge can order {_words(first)} before {_words(second)}; "
        text += f"counted above, with others of {device}" if device in told else f"{cost} B more on {device}"
        told.add(device)
        yield Decision("order", name, (one.written, one.touched), False, text, cost, step, "kept-apart")


def _words(instruction: Instruction) -> str:
    if isinstance(instruction, Transfer):
        where = f"for {instruction.node}" if instruction.node else "home"
        return f"the transfer of %{instruction.source.value} {where}"
    return f"the call of {getattr(instruction, 'node', '')}"
