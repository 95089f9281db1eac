"""The walk of the in-place passes: nodes in order, every candidate pair judged, the best of each output taken.

Holds true: one verdict for every candidate pair, in the order of nodes, outputs and inputs. Taking a pair can make room
for one that was refused because of the peak, so those are judged again until nothing changes; hence a second walk takes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from memopt.analysis.occupancy import Occupancy
from memopt.analysis.sharing import Candidate, Reason, Verdict, candidates_of, judge
from memopt.ir import Graph

__all__ = ["walk_inplace"]

#: A style's own objection to a candidate that is otherwise sound, or None.
Objection = Callable[[Occupancy, Candidate], "tuple[Reason, str] | None"]
#: A style's edit: let the candidate's output have the input's bytes.
Edit = Callable[[Occupancy, Candidate], None]


def walk_inplace(graph: Graph, edit: Edit, object_to: Objection) -> list[tuple[Candidate, Verdict]]:
    """Judge every candidate pair of `graph`; apply `edit` to those that are taken."""
    occupancy = Occupancy(graph)
    outputs: list[list[Candidate]] = []
    for step, node in enumerate(graph.nodes):
        by_output: dict[str, list[Candidate]] = {}
        for candidate in candidates_of(node, step):
            by_output.setdefault(candidate.output.name, []).append(candidate)
        outputs += by_output.values()
    verdicts: dict[Candidate, Verdict] = {}
    waiting = outputs
    while waiting:
        taken = [_decide(occupancy, group, edit, object_to, verdicts) for group in waiting]
        waiting = [group for group in waiting if _may_change(group, verdicts)] if any(taken) else []
    return [(candidate, verdicts[candidate]) for group in outputs for candidate in group]


def _decide(
    occupancy: Occupancy, group: list[Candidate], edit: Edit, object_to: Objection, verdicts: dict[Candidate, Verdict]
) -> bool:
    """Judge the candidates of one output and take the best, if any is legal."""
    legal: list[Candidate] = []
    for candidate in group:
        verdict = judge(occupancy, candidate)
        objection = object_to(occupancy, candidate) if verdict.accepted else None
        if objection is not None:
            verdict = Verdict(False, *objection, verdict.num_bytes)
        verdicts[candidate] = verdict
        if verdict.accepted:
            legal.append(candidate)
    if not legal:
        return False
    best = min(legal, key=lambda candidate: _cost(occupancy, candidate))
    for candidate in legal:
        if candidate is not best:
            text = f"%{candidate.output.name} takes the bytes of %{best.input.name} instead"
            verdicts[candidate] = Verdict(False, Reason.ALREADY_BORROWED, text, verdicts[candidate].num_bytes)
    edit(occupancy, best)
    return True


def _cost(occupancy: Occupancy, candidate: Candidate) -> tuple[bool, int, int]:
    """Views first, as they need no kernel; then the tightest buffer; then the first input."""
    size = occupancy.size(occupancy.graph.storage.buffer(candidate.input))
    return (not candidate.is_view, size - candidate.output.nbytes, candidate.index)


def _may_change(group: list[Candidate], verdicts: dict[Candidate, Verdict]) -> bool:
    found = [verdicts[candidate] for candidate in group]
    return not any(v.accepted for v in found) and any(v.reason is Reason.RAISES_PEAK for v in found)
