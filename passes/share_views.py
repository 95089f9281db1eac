"""`ShareViews`: what only looks at a value under another shape, order or extent takes no bytes of its own.

Edits the second arrow only, variable -> buffer: the view's variable holds bytes of its source's buffer, at an offset
and in strides, whoever else reads the source. Reshape and its like, Slice, Split, Transpose, Expand, views of views.
Names cannot do that (one variable has one offset and one order), so there is no renaming twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import ExecutionOrder, Verdict, ViewCandidate, check_order, walk_views
from memopt.ir import Graph
from memopt.pipeline import Decision, PassResult
from passes.results import pass_result

__all__ = ["ShareViews", "share_views"]


@dataclass(frozen=True)
class ShareViews:
    """Views without copies, wherever the bytes keep, every reader's kernel takes the strides, and the peak of live
    bytes does not rise.

    Run it before `InplaceShare`: a view in strides needs a buffer of its own to give up.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "share-views"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        decisions = [
            Decision(self.name, c.node.name, c.subject, v.accepted, v.text, v.num_bytes, c.step, v.reason)
            for c, v in share_views(graph)
        ]
        return pass_result(self.name, graph, decisions, self.order)


def share_views(graph: Graph) -> list[tuple[ViewCandidate, Verdict]]:
    """Let views lie in what they are views of; a verdict for each output that its op declares a view."""
    return walk_views(graph)
