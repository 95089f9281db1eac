"""The walk of the in-place passes: nodes in order, every candidate pair judged, the best of each output taken.

Holds true: one verdict for every candidate pair, in the order of nodes, outputs and inputs. Taking a pair can make room
for one that was refused because of the peak, so those are judged again until nothing changes; hence a second walk takes
nothing.

First come is not always best: a small view can hold a large buffer where the memory is fullest. So the walk is
rehearsed on a copy; while a buffer that is live at the peak is larger than what it holds there, the rehearsal is
repeated without one of the pairs that made it so, and what lowers the peak stays left out (at most `_TRIES` times).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from memopt.analysis.occupancy import Occupancy
from memopt.analysis.sharing import Candidate, Reason, Verdict, candidates_of, judge
from memopt.ir import Buffer, Graph

__all__ = ["walk_inplace"]

#: The most rehearsals without a pair.
_TRIES = 24
#: How many of the fullest steps are looked at.
_STEPS = 4

#: The refusals that go away if a view is copied.
_BY_VIEWS = (Reason.VIEW_IS_READ_LATER, Reason.ALREADY_LENT, Reason.REPEATED_OPERAND)

#: A style's own objection to a candidate that is otherwise sound, or None.
Objection = Callable[[Occupancy, Candidate], "tuple[Reason, str] | None"]
#: A style's edit: let the candidate's output have the input's bytes.
Edit = Callable[[Occupancy, Candidate], None]
_Subject = tuple[str, str]


def walk_inplace(graph: Graph, edit: Edit, object_to: Objection) -> list[tuple[Candidate, Verdict]]:
    """Judge every candidate pair of `graph`; apply `edit` to those that are taken."""
    walk = _Walk(graph, edit, object_to)
    walk.run(_better_left_out(graph, edit, object_to))
    return [(candidate, walk.verdicts[candidate]) for group in walk.outputs for candidate in group]


class _Walk:
    """One walk; `outputs` are the candidates of each output."""

    def __init__(self, graph: Graph, edit: Edit, object_to: Objection) -> None:
        self._edit, self._object_to = edit, object_to
        self.occupancy = Occupancy(graph)
        self.verdicts: dict[Candidate, Verdict] = {}
        self.outputs: list[list[Candidate]] = []
        for step, node in enumerate(graph.nodes):
            by_output: dict[str, list[Candidate]] = {}
            for candidate in candidates_of(graph, node, step):
                by_output.setdefault(candidate.output.name, []).append(candidate)
            self.outputs += by_output.values()

    def run(self, left_out: frozenset[_Subject]) -> None:
        """Take pairs, those that are left out last: if by then they do not raise the peak, they do no harm."""
        if left_out:
            groups = [[c for c in group if c.subject not in left_out] for group in self.outputs]
            self._take([group for group in groups if group])
        self._take([group for group in self.outputs if not self._is_taken(group)])
        for group in self.outputs:
            for candidate in group:
                if candidate not in self.verdicts:  # left out, and in the meantime the output took another input
                    taken = next(other for other in group if self._is_taken([other]))
                    self.verdicts[candidate] = _instead(candidate, taken, candidate.output.nbytes)

    def _take(self, waiting: list[list[Candidate]]) -> None:
        while waiting:
            taken = [_decide(self.occupancy, group, self._edit, self._object_to, self.verdicts) for group in waiting]
            waiting = [group for group in waiting if _may_change(group, self.verdicts)] if any(taken) else []

    def _is_taken(self, group: list[Candidate]) -> bool:
        return any(c in self.verdicts and self.verdicts[c].accepted for c in group)

    @property
    def peak(self) -> int:
        """The peaks of all homes."""
        return sum(self.occupancy.peak(home) for home in self.occupancy.homes)

    def suspects(self) -> Iterator[_Subject]:
        """The pairs that were taken in buffers which are larger than what they hold where their home is fullest, or
        whose bytes a node was refused there because of a view.
        """
        loose = set(_loose_buffers(self.occupancy))
        steps = {int(step) for found in _peaks(self.occupancy).values() for step in found}
        for candidate, verdict in self.verdicts.items():
            if candidate.step in steps and verdict.reason in _BY_VIEWS:
                loose.add(self.occupancy.graph.storage.buffer(candidate.input))
        for group in self.outputs:
            for candidate in group:
                buffer = self.occupancy.graph.storage.buffer(candidate.output)
                if buffer in loose and self.verdicts[candidate].accepted:
                    yield candidate.subject


def _better_left_out(graph: Graph, edit: Edit, object_to: Objection) -> frozenset[_Subject]:
    """Pairs without which the peak is lower."""

    def rehearse(without: frozenset[_Subject]) -> _Walk:
        walk = _Walk(graph.copy(), edit, object_to)
        walk.run(without)
        return walk

    best, left_out, tries = rehearse(frozenset()), frozenset[_Subject](), _TRIES
    tried: set[_Subject] = set()
    suspects = list(best.suspects())
    while suspects and tries:
        subject = suspects.pop(0)
        if subject in tried:
            continue
        tried.add(subject)
        tries -= 1
        walk = rehearse(left_out | {subject})
        if walk.peak < best.peak:
            best, left_out = walk, left_out | {subject}
            suspects = list(walk.suspects())
    return left_out


def _loose_buffers(occupancy: Occupancy) -> Iterator[Buffer]:
    """The buffers that are live at a peak and larger than what their tenants need there."""
    peaks = _peaks(occupancy)
    for buffer in occupancy.graph.storage.buffers:
        span, tenants = occupancy.span(buffer), occupancy.tenants(buffer)
        if len(tenants) == 1:
            continue
        for step in peaks[occupancy.home(buffer)]:
            live = [(t.low, t.high) for t in tenants if t.start <= step < t.end]
            if span.start <= step < span.end and _covered(live) < occupancy.size(buffer):
                yield buffer
                break


def _peaks(occupancy: Occupancy) -> dict[str | None, NDArray[np.intp]]:
    """The first steps at which each home is fullest."""
    profiles = {home: occupancy.profile(home) for home in occupancy.homes}
    return {home: np.flatnonzero(profile == profile.max())[:_STEPS] for home, profile in profiles.items()}


def _covered(ranges: Iterable[tuple[int, int]]) -> int:
    """How many bytes lie in at least one of the ranges."""
    covered = end = 0
    for low, high in sorted(ranges):
        covered += max(high - max(low, end), 0)
        end = max(end, high)
    return covered


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
            verdicts[candidate] = _instead(candidate, best, verdicts[candidate].num_bytes)
    edit(occupancy, best)
    return True


def _instead(candidate: Candidate, taken: Candidate, num_bytes: int) -> Verdict:
    text = f"%{candidate.output.name} takes the bytes of %{taken.input.name} instead"
    return Verdict(False, Reason.ALREADY_BORROWED, text, num_bytes)


def _cost(occupancy: Occupancy, candidate: Candidate) -> tuple[bool, int, int]:
    """Views first, as they need no kernel; then the tightest buffer; then the first input."""
    size = occupancy.size(occupancy.graph.storage.buffer(candidate.input))
    return (not candidate.is_view, size - candidate.output.nbytes, candidate.index)


def _may_change(group: list[Candidate], verdicts: dict[Candidate, Verdict]) -> bool:
    found = [verdicts[candidate] for candidate in group]
    return not any(v.accepted for v in found) and any(v.reason is Reason.RAISES_PEAK for v in found)
