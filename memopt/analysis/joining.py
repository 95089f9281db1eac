"""Concat by view: may the producers of the inputs of a join write straight into slices of its result's buffer?

The safety argument. Let the buffers of some inputs be put together with that of the result c, each input where it lies
in c. 1. Tenants of different buffers of these are apart in time or in bytes, or hold the same content; within one
buffer nothing changes.   2. So each input is whole until its last reader, c's node included, and c's node writes onto
it what is there.   3. Inputs that stay elsewhere are copied by c's node as ever; their slices are bytes like others.
4. No tenant is a feed or parameter (they have allocations of their own), all have one home, and no two values that
outlive the step share bytes.

Joining costs where the joint buffer is larger than what it serves, and saves the copy beside its source: it is accepted
if the peak of its home does not rise. Joins that lower the peak go first; those that would raise it are asked again
when others have been accepted. O(joins²) evaluations of O(steps) where there are at most `_BEST_FIRST`, else O(joins) a
round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from memopt.analysis.alias import JoinedPart, joined_in, view_in
from memopt.analysis.liveness import Kept
from memopt.analysis.occupancy import Body, Occupancy, Tenant
from memopt.analysis.sharing import Reason, Verdict, where_read
from memopt.analysis.spacing import Spacing, kernel_refusal, spaced, spacing_of
from memopt.ir import Buffer, Graph, Node, Value, lies_as_view

__all__ = ["JoinPart", "walk_joins"]

#: With more joins than this they are taken as listed, not the best first.
_BEST_FIRST = 64
#: Up to this many buffers every subset is tried, beyond that buffers are dropped one by one.
_ALL_SUBSETS = 5


@dataclass(frozen=True, slots=True)
class JoinPart:
    """Input number `index` of `node` (at `step`), which joins it to `output`."""

    node: Node
    step: int
    output: Value
    input: Value
    index: int

    @property
    def subject(self) -> tuple[str, str]:
        return (self.input.name, self.output.name)


@dataclass(slots=True)
class _Join:
    """One output that joins inputs: its parts, and the verdicts of those that are settled."""

    parts: list[JoinPart]
    verdicts: dict[JoinPart, Verdict] = field(default_factory=dict)

    @property
    def open(self) -> list[JoinPart]:
        return [part for part in self.parts if part not in self.verdicts or _may_change(self.verdicts[part])]

    def settle(self, part: JoinPart, accepted: bool, reason: Reason, text: str) -> None:
        self.verdicts[part] = Verdict(accepted, reason, text, part.input.nbytes)


Refusal = tuple[Reason, str]

#: A style's own objection to putting these bodies together, or None.
Objection = Callable[[Occupancy, Sequence[Body]], "tuple[Reason, str] | None"]


@dataclass(slots=True)
class _Move:
    """A buffer that can be put together with the result's, taken apart by `spacing`, and the parts that this brings to
    their places.
    """

    body: Body
    parts: list[JoinPart]
    spacing: Spacing | None = None


def walk_joins(graph: Graph, object_to: Objection = lambda occupancy, bodies: None) -> list[tuple[JoinPart, Verdict]]:
    """Join wherever that is sound and costs nothing; a verdict for each input of each join."""
    occupancy = Occupancy(graph)
    joins = list(_joins(graph))
    waiting = joins
    while waiting:
        rounds = [_best_of(occupancy, waiting, object_to)] if len(waiting) <= _BEST_FIRST else waiting
        taken = [_take(occupancy, join, object_to) for join in rounds if join is not None]
        if not any(taken):
            break
        waiting = [join for join in joins if join.open]
    for join in joins:
        if join.open:
            _choose(occupancy, join, object_to)
    return [(part, join.verdicts[part]) for join in joins for part in join.parts]


def _joins(graph: Graph) -> Iterator[_Join]:
    for step, node in enumerate(graph.nodes):
        for number, output in node.real_outputs:
            if node.spec.join_of(number) is None or view_in(graph.storage, output) is not None:
                continue
            inputs = [(i, value) for i, value in enumerate(node.inputs) if value is not None]
            yield _Join([JoinPart(node, step, output, value, i) for i, value in inputs])


def _best_of(occupancy: Occupancy, joins: Sequence[_Join], object_to: Objection) -> _Join | None:
    """The join that leaves the lowest peak, and of those the one that copies least; None if nothing can be joined."""
    best: tuple[tuple[int, int], _Join] | None = None
    for join in joins:
        moves, gain = _choose(occupancy, join, object_to)
        if moves and (best is None or gain < best[0]):
            best = gain, join
    return None if best is None else best[1]


def _take(occupancy: Occupancy, join: _Join, object_to: Objection) -> bool:
    """Join what is best for this one, if anything."""
    moves, _ = _choose(occupancy, join, object_to)
    if not moves:
        return False
    places = _places(occupancy, join)
    for part in (part for move in moves for part in move.parts):
        place = places[part.index]
        text = f"%{part.input.name} is made at byte {place.offset} of %{part.output.name}"
        text += "" if place.strides is None else f", in strides {list(place.strides)}"
        join.settle(part, True, Reason.JOINED, f"{text}, and need not be copied there")
    for move in moves:
        if move.spacing is not None:
            occupancy.space(move.spacing)
            occupancy.resize(move.body.buffer)
    occupancy.join([_result_body(occupancy, join), *(move.body for move in moves)])
    return True


def _choose(occupancy: Occupancy, join: _Join, object_to: Objection) -> tuple[list[_Move], tuple[int, int]]:
    """The best set of moves now, with (the peak after it, minus the bytes that need no copy); refusals are noted."""
    with ExitStack() as stack:
        return _choose_of(occupancy, join, object_to, _moves(occupancy, join, stack))


def _choose_of(
    occupancy: Occupancy, join: _Join, object_to: Objection, moves: list[_Move]
) -> tuple[list[_Move], tuple[int, int]]:
    result = _result_body(occupancy, join)
    peak = occupancy.peak(occupancy.home(result.buffer))
    best: list[_Move] = []
    gain = (peak, 0)
    for subset in _subsets(occupancy, result, moves):
        found = (occupancy.peak_with([result, *(m.body for m in subset)]), -_bytes_of(subset))
        if found < gain and object_to(occupancy, [result, *(m.body for m in subset)]) is None:
            best, gain = subset, found
    for move in moves:
        if move not in best:
            _note_refusal(occupancy, join, move, (result, peak), object_to)
    return best, gain


def _note_refusal(occupancy: Occupancy, join: _Join, move: _Move, now: tuple[Body, int], object_to: Objection) -> None:
    """Why a sound move is not made: the style's objection, or the peak."""
    result, peak = now
    objection = object_to(occupancy, [result, move.body])
    rise = occupancy.peak_with([result, move.body]) - peak
    for part in move.parts:
        text = f"making %{part.input.name} where %{part.output.name} will be raises the peak"
        text += f" by {rise} B" if rise > 0 else ", with what shares bytes already"
        join.settle(part, False, *(objection or (Reason.RAISES_PEAK, text)))


