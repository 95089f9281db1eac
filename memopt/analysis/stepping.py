"""May this output be no bytes at all, but a view in strides of what its input is stored in?

The safety argument. Let t, an output of node n at step s, step through the bytes of x from its first to its last
element. 1. n writes nothing: t's elements are there already. So every output of n must be such a view, or none is.
2. Until t's last reader those bytes hold what they hold at s: every other tenant of the buffer is apart from t in time
or in bytes, or holds the same content there.   3. Every reader of t has a kernel that takes these strides, or had none
anyhow (NumPy takes any).   4. t lies in no other buffer, nobody has bytes of t's own, and t need not outlive the step.
A view lengthens the life of what it is a view of: it is accepted if the peak does not rise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memopt.analysis.occupancy import Occupancy, Tenant
from memopt.analysis.sharing import Candidate, Reason, Verdict, candidates_of, judge, where_read
from memopt.ir import Graph, Node, SteppedView, Use, Value, stepped_view, view_input
from memopt.ops import KernelQuery, choose_calls

__all__ = ["ViewCandidate", "walk_views"]


@dataclass(frozen=True, slots=True)
class ViewCandidate:
    """Output `output` of `node` (at `step`) as a view of its input `source`; `view` is None if no strides say how."""

    node: Node
    step: int
    output: Value
    source: Value
    view: SteppedView | None

    @property
    def subject(self) -> tuple[str, str]:
        return (self.output.name, self.source.name)


Refusal = tuple[Reason, str]


def walk_views(graph: Graph) -> list[tuple[ViewCandidate, Verdict]]:
    """Make views of all outputs that can be, in the listed order; a verdict for each that its op declares a view.

    What was refused is asked again as long as a round takes something: bytes may have become free since.
    """
    occupancy = Occupancy(graph)
    found: dict[Value, tuple[ViewCandidate, Verdict]] = {}
    before = -1
    while sum(verdict.accepted for _, verdict in found.values()) > before:
        before = sum(verdict.accepted for _, verdict in found.values())
        for step, node in enumerate(graph.nodes):
            for _, output in node.real_outputs:  # their sources may lie in strides since
                occupancy.aliases.place(output)
            taken = {output for _, output in node.real_outputs if output in found and found[output][1].accepted}
            for c, verdict in _walk_node(occupancy, node, step, taken):
                found[c.output] = c, verdict
    return list(found.values())


def _walk_node(
    occupancy: Occupancy, node: Node, step: int, taken: Collection[Value]
) -> Iterator[tuple[ViewCandidate, Verdict]]:
    """The node's outputs that are not `taken`: runs of bytes one by one, views in strides all or none."""
    candidates = [c for c in _candidates(occupancy.graph, node, step) if c.output not in taken]
    verdicts = {c: _share_run(occupancy, c) for c in candidates if c.view is not None and c.view.strides is None}
    rest = [c for c in candidates if c not in verdicts]
    refusals = {c: _refusal(occupancy, c) for c in rest}
    whole = len(rest) == len(list(node.real_outputs))
    refused = next((c for c in rest if refusals[c] is not None), None)
    together = _peak_stays(occupancy, rest) if rest and refused is None and whole else None
    for c in rest:
        refusal = refusals[c] or together
        if refusal is None and not (whole and refused is None):
            stays = {one.output for one in rest} if refused is None else {one.output for one in rest if one != refused}
            other = next(output for _, output in node.real_outputs if output not in stays)
            text = f"%{c.output.name} is made by the call that makes %{other.name}, which is no view in strides"
            refusal = Reason.SIBLING, text
        verdicts[c] = _lay(occupancy, c) if refusal is None else Verdict(False, *refusal, c.output.nbytes)
    for c in candidates:
        yield c, verdicts[c]


def _lay(occupancy: Occupancy, c: ViewCandidate) -> Verdict:
    assert c.view is not None, "a refusal else"
    occupancy.lay(c.output, c.view)
    text = f"%{c.output.name} steps through the bytes of %{c.source.name} by {list(c.view.strides or ())}"
    return Verdict(True, Reason.VIEW, text, c.output.nbytes)


def _candidates(graph: Graph, node: Node, step: int) -> Iterator[ViewCandidate]:
    for _, output in node.real_outputs:
        found = view_input(output)
        if found is not None:
            yield ViewCandidate(node, step, output, found[1], stepped_view(graph.storage, output))


def _share_run(occupancy: Occupancy, c: ViewCandidate) -> Verdict:
    """A view that is one run of its source's bytes."""
    candidate = next(
        (one for one in candidates_of(occupancy.graph, c.node, c.step) if one.output is c.output and one.is_view), None
    )
    if candidate is None:
        return Verdict(False, Reason.NOTHING_TO_SAVE, f"%{c.output.name} has no bytes", 0)
    verdict = judge(occupancy, candidate)
    if verdict.accepted:
        _share(occupancy, candidate)
    return verdict


