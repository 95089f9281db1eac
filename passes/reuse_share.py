"""`ReuseShare`: an output takes the *bytes* of a buffer that is dead (the cross-op reuse of Fluid 1.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import (
    ExecutionOrder,
    Liveness,
    Occupancy,
    Reason,
    ReuseRecord,
    Verdict,
    borrower_refusal,
    check_order,
    pinned_variables,
    walk_reuse,
)
from memopt.ir import Buffer, Graph, Value
from memopt.pipeline import Decision, PassResult
from passes.results import pass_result

__all__ = ["ReuseShare", "reuse_share", "reuse_share_fluid"]


@dataclass(frozen=True)
class ReuseShare:
    """Cross-op reuse by sharing. `fluid_rules=True` takes dead values of exactly the same size, each once, as 1.6 does.

    By default: the smallest dead buffer that is large enough, if the peak of live bytes does not rise. A plan gains
    nothing by it, since packing reuses any dead bytes; under Fluid's rules a buffer that waits for its next tenant can
    raise the peak, and the decision says by how much.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    fluid_rules: bool = False
    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "reuse-share"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        records = reuse_share_fluid(graph) if self.fluid_rules else reuse_share(graph)
        decisions = [
            Decision(self.name, node.name, subject(output, lender), v.accepted, v.text, v.num_bytes, step, v.reason)
            for node, step, output, lender, v in records
        ]
        return pass_result(self.name, graph, decisions, self.order)


def subject(output: Value, lender: Value | None) -> tuple[str, ...]:
    """The names in a decision: the output, and the lender if there is one."""
    return (output.name,) if lender is None else (output.name, lender.name)


def reuse_share(graph: Graph) -> list[ReuseRecord]:
    """Let outputs share dead buffers; a record for every output."""
    return walk_reuse(graph, _share)


def _share(occupancy: Occupancy, output: Value, lender: Buffer) -> bool:
    occupancy.share(output, lender, occupancy.graph.storage.variable(output).offset)
    return True


# -- Fluid 1.6 --------------------------------------------------------------------------------------------------------


def reuse_share_fluid(graph: Graph) -> list[ReuseRecord]:
    """Fluid 1.6's rules: exact size; a value lends once and borrows once; fetched and fed values never lend."""
    occupancy = Occupancy(graph)
    deaths = _deaths(graph, occupancy.liveness)
    pool: dict[int, list[Value]] = {}
    records: list[ReuseRecord] = []
    for step, node in enumerate(graph.nodes):
        for _, output in node.real_outputs:
            refusal = borrower_refusal(occupancy, output)
            if refusal is not None:
                records.append((node, step, output, None, refusal))
                continue
            lender = _take(occupancy, pool.get(output.nbytes, []), step)
            if lender is None:
                text = f"no dead value has exactly the {output.nbytes} B of %{output.name}"
                records.append((node, step, output, None, Verdict(False, Reason.NO_CANDIDATE, text, output.nbytes)))
                continue
            saved = occupancy.size(graph.storage.buffer(output))
            source = graph.storage.variable(lender)
            rise = occupancy.rise(graph.storage.buffer(output), source.buffer, source.offset)
            occupancy.share(output, source.buffer, source.offset)
            text = f"%{lender.name} is dead and has as many bytes"
            text += f"; held in between, they raise the peak by {rise} B" if rise > 0 else ""
            records.append((node, step, output, lender, Verdict(True, Reason.FLUID, text, saved)))
        for value in deaths.get(step, ()):
            pool.setdefault(value.nbytes, []).append(value)
    return records


def _take(occupancy: Occupancy, pool: list[Value], step: int) -> Value | None:
    """Take the first value whose buffer is dead (one that has lent its bytes lives on in the borrower)."""
    for i, value in enumerate(pool):
        if occupancy.span(occupancy.graph.storage.buffer(value)).end <= step:
            return pool.pop(i)
    return None


def _deaths(graph: Graph, liveness: Liveness) -> dict[int, list[Value]]:
    """step -> the values that die there and may lend: made by a node, not fetched, last version of their variable."""
    pinned = pinned_variables(graph)
    deaths: dict[int, list[Value]] = {}
    for value in graph.values:
        variable = graph.storage.variable(value)
        if value.producer is None or value in liveness.kept or variable in pinned or value.nbytes == 0:
            continue
        if graph.storage.values_of(variable)[-1] is value:
            deaths.setdefault(liveness.intervals[value].end - 1, []).append(value)
    return deaths