def _subsets(occupancy: Occupancy, result: Body, moves: list[_Move]) -> Iterator[list[_Move]]:
    """Sets of moves to be tried, the largest first."""
    if len(moves) <= _ALL_SUBSETS:
        for size in range(len(moves), 0, -1):
            yield from (list(subset) for subset in itertools.combinations(moves, size))
        return
    left = list(moves)
    while left:
        yield left
        without = [[move for move in left if move is not gone] for gone in left]
        left = min(without, key=lambda some: occupancy.peak_with([result, *(m.body for m in some)]))
    yield from ([move] for move in moves)


def _bytes_of(moves: Sequence[_Move]) -> int:
    return sum(part.input.nbytes for move in moves for part in move.parts)


def _result_body(occupancy: Occupancy, join: _Join) -> Body:
    """The result's buffer, such that the result itself starts at 0."""
    variable = occupancy.graph.storage.variable(join.parts[0].output)
    return Body(variable.buffer, -variable.offset)


def _may_change(verdict: Verdict) -> bool:
    return verdict.reason in (Reason.RAISES_PEAK, Reason.ALREADY_LENT)


# -- which moves are sound ----------------------------------------------------------------------------------------


def _places(occupancy: Occupancy, join: _Join) -> dict[int, JoinedPart]:
    """Where the inputs belong, as the result lies now."""
    found = joined_in(occupancy.graph.storage, join.parts[0].output)
    return {place.number: place for place in found}


