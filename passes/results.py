"""How a pass ends: its decisions, and under `order="any"` the control edges that storage needs, each a decision too."""

from __future__ import annotations

from collections.abc import Sequence

from memopt.analysis import ExecutionOrder, order_tenants
from memopt.ir import Graph
from memopt.pipeline import Decision, PassResult

__all__ = ["pass_result"]


def pass_result(name: str, graph: Graph, decisions: Sequence[Decision], order: ExecutionOrder) -> PassResult:
    """The result of pass `name`, whose edits of storage are done."""
    found = list(decisions)
    for edge in order_tenants(graph) if order == "any" else ():
        subject = (edge.output.name, edge.old.name)
        found.append(Decision(name, edge.node.name, subject, True, edge.text, 0, edge.step, "control-edge"))
    return PassResult(any(decision.accepted for decision in found), found)
