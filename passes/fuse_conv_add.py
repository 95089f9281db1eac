"""`FuseConvAdd`: a convolution that is added to a value that dies there accumulates into that value's bytes.

Edits nodes, not storage: Conv [-> BatchNormalization] -> Add [-> Relu] becomes one `FusedConv`, which makes the same
value. x, the addend and the convolution's result were needed together; now the result is made in scratch, block by
block, and a pass that shares in place puts the sum over the addend.

Where the fused node stands: as early as it may, from the convolution's place on; that is after the addend is made and
read by all others. There x dies soonest, and the sum has the bytes of the addend wherever it is. If that is later than
the convolution's place, x is held longer, which may cost more than is saved; of two operands that could be fused, the
one that leaves fewer bytes is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memopt.analysis import (
    Aliases,
    Liveness,
    Reason,
    analyze_aliases,
    analyze_liveness,
    needed_bytes,
    updated_value,
    where_read,
)
from memopt.ir import Graph, Node, Value
from memopt.ops import KernelQuery, get_op
from memopt.pipeline import Decision, PassResult

__all__ = ["FuseConvAdd", "fuse_conv_add"]


@dataclass(frozen=True)
class FuseConvAdd:
    """Conv + Add as add-to, wherever it saves bytes. Run it before the passes that share: it leaves shared bytes alone.

    What each node is pinned to is respected, but a pass does not know which kernels a device lacks: on one that lacks
    `FusedConv` the node falls back to the host, as any other.
    """

    name: ClassVar[str] = "fuse-conv-add"

    def run(self, graph: Graph) -> PassResult:
        verdicts = fuse_conv_add(graph)
        steps = graph.steps()
        decisions = []
        for v in sorted(verdicts, key=lambda verdict: steps[verdict.node]):
            subject = (_made(v.node).name,)
            made = Decision(self.name, v.node.name, subject, v.accepted, v.text, v.num_bytes, steps[v.node], v.rule)
            decisions.append(made)
        return PassResult(any(decision.accepted for decision in decisions), decisions)


class FusionVerdict(NamedTuple):
    """Whether an operand of an Add was fused; `node` is the Add, or what stands in its place."""

    node: Node
    accepted: bool
    rule: str
    text: str
    num_bytes: int


def fuse_conv_add(graph: Graph) -> list[FusionVerdict]:
    """Fuse wherever that saves bytes; a verdict for each operand of an Add that a convolution makes.

    Rounds until nothing more can be fused: what one fusion saves may allow another.
    """
    accepted: list[FusionVerdict] = []
    while True:
        refused: list[FusionVerdict] = []
        fused = False
        facts = _Facts(graph)
        for add in [node for node in graph.nodes if node.op in ("Add", "Sum")]:
            found = [_judge(facts, chain) for chain in _chains(add)]
            fusion = min((one for one in found if isinstance(one, _Fusion)), key=_worth, default=None)
            node = add
            if fusion is not None:
                nodes, attrs = _replaced(fusion.chain, fusion.relu), _attrs(fusion.chain, fusion.relu)
                node = graph.replace_nodes(nodes, "FusedConv", fusion.chain.inputs, attrs, step=fusion.step)
                facts, fused = _Facts(graph), True
            for one in found:
                (accepted if one is fusion else refused).append(_verdict(one, node, fusion))
        if not fused:
            return [*accepted, *refused]
        # The verdicts on the other operands of what was fused are final.
        accepted += [one for one in refused if one.node.op == "FusedConv"]


# -- candidates -------------------------------------------------------------------------------------------------------


class _Chain(NamedTuple):
    """Operand `value` of `add` is the result of `conv`, normalised by `norm` if there is one; `addend` is the other."""

    add: Node
    conv: Node
    norm: Node | None
    value: Value
    addend: Value | None

    @property
    def branch(self) -> list[Node]:
        return [self.conv] if self.norm is None else [self.conv, self.norm]

    @property
    def inputs(self) -> list[Value | None]:
        """What the fused node reads, in the order of `FusedConv`."""
        conv = [*self.conv.inputs, None][:3]
        return [*conv, *([None] * 4 if self.norm is None else self.norm.inputs[1:5]), self.addend]


def _chains(add: Node) -> Iterator[_Chain]:
    """The operands of `add` that a convolution makes, each once."""
    operands = [value for value in add.inputs if value is not None]
    for value in dict.fromkeys(operands):
        rest = list(operands)
        rest.remove(value)
        conv, norm = value.producer, None
        if conv is not None and conv.op == "BatchNormalization" and value.index == 0:
            conv, norm = _input(conv, 0).producer, conv
        if conv is not None and conv.op == "Conv":
            yield _Chain(add, conv, norm, value, rest[0] if len(rest) == 1 else None)


def _input(node: Node, index: int) -> Value:
    value = node.inputs[index]
    assert value is not None, f"{node.op} has its input {index}"
    return value


def _replaced(c: _Chain, relu: Node | None) -> list[Node]:
    return [*c.branch, c.add, *([] if relu is None else [relu])]


def _made(node: Node) -> Value:
    return node.real_outputs[0][1]


# -- what is known of the graph as it is ------------------------------------------------------------------------------


class _Facts:
    """Steps, liveness and needed bytes of the graph, each found when it is first asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = graph.steps()

    @cached_property
    def liveness(self) -> Liveness:
        return analyze_liveness(self.graph)

    @cached_property
    def aliases(self) -> Aliases:
        return analyze_aliases(self.graph)

    @cached_property
    def needed(self) -> NDArray[np.int64]:
        """The least live bytes at each step, whatever shares with whom."""
        return needed_bytes(self.graph)

    def family(self, value: Value) -> tuple[Value, ...]:
        """Every value that holds bytes of what `value` is a view of."""
        return self.aliases.family(value)

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read bytes of `value`, under whatever name."""
        return [use.node for one in self.family(value) for use in one.data_uses]

    def end(self, value: Value) -> int:
        """One past the last step at which the bytes of `value` are needed."""
        return max(self.liveness.intervals[one].end for one in self.family(value))


# -- the decision -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Refusal:
    chain: _Chain
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class _Fusion:
    """`chain`, and the Relu after it if that is taken along, as one node before the node that is at `step` now.

    `saved`: by how much the most bytes that are needed from the convolution to the Add fall. `peak`: the most that are
    needed then, from the first convolution of the Add's operands on. `moved`: by how many steps it stands later.
    """

    chain: _Chain
    relu: Node | None
    step: int
    saved: int
    peak: int
    moved: int


def _worth(fusion: _Fusion) -> tuple[int, int]:
    """The fewest bytes first, then the least move."""
    return fusion.peak, fusion.moved


def _judge(facts: _Facts, chain: _Chain) -> _Fusion | _Refusal:
    for check in (_shape_refusal, _branch_refusal, _device_refusal, _addend_refusal, _kernel_refusal):
        refusal = check(facts, chain)
        if refusal is not None:
            return _Refusal(chain, *refusal)
    relu = _relu_after(facts, chain)
    step = _place(facts, chain, relu)
    refusal = _place_refusal(facts, chain, relu, step) or _storage_refusal(facts, chain, relu, step)
    if refusal is not None:
        return _Refusal(chain, *refusal)
    saved, peak = _gain(facts, chain, step)
    if saved <= 0:
        held, addend = _input(chain.conv, 0).name, _named(chain.addend)
        text = f"%{held} would have to be held until %{addend} is made and read by others: that costs what it saves"
        return _Refusal(chain, Reason.RAISES_PEAK, text)
    return _Fusion(chain, relu, step, saved, peak, step - facts.steps[chain.conv])


_Reasoned = tuple[str, str] | None


def _shape_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """The addend is one value of the result's type; the batch normalization has given statistics."""
    if len(c.add.inputs) != 2:
        return "operands", f"{c.add.op} of %{c.value.name} has {len(c.add.inputs)} operands, not 2"
    if c.addend is None or c.addend.type != c.value.type:
        return "broadcast", f"one operand is broadcast: {c.value!r} and {c.addend!r}"
    if c.norm is not None and (c.norm.attrs["training_mode"] or len(c.norm.real_outputs) > 1):
        return "training", f"training batch normalization: %{c.value.name} needs statistics of all of its input"
    return None


