"""How the in-place methods of a graph were met: really in place, or with another buffer, and why.

Holds true: a method is honoured if the new value lies in the very bytes of the old one, or if one of the two is not
stored at all (a fused node makes it on the way); it is the plan that is asked, not the pass. The reason for a refusal
is that of the pass which judged the pair. Data in, text out.
"""

from __future__ import annotations

from dataclasses import dataclass

from memopt.ir import InplacePlace, InplaceRequest
from memopt.lowering import Call, Operand
from memopt.plan import MemoryPlan
from memopt.report.table import Table
from memopt.types import format_bytes

__all__ = ["InplaceOutcome", "inplace_outcomes", "inplace_table"]


@dataclass(frozen=True, slots=True)
class InplaceOutcome:
    """How one in-place method was met.

    method, target   `sin_`, and the name of the value that it was called on
    honoured         whether the new value took over the old one's bytes, at every place that was asked for
    extra_bytes      bytes of new values that lie elsewhere, beside the old ones
    reason           why, in words that name the values
    """

    method: str
    target: str
    honoured: bool
    extra_bytes: int
    reason: str


def inplace_outcomes(plan: MemoryPlan) -> list[InplaceOutcome]:
    """One outcome for each in-place method, in the order of writing. (A plan that was loaded from a file has none.)"""
    where = _places(plan)
    reasons: dict[tuple[str, ...], str] = {}
    reasons |= {(d.node, *d.subject): d.reason for d in plan.decisions if not d.accepted and len(d.subject) == 2}
    return [_outcome(plan, request, where, reasons) for request in plan.graph.inplace.requests]


def inplace_table(plan: MemoryPlan) -> Table:
    """The outcomes as a table to print."""
    found = inplace_outcomes(plan)
    rows = [
        (one.method, f"%{one.target}", "in place" if one.honoured else f"+{format_bytes(one.extra_bytes)}", one.reason)
        for one in found
    ]
    title = "In-place methods" if rows else "The graph has no in-place methods."
    return Table(title, ("method", "on", "met", "why") if rows else (), tuple(rows))


def _outcome(
    plan: MemoryPlan,
    request: InplaceRequest,
    where: dict[str, tuple[int, int]],
    reasons: dict[tuple[str, ...], str],
) -> InplaceOutcome:
    stored = [place for place in request.places if place.new in where and place.old in where]
    elsewhere = [place for place in stored if where[place.new] != where[place.old]]
    extra = sum(plan.graph.value(place.new).nbytes for place in elsewhere if plan.graph.has_value(place.new))
    if not request.places:
        reason = "nothing is written: the handle means another value from here on"
    elif not stored:
        place = request.places[0]
        gone = place.old if place.old not in where else place.new
        reason = f"%{gone} is not stored: another node makes it on the way"
    elif not elsewhere:
        place = stored[0]
        reason = f"%{place.new} lies in the bytes of %{place.old}"
    else:
        reason = _reason(plan, elsewhere[0], reasons)
    return InplaceOutcome(request.method, request.target, not elsewhere, extra, reason)


def _reason(plan: MemoryPlan, place: InplacePlace, reasons: dict[tuple[str, ...], str]) -> str:
    known = reasons.get((place.node, place.new, place.old))
    if known is not None:
        return known
    if not any(len(d.subject) == 2 and d.node == place.node for d in plan.decisions):
        return f"no in-place pass looked at %{place.new}: strategy {plan.strategy!r}"
    return f"%{place.new} could not lie in the bytes of %{place.old}"


def _places(plan: MemoryPlan) -> dict[str, tuple[int, int]]:
    """value name -> (buffer, offset) where it was first put; feeds and parameters where they enter."""
    found = {one.name: (one.operand.buffer, one.operand.offset) for one in (*plan.program.feeds, *plan.program.params)}
    for instruction in plan.program.instructions:
        if isinstance(instruction, Call):
            for operand in instruction.outputs:
                if isinstance(operand, Operand):
                    found.setdefault(operand.value, (operand.buffer, operand.offset))
    return found
