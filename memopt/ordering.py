"""`compile(order="any")`: control edges with which a plan holds under every order of its calls and transfers.

Passes with `order="any"` add the edges that *storage* needs. A plan shares more: packing puts buffers at one place one
after the other, and lowering moves shares to other devices. The validator knows which accesses no path orders, and here
each such pair becomes an edge between their nodes. Edges point forwards in the listed order, so it stays one of the
orders; where two transfers of one node are at odds no edge can help, and validation says so.
"""

from __future__ import annotations

from memopt.analysis import WantedEdge, add_edges
from memopt.lowering import Transfer
from memopt.pipeline import Decision
from memopt.plan import MemoryPlan
from memopt.validate import validate

__all__ = ["order_plan"]


def order_plan(plan: MemoryPlan) -> tuple[Decision, ...]:
    """Add to `plan.graph` the control edges that the plan needs under every order; returns them as decisions.

    A plan that is wrong as listed is left as it is. The plan then needs to be validated with `order="any"`.
    """
    instructions = plan.program.instructions
    wanted: list[WantedEdge] = []
    for finding in validate(plan, findings="return", order="any"):
        if finding.kind != "unordered" or finding.culprit is None or finding.instruction is None:
            continue
        before = getattr(instructions[finding.culprit], "node", "")
        if before and finding.node and before != finding.node:
            early = isinstance(instructions[finding.instruction], Transfer)
            nodes = plan.graph.node(before), plan.graph.node(finding.node)
            wanted.append(WantedEdge(*nodes, finding.value, early))
    steps = plan.graph.steps()
    return tuple(
        Decision("order", edge.node.name, (edge.why,), True, _text(edge), 0, steps[edge.node], "control-edge")
        for edge in add_edges(plan.graph, wanted)
    )


def _text(edge: WantedEdge) -> str:
    return f"control edge {edge.before.name} -> {edge.node.name}: both use the bytes of %{edge.why}"
