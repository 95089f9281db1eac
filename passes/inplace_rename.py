"""`InplaceRename`: an output gets the *variable* of an input that dies (the style of Fluid 1.5).

Edits the first arrow, value -> variable. It saves what sharing saves, but input and output of one node then have the
same name: under the transfer policy `fluid-1.5` the result is lost wherever that input is transformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import (
    Candidate,
    ExecutionOrder,
    Occupancy,
    Order,
    Reason,
    Verdict,
    candidates_of,
    check_order,
    op_refusal,
    param_variables,
    walk_inplace,
    where_read,
)
from memopt.ir import Graph, Value
from memopt.pipeline import Decision, PassResult
from passes.fluid_table import FLUID_15, MIN_CHUNK_ELEMENTS, SIZE_EXEMPT
from passes.results import pass_result

__all__ = ["InplaceRename", "inplace_rename", "inplace_rename_fluid"]


@dataclass(frozen=True)
class InplaceRename:
    """In-place by renaming. `fluid_rules=True` takes exactly the pairs that Fluid 1.5 takes.

    By default: any legal input of the node, the best first; sound for the listed order (see `memopt.analysis.sharing`).
    A name has no device, so devices are not looked at (nor does Fluid).
    With `fluid_rules` it knows nothing of fetched values and of feeds that the caller keeps, so that the validator may
    object; `min_elements` is Fluid's MinChunkSize.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    fluid_rules: bool = False
    min_elements: int = MIN_CHUNK_ELEMENTS
    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "inplace-rename"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        verdicts = inplace_rename_fluid(graph, self.min_elements) if self.fluid_rules else inplace_rename(graph)
        decisions = [
            Decision(self.name, c.node.name, c.subject, v.accepted, v.text, v.num_bytes, c.step, v.reason)
            for c, v in verdicts
        ]
        return pass_result(self.name, graph, decisions, self.order)


def inplace_rename(graph: Graph) -> list[tuple[Candidate, Verdict]]:
    """Bind outputs to the variables of inputs wherever that is sound; a verdict for each candidate pair."""
    return walk_inplace(graph, _rename, _objection)


def _rename(occupancy: Occupancy, candidate: Candidate) -> None:
    occupancy.rename(candidate.output, occupancy.graph.storage.variable(candidate.input))


def _objection(occupancy: Occupancy, c: Candidate) -> tuple[Reason, str] | None:
    if c.view_offset:
        text = f"%{c.output.name} starts at byte {c.view_offset} of %{c.input.name}, and one variable has one offset"
        return Reason.OFFSET_DIFFERS, text
    if _in_strides(occupancy.graph, c):
        return Reason.IN_STRIDES, f"%{c.output.name} or %{c.input.name} lies in strides, and one variable has one order"
    # A view leaves the bytes as they are, but a transfer may give the *name* other bytes: the old value must be dead.
    storage = occupancy.graph.storage
    for tenant in occupancy.tenants_after(storage.buffer(c.input), c.step) if c.is_view else ():
        value, needed = tenant.value, tenant.end > c.step + 1 or tenant.value in occupancy.liveness.kept
        if needed and storage.variable(value) is storage.variable(c.input):
            return Reason.NOT_LAST_USE, f"%{value.name} is needed later, and one name means one value"
    return None


def _in_strides(graph: Graph, c: Candidate) -> bool:
    return any(graph.storage.variable(value).strides is not None for value in (c.output, c.input))


# -- Fluid 1.5 --------------------------------------------------------------------------------------------------------


def inplace_rename_fluid(graph: Graph, min_elements: int) -> list[tuple[Candidate, Verdict]]:
    """Fluid 1.5's rules: its table, equal bytes, every other reader before in every order; fetches unknown."""
    rules = _Fluid15(graph, min_elements)
    verdicts: list[tuple[Candidate, Verdict]] = []
    for step, node in enumerate(graph.nodes):
        for candidate in candidates_of(graph, node, step):
            refusal = rules.refusal(candidate)
            if refusal is not None:
                verdicts.append((candidate, Verdict(False, *refusal, candidate.output.nbytes)))
                continue
            saved = rules.occupancy.size(graph.storage.buffer(candidate.output))
            _rename(rules.occupancy, candidate)
            text = f"{node.op} is in Fluid's table, and all other readers of %{candidate.input.name} come before"
            verdicts.append((candidate, Verdict(True, Reason.FLUID, text, saved)))
    return verdicts


class _Fluid15:
    """When 1.5 renames an output to its input; the first rule that fails is the refusal."""

    def __init__(self, graph: Graph, min_elements: int) -> None:
        self._graph = graph
        self._min_elements = min_elements
        self.occupancy = Occupancy(graph)
        self._order = Order(graph)
        self._persistent = param_variables(graph)

    def refusal(self, c: Candidate) -> tuple[Reason, str] | None:
        if c.node.op not in FLUID_15 or c.index != 0 or c.output.index != 0:
            return Reason.NOT_IN_TABLE, f"Fluid 1.5 does not compute {c.node.op} over its input {c.index}"
        return (
            op_refusal(self.occupancy, c)
            or self._names(c)
            or self._can_be_reused(c.input)
            or self._can_be_reused(c.output)
            or self._readers(c)
        )

    def _names(self, c: Candidate) -> tuple[Reason, str] | None:
        storage = self._graph.storage
        mine = storage.variable(c.input)
        if sum(storage.variable(v) is mine for v in c.node.inputs if v is not None) > 1:
            return Reason.REPEATED_OPERAND, f"%{c.input.name} is an operand of {c.node.op} more than once"
        if _in_strides(self._graph, c):
            return Reason.IN_STRIDES, f"%{c.output.name} or %{c.input.name} lies in strides, and one name has one order"
        if c.output.nbytes != c.input.nbytes and c.node.op not in SIZE_EXEMPT:
            text = f"%{c.output.name} takes {c.output.nbytes} B, %{c.input.name} has {c.input.nbytes} B"
            return Reason.SIZE_DIFFERS, text
        return None

    def _can_be_reused(self, value: Value) -> tuple[Reason, str] | None:
        if self._graph.storage.variable(value) in self._persistent:
            return Reason.INPUT_IS_PINNED, f"%{value.name} is persistent"
        if not value.shape or value.type.num_elements < self._min_elements:
            return Reason.TOO_SMALL, f"%{value.name} has fewer than {self._min_elements} elements"
        return None

    def _readers(self, c: Candidate) -> tuple[Reason, str] | None:
        versions = self._graph.storage.values_of(self._graph.storage.variable(c.input))
        if versions[-1] is not c.input:
            text = f"%{c.input.name} is not the last version of its variable, %{versions[-1].name} is"
            return Reason.NOT_LAST_USE, text
        other = self._order.not_before((use.node for use in c.input.uses), c.node)
        if other is not None:
            return Reason.NOT_LAST_USE, f"%{c.input.name} is read {where_read(other)} too, which need not come before"
        return None