def _branch_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """What leaves the graph is read once, and asked for by nobody."""
    for node in c.branch:
        value, what = _made(node), "conv result" if node is c.conv else "normalised conv result"
        if value in facts.graph.outputs:
            return Reason.INPUT_IS_OUTPUT, f"{what} %{value.name} is an output of the graph"
        if len(value.uses) > 1:
            names = ", ".join(dict.fromkeys(use.node.name for use in value.uses))
            return "read-by-others", f"{what} %{value.name} is read by others: it is read by {names}"
    for name in (_made(c.conv).name, c.value.name, _made(c.add).name, _named(c.addend)):
        if name in facts.graph.excluded:
            return Reason.EXCLUDED, f"%{name} is left out by request"
    return None


def _device_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    for node in (*c.branch, c.add):
        if node.device != c.conv.device:
            text = f"{c.conv.name} is on device {c.conv.device}, but {node.name} ({node.op}) on {node.device}"
            return Reason.DIFFERENT_DEVICE, text
    maker = None if c.addend is None else c.addend.producer
    if maker is not None and maker.device != c.add.device:
        text = f"addend %{_named(c.addend)} is made on device {maker.device}: for the sum it is copied"
        return Reason.DIFFERENT_DEVICE, text
    return None


def _addend_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    """The addend dies at the Add: else the sum needs bytes of its own, as many as the conv result."""
    addend = c.addend
    assert addend is not None, "_shape_refusal"
    family = facts.family(addend)
    for value in family:
        kept = facts.liveness.kept.get(value)
        if kept is not None:
            return Reason.INPUT_IS_PINNED, f"addend %{addend.name} cannot be overwritten: %{value.name} is {kept}"
    step = facts.steps[c.add]
    for node in facts.readers(addend):
        if facts.steps[node] > step:
            return Reason.NOT_LAST_USE, f"addend %{addend.name} is read later {where_read(node)}"
    read = next((value for value in c.inputs[:-1] if value in family), None)
    if read is not None:
        text = f"addend %{addend.name} is what the convolution reads: the sum cannot lie over it"
        return Reason.REPEATED_OPERAND, text
    return None


