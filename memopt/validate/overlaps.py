"""Over what does a call write? Two outputs are apart, and an output meets an input only where the op allows it.

Holds true: operands are compared by the bytes that their elements have, but for a view in strides that is read as a run
of what it views: of that one all bytes count, from the first element to the last.
"""

from __future__ import annotations

from typing import NamedTuple

from memopt.ir import Node, Value
from memopt.ops import InplacePair
from memopt.strides import Strides
from memopt.types import TensorType
from memopt.validate.spaces import Pieces, Place, meets
from memopt.validate.state import State

__all__ = ["Access", "check_overlaps"]


class Access(NamedTuple):
    """One operand of a call: input or output number `slot`, its bytes from the first element to the last (`place`), and
    what they hold or will hold, where they lie in the space (`pieces`).

    `pieces` is None where in its strides it cannot lie; `dtype` is how it is stored; `steps` are the canonical
    `strides`. `reported` says that it is wrong in itself already, so that what the bytes hold is not asked.
    """

    slot: int
    value: Value
    place: Place
    pieces: Pieces | None
    dtype: str
    strides: Strides | None
    steps: Strides | None
    reported: bool

    def overlaps(self, other: Access) -> bool:
        """Whether both have a byte in common."""
        if not self.place.overlaps(other.place):
            return False
        return self.pieces is None or other.pieces is None or any(meets(self.pieces, other.pieces))


def check_overlaps(state: State, node: Node, operands: tuple[list[Access], list[Access]]) -> None:
    """Report outputs that share bytes with another output, or with an input over which the op must not write."""
    reads, writes = operands
    for i, write in enumerate(writes):
        for other in writes[:i]:
            if write.overlaps(other):
                pair = f"outputs %{other.value.name} ({other.place}) and %{write.value.name}"
                state.say(
                    "overlap", write.value.name, f"{pair} ({state.words.place(write.place)}) share bytes", write.place
                )
        met = [read for read in reads if read.overlaps(write) and not _same_bytes(state, read, write)]
        if met:
            _check_inplace(state, node, write, met, operands)


def _same_bytes(state: State, read: Access, write: Access) -> bool:
    """Whether the write leaves every byte that it shares with the read as it was: a view onto itself, or an input where
    it is joined."""
    if read.pieces is None or write.pieces is None:
        return False
    return all(state.images.alike(one, other) for one, other in meets(read.pieces, write.pieces))


def _check_inplace(
    state: State, node: Node, write: Access, met: list[Access], operands: tuple[list[Access], list[Access]]
) -> None:
    types = _placed_types(node, operands)
    refusals = {read.slot: _refusal(node, write, read, types) for read in met}
    repeatable = {read.value for read in met if refusals[read.slot] is None and _pair_repeats(node, write, read)}
    for read in met:
        kind, why = "illegal-inplace", refusals[read.slot]
        if read.place.lo != write.place.lo or (why is not None and read.place.hi != write.place.hi):
            kind = "overlap"
        elif why is not None and read.value in repeatable and read.steps == write.steps:
            continue
        elif why is None and len(met) > 1 and read.value not in repeatable:
            why = "another input is read from the same bytes"
        if why is None:
            continue
        output = f"output %{write.value.name} ({state.words.place(write.place)})"
        over = f"over input {read.slot}, %{read.value.name} ({read.place})"
        state.say(kind, write.value.name, f"writes {output} {over}: {why}", write.place)
        return


def _refusal(
    node: Node, write: Access, read: Access, types: tuple[list[TensorType | None], list[TensorType | None]]
) -> str | None:
    """Why this output must not be written over this input, or None where it may."""
    if read.steps != write.steps or (read.steps is not None and read.value.shape != write.value.shape):
        ways = ["one after the other" if one.steps is None else f"in strides {one.steps}" for one in (read, write)]
        return f"its elements are read {ways[0]}, those of the output are written {ways[1]}"
    same_start = read.place.lo == write.place.lo
    if node.spec.updates.get(write.slot) == read.slot and same_start and read.place.hi == write.place.hi:
        return None
    pair = _pair(node, write.slot, read.slot)
    if pair is None:
        return f"{node.op} declares no such in-place pair"
    if not same_start or (read.place.hi != write.place.hi and (pair.equal_bytes or write.place.hi > read.place.hi)):
        return "they share a part of their bytes only"
    return None if pair.condition is None else pair.condition(types[0], types[1], node.attrs)


def _pair(node: Node, output: int, source: int) -> InplacePair | None:
    return next((pair for pair in node.spec.inplace if pair.output == output and pair.input == source), None)


def _pair_repeats(node: Node, write: Access, read: Access) -> bool:
    pair = _pair(node, write.slot, read.slot)
    return pair is not None and pair.repeats


def _placed_types(
    node: Node, operands: tuple[list[Access], list[Access]]
) -> tuple[list[TensorType | None], list[TensorType | None]]:
    """The node's types with the dtypes in which the operands are stored."""
    inputs, outputs = list(node.input_types), list(node.output_types)
    for types, accesses in ((inputs, operands[0]), (outputs, operands[1])):
        for access in accesses:
            types[access.slot] = access.value.type.with_dtype(access.dtype)
    return inputs, outputs
