"""`FuseElementwise`: elementwise ops that only feed each other become one `Elementwise` node, and one loop.

Edits the graph, so that the storage has less to carry: what the group's members hand to each other is never stored. Run
it before the passes that share, which see what is left.

A value t goes away if it is made by one elementwise node and read by another, and by nobody else; its shape is that of
the reader's result (else it would be computed again for each element that it is broadcast to); nobody asked to keep it;
both nodes have generated loops, and one device. Its operands then live as long as the reader, so t stays where that
would cost: where the bytes that no sharing can do without rise at the fullest step between both nodes, or live bytes
above their peak (`memopt.analysis.Levels`). Fusing never raises a peak, and no fusion takes what another one saves: so
they are taken in the listed order, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import Fusion, Levels, updated_value
from memopt.ir import Graph, Node, Value
from memopt.ops import FUSED, MAX_STEPS, Chain, KernelQuery, chain_of, get_op, join_chains
from memopt.pipeline import Decision, PassResult

__all__ = ["FuseElementwise", "fuse_elementwise"]


@dataclass(frozen=True)
class FuseElementwise:
    """Make one node of elementwise nodes that only feed each other, where no step needs more bytes for it."""

    name: ClassVar[str] = "fuse-elementwise"

    def run(self, graph: Graph) -> PassResult:
        decisions = [
            Decision(self.name, v.node, (v.value.name,), v.accepted, v.text, v.value.nbytes, v.step, v.rule)
            for v in fuse_elementwise(graph)
        ]
        return PassResult(any(decision.accepted for decision in decisions), decisions)


@dataclass(frozen=True, slots=True)
class FusionVerdict:
    """Whether `value` is made inside of `node` (at `step`, both of the graph as it is now), and why."""

    value: Value
    node: str
    step: int
    accepted: bool
    rule: str
    text: str


def fuse_elementwise(graph: Graph) -> list[FusionVerdict]:
    """Fuse what can be fused; a verdict for each value that an elementwise node makes and another one reads."""
    fuser = _Fuser(graph)
    candidates = list(fuser.candidates())
    waiting = candidates
    while waiting:
        left = [value for value in waiting if not fuser.fuse(value)]
        waiting = left if len(left) < len(waiting) else []
    refusals = {value: fuser.refusal(value) for value in candidates if value not in fuser.inside}
    readers = {value: fuser.reader(value).last.name for value in candidates}
    texts = {value: f"%{value.name} is made inside of {fuser.reader(value)}" for value in fuser.inside}
    fuser.rewrite()
    steps = {node.name: step for step, node in enumerate(graph.nodes)}
    verdicts = []
    for value in candidates:
        found = refusals.get(value) or ("fused", texts[value])
        node = readers[value]
        verdicts.append(FusionVerdict(value, node, steps[node], value in fuser.inside, *found))
    return verdicts


@dataclass(slots=True, eq=False)
class _Group:
    """Nodes that become one, the last of which makes the result."""

    nodes: list[Node]
    chain: Chain
    inputs: list[Value]

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    @property
    def output(self) -> Value:
        (value,) = self.last.outputs
        assert value is not None, "an elementwise node makes one value"
        return value

    def __str__(self) -> str:
        return f"node {self.last.name} ({', '.join(step.op for step in self.chain.steps)})"


Refusal = tuple[str, str]


class _Fuser:
    """Groups in the making; `inside` are the values that are stored no more."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.levels = Levels(graph)
        self.inside: dict[Value, None] = {}
        self._steps = graph.steps()
        self._groups: dict[Node, _Group] = {}
        self._after: dict[Node, list[Node]] = {}
        self._updated = {updated_value(value) for value in graph.values}
        for node in graph.nodes:
            inputs = [value for value in node.inputs if value is not None]
            chain = chain_of(node.op, node.attrs, [value.dtype for value in inputs])
            if chain is not None:
                self._groups[node] = _Group([node], chain, inputs)
            for before in node.controls:
                self._after.setdefault(before, []).append(node)

    def candidates(self) -> Iterator[Value]:
        """Every value that an elementwise node makes and another one reads."""
        for node in self._groups:
            for _, value in node.real_outputs:
                if any(use.node in self._groups for use in value.uses):
                    yield value

    def reader(self, value: Value) -> _Group:
        """The last elementwise group that reads `value`."""
        return max(self._readers(value), key=lambda group: self._steps[group.last])

    def fuse(self, value: Value) -> bool:
        """Fuse the node that makes `value` into that which reads it, if that is sound and costs nothing."""
        if self.refusal(value) is not None:
            return False
        self.levels.fuse(self._fusion(value))
        maker, reader = self._maker(value), self.reader(value)
        reader.chain, reader.inputs = self._whole(value)
        reader.nodes = sorted([*maker.nodes, *reader.nodes], key=self._steps.__getitem__)
        for node in maker.nodes:
            self._groups[node] = reader
        self.inside[value] = None
        return True

    def refusal(self, value: Value) -> Refusal | None:
        """Why `value` has to be stored."""
        for check in (self._is_free, self._fits, self._stays_in_order, self._storage_allows, self._has_loop):
            refusal = check(value)
            if refusal is not None:
                return refusal
        rise = self.levels.rise(self._fusion(value))
        if rise <= 0:
            return None
        text = f"without %{value.name} its operands live until node {self.reader(value).last.name}"
        return "raises-peak", f"{text}: at the fullest step on the way, or at the peak, that takes {rise} B more"

    def rewrite(self) -> None:
        """Put one node in the place of each group."""
        for group in dict.fromkeys(self._groups.values()):
            if len(group.nodes) > 1:
                step = self.graph.nodes.index(group.last)
                self.graph.replace_nodes(group.nodes, FUSED, group.inputs, group.chain.attrs, step=step)

    def _readers(self, value: Value) -> list[_Group]:
        found = (self._groups.get(use.node) for use in value.uses)
        return list(dict.fromkeys(group for group in found if group is not None))

    def _maker(self, value: Value) -> _Group:
        assert value.producer is not None, "candidates are made by nodes"
        return self._groups[value.producer]

    def _whole(self, value: Value) -> tuple[Chain, list[Value]]:
        """What both do, and from which inputs."""
        maker, reader = self._maker(value), self.reader(value)
        return join_chains(reader.chain, reader.inputs, maker.chain, maker.inputs, value)

    def _fusion(self, value: Value) -> Fusion:
        maker, reader = self._maker(value), self.reader(value)
        others = tuple(other for other in reader.inputs if other is not value)
        steps = self._steps[maker.last], self._steps[reader.last]
        return Fusion(*steps, value, tuple(maker.inputs), others, reader.output, maker.last.device)

    # -- one reason after the other -----------------------------------------------------------------------------

    def _is_free(self, value: Value) -> Refusal | None:
        """Nobody else needs it."""
        if value in self.graph.outputs:
            return "input-is-output", f"%{value.name} is an output of the graph"
        if value.name in self.graph.excluded:
            return "excluded", f"%{value.name} is left out by request"
        reader = self.reader(value)
        other = next((use.node for use in value.uses if self._groups.get(use.node) is not reader), None)
        if other is not None:
            return "read-elsewhere", f"%{value.name} is read by node {other.name} ({other.op}) too"
        return None

    def _fits(self, value: Value) -> Refusal | None:
        """One device, one shape, not too many steps."""
        maker, reader = self._maker(value), self.reader(value)
        mine, theirs = maker.last.device, reader.last.device
        if mine != theirs:
            text = f"%{value.name} is made on {mine or 'the default device'} and read on {theirs or 'the default one'}"
            return "different-device", text
        made = reader.output
        if value.type.num_elements != made.type.num_elements:
            return "broadcast", f"%{value.name} ({value.type}) is broadcast to %{made.name} ({made.type})"
        if len(maker.chain.steps) + len(reader.chain.steps) > MAX_STEPS:
            return "too-long", f"with %{value.name} inside, {reader} would have more than {MAX_STEPS} steps"
        return None

    def _stays_in_order(self, value: Value) -> Refusal | None:
        """What must come after the maker comes after the reader, and what it reads is not overwritten before."""
        maker, reader = self._maker(value), self.reader(value)
        for node in maker.nodes:
            for after in self._after.get(node, ()):
                group = self._groups.get(after)
                last = after if group is None else group.last
                if group not in (maker, reader) and self._steps[last] < self._steps[reader.last]:
                    text = f"node {after.name} must come after {node.name}, which makes %{value.name}"
                    return "control-edge", f"{text}, and before node {reader.last.name}"
        for source in self.levels.extended(self._fusion(value)):
            if source in self._updated:
                text = f"%{value.name} would be made from %{source.name}, which is updated before"
                return "updated", f"{text} node {reader.last.name}"
        return None

    def _storage_allows(self, value: Value) -> Refusal | None:
        """Whatever goes away or lives longer has a buffer of its own."""
        for other in (value, *self.levels.extended(self._fusion(value))):
            if not self.levels.is_alone(other):
                text = f"to make %{value.name} inside of its reader"
                return "already-lent", f"%{other.name} shares its bytes already: too late {text}"
        return None

    def _has_loop(self, value: Value) -> Refusal | None:
        """Both nodes, and the whole, are generated loops."""
        maker, reader = self._maker(value), self.reader(value)
        for group in (maker, reader):
            if not _compiles(group.chain, group.inputs, group.output):
                return "no-kernel", f"%{value.name}: {group} has no kernel for its types"
        chain, inputs = self._whole(value)
        if not _compiles(chain, inputs, reader.output):
            return "no-kernel", f"with %{value.name} inside, {reader} has no kernel: it reads {len(inputs)} values"
        return None


def _compiles(chain: Chain, inputs: list[Value], output: Value) -> bool:
    query = KernelQuery(tuple(value.type for value in inputs), (output.type,), chain.attrs)
    return get_op(FUSED).kernel(query) is not None