def _kernel_refusal(facts: _Facts, c: _Chain) -> _Reasoned:
    spec = get_op("FusedConv")
    types = tuple(None if value is None else value.type for value in c.inputs)
    if spec.kernel(KernelQuery(types, (c.value.type,), spec.complete_attrs(_attrs(c, None)))) is None:
        return "no-kernel", f"FusedConv has no kernel for these types: {_input(c.conv, 0)!r}"
    return None


def _relu_after(facts: _Facts, c: _Chain) -> Node | None:
    """The Relu that alone reads the sum, if it can be taken along; it never costs bytes by itself."""
    total = _made(c.add)
    if len(total.uses) != 1 or total in facts.graph.outputs:
        return None
    node = total.uses[0].node
    ready = all(facts.steps[before] <= facts.steps[c.add] for before in node.controls)
    excluded = node.op == "Relu" and _made(node).name in facts.graph.excluded
    return node if node.op == "Relu" and node.device == c.add.device and ready and not excluded else None


# -- where ------------------------------------------------------------------------------------------------------------


def _place(facts: _Facts, c: _Chain, relu: Node | None) -> int:
    """The first step, from the convolution's on, at which all is there and the addend was read by all others."""
    gone = _replaced(c, relu)
    assert c.addend is not None, "_shape_refusal"
    makers = [value.producer for value in c.inputs if value is not None and value.producer is not None]
    before = [*makers, *facts.readers(c.addend), *(other for node in gone for other in node.controls)]
    return max([facts.steps[c.conv], *(facts.steps[node] + 1 for node in before if node not in gone)])