def _moves(occupancy: Occupancy, join: _Join, stack: ExitStack) -> list[_Move]:
    """The moves that are sound one by one and together; every part that is in none of them gets its refusal.

    Until the stack is closed, what the moves take apart lies so.
    """
    result, places = _result_body(occupancy, join), _places(occupancy, join)
    moves: dict[Buffer, _Move] = {}
    for part in join.open:
        place = places.get(part.index)
        refusal = _refusal(occupancy, part, place)
        if refusal is not None:
            join.settle(part, False, *refusal)
            continue
        assert place is not None, "a refusal else"
        variable = occupancy.graph.storage.variable(part.input)
        start, move = place.offset - variable.offset, moves.get(variable.buffer)
        if move is None:
            with ExitStack() as here:
                made = _move(occupancy, (part, place), [result, *(other.body for other in moves.values())], here)
                if isinstance(made, _Move):
                    moves[variable.buffer] = made
                    stack.enter_context(here.pop_all())
                else:
                    join.settle(part, False, *made)
        elif move.body.at == start and all(part.input is not other.input for other in move.parts):
            move.parts.append(part)
        else:
            text = f"%{part.input.name} lies in buffer {variable.buffer.name}, which goes to another place in it"
            join.settle(part, False, Reason.REPEATED_OPERAND, text)
    return list(moves.values())


def _move(
    occupancy: Occupancy, where: tuple[JoinPart, JoinedPart], others: Sequence[Body], stack: ExitStack
) -> _Move | Refusal:
    """The move of the part's buffer to where it belongs, or why it must not be made beside the others.

    What it takes apart lies so until the stack is closed.
    """
    graph, (part, place) = occupancy.graph, where
    seen = next((v for _, v in part.node.data_inputs if _is_seen_there(graph, v, part.input)), None)
    if seen is not None:
        text = f"the same node reads %{seen.name}, a view in strides, in the buffer of %{part.input.name}"
        return Reason.IN_STRIDES, text
    variable = graph.storage.variable(part.input)
    at = place.offset - variable.offset
    if place.strides == variable.strides:
        body = Body(variable.buffer, at)
        return _clash(occupancy, part, body, others) or _Move(body, [part])
    spacing = "its bytes are in strides already"
    if place.strides is not None and (variable.strides is None or len(place.strides) == len(variable.strides)):
        found = spacing_of(graph, part.input, place.strides)
        if not isinstance(found, str):
            stack.enter_context(spaced(occupancy, found))
            return _spaced_move(occupancy, part, Body(variable.buffer, at), (found, others))
        spacing = found
    text = f"%{part.input.name} is no run of the bytes of %{part.output.name}, and cannot be taken apart: {spacing}"
    return Reason.OP_CONDITION, text


def _is_seen_there(graph: Graph, value: Value, part: Value) -> bool:
    """Whether `value` is a view in strides of what lies with `part`: its reader may look at the bytes between, too."""
    storage = graph.storage
    variable = storage.variable(value)
    there = variable.strides is not None and variable.buffer is storage.buffer(part)
    return there and lies_as_view(storage, value)


def _spaced_move(
    occupancy: Occupancy, part: JoinPart, body: Body, more: tuple[Spacing, Sequence[Body]]
) -> _Move | Refusal:
    spacing, others = more
    text = kernel_refusal(occupancy, spacing)
    if text is not None:
        return Reason.IN_STRIDES, f"%{part.input.name} cannot be taken apart: {text}"
    body = body._replace(size=max(tenant.high for tenant in occupancy.tenants(body.buffer)))
    return _clash(occupancy, part, body, others) or _Move(body, [part], spacing)


