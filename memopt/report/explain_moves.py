"""The next best moves: what else could be done, and how many bytes of which device it would earn.

Holds true: a gain that is "measured" is the difference between this plan and one that was compiled with the change (of
live peak and scratch; heights need long packing); an "upper bound" takes the bytes away where they lie and finds the
next peak, which no plan with that change alone can beat. Moves that earn nothing are not listed, but counted.
Re-planning stops when the time is over; what was not tried is counted too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from memopt.errors import MemoptError
from memopt.ir import Graph, Node
from memopt.pipeline import known_strategies
from memopt.plan import MemoryPlan
from memopt.report.explain_edits import delayed, later_reader_first, moved_node, recomputed, without_output
from memopt.report.explain_live import LiveValue, Peak, PlanFacts
from memopt.report.timeline import live_bytes

__all__ = ["Method", "Move", "Moves", "WhatIf", "find_moves", "needed_bytes"]

Method = Literal["measured", "upper bound"]
_MOST = 5
_LARGEST = 8


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to try.

    kind    donate, transfers, device, outputs, scratch, strategy, free, apart, order, recompute, in-place
    text    what to do, in words        how    the option or call that does it ("" where none does)
    saved   device -> bytes of live peak and scratch that it earns (negative: costs), where that is not 0
    method  "measured" by re-planning, or "upper bound"
    """

    kind: str
    text: str
    how: str
    saved: Mapping[str, int]
    method: Method

    @property
    def total(self) -> int:
        return sum(self.saved.values())


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that earn something, best first; how many were tried that earn nothing, and how many were not tried."""

    found: tuple[Move, ...] = ()
    num_useless: int = 0
    num_untried: int = 0
    can_replan: bool = True


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How to compile once more: the graph as it was given, the options, and `plan(graph, **changes)`."""

    graph: Graph
    options: Mapping[str, Any]
    plan: Callable[..., MemoryPlan]

    def needed(
        self, changes: Mapping[str, Any], edit: Callable[[Graph], Graph | None] | None = None
    ) -> dict[str, int] | None:
        """What each device needs after the change, or None where it cannot be made."""
        try:
            graph = self.graph if edit is None else edit(self.graph)
            if graph is None:
                return None
            return needed_bytes(self.plan(graph, **{"validate": False, "pack_seconds": 0.0, **changes}))
        except MemoptError:
            return None


@dataclass(frozen=True, slots=True)
class _Idea:
    """A change to measure. `bound` is the most that it can earn, where that is known."""

    kind: str
    text: str
    how: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[Graph], Graph | None] | None = None
    bound: int | None = None


def needed_bytes(plan: MemoryPlan) -> dict[str, int]:
    """device -> live peak of its arena, and scratch."""
    return {name: use.peak_bytes + use.scratch_bytes for name, use in plan.devices.items()}


def find_moves(facts: PlanFacts, peaks: Sequence[Peak], what_if: WhatIf | None, seconds: float) -> Moves:
    """The moves for `peaks`, measured as far as `seconds` allow."""
    deadline = time.perf_counter() + seconds
    bounds = _Bounds(facts.plan)
    useless = untried = 0
    found: list[Move] = []
    now = needed_bytes(facts.plan)
    for idea in _ideas(facts, peaks, what_if, bounds):
        if time.perf_counter() > deadline:
            untried += 1
        else:
            move = _measure(idea, what_if, now)
            useless += move is None
            found += [move] if move is not None else []
    found += _refusals(facts, peaks, bounds)
    found.sort(key=lambda move: (-move.total, move.method != "measured"))
    return Moves(tuple(found), useless, untried, what_if is not None)


def _measure(idea: _Idea, what_if: WhatIf | None, now: Mapping[str, int]) -> Move | None:
    then = None if what_if is None else what_if.needed(idea.changes, idea.edit)
    if then is None:
        return None
    saved = {name: now[name] - then.get(name, 0) for name in now if now[name] != then.get(name, 0)}
    return Move(idea.kind, idea.text, idea.how, saved, "measured") if sum(saved.values()) > 0 else None


class _Bounds:
    """The most that leaving bytes out can earn on a device."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._live = live_bytes(plan)

    def without(self, device: str, num_bytes: int, start: int, end: int) -> int:
        """By how much the device's peak falls if `num_bytes` are not there in instructions `[start, end)`."""
        series = self._live[device]
        less = series.copy()
        less[max(start, 0) : max(end, 0)] -= num_bytes
        return int(series.max() - np.max(less, initial=0))


# -- what to measure --------------------------------------------------------------------------------------------------