def _share(occupancy: Occupancy, candidate: Candidate) -> None:
    source = occupancy.graph.storage.variable(candidate.input)
    occupancy.share(candidate.output, source.buffer, source.offset + (candidate.view_offset or 0))


def _refusal(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    for check in (_is_free, _lies_so, _outlives, _devices_agree, _bytes_hold, _readers_take):
        refusal = check(occupancy, c)
        if refusal is not None:
            return refusal
    return None


def _is_free(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    graph, out = occupancy.graph, c.output
    left_out = next((name for name in (out.name, c.source.name) if name in graph.excluded), None)
    if left_out is not None:
        return Reason.EXCLUDED, f"%{left_out} is left out by request"
    if out.nbytes == 0:
        return Reason.NOTHING_TO_SAVE, f"%{out.name} has no bytes"
    if graph.storage.variable(out).strides is not None:
        return Reason.ALREADY_BORROWED, f"%{out.name} steps through the bytes of %{c.source.name} already"
    if len(occupancy.tenants(graph.storage.buffer(out))) > 1:
        others = [t.value.name for t in occupancy.tenants(graph.storage.buffer(out)) if t.value is not out]
        return Reason.ALREADY_BORROWED, f"%{out.name} shares its bytes with %{others[0]} already"
    return None


def _lies_so(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    if c.view is None:
        return Reason.OP_CONDITION, f"no strides say how %{c.output.name} steps through the bytes of %{c.source.name}"
    return None


def _outlives(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    kept = occupancy.liveness.kept.get(c.output)
    if kept is not None:
        return Reason.INPUT_IS_OUTPUT, f"%{c.output.name} is {kept}: it is stored element after element"
    return None


def _devices_agree(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    """Whoever makes what lies there runs where the view is made; of feeds and parameters lowering knows."""
    for tenant in occupancy.tenants(occupancy.graph.storage.buffer(c.source)):
        maker = tenant.value.producer
        if maker is not None and maker.device != c.node.device:
            text = f"%{tenant.value.name} is not made on the device of {c.node.name}"
            return Reason.DIFFERENT_DEVICE, text
    return None


def _bytes_hold(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    """Nobody writes other content between the first and the last element while the view is live."""
    assert c.view is not None, "asked before"
    into = occupancy.graph.storage.buffer(c.source)
    with occupancy.as_if(c.output, c.view) as tenant:
        other = occupancy.meets(tenant, into)
    return None if other is None else _met(occupancy, c, other)


def _met(occupancy: Occupancy, c: ViewCandidate, other: Tenant) -> Refusal:
    reader = occupancy.liveness.last_reader.get(c.output)
    until = f"%{c.output.name} is read {where_read(reader)}" if reader is not None else f"%{c.output.name} is live"
    return Reason.ALREADY_LENT, f"bytes of %{c.source.name} go to %{other.value.name} while {until}"


def _readers_take(occupancy: Occupancy, c: ViewCandidate) -> Refusal | None:
    assert c.view is not None, "asked before"
    for use in c.output.data_uses:
        if not _takes(occupancy.graph, use, c):
            text = f"the kernel of {use.node.op} takes no strides {list(c.view.strides or ())} as its input {use.index}"
            return Reason.IN_STRIDES, f"%{c.output.name} is read {where_read(use.node)}: {text}"
    return None


def _takes(graph: Graph, use: Use, c: ViewCandidate) -> bool:
    """Whether the reader has a kernel for these strides (and those of its other inputs), or is no worse off without; a
    reader on another device reads a copy."""
    node = use.node
    if node.device != c.node.device:
        return True
    storage = graph.storage
    strides = [None if v is None else storage.variable(v).strides for v in node.inputs]
    plain = KernelQuery(tuple(node.input_types), tuple(node.output_types), node.attrs, strides=tuple(strides))
    if choose_calls(node.spec, plain) is None:
        return True
    for index, value in enumerate(node.inputs):
        if value is c.output and node.spec.reads_data(index) and c.view is not None:
            strides[index] = c.view.strides
    query = KernelQuery(tuple(node.input_types), tuple(node.output_types), node.attrs, strides=tuple(strides))
    return choose_calls(node.spec, query) is not None


def _peak_stays(occupancy: Occupancy, group: Sequence[ViewCandidate]) -> Refusal | None:
    """All views of one node together, as each of them lengthens the life of the same bytes."""
    storage = occupancy.graph.storage
    source = storage.variable(group[0].source)
    rise = occupancy.rise_without([storage.buffer(c.output) for c in group], source.buffer)
    if rise <= 0:
        return None
    names = ", ".join(f"%{c.output.name}" for c in group)
    return Reason.RAISES_PEAK, f"holding the buffer of %{group[0].source.name} for {names} raises the peak by {rise} B"
