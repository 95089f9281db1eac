"""`ShareConcat`: the inputs of a Concat are made where they will lie in its result, so that nothing is copied.

Edits the second arrow only, variable -> buffer: an input's variable holds bytes of the result's buffer, at an offset.
Names cannot do that (one variable has one offset), so there is no renaming twin. Nested and growing Concats (DenseNet)
share one buffer. At batch sizes above 1 the parts lie in the result item by item, in strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import ExecutionOrder, JoinPart, Verdict, check_order, walk_joins
from memopt.ir import Graph
from memopt.pipeline import Decision, PassResult
from passes.results import pass_result

__all__ = ["ShareConcat", "share_concat"]


@dataclass(frozen=True)
class ShareConcat:
    """Concat by view, wherever it is sound and the peak of live bytes does not rise.

    Run it after `InplaceShare`: what shares bytes with an input moves with it.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "share-concat"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        decisions = [
            Decision(self.name, p.node.name, p.subject, v.accepted, v.text, v.num_bytes, p.step, v.reason)
            for p, v in share_concat(graph)
        ]
        return pass_result(self.name, graph, decisions, self.order)


def share_concat(graph: Graph) -> list[tuple[JoinPart, Verdict]]:
    """Let inputs of joins lie in the result; a verdict for each input of each join."""
    return walk_joins(graph)
