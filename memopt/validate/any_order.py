"""Is a plan right under *every* order of its calls and transfers that respects its edges, not only the listed one?

Edges, all of them from earlier to later in the listing (so that the listed order is one of the orders):

1. data: the call that makes a value -> the call of each node that has it among its inputs, for its shape too (as in
   `Graph.reorder`);
2. bytes: the call or transfer that wrote bytes -> the call or transfer that reads them. In a plan that is right as
   listed these are the ways of values: producer -> transfer -> transfer -> reader, last update -> transfer home;
3. control: the call of `before` -> the call of `node`, and the transfers listed for `node` after it.

That is all: readers of a parameter's old value are *not* before its update unless an edge says so. Rebinds and
frees move no bytes and have no edges. Feeds and parameters are there before everything, results are fetched after
everything. One thing runs at a time; whoever runs several at once gives each a scratch region of its own.

Of each byte, the listing is a row of *contents*: what one write put there, or several one after the other that say the
same bits: transfers that convert the same bytes of the same content in the same way. Content is *needed* if somebody
reads it, or if it is there at the end and fetched. Paths are asked for

(a) from each reader of needed content to each writer after it, up to and with those of the next needed content;
(b) from each writer of needed content, and from those of unneeded contents after it, to each writer of the next needed
    content.

Holds true: if a plan is right as listed and all these paths are there, it is right under every such order. By
induction along any order, let instruction r read content L, all before it having read what they read as listed (and
so having written what they wrote). By edge 2 a writer w of L is before r (what is there at the start has none). Each
writer listed before L is before w: by (b), from one needed content to the next. Each writer listed after L is after
r: up to the next needed content M by (a), and so are M's writers; those after that are after M's readers by (a),
hence after a writer of M (edge 2), and so on (content that only the end needs has no writers after it). So the last
write before r is one of L's, and all of L's are the same bits. The end is one more reader, after everything. To count
content as needed that is not is right too, since it asks for more; so is to tell apart contents that are alike.

And nearly only then: without a path (a) the second can come right before the first, which then reads the second's
bits; without (b) the first can come right after the second, whose readers then read the first's. Refused though every
order is right are plans where that changes nothing: contents that are the same bits in a way that is not seen here (a
view or a join that a call copies, copies by way of other bytes), and what is not read of bytes that lie between the
elements of a reading in strides of many runs, which counts as one of all bytes from the first element to the last. A
view written onto itself is a reading; a call that makes views in strides writes nothing. Long rows of alike or unneeded
writes are refused more often (see `accesses`).

Cost: a walk like the validator's, then one bit vector an instruction for each 4096 instructions that others must
come after.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from memopt.ir import Node, Value
from memopt.lowering.program import Call, Operand, Transfer
from memopt.plan import MemoryPlan
from memopt.strides import MOST_RUNS, canonical, extent, row_runs
from memopt.types import itemsize
from memopt.validate.accesses import AccessMap, Need
from memopt.validate.findings import Finding
from memopt.validate.spaces import ByteMap, Pieces, meets
from memopt.validate.state import State, placed
from memopt.validate.viewing import makes_views

__all__ = ["check_any_order", "dependencies"]

#: How many sources of paths are followed at a time: bits of one vector.
_BLOCK = 4096
#: A reading of a view in more runs than this counts as one of all bytes from the first element to the last.
_MOST_READ = 64


class _Access(NamedTuple):
    """Bytes of a space that an instruction reads or writes as `value`: `ranges` from (first byte) to (end). Each of
    `ways` says what they are, piece by piece; none where that is not known.
    """

    space: ByteMap
    ranges: tuple[tuple[int, int], ...]
    value: Value
    ways: tuple[Pieces, ...]


class _Pair(NamedTuple):
    """`first` touches bytes of `space` before `second` writes them in the listing, and must under every order."""

    space: ByteMap
    need: Need


def dependencies(plan: MemoryPlan) -> tuple[tuple[int, ...], ...]:
    """For each instruction, those that must run before it: the edges above, by index.

    For executors that do not keep to the listing; of use only for a plan that `validate(plan, order="any")` accepts.
    Rebinds and frees have no edges.
    """
    return tuple(tuple(sorted(before)) for before in _Walk(State(plan)).run().before)


def check_any_order(state: State) -> None:
    """Report each pair of accesses that no path orders; `state` is that of a plan that is right as listed."""
    walk = _Walk(state).run()
    for pair in _unreached(walk.before, list(walk.pairs.values())):
        _report(state, pair, walk.written(pair))


class _Walk:
    """The edges into each instruction, and the pairs that need a path."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._maps: dict[ByteMap, AccessMap] = {}
        self._called: dict[Node, int] = {}
        self.before: list[set[int]] = [set() for _ in state.program.instructions]
        self.pairs: dict[tuple[int, int], _Pair] = {}
        self._writes: list[list[_Access]] = [[] for _ in state.program.instructions]

    def run(self) -> _Walk:
        """Walk the listing once."""
        for index, instruction in enumerate(self._state.program.instructions):
            if isinstance(instruction, Call):
                node = self._state.graph.node(instruction.node)
                makers = [value.producer for value in node.inputs if value is not None and value.producer is not None]
                self._wait(index, [*makers, *node.controls])
                self._touch(index, *self._of_call(node, instruction))
                self._called[node] = index
            elif isinstance(instruction, Transfer):
                if self._state.graph.has_node(instruction.node):
                    self._wait(index, self._state.graph.node(instruction.node).controls)
                source, target = self._accesses([(self._moved(o), o) for o in (instruction.source, instruction.target)])
                self._touch(index, [source], [target], self._copy_of(instruction, source, target))
        end = len(self.before)
        for result in (*self._state.program.results, *self._state.program.finals):
            for fetched in self._accesses([(self._state.graph.value(result.name), result.operand)]):
                for lo, hi in fetched.ranges:
                    self._note(fetched.space, self._map(fetched.space).read(lo, hi, end)[1])
        return self

    def written(self, pair: _Pair) -> tuple[Value, int, int]:
        """What the pair's second writes where the two meet, and to which bytes."""
        need, writes = pair.need, self._writes[pair.need.second]
        meeting = ((w.value, lo, hi) for w in writes if w.space is pair.space for lo, hi in w.ranges)
        value, lo, hi = next(one for one in meeting if one[1] < need.hi and need.lo < one[2])
        return value, max(lo, need.lo), min(hi, need.hi)

    def _wait(self, index: int, nodes: Sequence[Node]) -> None:
        self.before[index].update(self._called[node] for node in nodes if node in self._called)

    def _moved(self, operand: Operand) -> Value:
        return self._state.graph.value(operand.value)

    def _of_call(self, node: Node, call: Call) -> tuple[list[_Access], list[_Access]]:
        """What the call reads, and what it writes that was not there."""
        operands = enumerate(zip(node.inputs, call.inputs, strict=True))
        inputs = [(v, o) for i, (v, o) in operands if v is not None and o is not None and node.spec.reads_data(i)]
        outputs = [(v, o) for v, o in zip(node.outputs, call.outputs, strict=True) if v is not None and o is not None]
        reads = self._accesses(inputs)
        if makes_views(node, call):
            return reads, []
        return reads, [self._without(write, reads) for write in self._accesses(outputs, writes=True)]

    def _without(self, write: _Access, reads: Sequence[_Access]) -> _Access:
        """What of the write changes bytes: all but the bytes that the call reads where they are."""
        kept = [
            (max(mine[0], other[0]), min(mine[1], other[1]))
            for read in reads
            if read.space is write.space
            for one in write.ways
            for way in read.ways
            for mine, other in meets(one, way)
            if self._state.images.alike(mine, other)
        ]
        if not kept:
            return write
        left = []
        cuts = sorted(kept)
        number = 0
        for lo, hi in write.ranges:
            while number < len(cuts) and cuts[number][0] < hi:
                if lo < cuts[number][0]:
                    left.append((lo, cuts[number][0]))
                lo = max(lo, cuts[number][1])
                number += 1
            if lo < hi:
                left.append((lo, hi))
        return write._replace(ranges=tuple(left))

    def _accesses(self, pairs: Sequence[tuple[Value, Operand]], writes: bool = False) -> list[_Access]:
        found = []
        for value, operand in pairs:
            site = self._state.sites[operand.buffer]
            if site is not None:
                ranges, ways = self._spread(value, operand, writes)
                start = site.offset + operand.offset
                spread = tuple((start + lo, start + hi) for lo, hi in ranges)
                found.append(_Access(site.space, spread, value, tuple(placed(start, way) for way in ways)))
        return found

    def _spread(self, value: Value, operand: Operand, writes: bool) -> tuple[list[tuple[int, int]], list[Pieces]]:
        """The bytes of an operand, counted from its first, and what they hold if they hold `value`."""
        images, stored, steps = self._state.images, operand.placement, canonical(value.shape, operand.strides)
        size = itemsize(stored.dtype)
        hull = extent(value.shape, steps) * size
        views = images.candidates(value, stored.dtype, stored.layout, steps)
        if steps is None:
            return [(0, hull)], [images.pieces(image, hull) for image in views]
        runs = row_runs(value.shape, steps, _MOST_READ if views and not writes else MOST_RUNS)
        if runs is not None:
            return _ranges(runs, size), list(images.rows(value, stored.dtype, steps))
        known = len(views) == 1 and not list(images.rows(value, stored.dtype, steps, hulls=False))
        return [(0, hull)], [images.pieces(views[0], hull)] if known else []

    def _copy_of(self, transfer: Transfer, source: _Access, target: _Access) -> Hashable:
        """What says which bits a transfer writes: two that say the same convert the same bytes in the same way."""
        shape = self._moved(transfer.source).shape
        froms, tos = ((o.placement.dtype, o.placement.layout, o.strides) for o in (transfer.source, transfer.target))
        epochs = tuple(self._map(source.space).epochs(lo, hi) for lo, hi in source.ranges)
        return source.space.device, source.space.name, source.ranges, epochs, shape, froms, tos, target.ranges

    def _touch(
        self, index: int, reads: Sequence[_Access], writes: Sequence[_Access], like: Hashable = None
    ) -> None:
        for read in reads:
            for lo, hi in read.ranges:
                writers, needs = self._map(read.space).read(lo, hi, index)
                self.before[index].update(writers)
                self._note(read.space, needs)
        for write in writes:
            for lo, hi in write.ranges:
                self._note(write.space, self._map(write.space).write(lo, hi, index, like))
        self._writes[index] += writes

    def _note(self, space: ByteMap, needs: Iterable[Need]) -> None:
        for need in needs:
            self.pairs.setdefault((need.first, need.second), _Pair(space, need))

    def _map(self, space: ByteMap) -> AccessMap:
        found = self._maps.get(space)
        if found is None:
            found = self._maps[space] = AccessMap()
        return found


