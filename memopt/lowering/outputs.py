"""The transfer policy and the sharing rules: where a node's outputs are written, and what their variables mean
afterwards.

An output whose variable is also a *transformed input* of the node is the case in which the policies differ:

  publish     written into the transfer-scope variable; the outer variable is rebound to it (the 2018 and 2.0 semantics)
  outer       written in the outer scope; nothing else happens
  fluid-1.5   written in the outer scope; then the outer variable is rebound to the transformed *input*: the result is
              lost

In the outer scope an output is written to its variable's bytes if they are on the kernel's device and large enough,
else to a new buffer. A share whose lender's bytes are on another device, or of another size after a change of dtype,
*dissolves*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memopt.devices import Placement
from memopt.ir import Node, Value, Variable, lies_as_view, view_input, view_steps
from memopt.lowering.placement import Choice
from memopt.lowering.program import Operand, Rebind, TransferPolicy
from memopt.lowering.scope import Draft, Location, Scope, is_odd, placed_bytes
from memopt.ops import DEFAULT_LAYOUT
from memopt.strides import Strided, Strides, canonical, extent
from memopt.types import itemsize

__all__ = ["Outputs", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of a share on real devices: given up ("dissolved"), or kept in another place ("moved")."""

    value: Value
    kept: bool
    reason: str
    num_bytes: int

    @property
    def rule(self) -> str:
        return "moved" if self.kept else "dissolved"


class _Wanted(NamedTuple):
    """An output to be placed: whose, what, how, and its bytes as placed."""

    node: Node
    value: Value
    placement: Placement
    size: int