def _ideas(facts: PlanFacts, peaks: Sequence[Peak], what_if: WhatIf | None, bounds: _Bounds) -> Iterator[_Idea]:
    """Ideas, the cheapest to act on first; none if nothing can be measured."""
    if what_if is None:
        return
    yield from _options(facts, what_if.options)
    yield from _feeds(facts, what_if)
    yield from _strategies(what_if.options)
    for peak in peaks:
        largest = peak.live[:_LARGEST]
        yield from _few(_outputs(facts, peak, largest, what_if, bounds))
        yield from _few(_copies(facts, peak, largest, bounds))
        yield from _few(_waits(facts, peak, what_if, bounds))
        yield from _few(_delays(facts, peak, largest, bounds))
        yield from _few(_orders(facts, peak, largest, bounds))
        yield from _few(_recompute(facts, peak, largest, bounds))


def _few(ideas: Iterable[_Idea]) -> Iterator[_Idea]:
    """The first few that have a chance, each once."""
    seen: set[str] = set()
    for idea in ideas:
        if (idea.bound is None or idea.bound > 0) and idea.text not in seen and len(seen) < _MOST:
            seen.add(idea.text)
            yield idea


def _options(facts: PlanFacts, options: Mapping[str, Any]) -> Iterator[_Idea]:
    program = facts.plan.program
    if program.free == "never":
        yield _Idea("free", "free buffers after their last use", "free='eager'", {"free": "eager"})
    if options.get("without"):
        yield _Idea("strategy", "leave nothing out", "without=()", {"without": ()})
    if any(use.scratch_bytes for use in facts.plan.devices.values()):
        text = "allow kernels no scratch (they may be slower)"
        yield _Idea("scratch", text, "scratch_bytes=0", {"scratch_bytes": 0})
    if not any(use.num_transfers for use in facts.plan.devices.values()):
        return
    if not options.get("share_transfers"):
        text = "let one copy serve all readers of a transferred value"
        yield _Idea("transfers", text, "share_transfers=True", {"share_transfers": True})
    else:
        text = "make a copy for each reader, so that none waits for the next"
        yield _Idea("transfers", text, "share_transfers=False", {"share_transfers": False})
    if options.get("transfer_lifetime") == "step":
        text = "drop transfer copies at their last read"
        yield _Idea("transfers", text, "transfer_lifetime='last-read'", {"transfer_lifetime": "last-read"})
    if program.transfer == "publish":
        yield _Idea("transfers", "leave outputs outside the transfer scope", "transfer='outer'", {"transfer": "outer"})


def _strategies(options: Mapping[str, Any]) -> Iterator[_Idea]:
    """After what is measured at once: some strategies try several chains of passes."""
    for name in known_strategies():
        if isinstance(options.get("passes"), str) and name not in (options["passes"], "none", "rename"):
            yield _Idea("strategy", f"take the passes of {name!r}", f"passes={name!r}", {"passes": name})


def _feeds(facts: PlanFacts, what_if: WhatIf) -> Iterator[_Idea]:
    graph, donated = facts.plan.graph, tuple(what_if.options.get("donate", ()))
    for value in graph.inputs[:_MOST]:
        if value.name not in graph.donated:
            donate = (*donated, value.name)
            yield _Idea("donate", f"donate feed %{value.name}", f"donate={list(donate)!r}", {"donate": donate})


def _outputs(
    facts: PlanFacts, peak: Peak, largest: Sequence[LiveValue], what_if: WhatIf, bounds: _Bounds
) -> Iterator[_Idea]:
    kept = tuple(name.removeprefix("%") for name in what_if.options.get("keep", ()))
    for one in largest:
        if one.last_reader != "(fetched)":
            continue
        bound = bounds.without(peak.device, one.bytes, one.start, one.end)
        if one.value in kept:
            rest = tuple(name for name in kept if name != one.value)
            yield _Idea("outputs", f"do not keep %{one.value}", f"keep={list(rest)!r}", {"keep": rest}, None, bound)
        elif len(facts.plan.graph.outputs) > 1:
            text = f"do not return %{one.value}"
            yield _Idea("outputs", text, "", {}, partial(without_output, name=one.value), bound)


def _copies(facts: PlanFacts, peak: Peak, largest: Sequence[LiveValue], bounds: _Bounds) -> Iterator[_Idea]:
    """A copy goes if its reader runs where the value is, or if the value is made where its reader runs."""
    for one in largest:
        node = facts.node(one.producer.removeprefix("copy for "))
        value = facts.plan.graph.value(one.value) if facts.plan.graph.has_value(one.value) else None
        if not one.producer.startswith("copy for ") or node is None or value is None:
            continue
        bound = bounds.without(peak.device, one.bytes, one.start, one.end)
        maker = value.producer
        there = None if maker is None else maker.device
        moves: list[tuple[Node, str | None]] = [(node, there)]
        if maker is not None:
            moves.append((maker, node.device))
        for mover, device in moves:
            if device is None or device == mover.device or mover.op in facts.plan.machine.device(device).lacks:
                continue
            text = f"run {mover.name} ({mover.op}) on {device}, so that %{one.value} needs no copy"
            how = f"graph.node({mover.name!r}).device = {device!r}"
            yield _Idea("device", text, how, {}, partial(moved_node, name=mover.name, device=device), max(bound, 1))


