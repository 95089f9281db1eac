"""May this output take over the bytes of that input? The predicates that in-place passes share.

The safety argument. Let node n at step s compute output o over the bytes of input x.
1. Every other reader of x's bytes, under whatever name (views included), comes before s in the listed order; what must
hold to the end counts as read at the end.   2. n itself reads those bytes only as operands for which the op allows it.
3. After the merge, tenants of one buffer are apart in time or in bytes, or hold the same content, except x and o, which
hand over at s, and pairs that move along and hand over in the same way at their own steps.   4. o is the first tenant
of its buffer, or of its bytes there if it is a part of a join: it borrows once.
A view needs 3 only: it writes what is there already. `judge` checks all of it, and says in words what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from memopt.analysis.alias import joined_in, view_in
from memopt.analysis.liveness import Kept, updated_value
from memopt.analysis.occupancy import Occupancy, Tenant
from memopt.ir import Graph, Node, Value, Variable
from memopt.ops import InplacePair
from memopt.types import itemsize

__all__ = [
    "Candidate",
    "Reason",
    "Verdict",
    "candidates_of",
    "judge",
    "op_refusal",
    "param_variables",
    "pinned_variables",
    "where_read",
]


class Reason(StrEnum):
    """The names of reasons, for accepting (the first five) and refusing."""

    IN_PLACE = "in-place"
    VIEW = "view"
    REUSE = "reuse"
    JOINED = "joined"
    FLUID = "fluid"
    NOT_LAST_USE = "not-last-use"
    INPUT_IS_OUTPUT = "input-is-output"
    INPUT_IS_PINNED = "input-is-pinned"
    OP_CONDITION = "op-condition"
    SIZE_DIFFERS = "size-differs"
    DTYPE_WIDTH_DIFFERS = "dtype-width-differs"
    REPEATED_OPERAND = "repeated-operand"
    VIEW_IS_READ_LATER = "view-is-read-later"
    ALREADY_LENT = "already-lent"
    ALREADY_BORROWED = "already-borrowed"
    RAISES_PEAK = "raises-peak"
    NO_CANDIDATE = "no-candidate"
    UPDATE_OUTPUT = "update-output"
    DIFFERENT_DEVICE = "different-device"
    NOTHING_TO_SAVE = "nothing-to-save"
    OFFSET_DIFFERS = "offset-differs"
    UNORDERED = "unordered"
    NOT_IN_TABLE = "not-in-table"
    EXCLUDED = "excluded"
    IN_STRIDES = "in-strides"
    SIBLING = "sibling"
    TOO_SMALL = "too-small"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason, in words that name the values, and the bytes that are saved or would be."""

    accepted: bool
    reason: Reason
    text: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """Output `output` of `node` (at `step`) over its input number `index`.

    `view_offset` is where the output lies in the input if it is a view of it, else None; `pair` is the op's in-place
    entry, if there is one.
    """

    node: Node
    step: int
    output: Value
    input: Value
    index: int
    view_offset: int | None
    pair: InplacePair | None

    @property
    def is_view(self) -> bool:
        return self.view_offset is not None

    @property
    def subject(self) -> tuple[str, str]:
        return (self.output.name, self.input.name)


def candidates_of(graph: Graph, node: Node, step: int) -> Iterator[Candidate]:
    """Every (output, input value) of `node` that its op declares as view, in-place pair or update, output by output."""
    for number, output in node.real_outputs:
        pairs = {p.input: p for p in node.spec.inplace if p.output == number}
        views = [v.input for v in node.spec.views if v.output in (number, -1)]
        source = view_in(graph.storage, output)
        indexes = [*views, *pairs, *(i for o, i in node.spec.updates.items() if o == number)]
        seen: set[Value] = set()
        for index in sorted(set(indexes)):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or value in seen:
                continue
            seen.add(value)
            offset = source[1] if source is not None and index in views else None
            yield Candidate(node, step, output, value, index, offset, pairs.get(index))


def judge(occupancy: Occupancy, candidate: Candidate) -> Verdict:
    """Whether `candidate` is sound, costs nothing, and saves something; see the safety argument above."""
    for check in _CHECKS:
        refusal = check(occupancy, candidate)
        if refusal is not None:
            return Verdict(False, *refusal, candidate.output.nbytes)
    saved = occupancy.size(occupancy.graph.storage.buffer(candidate.output))
    out, source = candidate.output.name, candidate.input.name
    if candidate.is_view:
        return Verdict(True, Reason.VIEW, f"%{out} is a view of %{source}", saved)
    return Verdict(True, Reason.IN_PLACE, f"%{source} dies here and %{out} takes its bytes", saved)


def where_read(node: Node) -> str:
    """`by node foo (Add)`, for messages."""
    return f"by node {node.name} ({node.op})"


