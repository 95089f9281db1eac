"""`FuseNormConv`: a convolution of one tap normalises its input on the way; the normalised value is never stored.

Edits nodes, not storage: BatchNormalization [-> Mul] [-> Add] [-> Relu] -> Conv becomes one `NormConv`, which stands in
the convolution's place and makes the same value (Mul and Add by one number a channel, as in a scale layer). Run it
before passes that share and before `fuse-elementwise`.

When it saves: x is the input of the normalization. If x dies there, the normalised value can have its bytes, and there
is nothing to save: x would be held to the convolution instead. Where the bytes of x hold on beyond the convolution
(later layers of a DenseNet read them), the normalised value is a second copy that needs bytes of its own.

Why no peak rises: at every step from the normalization to the convolution, one of the values that go away is live. It
has the size of x. What is held longer instead (`saved` says: x, or what of it no other value holds, and operands that
do not hold so long anyway) is smaller, else nothing is done. Scratch is as large as x at most, and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from memopt.analysis import Reason, Run, analyze_aliases, analyze_liveness, updated_value
from memopt.ir import Graph, Node, Value
from memopt.ops import Attrs, KernelQuery, get_op
from memopt.pipeline import Decision, PassResult

__all__ = ["FuseNormConv", "fuse_norm_conv"]

#: What may lie between x and the convolution, the last first.
_BACKWARDS = ("Relu", "Add", "Mul", "BatchNormalization")


@dataclass(frozen=True)
class FuseNormConv:
    """Normalise inside of the convolution, where that saves bytes; shared bytes are left alone."""

    name: ClassVar[str] = "fuse-norm-conv"

    def run(self, graph: Graph) -> PassResult:
        verdicts = fuse_norm_conv(graph)
        steps = {node.name: step for step, node in enumerate(graph.nodes)}
        decisions = [
            Decision(self.name, v.node, (v.value.name,), v.accepted, v.text, v.num_bytes, steps[v.node], v.rule)
            for v in sorted(verdicts, key=lambda verdict: steps[verdict.node])
        ]
        return PassResult(any(decision.accepted for decision in decisions), decisions)


class NormVerdict(NamedTuple):
    """Whether `value`, a normalised input of the convolution at `node`, went away."""

    value: Value
    node: str
    accepted: bool
    rule: str
    text: str
    num_bytes: int


def fuse_norm_conv(graph: Graph) -> list[NormVerdict]:
    """Fuse wherever that saves bytes; a verdict for each convolution whose input is a normalised value.

    Rounds until nothing more can be fused: an input that is held longer may hold what another candidate reads. All that
    a round accepts holds together: no fusion takes away what another one counts on, and lives only grow.
    """
    accepted: list[NormVerdict] = []
    while True:
        facts = _Facts(graph)
        found = [_judge(facts, chain) for chain in _chains(graph)]
        fused = [(chain, verdict) for chain, verdict in found if verdict.accepted]
        for chain, verdict in fused:
            step = graph.steps()[chain.conv]
            graph.replace_nodes(chain.nodes, "NormConv", chain.inputs, chain.attrs, step=step)
            accepted.append(verdict)
        if not fused:
            return [*accepted, *(verdict for _, verdict in found)]


# -- candidates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chain:
    """`conv` and what makes its input of x: the nodes by their ops, in order; Mul and Add with their other operand."""

    conv: Node
    found: dict[str, tuple[Node, Value | None]]

    @property
    def norm(self) -> Node:
        return self.found["BatchNormalization"][0]

    @property
    def nodes(self) -> list[Node]:
        return [*(node for node, _ in self.found.values()), self.conv]

    @property
    def gone(self) -> list[Value]:
        """The values that go away; each is as large as x."""
        return [_made(node) for node in self.nodes[:-1]]

    @property
    def inputs(self) -> list[Value | None]:
        """What the fused node reads, in the order of `NormConv`; what is absent at the end is left out."""
        bias = self.conv.inputs[2] if len(self.conv.inputs) > 2 else None
        gain, offset = (self.found[op][1] if op in self.found else None for op in ("Mul", "Add"))
        found = [*self.norm.inputs[:5], self.conv.inputs[1], bias, gain, offset]
        while found[-1] is None:
            found.pop()
        return found

    @property
    def attrs(self) -> Attrs:
        activation = "Relu" if "Relu" in self.found else ""
        return {**self.conv.attrs, "epsilon": self.norm.attrs["epsilon"], "activation": activation}


def _chains(graph: Graph) -> Iterator[_Chain]:
    for node in graph.nodes:
        value = node.inputs[0] if node.op == "Conv" else None
        found = None if value is None else _trace(value, _BACKWARDS)
        if found is not None:
            yield _Chain(node, found)


def _trace(value: Value, ops: tuple[str, ...]) -> dict[str, tuple[Node, Value | None]] | None:
    """What makes `value` of something, as far as these ops go, the last first; None if that is no normalization."""
    node = value.producer
    if node is None or node.op not in ops or value.index:
        return None
    if node.op == ops[-1]:
        return {node.op: (node, None)}
    for data, vector in _operands(node, value):
        found = _trace(data, ops[ops.index(node.op) + 1 :])
        if found is not None:
            return {**found, node.op: (node, vector)}
    return None


def _operands(node: Node, made: Value) -> Iterator[tuple[Value, Value | None]]:
    """(the data, the one number a channel that they are multiplied by or added to), in every way to see it so."""
    operands = [value for value in node.inputs if value is not None]
    if len(operands) == 1:
        yield operands[0], None
        return
    channels = (1, made.shape[1], *(1,) * (made.type.rank - 2))
    for data, vector in (operands, operands[::-1]):
        if data.type == made.type and (1,) * (made.type.rank - vector.type.rank) + vector.shape == channels:
            yield data, vector


def _made(node: Node) -> Value:
    return node.real_outputs[0][1]


# -- the decision -----------------------------------------------------------------------------------------------------


class _Facts:
    """What is known of the graph as it is."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.steps = graph, graph.steps()
        self.intervals = analyze_liveness(graph).intervals
        self._aliases = analyze_aliases(graph)
        self._holders: dict[Value, list[tuple[Value, Run]]] = {}
        for value in graph.values:
            for run in self._aliases.runs(value):
                self._holders.setdefault(run.root, []).append((value, run))

    def family(self, value: Value) -> tuple[Value, ...]:
        """Every value that holds bytes of what `value` is a view of."""
        return self._aliases.family(value)

    def extended(self, c: _Chain) -> list[Value]:
        """The operands that would live longer, to the convolution."""
        found = [value for value in c.inputs if value is not None]
        return [value for value in dict.fromkeys(found) if self.intervals[value].end <= self.steps[c.conv]]

    def more_bytes(self, value: Value, step: int) -> int:
        """Bytes of `value`, held to `step`, that no other value holds from its end till then."""
        start = self.intervals[value].end
        alone = 0
        for mine in self._aliases.runs(value):
            size = mine.high - mine.low
            held = any(
                run.at <= mine.at and mine.at + size <= run.at + run.high - run.low
                for other, run in self._holders[mine.root]
                if other is not value and self.intervals[other].start <= start and step < self.intervals[other].end
            )
            alone += 0 if held else size
        return alone