def _waits(facts: PlanFacts, peak: Peak, what_if: WhatIf, bounds: _Bounds) -> Iterator[_Idea]:
    """A buffer that is held, or is larger, for a later value: that one can have a buffer of its own."""
    given = tuple(what_if.options.get("without", ()))
    for one in peak.live:
        if one.waits_for:
            without = (*given, one.waits_for)
            bound = bounds.without(peak.device, one.bytes, one.start, one.end)
            text = f"let %{one.waits_for} have a buffer of its own, so that that of %{one.value} is not held for it"
            yield _Idea("apart", text, f"without={list(without)!r}", {"without": without}, None, bound)


def _delays(facts: PlanFacts, peak: Peak, largest: Sequence[LiveValue], bounds: _Bounds) -> Iterator[_Idea]:
    """What is made before the peak and first read after it can be made later."""
    for one in largest:
        maker = facts.node(one.producer)
        reads = [p for life in facts.lives_of(one.value) if life.buffer == one.buffer for p, _ in life.reads]
        if maker is None or not reads or min(reads) <= peak.instruction:
            continue
        bound = bounds.without(peak.device, one.bytes, one.start, min(reads))
        reader = facts.node_at(min(reads))
        text = f"run {maker.name} later, just before {reader}, so that %{one.value} is not held so long"
        edit = partial(delayed, name=maker.name, reader=reader)
        yield _Idea("order", text, "graph.reorder(...)", {}, edit, bound)


def _orders(facts: PlanFacts, peak: Peak, largest: Sequence[LiveValue], bounds: _Bounds) -> Iterator[_Idea]:
    """A later reader that comes first lets the value die here."""
    for one in largest:
        for decision in one.decisions:
            if decision.accepted or decision.rule != "not-last-use" or decision.subject[0] != one.value:
                continue
            node, source = facts.node(decision.node), decision.subject[-1]
            readers = facts.plan.graph.value(source).data_uses if facts.plan.graph.has_value(source) else ()
            late = [u.node for u in readers if facts.steps[u.node.name] > facts.steps[decision.node]]
            if node is None or len(late) != 1:
                continue
            bound = bounds.without(peak.device, one.bytes, one.start, one.end)
            text = f"run {late[0].name} before {node.name}, so that %{one.value} can overwrite %{source}"
            edit = partial(later_reader_first, late=late[0].name, early=node.name)
            yield _Idea("order", text, "graph.reorder(...)", {}, edit, bound)


def _recompute(facts: PlanFacts, peak: Peak, largest: Sequence[LiveValue], bounds: _Bounds) -> Iterator[_Idea]:
    """A value that waits across the peak is made once more after it."""
    graph = facts.plan.graph
    for one in largest:
        value = graph.value(one.value) if graph.has_value(one.value) else None
        maker = None if value is None else value.producer
        if value is None or maker is None or maker.name != one.producer or one.last_reader == "(fetched)":
            continue
        reads = [p for life in facts.lives_of(one.value) if life.buffer == one.buffer for p, _ in life.reads]
        after = [p for p in reads if p > peak.instruction]
        before = [p for p in reads if p <= peak.instruction]
        if not after or peak.instruction in reads or one.start >= peak.instruction or maker.spec.updates:
            continue
        bound = bounds.without(peak.device, one.bytes, max(before, default=one.start) + 1, min(after))
        reader = facts.node_at(min(after))
        text = f"compute %{one.value} ({maker.op}) once more for {reader}, instead of holding it"
        yield _Idea("recompute", text, "", {}, partial(recomputed, name=one.value, reader=reader), bound)


# -- what is only bounded ---------------------------------------------------------------------------------------------


def _refusals(facts: PlanFacts, peaks: Sequence[Peak], bounds: _Bounds) -> list[Move]:
    """In-place pairs that were refused and whose two buffers both lie there at the peak."""
    found: list[Move] = []
    for peak in peaks:
        live = {one.value: one for one in peak.live}
        best: dict[str, Move] = {}
        for one in peak.live[:_LARGEST]:
            for d in one.decisions:
                lender = live.get(d.subject[-1])
                if d.accepted or d.subject[0] != one.value or lender is None or lender is one:
                    continue
                gain = bounds.without(peak.device, min(one.bytes, lender.bytes), one.start, one.end)
                if gain > 0 and one.value not in best:
                    text = f"if %{one.value} could overwrite %{lender.value}; refused: {d.reason}"
                    best[one.value] = Move("in-place", text, "", {peak.device: gain}, "upper bound")
        found += best.values()
    return found