def _refusal(occupancy: Occupancy, part: JoinPart, place: JoinedPart | None) -> Refusal | None:
    """Why this input cannot be made in its slice, whatever else lies there."""
    graph, source, output = occupancy.graph, part.input, part.output
    left_out = next((name for name in (source.name, output.name) if name in graph.excluded), None)
    if left_out is not None:
        return Reason.EXCLUDED, f"%{left_out} is left out by request"
    if source.nbytes == 0:
        return Reason.NOTHING_TO_SAVE, f"%{source.name} has no bytes"
    if place is None:
        return Reason.OP_CONDITION, f"no strides say where %{source.name} lies in %{output.name}"
    mine, theirs = graph.storage.variable(source), graph.storage.variable(output)
    if mine.buffer is theirs.buffer:
        if mine.offset == theirs.offset + place.offset and mine.strides == place.strides:
            return Reason.ALREADY_BORROWED, f"%{source.name} lies in %{output.name} already"
        return Reason.REPEATED_OPERAND, f"%{source.name} lies elsewhere in the same buffer: it is copied once more"
    for buffer in (mine.buffer, theirs.buffer):
        for tenant in occupancy.tenants(buffer):
            if tenant.value.producer is None:
                what = "a parameter" if tenant.value in graph.params else "a feed"
                text = f"%{source.name} shares bytes with %{tenant.value.name}, {what}"
                text = f"%{source.name} is {what}" if tenant.value is source else text
                return Reason.INPUT_IS_PINNED, f"{text}, which has an allocation of its own"
    homes = {occupancy.home(mine.buffer), occupancy.home(theirs.buffer)}
    if len(homes) > 1 or occupancy.is_mixed(mine.buffer) or occupancy.is_mixed(theirs.buffer):
        return Reason.DIFFERENT_DEVICE, f"the buffers of %{source.name} and %{output.name} are not on one device"
    return None


def _clash(occupancy: Occupancy, part: JoinPart, body: Body, others: Sequence[Body]) -> Refusal | None:
    """Why the input's buffer cannot be put together with these."""
    for other in others:
        pair = occupancy.clash(body, other)
        if pair is not None:
            return _clash_reason(occupancy, part, *pair)
        kept = next(_kept_pairs(occupancy, body, other), None)
        if kept is not None:
            text = f"%{kept[0].value.name} and %{kept[1].value.name} both outlive the step: they stay apart"
            return Reason.INPUT_IS_OUTPUT, text + f", and so does %{part.input.name}"
    return None


def _clash_reason(occupancy: Occupancy, part: JoinPart, mine: Tenant, theirs: Tenant) -> Refusal:
    kept = occupancy.liveness.kept.get(mine.value)
    reader = occupancy.liveness.last_reader.get(mine.value)
    until = "nobody reads it" if reader is None else f"read {where_read(reader)}"
    until = until if kept is None else f"it is {kept}"
    text = f"%{part.input.name} cannot be made in %{part.output.name}: there %{mine.value.name} ({until})"
    return Reason.ALREADY_LENT, f"{text} would meet %{theirs.value.name}"


def _kept_pairs(occupancy: Occupancy, a: Body, b: Body) -> Iterator[tuple[Tenant, Tenant]]:
    """Tenants of both that outlive the step in the same bytes."""
    kept = occupancy.liveness.kept
    for mine in occupancy.tenants(a.buffer):
        if kept.get(mine.value) is None:
            continue
        for theirs in occupancy.tenants(b.buffer):
            meets = mine.low + a.at < theirs.high + b.at and theirs.low + b.at < mine.high + a.at
            if meets and Kept.OUTPUT in (kept.get(mine.value), kept.get(theirs.value)) and theirs.value in kept:
                yield mine, theirs