_Reasoned = tuple[str, str] | None


def _judge(facts: _Facts, c: _Chain) -> tuple[_Chain, NormVerdict]:
    last = c.gone[-1]
    for check in (_norm_refusal, _reader_refusal, _device_refusal, _kernel_refusal, _order_refusal, _storage_refusal):
        refusal = check(facts, c)
        if refusal is not None:
            return c, NormVerdict(last, c.conv.name, False, *refusal, last.nbytes)
    x = _read(c.norm)
    more = sum(facts.more_bytes(value, facts.steps[c.conv]) for value in facts.extended(c))
    saved = last.nbytes - more
    if saved <= 0:
        text = f"%{x.name} ends before node {c.conv.name}: holding it till then takes {more} B, %{last.name} no more"
        return c, NormVerdict(last, c.conv.name, False, Reason.NOTHING_TO_SAVE, text, last.nbytes)
    text = f"%{_made(c.conv).name} is made of %{x.name}, which holds on and is normalised in scratch, block by block"
    names = " and ".join(f"%{value.name}" for value in c.gone)
    return c, NormVerdict(last, c.conv.name, True, "fused", f"{text}: {names} need no bytes", saved)


def _read(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None, f"{node.op} has its input 0"
    return value


def _norm_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    if c.norm.attrs["training_mode"] or len(c.norm.real_outputs) > 1:
        return "training", f"training batch normalization: %{_made(c.norm).name} needs statistics of all of its input"
    return None


def _reader_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """What leaves the graph is read once, and asked for by nobody."""
    for value in c.gone:
        if value in facts.graph.outputs:
            return Reason.INPUT_IS_OUTPUT, f"%{value.name} is an output of the graph"
        if len(value.uses) > 1:
            names = ", ".join(dict.fromkeys(use.node.name for use in value.uses))
            return "read-by-others", f"%{value.name} is read by others: it is read by {names}"
    for value in (_read(c.norm), *c.gone, _made(c.conv)):
        if value.name in facts.graph.excluded:
            return Reason.EXCLUDED, f"%{value.name} is left out by request"
    return None


def _device_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    maker = _read(c.norm).producer
    for node in (*c.nodes, *([] if maker is None else [maker])):
        if node.device != c.conv.device:
            text = f"{c.conv.name} is on device {c.conv.device}, but {node.name} ({node.op}) on {node.device}"
            return Reason.DIFFERENT_DEVICE, text
    return None


def _kernel_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    spec = get_op("NormConv")
    types = tuple(None if value is None else value.type for value in c.inputs)
    if spec.kernel(KernelQuery(types, (_made(c.conv).type,), spec.complete_attrs(c.attrs))) is None:
        text = "NormConv takes one tap, stride 1, no pads, one group, and float32 or float64"
        return "no-kernel", f"{c.conv.name} reads %{c.gone[-1].name} otherwise: {text}"
    return None


def _order_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """Nothing that must follow one of the nodes, and no update of what they read, comes before the convolution."""
    first, last = facts.steps[c.norm], facts.steps[c.conv]
    read = [other for value in c.inputs if value is not None for other in facts.family(value)]
    for node in facts.graph.nodes[first + 1 : last]:
        if node in c.nodes:
            continue
        before = next((other for other in node.controls if other in c.nodes), None)
        if before is not None:
            text = f"{node.name} must run after {before.name} (control edge), and stands before {c.conv.name}"
            return Reason.UNORDERED, text
        updated = [updated_value(value) for _, value in node.real_outputs]
        old = next((value for value in updated if value is not None and value in read), None)
        if old is not None:
            text = f"{node.name} ({node.op}) updates %{old.name}, which would be read after it by {c.conv.name}"
            return Reason.UPDATE_OUTPUT, text
    return None


def _storage_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """What lives longer shares its bytes with no others, who may need them meanwhile."""
    storage = facts.graph.storage
    for value in facts.extended(c):
        other = next((v for v in storage.tenants(storage.buffer(value)) if v is not value and v not in c.gone), None)
        if other is not None:
            text = f"%{value.name} shares bytes with %{other.name} already: fuse before sharing"
            return Reason.ALREADY_BORROWED, text
    return None