@dataclass(slots=True)
class Outputs:
    """Places outputs under one policy. `turns` collects what became of shares, `taken` the copies that outputs
    overwrite; `viewed` says whether the last node made views in strides, for which no kernel runs.
    """

    scope: Scope
    policy: TransferPolicy
    turns: list[Turn] = field(default_factory=list)
    taken: list[Location] = field(default_factory=list)
    viewed: bool = False

    def place(
        self, node: Node, choice: Choice, inputs: tuple[Operand | None, ...], copies: Mapping[Variable, Location]
    ) -> tuple[tuple[Operand | None, ...], list[Rebind]]:
        """The outputs' operands, and the rebinds that follow the call. `copies` holds the transformed inputs by
        variable.
        """
        operands: list[Operand | None] = [None] * len(node.outputs)
        rebinds: list[Rebind] = []
        self.viewed = False
        for index, value in node.real_outputs:
            variable = self.scope.graph.storage.variable(value)
            copy = copies.get(variable)
            placement = choice.outputs[index]
            assert placement is not None, "a present output has a placement"
            want = _Wanted(node, value, placement, placed_bytes(value, placement))
            stepped = self._stepped(want, inputs, copies)
            if stepped is not None:
                place = after = stepped
                self.viewed = self.viewed or stepped.strides is not None
            elif self._was_stepped(value):
                place = after = self._fresh(variable.name, Location(-1, 0, placement), want.size, want.size)
            elif variable.strides is not None:
                place = after = self._apart(want, inputs)
            elif copy is not None and self.policy == "publish":
                place = after = self._into_copy(want, copy, inputs)
            else:
                place = self._into_outer(want, inputs, copies)
                after = copy if copy is not None and self.policy == "fluid-1.5" else place
            operands[index] = place.operand(variable.name, value.name)
            self.scope.bind(variable, after, self.scope.graph.storage.extent_bytes(value))
            if copy is not None and self.policy != "outer":
                target = after.operand(variable.name, value.name)
                rebinds.append(Rebind(node.name, variable.name, target, self.policy))
        return tuple(operands), rebinds

    def _stepped(
        self, want: _Wanted, inputs: tuple[Operand | None, ...], copies: Mapping[Variable, Location]
    ) -> Location | None:
        """Where the output lies if it is a view in strides of an input (or a run of one that is), and the input's bytes
        are where the graph says; None, and a turn, where that dissolved.
        """
        storage = self.scope.graph.storage
        found, variable = view_input(want.value), storage.variable(want.value)
        if found is None or not lies_as_view(storage, want.value):
            return None
        index, source = found
        lender, operand = storage.variable(source), inputs[index]
        if variable.strides is None and lender.strides is None:
            return None
        reason = None
        steps = None if operand is None else view_steps(want.value, operand.strides)
        if operand is None or lender in copies or operand.placement != want.placement:
            reason = f"%{source.name} was brought to {want.placement} for this node"
        elif is_odd(operand.placement, source) or _canonical(want.value, steps) != variable.strides:
            reason = f"%{source.name} does not lie there as the graph says, so no such strides say the view"
        if reason is not None or steps is None or operand is None:
            if variable.strides is not None:
                self.turns.append(Turn(want.value, False, f"share dissolved: {reason}", want.size))
            return None
        offset = operand.offset + steps.first * itemsize(operand.placement.dtype)
        return Location(operand.buffer, offset, want.placement, variable.strides)

    def _was_stepped(self, value: Value) -> bool:
        """Whether the graph says that `value` is a view in strides, or a run of one: given up, it is a copy of its own,
        since its source, brought here in another form perhaps, is no longer what the other bytes hold.
        """
        storage, found = self.scope.graph.storage, view_input(value)
        if found is None or not lies_as_view(storage, value):
            return False
        return any(storage.variable(one).strides is not None for one in (value, found[1]))

    def _apart(self, want: _Wanted, inputs: tuple[Operand | None, ...]) -> Location:
        """Where an output lies that is written in strides, as a part of what it is joined to."""
        scope, variable = self.scope, self.scope.graph.storage.variable(want.value)
        size = scope.graph.storage.extent_bytes(want.value)
        holder = scope.holder(variable, size)
        place = Location(*(holder or (-1, variable.offset)), want.placement, variable.strides)
        if is_odd(want.placement, want.value):
            reason: str | None = f"the kernel makes {want.placement}"
        elif holder is not None:
            reason = self._why_not(want._replace(size=size), place, inputs)
        else:
            reason = "the lender's bytes are elsewhere by now" if scope.holders.get(variable.buffer) else None
        if reason is not None:
            self.turns.append(Turn(want.value, False, f"share dissolved: {reason}", want.size))
            return self._fresh(variable.name, Location(-1, 0, want.placement), want.size, want.size)
        if holder is None:
            return self._fresh(variable.name, place, size, scope.nominal_bytes(variable.buffer))
        scope.grow(place.buffer, place.offset + size)
        return place

    def _into_copy(self, want: _Wanted, copy: Location, inputs: tuple[Operand | None, ...]) -> Location:
        there = Location(copy.buffer, copy.offset, want.placement)
        if self._why_not(want, there, inputs) is None:
            self.taken.append(there)
            return there
        variable = self.scope.graph.storage.variable(want.value)
        return self._fresh(f"{want.node.name}/{variable.name}", there, want.size, want.size)

    def _into_outer(
        self, want: _Wanted, inputs: tuple[Operand | None, ...], copies: Mapping[Variable, Location]
    ) -> Location:
        variable = self.scope.graph.storage.variable(want.value)
        limit = self.scope.nominal_bytes(variable.buffer)
        here = self.scope.locations.get(variable)
        holder = (here.buffer, here.offset) if here is not None else self.scope.holder(variable, want.value.nbytes)
        if holder is None:
            if not self.scope.holders.get(variable.buffer):
                there = Location(-1, variable.offset, want.placement)
                return self._fresh(variable.name, there, want.size, limit)
            return self._fresh(variable.name, Location(-1, 0, want.placement), want.size, want.size)
        there = Location(*holder, want.placement)
        reason = self._why_not(want, there, inputs) or self._spoilt(want, there, variable)
        if reason is None:
            self.scope.grow(there.buffer, there.offset + want.size)
            return there
        if here is None:
            copy = self._lenders_copy(want, variable, inputs, copies)
            if copy is not None:
                return copy
            self.turns.append(Turn(want.value, False, f"share dissolved: {reason}", want.size))
        return self._fresh(variable.name, Location(-1, 0, want.placement), want.size, want.size)

    def _lenders_copy(
        self, want: _Wanted, variable: Variable, inputs: tuple[Operand | None, ...], copies: Mapping[Variable, Location]
    ) -> Location | None:
        """The transfer-scope copy of the lender, if the lender is an input that was transformed for this node.

        The share follows its lender: the copy belongs to this node, and the lender dies here. Fluid has no such rule.
        """
        storage, spec = self.scope.graph.storage, want.node.spec
        for index, value in want.node.data_inputs if self.policy != "fluid-1.5" else ():
            lender, operand = storage.variable(value), inputs[index]
            copy = copies.get(lender)
            if copy is None or operand is None or (copy.buffer, copy.offset) != (operand.buffer, operand.offset):
                continue
            declared = any(p.input == index and p.output == want.value.index for p in spec.inplace)
            if lender.buffer is not variable.buffer or lender.offset != variable.offset or not declared:
                continue
            there = Location(copy.buffer, copy.offset, want.placement)
            if placed_bytes(value, copy.placement) == want.size and self._why_not(want, there, inputs) is None:
                device = want.placement.device
                text = f"the lender %{value.name} was copied to {device} for this node: the share follows it there"
                self.turns.append(Turn(want.value, True, text, want.size))
                self.taken.append(there)
                return there
        return None

    def _why_not(self, want: _Wanted, there: Location, inputs: tuple[Operand | None, ...]) -> str | None:
        """Why the output cannot have the bytes at `there`; None if it can."""
        draft = self.scope.drafts[there.buffer]
        device = want.placement.device
        if draft.device != device:
            return f"the lender's bytes are on {draft.device}, the kernel runs on {device}"
        if draft.home is not None and want.placement != draft.home:
            return f"the parameter lies there as {draft.home}, the kernel makes {want.placement}"
        if there.strides is None and want.size != want.value.nbytes and (there.offset or want.size > want.value.nbytes):
            return f"{want.placement} takes {want.size} bytes instead of {want.value.nbytes}"
        if not self.scope.fits(there.buffer, device, there.offset + want.size):
            return f"the lender has {max(draft.size, draft.limit)} bytes, {there.offset + want.size} are needed"
        for operand, value in zip(inputs, want.node.inputs, strict=True):
            if operand is not None and value is not None and self._unlike(want, there, (operand, value)):
                return f"on {device} %{value.name} is {operand.placement}, the output {want.placement}: unlike bytes"
        return None

    def _unlike(self, want: _Wanted, there: Location, read: tuple[Operand, Value]) -> bool:
        """Whether input and output would overlap in another way than the graph says, because of how they are placed."""
        operand, value = read
        width = extent(value.shape, operand.strides) * itemsize(operand.placement.dtype)
        if (
            operand.buffer != there.buffer
            or operand.offset >= there.offset + want.size
            or there.offset >= operand.offset + width
        ):
            return False
        if operand.placement.layout != want.placement.layout:
            return True
        if operand.strides is not None or there.strides is not None:
            mine, theirs = (self.scope.graph.storage.variable(one) for one in (want.value, value))
            planned = mine.buffer is theirs.buffer and operand.offset - there.offset == theirs.offset - mine.offset
            return not planned or (operand.strides, there.strides) != (theirs.strides, mine.strides)
        if value.nbytes == want.value.nbytes:
            return width != want.size
        return width != value.nbytes or want.size != want.value.nbytes or operand.placement.layout != DEFAULT_LAYOUT

    def _spoilt(self, want: _Wanted, there: Location, variable: Variable) -> str | None:
        """Why the output would spoil a value that is needed later: both have the same content, but not as placed."""
        if variable.buffer not in self.scope.odd and not is_odd(want.placement, want.value):
            return None
        for value, here in self.scope.needed_beside(variable, want.node):
            end = here.offset + placed_bytes(value, here.placement)
            if here.buffer != there.buffer or here.offset >= there.offset + want.size or there.offset >= end:
                continue
            alike = (here.placement.layout, here.placement.dtype) == (want.placement.layout, want.placement.dtype)
            if not alike or (want.size != want.value.nbytes and here.offset != there.offset):
                return f"%{value.name}, needed later, lies there as {here.placement}, the output is {want.placement}"
        return None

    def _fresh(self, name: str, there: Location, size: int, limit: int) -> Location:
        draft = Draft(name, there.placement.device, "arena", there.offset + size, limit)
        return Location(self.scope.new_buffer(draft), there.offset, there.placement, there.strides)


def _canonical(value: Value, steps: Strided | None) -> Strides | None:
    """The strides in which `value` would lie; () if it is no such view."""
    return () if steps is None else canonical(value.shape, steps.strides)