def _ranges(runs: Sequence[tuple[int, int, int]], size: int) -> list[tuple[int, int]]:
    """The bytes of runs of elements, in order and apart."""
    found: list[tuple[int, int]] = []
    for at, _, count in sorted(runs):
        lo, hi = at * size, (at + count) * size
        if found and lo <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], hi)
        else:
            found.append((lo, hi))
    return found


# -- paths -----------------------------------------------------------------------------------------------------------


def _unreached(before: Sequence[set[int]], pairs: Sequence[_Pair]) -> Iterator[_Pair]:
    """The pairs without a path from the first to the second, in the order of the second."""
    open_pairs = [pair for pair in pairs if pair.need.first not in before[pair.need.second]]
    sources = sorted({pair.need.first for pair in open_pairs})
    missing: list[_Pair] = []
    for start in range(0, len(sources), _BLOCK):
        bits = {source: 1 << i for i, source in enumerate(sources[start : start + _BLOCK])}
        missing += _without_path(before, bits, [pair for pair in open_pairs if pair.need.first in bits])
    return iter(sorted(missing, key=lambda pair: (pair.need.second, pair.need.first)))


def _without_path(before: Sequence[set[int]], bits: dict[int, int], pairs: Sequence[_Pair]) -> list[_Pair]:
    """Those of `pairs` without a path; their firsts are the keys of `bits`."""
    asked: dict[int, list[_Pair]] = {}
    for pair in pairs:
        asked.setdefault(pair.need.second, []).append(pair)
    low, missing = min(bits), []
    reach: list[int] = []  # of each instruction from `low` on: the sources from which a path leads to it, and itself
    for index in range(low, max(asked) + 1):
        found = 0
        for other in before[index]:
            if other >= low:
                found |= reach[other - low]
        missing += [pair for pair in asked.get(index, ()) if not found & bits[pair.need.first]]
        reach.append(found | bits.get(index, 0))
    return missing


def _report(state: State, pair: _Pair, written: tuple[Value, int, int]) -> None:
    words, need, space, (value, lo, hi) = state.words, pair.need, pair.space, written
    first, second = words.instruction(need.first), words.instruction(need.second)
    span = f"bytes [{lo}, {hi}) of {space.device} {space.name}"
    text = f"{second} writes %{value.name} to {span}, which {first} {'writes' if need.wrote else 'reads'} too"
    text += f"; no edge says that it comes first: add a control edge, or give %{value.name} bytes of its own"
    node = str(getattr(state.program.instructions[need.second], "node", ""))
    state.report.add(Finding("unordered", need.second, value.name, text, node, space.device, need.first, lo, hi))