Refusal = tuple[Reason, str]


def op_refusal(occupancy: Occupancy, candidate: Candidate) -> Refusal | None:
    """The part of `judge` that holds under any rules: the output is free to move, and the op allows the pair."""
    return _output_is_free(occupancy, candidate) or _is_declared(occupancy, candidate)


def param_variables(graph: Graph) -> set[Variable]:
    """The variables of parameters; updates of a parameter are among their values."""
    return {graph.storage.variable(value) for value in graph.params}


def pinned_variables(graph: Graph) -> set[Variable]:
    """The variables of parameters and of feeds that are not donated."""
    feeds = {graph.storage.variable(value) for value in graph.inputs if value.name not in graph.donated}
    return feeds | param_variables(graph)


def _output_is_free(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    storage = occupancy.graph.storage
    out, source = c.output.name, c.input.name
    left_out = next((name for name in (out, source) if name in occupancy.graph.excluded), None)
    if left_out is not None:
        return Reason.EXCLUDED, f"%{left_out} is left out by request"
    if updated_value(c.output) is not None:
        return Reason.UPDATE_OUTPUT, f"%{out} is an update: it has its variable by definition"
    if storage.variable(c.output).strides is not None:
        return Reason.IN_STRIDES, f"%{out} lies in strides already"
    if c.output.nbytes == 0:
        return Reason.NOTHING_TO_SAVE, f"%{out} has no bytes"
    if storage.buffer(c.output) is storage.buffer(c.input):
        return Reason.ALREADY_BORROWED, f"%{out} lies in the buffer of %{source} already"
    if not occupancy.begins(c.output) and not _is_joined(occupancy, c.output):
        return Reason.ALREADY_BORROWED, f"%{out} lies in buffer {storage.buffer(c.output).name} already"
    return None


def _is_joined(occupancy: Occupancy, value: Value) -> bool:
    """Whether `value` shares its buffer as a part of what it is joined to, and has borrowed no bytes itself."""
    storage = occupancy.graph.storage
    mine = storage.variable(value)
    for tenant in occupancy.tenants(mine.buffer):
        start = occupancy.liveness.intervals[value].start
        meets = tenant.low < mine.offset + storage.extent_bytes(value) and mine.offset < tenant.high
        if meets and tenant.start < start:
            return False
    return any(
        part.source is value and storage.buffer(output) is mine.buffer
        for use in value.uses
        for _, output in use.node.real_outputs
        for part in joined_in(storage, output)
    )


def _is_declared(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    if c.is_view:
        return None
    if occupancy.graph.storage.variable(c.input).strides is not None:
        return Reason.IN_STRIDES, f"%{c.input.name} is a view that lies in strides: nothing is written over it"
    if c.pair is None:
        return Reason.OP_CONDITION, f"for these types %{c.output.name} is not one run of the bytes of %{c.input.name}"
    if c.pair.condition is not None:
        text = c.pair.condition(c.node.input_types, c.node.output_types, c.node.attrs)
        if text is not None:
            return Reason.OP_CONDITION, f"{c.node.op} of %{c.input.name}: {text}"
    return None


def _input_is_ours(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    kept = occupancy.liveness.kept.get(c.input)
    if kept is None or c.is_view:
        return None
    return _kept_reason(kept), f"%{c.input.name} is {kept}"


def _bytes_fit(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    if c.is_view or c.pair is None:
        return None
    new, old = c.output, c.input
    if c.pair.equal_bytes and itemsize(new.dtype) != itemsize(old.dtype):
        text = f"an element of %{new.name} ({new.type}) is not as wide as one of %{old.name} ({old.type})"
        return Reason.DTYPE_WIDTH_DIFFERS, text
    if new.nbytes > old.nbytes or (c.pair.equal_bytes and new.nbytes != old.nbytes):
        return Reason.SIZE_DIFFERS, f"%{new.name} takes {new.nbytes} B, %{old.name} has {old.nbytes} B"
    return None


def _operands_allow(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    if c.is_view or c.pair is None or c.pair.repeats:
        return None
    if sum(value is c.input for _, value in c.node.data_inputs) > 1:
        return Reason.REPEATED_OPERAND, f"%{c.input.name} is an operand of {c.node.op} more than once"
    return None


def _bytes_are_free(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    storage = occupancy.graph.storage
    low = storage.variable(c.input).offset + (c.view_offset or 0)
    shift = low - storage.variable(c.output).offset
    moving, into = storage.buffer(c.output), storage.buffer(c.input)
    if any(variable.offset + shift < 0 for variable in storage.variables_of(moving)):
        return Reason.OFFSET_DIFFERS, f"what shares bytes with %{c.output.name} would start before the buffer"
    for mine, theirs in occupancy.clashes(moving, into, shift):
        if not _hands_over(occupancy, c, mine, theirs):
            return _clash_reason(occupancy, c, mine, theirs)
    return _outputs_stay_apart(occupancy, c, low)


def _hands_over(occupancy: Occupancy, c: Candidate, mine: Tenant, theirs: Tenant) -> bool:
    """Whether one of the two dies where the node of the other may write over it: x and o, or what moves with o."""
    if mine.value is c.output:
        return _takes_over(occupancy, c, mine, theirs)
    return hand_over(occupancy, mine, theirs) or hand_over(occupancy, theirs, mine)


def hand_over(occupancy: Occupancy, taker: Tenant, giver: Tenant) -> bool:
    """Whether the node that makes `taker` may compute it over `giver`, which dies there."""
    node = taker.value.producer
    if node is None or giver.end != taker.start + 1:
        return False
    for candidate in candidates_of(occupancy.graph, node, taker.start):
        if candidate.output is taker.value and candidate.input is giver.value:
            checks = (_is_declared, _bytes_fit, _operands_allow)
            sound = all(check(occupancy, candidate) is None for check in checks)
            return sound and _takes_over(occupancy, candidate, taker, giver)
    return False


def _takes_over(occupancy: Occupancy, c: Candidate, mine: Tenant, theirs: Tenant) -> bool:
    """Whether `theirs` is x itself, or x under another name, and is last read by this node, as the op allows."""
    if c.is_view or c.pair is None or theirs.value in occupancy.liveness.kept:
        return False
    if theirs.end != c.step + 1 or theirs.low != mine.low:
        return False
    if theirs.value is c.input:
        return True
    if occupancy.graph.storage.variable(theirs.value).strides is not None:
        return False  # read in another order than the output is written in
    read_here = any(value is theirs.value for _, value in c.node.data_inputs)
    return c.pair.repeats and read_here and theirs.value.type == c.input.type


def _clash_reason(occupancy: Occupancy, c: Candidate, mine: Tenant, theirs: Tenant) -> Refusal:
    graph, source, other = occupancy.graph, c.input.name, theirs.value.name
    reader = occupancy.liveness.last_reader.get(theirs.value)
    kept = occupancy.liveness.kept.get(theirs.value)
    if theirs.value is not c.input and theirs.value.producer is not None and theirs.start >= c.step:
        return Reason.ALREADY_LENT, f"bytes of %{source} go to %{other}, made {where_read(theirs.value.producer)}"
    if kept is not None:
        return _kept_reason(kept), f"%{source} holds bytes of %{other}, which is {kept}"
    if theirs.value is c.input:
        later = reader or graph.nodes[theirs.end - 1]
        return Reason.NOT_LAST_USE, f"%{source} is read later {where_read(later)}"
    if theirs.end == c.step + 1:
        return Reason.REPEATED_OPERAND, f"%{source} and %{other} share bytes, and {c.node.op} reads both"
    text = f"%{other} holds bytes of %{source} and is read later {where_read(reader or graph.nodes[theirs.end - 1])}"
    return Reason.VIEW_IS_READ_LATER, text


def _outputs_stay_apart(occupancy: Occupancy, c: Candidate, low: int) -> Refusal | None:
    """An output of the graph shares bytes with no other output, feed or parameter (its owner may write to it)."""
    if not c.is_view or occupancy.liveness.kept.get(c.output) is not Kept.OUTPUT:
        return None
    for tenant in occupancy.tenants_after(occupancy.graph.storage.buffer(c.input), c.step):
        kept = occupancy.liveness.kept.get(tenant.value)
        if kept is not None and tenant.low < low + c.output.nbytes and low < tenant.high:
            text = f"%{c.output.name} is an output of the graph, and %{tenant.value.name} is {kept}: they stay apart"
            return _kept_reason(kept), text
    return None


def _peak_stays(occupancy: Occupancy, c: Candidate) -> Refusal | None:
    storage = occupancy.graph.storage
    shift = storage.variable(c.input).offset + (c.view_offset or 0) - storage.variable(c.output).offset
    rise = occupancy.rise(storage.buffer(c.output), storage.buffer(c.input), shift)
    if rise <= 0:
        return None
    return Reason.RAISES_PEAK, f"holding the buffer of %{c.input.name} for %{c.output.name} raises the peak by {rise} B"


def _kept_reason(kept: Kept) -> Reason:
    return Reason.INPUT_IS_OUTPUT if kept is Kept.OUTPUT else Reason.INPUT_IS_PINNED


Check = Callable[[Occupancy, Candidate], "Refusal | None"]

_CHECKS: tuple[Check, ...] = (
    _output_is_free,
    _is_declared,
    _bytes_fit,
    _operands_allow,
    _input_is_ours,
    _bytes_are_free,
    _peak_stays,
)
