"""`FoldPad`: what reads a padded value reads the plain one with pads of its own; the padded copy is never made.

Edits nodes, not storage: each reader is rewritten, the Pad leaves the graph. Run it first, before passes that share.
A Pad that crops the gradient of a padded value is the same backwards: the gradient's node makes what is left at once.

The safety argument. Let p = Pad(x) be read by r1 ... rn alone. 1. The op of each r makes of x, with larger pads, what
it makes of p (`memopt.ops.own_pads`).   2. x's bytes are what they were until the last r: in its buffer nothing else
begins before that with other content, and under its name nothing at all.   3. What had to run before the Pad runs
before each r, what had to run after it stands after every r, and now must.

x is as large as p at most, and lives until the last r where p lived till then: the peak can rise only where x holds
more than its own bytes, or where an r needs scratch for its pads. Both are compared. For a crop d = Pad(g) the same
holds of d, which begins where g did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from memopt.analysis import ExecutionOrder, Occupancy, Reason, Tenant, check_order, where_read
from memopt.errors import VerifyError
from memopt.ir import Graph, Node, Value
from memopt.ops import Attrs, KernelQuery, Padding, is_at_least_zero, own_crop, own_pads
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
    padded, source = pad.outputs[0], pad.inputs[0]
    assert padded is not None
    assert source is not None
    crops = any(number < 0 for number in cast("tuple[int, ...]", pad.attrs["pads"]))
    found = _crop(graph, pad, padded, source) if crops else _fold(graph, pad)
    accepted = isinstance(found, str)
    rule, text = ("folded", found) if isinstance(found, str) else found
    num_bytes = (source if crops else padded).nbytes
    return Decision(FoldPad.name, pad.name, (padded.name, source.name), accepted, text, num_bytes, step, rule)


def _fold(graph: Graph, pad: Node) -> str | Refusal:
    """Let the readers of `pad` read its input, and say so."""
    fold = _readable(graph, pad)
    if isinstance(fold, tuple):
        return fold
    refusal = _unordered(graph, fold) or _cost(graph, fold)
    if refusal is not None:
        return refusal
    who = " and ".join(map(where_read, fold.readers))
    _apply(graph, fold)
    return f"%{fold.padded.name} is %{fold.source.name} between pads, read as such {who}"


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
    mine = _tenant(occupancy, fold.source)
    end = steps[last] + 1
    other = _meets(occupancy, mine, mine.end - 1, end)
    if other is not None:
        text = f"%{fold.source.name} has lent its bytes to %{other.value.name} by the time it would be read"
        return Reason.ALREADY_LENT, f"{text} {where_read(last)}"
    longer = mine._replace(end=max(mine.end, end))
    rise, scratch = _rise(occupancy, fold.padded, longer), _more_scratch(graph, fold.readers, fold.padded, fold.source)
    if rise + scratch > 0:
        text = f"holding %{fold.source.name} until it is read {where_read(last)} raises the peak by {rise} B"
        text = text if rise > 0 else f"the pads of {last.name} take {scratch} B of scratch, %{fold.padded.name} less"
        return Reason.RAISES_PEAK, text
    return None


def _tenant(occupancy: Occupancy, value: Value) -> Tenant:
    return next(t for t in occupancy.tenants(occupancy.graph.storage.buffer(value)) if t.value is value)


def _meets(occupancy: Occupancy, mine: Tenant, start: int, end: int) -> Tenant | None:
    """Who would be spoilt by, or spoil, `mine` during steps `[start, end)`."""
    for other in occupancy.tenants(occupancy.graph.storage.buffer(mine.value)):
        if other is not mine and other.start < end and other.end > start and _spoils(occupancy, mine, other):
            return other
    return None


def _spoils(occupancy: Occupancy, mine: Tenant, other: Tenant) -> bool:
    """Whether `other` is in the bytes of `mine` with other content, or under its name."""
    storage = occupancy.graph.storage
    if storage.variable(mine.value) is storage.variable(other.value):
        return True
    return other.low < mine.high and mine.low < other.high and not occupancy.same_content(mine, other)


def _rise(occupancy: Occupancy, gone: Value, moved: Tenant) -> int:
    """By how many bytes the peak rises (below 0: falls) if `gone` is not made, and a tenant lives as `moved` does."""
    before = np.sum([occupancy.profile(home) for home in occupancy.homes], axis=0)
    after = before.copy()
    storage = occupancy.graph.storage
    for buffer in dict.fromkeys((storage.buffer(moved.value), storage.buffer(gone))):
        old = occupancy.tenants(buffer)
        new = [moved if t.value is moved.value else t for t in old if t.value is not gone]
        for tenants, sign in ((old, -1), (new, 1)):
            if tenants:
                span = slice(min(t.start for t in tenants), max(t.end for t in tenants))
                after[span] += sign * max(t.high for t in tenants)
    return int(after.max()) - int(before.max())


def _more_scratch(graph: Graph, nodes: Mapping[Node, Attrs], old: Value, new: Value) -> int:
    """By how many bytes one of `nodes`, with these attributes and `new` for `old`, needs more scratch than any now."""
    most = 0
    for node, attrs in nodes.items():
        inputs, outputs = (
            tuple(new.type if v is old else None if v is None else v.type for v in values)
            for values in (node.inputs, node.outputs)
        )
        most = max(most, node.spec.workspace(KernelQuery(inputs, outputs, attrs)))
    if most <= max(_scratch(node) for node in nodes):
        return 0
    return max(most - max(_scratch(node) for node in graph.nodes), 0)


def _scratch(node: Node) -> int:
    return node.spec.workspace(KernelQuery(node.input_types, node.output_types, node.attrs))


# -- gradients --------------------------------------------------------------------------------------------------------


def _cropped_attrs(pad: Node, node: Node | None, cropped: Value) -> Attrs | str:
    """The attributes with which `node` makes `cropped`, which `pad` cuts out of what it makes now."""
    pads, rank = cast("tuple[int, ...]", pad.attrs["pads"]), len(cropped.shape)
    before, after = pads[:rank], pads[rank:]
    if pad.attrs["mode"] != "constant" or any(number > 0 for number in pads):
        return f"pads = {pads} do not only crop"
    if any((*before[:2], *after[:2])):
        return f"pads = {pads} crop batch or channels"
    if node is None:
        return "no node makes it"
    padding = Padding(cropped.type, tuple(-n for n in before[2:]), tuple(-n for n in after[2:]), 0.0)
    return own_crop(node.op, node.input_types, node.attrs, padding)


def _only_cropped(graph: Graph, cropped: Value, gradient: Value) -> Refusal | None:
    """Why the whole gradient must stay."""
    left_out = next((v.name for v in (cropped, gradient) if v.name in graph.excluded), None)
    if left_out is not None:
        return Reason.EXCLUDED, f"%{left_out} is left out by request"
    if gradient in graph.outputs:
        return Reason.INPUT_IS_OUTPUT, f"%{gradient.name} is an output of the graph"
    others = [use.node for use in gradient.uses if use.node is not cropped.producer]
    if others:
        return Reason.NOT_LAST_USE, f"%{gradient.name} is read {where_read(others[0])} too"
    return None


def _crop(graph: Graph, pad: Node, cropped: Value, gradient: Value) -> str | Refusal:
    """Let the node of `gradient` make `cropped` at once, and say so."""
    node = gradient.producer
    attrs = _cropped_attrs(pad, node, cropped)
    if node is None or isinstance(attrs, str):
        maker = "" if node is None else f", made by node {node.name} ({node.op})"
        return Reason.OP_CONDITION, f"%{cropped.name} is cut out of %{gradient.name}{maker}: {attrs}"
    refusal = _only_cropped(graph, cropped, gradient) or _place(graph, pad, gradient)
    if refusal is not None:
        return refusal
    occupancy, step = Occupancy(graph), graph.steps()[node]
    mine = _tenant(occupancy, cropped)
    other = _meets(occupancy, mine, step, mine.start)
    if other is not None:
        text = f"%{cropped.name} has borrowed bytes in which %{other.value.name} is when node {node.name} runs"
        return Reason.ALREADY_BORROWED, text
    rise = _rise(occupancy, gradient, mine._replace(start=step))
    rise += _more_scratch(graph, {node: attrs}, gradient, cropped)
    if rise > 0:
        return Reason.RAISES_PEAK, f"making %{cropped.name} when %{gradient.name} is made takes {rise} B more"
    try:
        graph.replace_nodes([node, pad], node.op, node.inputs, attrs, step=step)
    except VerifyError as error:
        return Reason.UNORDERED, f"%{cropped.name} cannot be made when %{gradient.name} is: {error}"
    return f"node {node.name} ({node.op}) need not make the pads of %{gradient.name}, which are cut off"
