"""`FoldPad`: what reads a padded value reads the plain one with pads of its own; the padded copy is never made.

Edits nodes, not storage: each reader is rewritten, the Pad leaves the graph. Run it first, before passes that share.

The safety argument. Let p = Pad(x) be read by r1 ... rn alone. 1. The op of each r makes of x, with larger pads, what
it makes of p (`memopt.ops.own_pads`).   2. x's bytes are what they were until the last r: in its buffer nothing else
begins before that with other content, and under its name nothing at all.   3. What had to run before the Pad runs
before each r, what had to run after it stands after every r, and now must.

x is as large as p at most, and lives until the last r where p lived till then: the peak can rise only where x holds
more than its own bytes, or where an r needs scratch for its pads. Both are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from memopt.analysis import ExecutionOrder, Occupancy, Reason, Tenant, check_order, where_read
from memopt.ir import Graph, Node, Value
from memopt.ops import Attrs, KernelQuery, Padding, is_at_least_zero, own_pads
from memopt.pipeline import Decision, PassResult
from passes.results import pass_result

__all__ = ["FoldPad", "fold_pad"]

Refusal = tuple[str, str]


@dataclass(frozen=True)
class FoldPad:
    """Padding is read as pads wherever every reader can, and the peak of live bytes does not rise.

    `order="any"` adds the control edges that storage needs after it.
    """

    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "fold-pad"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        return pass_result(self.name, graph, fold_pad(graph), self.order)


@dataclass(frozen=True, slots=True)
class _Fold:
    """`pad` makes `padded` of `source`; each of `readers` can read the source with the attributes that stand there."""

    pad: Node
    source: Value
    padded: Value
    readers: Mapping[Node, Attrs]


def fold_pad(graph: Graph) -> list[Decision]:
    """Fold every Pad that can be; a decision for each, at the steps before the pass."""
    found: dict[str, Decision] = {}
    waiting = [(step, node.name) for step, node in enumerate(graph.nodes) if node.op == "Pad"][::-1]
    folded = True
    while folded:  # one that is folded may make room for another
        folded = False
        for step, name in list(waiting):
            found[name] = decision = _decide(graph, graph.node(name), step)
            if decision.accepted:
                waiting.remove((step, name))
                folded = True
    return sorted(found.values(), key=lambda decision: decision.step)


def _decide(graph: Graph, pad: Node, step: int) -> Decision:
    """Fold `pad` if that is sound and costs nothing."""
    fold = _readable(graph, pad)
    refusal = fold if isinstance(fold, tuple) else (_unordered(graph, fold) or _cost(graph, fold))
    padded, source = pad.outputs[0], pad.inputs[0]
    assert padded is not None
    assert source is not None
    subject, num_bytes = (padded.name, source.name), padded.nbytes
    if refusal is not None:
        return Decision(FoldPad.name, pad.name, subject, False, refusal[1], num_bytes, step, refusal[0])
    assert isinstance(fold, _Fold)
    who = " and ".join(map(where_read, fold.readers))
    _apply(graph, fold)
    text = f"%{padded.name} is %{source.name} between pads, read as such {who}"
    return Decision(FoldPad.name, pad.name, subject, True, text, num_bytes, step, "folded")


def _apply(graph: Graph, fold: _Fold) -> None:
    after = [node.name for node in graph.nodes if fold.pad in node.controls and node not in fold.readers]
    names = [node.name for node in fold.readers]
    for node, attrs in fold.readers.items():
        inputs = [fold.source if value is fold.padded else value for value in node.inputs]
        graph.replace_nodes([node], node.op, inputs, attrs, step=graph.steps()[node])
    for name in names:
        controls = graph.node(name).controls
        controls.extend(before for before in fold.pad.controls if before not in controls)
    for name in after:
        controls = graph.node(name).controls
        controls.extend(node for node in map(graph.node, names) if node not in controls)
    graph.remove_node(fold.pad)


# -- 1. who can read it -----------------------------------------------------------------------------------------------


def _readable(graph: Graph, pad: Node) -> _Fold | Refusal:
    """The fold, as far as the ops of the readers go."""
    padded, source = pad.outputs[0], pad.inputs[0]
    assert padded is not None
    assert source is not None
    refusal = _wanted(graph, padded, source) or _place(graph, pad, source)
    if refusal is not None:
        return refusal
    padding = _padding(pad, source)
    if isinstance(padding, str):
        return Reason.OP_CONDITION, f"%{padded.name} cannot be pads of its readers: {padding}"
    readers: dict[Node, Attrs] = {}
    for node, index in padded.uses:
        attrs = own_pads(node.op, index, node.input_types, node.attrs, len(node.outputs), padding)
        if isinstance(attrs, str):
            return Reason.OP_CONDITION, f"%{padded.name} is read {where_read(node)}: {attrs}"
        if node.device != pad.device:
            text = f"%{padded.name} is made on {pad.device} and read on {node.device} {where_read(node)}"
            return Reason.DIFFERENT_DEVICE, text
        readers[node] = attrs
    return _Fold(pad, source, padded, readers)


def _wanted(graph: Graph, padded: Value, source: Value) -> Refusal | None:
    """Why the padded value must stay, or nobody misses it."""
    if padded in graph.outputs:
        return Reason.INPUT_IS_OUTPUT, f"%{padded.name} is an output of the graph"
    left_out = next((v.name for v in (padded, source) if v.name in graph.excluded), None)
    if left_out is not None:
        return Reason.EXCLUDED, f"%{left_out} is left out by request"
    if padded.name in graph.inplace.stopped:
        return Reason.EXCLUDED, f"gradients stop at %{padded.name}"
    return None if padded.uses else (Reason.NO_CANDIDATE, f"nobody reads %{padded.name}")


def _place(graph: Graph, pad: Node, source: Value) -> Refusal | None:
    """Why only the Pad reads the source where it lies."""
    if source.producer is not None and source.producer.device != pad.device:
        text = f"%{source.name} is made on {source.producer.device}, and node {pad.name} ({pad.op}) runs"
        return Reason.DIFFERENT_DEVICE, f"{text} on {pad.device}"
    if graph.storage.variable(source).strides is not None:
        return Reason.OP_CONDITION, f"%{source.name} is stored in strides, which node {pad.name} ({pad.op}) can read"
    return None


def _padding(pad: Node, source: Value) -> Padding | str:
    """What `pad` adds around the spatial axes, or why it is no such padding."""
    pads, rank = cast("tuple[int, ...]", pad.attrs["pads"]), len(source.shape)
    before, after = pads[:rank], pads[rank:]
    if pad.attrs["mode"] != "constant":
        return f"mode = {pad.attrs['mode']!r} repeats the data"
    if any(number < 0 for number in pads):
        return f"pads = {pads} crop"
    if any((*before[:2], *after[:2])):
        return f"pads = {pads} add to batch or channels"
    producer = source.producer
    at_least_zero = producer is not None and is_at_least_zero(producer.op, producer.attrs)
    return Padding(source.type, before[2:], after[2:], cast(float, pad.attrs["value"]), at_least_zero)


# -- 2. and 3. until when the source is whole, and in which order -----------------------------------------------------


def _unordered(graph: Graph, fold: _Fold) -> Refusal | None:
    """Who must run after the Pad but stands before a reader."""
    steps = graph.steps()
    last = max(fold.readers, key=steps.__getitem__)
    for node in graph.nodes:
        if fold.pad in node.controls and node not in fold.readers and steps[node] < steps[last]:
            text = f"node {node.name} ({node.op}) must run after {fold.pad.name}, and stands before {last.name}"
            return Reason.UNORDERED, f"{text}, which reads %{fold.padded.name}"
    return None


def _cost(graph: Graph, fold: _Fold) -> Refusal | None:
    """What would be written over the source before its new last reader; by how much the peak would rise."""
    occupancy, steps = Occupancy(graph), graph.steps()
    last = max(fold.readers, key=steps.__getitem__)
    end = steps[last] + 1
    buffer = graph.storage.buffer(fold.source)
    mine = next(t for t in occupancy.tenants(buffer) if t.value is fold.source)
    for other in occupancy.tenants(buffer):
        in_time = other.start < end and other.end > mine.end - 1
        if other is not mine and in_time and _spoils(occupancy, mine, other):
            text = f"%{fold.source.name} has lent its bytes to %{other.value.name} by the time it would be read"
            return Reason.ALREADY_LENT, f"{text} {where_read(last)}"
    rise, scratch = _rise(occupancy, fold, end), _more_scratch(graph, fold)
    if rise + scratch > 0:
        text = f"holding %{fold.source.name} until it is read {where_read(last)} raises the peak by {rise} B"
        text = text if rise > 0 else f"the pads of {last.name} take {scratch} B of scratch, %{fold.padded.name} less"
        return Reason.RAISES_PEAK, text
    return None


def _spoils(occupancy: Occupancy, mine: Tenant, other: Tenant) -> bool:
    """Whether `other` is in the bytes of `mine` with other content, or under its name."""
    storage = occupancy.graph.storage
    if storage.variable(mine.value) is storage.variable(other.value):
        return True
    return other.low < mine.high and mine.low < other.high and not occupancy.same_content(mine, other)


def _rise(occupancy: Occupancy, fold: _Fold, end: int) -> int:
    """By how many bytes the peak rises (below 0: falls) if the source lives to `end`, and the padded value never."""
    before = np.sum([occupancy.profile(home) for home in occupancy.homes], axis=0)
    after = before.copy()
    storage = occupancy.graph.storage
    for buffer in dict.fromkeys((storage.buffer(fold.source), storage.buffer(fold.padded))):
        old = occupancy.tenants(buffer)
        for tenants, sign in ((old, -1), (list(_changed(old, fold, end)), 1)):
            if tenants:
                span = slice(min(t.start for t in tenants), max(t.end for t in tenants))
                after[span] += sign * max(t.high for t in tenants)
    return int(after.max()) - int(before.max())


def _changed(tenants: Iterable[Tenant], fold: _Fold, end: int) -> Iterator[Tenant]:
    for tenant in tenants:
        if tenant.value is fold.source:
            yield tenant._replace(end=max(tenant.end, end))
        elif tenant.value is not fold.padded:
            yield tenant


def _more_scratch(graph: Graph, fold: _Fold) -> int:
    """By how many bytes a reader needs more scratch with its pads than any node needs now."""
    most = 0
    for node, attrs in fold.readers.items():
        types = [fold.source.type if v is fold.padded else None if v is None else v.type for v in node.inputs]
        most = max(most, node.spec.workspace(KernelQuery(tuple(types), node.output_types, attrs)))
    if most <= max(_scratch(node) for node in fold.readers):
        return 0
    return max(most - max(_scratch(node) for node in graph.nodes), 0)


def _scratch(node: Node) -> int:
    return node.spec.workspace(KernelQuery(node.input_types, node.output_types, node.attrs))
