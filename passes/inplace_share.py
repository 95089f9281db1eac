"""`InplaceShare`: an output takes the *bytes* of an input that dies; both variables stay (the style of Fluid 1.6).

Edits the second arrow only, variable -> buffer. A transfer that replaces what the input's name means cannot touch the
output, which has a name of its own. Views share their source's bytes too, at any offset.
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
    pinned_variables,
    walk_inplace,
    where_read,
)
from memopt.ir import Graph
from memopt.pipeline import Decision, PassResult
from passes.fluid_table import FLUID_16
from passes.results import pass_result

__all__ = ["InplaceShare", "inplace_share", "inplace_share_fluid"]


@dataclass(frozen=True)
class InplaceShare:
    """In-place by sharing. `fluid_rules=True` takes exactly the pairs that Fluid 1.6 takes.

    By default: any legal input of the node, the best first; views known; sound for the listed order (see
    `memopt.analysis.sharing`). It accepts what `InplaceRename` accepts, and besides views at an offset and views
    of what lives on. Devices are not looked at: lowering lets a share follow its lender into the transfer scope.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    fluid_rules: bool = False
    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "inplace-share"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        verdicts = inplace_share_fluid(graph) if self.fluid_rules else inplace_share(graph)
        decisions = [
            Decision(self.name, c.node.name, c.subject, v.accepted, v.text, v.num_bytes, c.step, v.reason)
            for c, v in verdicts
        ]
        return pass_result(self.name, graph, decisions, self.order)


def inplace_share(graph: Graph) -> list[tuple[Candidate, Verdict]]:
    """Let outputs share the buffers of inputs wherever that is sound; a verdict for each candidate pair."""
    return walk_inplace(graph, _share, lambda occupancy, candidate: None)


def _share(occupancy: Occupancy, candidate: Candidate) -> None:
    source = occupancy.graph.storage.variable(candidate.input)
    occupancy.share(candidate.output, source.buffer, source.offset + (candidate.view_offset or 0))


# -- Fluid 1.6 --------------------------------------------------------------------------------------------------------


def inplace_share_fluid(graph: Graph) -> list[tuple[Candidate, Verdict]]:
    """Fluid 1.6's rules: its table, one last reader in every order; fetched, fed and persistent values never lend."""
    rules = _Fluid16(graph)
    verdicts: list[tuple[Candidate, Verdict]] = []
    for step, node in enumerate(graph.nodes):
        for candidate in candidates_of(graph, node, step):
            refusal = rules.refusal(candidate)
            if refusal is not None:
                verdicts.append((candidate, Verdict(False, *refusal, candidate.output.nbytes)))
                continue
            saved = rules.occupancy.size(graph.storage.buffer(candidate.output))
            source = graph.storage.variable(candidate.input)
            rules.occupancy.share(candidate.output, source.buffer, source.offset)
            text = f"{node.op} is in Fluid's table, and nobody reads %{candidate.input.name} after it"
            verdicts.append((candidate, Verdict(True, Reason.FLUID, text, saved)))
    return verdicts


class _Fluid16:
    """When (input -> output) may share in 1.6; the first rule that fails is the refusal."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.occupancy = Occupancy(graph)
        self._order = Order(graph)
        self._pinned = pinned_variables(graph)

    def refusal(self, c: Candidate) -> tuple[Reason, str] | None:
        if c.node.op not in FLUID_16 or c.index != 0 or c.output.index != 0:
            return Reason.NOT_IN_TABLE, f"Fluid 1.6 does not compute {c.node.op} over its input {c.index}"
        return op_refusal(self.occupancy, c) or self._lender(c) or self._readers(c) or self._size(c)

    def _lender(self, c: Candidate) -> tuple[Reason, str] | None:
        storage, name = self._graph.storage, c.input.name
        mine = storage.variable(c.input)
        kept = self.occupancy.liveness.kept.get(c.input)
        if mine in self._pinned:
            return Reason.INPUT_IS_PINNED, f"%{name} is in variable {mine.name}, which is persistent or fed"
        if kept is not None:
            return Reason.INPUT_IS_OUTPUT, f"%{name} is fetched"
        if sum(storage.variable(v) is mine for v in c.node.inputs if v is not None) > 1:
            return Reason.REPEATED_OPERAND, f"%{name} is an operand of {c.node.op} more than once"
        for tenant in self.occupancy.tenants_after(mine.buffer, c.step):
            if tenant.start >= c.step and storage.variable(tenant.value) is not mine:
                return Reason.ALREADY_LENT, f"%{name} has lent its bytes to %{tenant.value.name}"
        return None

    def _readers(self, c: Candidate) -> tuple[Reason, str] | None:
        versions = self._graph.storage.values_of(self._graph.storage.variable(c.input))
        if versions[-1] is not c.input:
            return Reason.NOT_LAST_USE, f"%{c.input.name} is updated later, to %{versions[-1].name}"
        other = self._order.not_before((use.node for use in c.input.data_uses), c.node)
        if other is not None:
            return Reason.NOT_LAST_USE, f"%{c.input.name} is read {where_read(other)} too, which need not come before"
        return None

    def _size(self, c: Candidate) -> tuple[Reason, str] | None:
        held = self.occupancy.size(self._graph.storage.buffer(c.input))
        if c.output.nbytes <= held:
            return None
        text = f"%{c.output.name} takes {c.output.nbytes} B, %{c.input.name} holds {held} B: the share would dissolve"
        return Reason.SIZE_DIFFERS, text