def _storage_refusal(facts: _Facts, c: _Chain, relu: Node | None, step: int) -> _Reasoned:
    """What is made earlier or read later shares its bytes with no others, who may need them meanwhile."""
    inner = [_made(node) for node in _replaced(c, relu)]
    later = [v for v in c.inputs[:-1] if v is not None] if step > facts.steps[c.conv] else []
    storage = facts.graph.storage
    for value in (inner[-1], *later):
        other = next((v for v in storage.tenants(storage.buffer(value)) if v is not value and v not in inner), None)
        if other is not None:
            text = f"%{value.name} shares bytes with %{other.name} already: fuse before sharing"
            return Reason.ALREADY_BORROWED, text
    return None


def _place_refusal(facts: _Facts, c: _Chain, relu: Node | None, step: int) -> _Reasoned:
    """Nothing that must follow one of the nodes, and no update of what they read, comes before the fused one."""
    gone = _replaced(c, relu)
    for node in facts.graph.nodes[facts.steps[c.conv] : step]:
        before = next((other for other in node.controls if other in gone), None)
        if node not in gone and before is not None:
            text = f"{node.name} must run after {before.name} (control edge), which must wait for %{_named(c.addend)}"
            return Reason.UNORDERED, text
        updated = [updated_value(value) for _, value in node.real_outputs]
        old = next((value for value in updated if value is not None and value in c.inputs), None)
        if old is not None:
            text = f"{node.name} ({node.op}) updates %{old.name}, which must be read after %{_named(c.addend)} is ready"
            return Reason.UPDATE_OUTPUT, text
    return None


def _gain(facts: _Facts, c: _Chain, step: int) -> tuple[int, int]:
    """`saved` and `peak` of a fusion at `step`: the conv result is gone, and its operands are held until there."""
    chains, first, last = list(_chains(c.add)), facts.steps[c.conv], facts.steps[c.add]
    if len(chains) == 1 and step == first:
        return c.value.nbytes, 0  # at every step until the Add, and there is nothing to compare with
    start = min(facts.steps[chain.conv] for chain in chains)
    profile = facts.needed[start : last + 1].copy()
    before = int(profile[first - start :].max())
    profile[first - start :] -= c.value.nbytes
    held = {facts.aliases.root(value)[0]: value for value in c.inputs[:-1] if value is not None}
    for value in held.values():
        profile[facts.end(value) - start : step + 1 - start] += value.nbytes
    return before - int(profile[first - start :].max()), int(profile.max())


# -- the edit ---------------------------------------------------------------------------------------------------------


def _attrs(c: _Chain, relu: Node | None) -> dict[str, Any]:
    attrs = dict(c.conv.attrs)
    if c.norm is not None:
        attrs["epsilon"] = c.norm.attrs["epsilon"]
    if relu is not None:
        attrs["activation"] = "Relu"
    return attrs


def _verdict(found: _Fusion | _Refusal, node: Node, taken: _Fusion | None) -> FusionVerdict:
    c = found.chain
    if isinstance(found, _Refusal):
        return FusionVerdict(node, False, found.rule, found.text, c.value.nbytes)
    addend = _named(c.addend)
    if found is not taken:
        text = f"%{addend} is fused instead of %{c.value.name}: that leaves fewer bytes"
        return FusionVerdict(node, False, "not-best", text, found.saved)
    text = f"%{_made(node).name} is %{addend} plus what is made of %{_input(c.conv, 0).name} in scratch"
    text += f": %{_made(c.conv).name} needs no bytes"
    text += f"; it waits until %{addend} is made and read by others" if taken.moved else ""
    return FusionVerdict(node, True, "fused", text, found.saved)


def _named(value: Value | None) -> str:
    return "-" if value is None else value.name
