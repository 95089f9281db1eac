"""The run-time sanitizer: who owns which bytes, checked at each step on the real arena.

It trusts neither the plan nor the validator. A *shadow* of each arena, and of each output's own space, holds, for every
byte, the buffer that was written there last (or none): reading bytes that another buffer owns, or that nobody has
written, is an error. Freed bytes are poisoned. Bytes that an instruction is not supposed to write are compared before
and after it. An op's reference that runs as a host call must not write its inputs, nor return one of them that it does
not declare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from memopt.errors import ExecutionError
from memopt.lowering import Call, Free, Operand, Transfer
from memopt.ops import Attrs, OpSpec
from memopt.plan import MemoryPlan
from memopt.runtime.memory import Region
from memopt.strides import extent
from memopt.types import TensorType, itemsize

if TYPE_CHECKING:
    from memopt.runtime.rows import Row

__all__ = ["POISON", "Sanitizer", "checked_reference"]

#: A byte that makes floats NaN and integers absurd.
POISON = 0xFF
_NOBODY = -1


class Sanitizer:
    """Steps through a plan's rows. `run` raises `ExecutionError` at the first wrong access."""

    def __init__(self, plan: MemoryPlan, regions: Mapping[tuple[str, str], Region]) -> None:
        self.plan, self.regions = plan, regions
        self.shadow: dict[tuple[str, str], NDArray[np.int32]] = {}
        for key, region in regions.items():
            if _is_watched(key[1]):
                region.data[...] = POISON
                self.shadow[key] = np.full(region.data.size, _NOBODY, np.int32)

    def run(self, rows: Sequence[Row], step: Callable[[int], None]) -> None:
        """Run every row through `step(index)`, checking before and after."""
        by_instruction: dict[int, list[int]] = {}
        for index, row in enumerate(rows):  # several where a call is done item by item
            by_instruction.setdefault(row.instruction, []).append(index)
        for position, instruction in enumerate(self.plan.program.instructions):
            if isinstance(instruction, Free):
                self._free(position, instruction.buffer)
            if position not in by_instruction:
                continue
            label = rows[by_instruction[position][0]].label
            reads, writes = _accesses(instruction)
            for operand, value in reads:
                self._check_read(label, operand, value)
            before = self._pinned_bytes(writes)
            for index in by_instruction[position]:
                step(index)
            self._check_pinned(label, before)
            for operand, value in writes:
                self._own(operand, value)

    def _shadow_of(self, operand: Operand, value: str) -> NDArray[np.int32] | None:
        """The shadow of the operand's bytes, shape (..., bytes), where it is watched."""
        slot = self.plan.slots[operand.buffer]
        if not _is_watched(slot.space):
            return None
        shape, size = self.plan.graph.value(value).shape, itemsize(operand.placement.dtype)
        start = slot.offset + operand.offset
        shadow = self.shadow[slot.device, slot.space][start : start + extent(shape, operand.strides) * size]
        if operand.strides is None or not shadow.size:
            return shadow
        word = shadow.itemsize
        return as_strided(shadow, (*shape, size), [*(step * size * word for step in operand.strides), word])

    def _check_read(self, label: str, operand: Operand, value: str) -> None:
        owners = self._shadow_of(operand, value)
        if owners is None or (owners == operand.buffer).all():
            return
        first = [int(at) for at in np.argwhere(owners != operand.buffer)[0]]
        owner, slot = int(owners[tuple(first)]), self.plan.slots[operand.buffer]
        start = slot.offset + operand.offset
        byte = start + sum(at * step // owners.itemsize for at, step in zip(first, owners.strides, strict=True))
        whose = "nobody has written" if owner == _NOBODY else f"buffer {self.plan.program.buffers[owner].name} owns"
        raise ExecutionError(
            f"{label} reads %{value} from byte {start} of {slot.device}'s {slot.space} on, but {whose} byte {byte}"
        )

    def _own(self, operand: Operand, value: str) -> None:
        shadow = self._shadow_of(operand, value)
        if shadow is not None:
            shadow[...] = operand.buffer

    def _free(self, position: int, buffer: int) -> None:
        slot = self.plan.slots[buffer]
        if slot.space != "arena":
            raise ExecutionError(
                f"instruction {position} frees {self.plan.program.buffers[buffer].name}, which is not in an arena"
            )
        span = slice(slot.offset, slot.offset + slot.size)
        key = slot.device, slot.space
        mine = self.shadow[key][span] == buffer
        self.regions[key].data[span][mine] = POISON
        self.shadow[key][span][mine] = _NOBODY

    def _pinned_bytes(self, writes: Sequence[tuple[Operand, str]]) -> dict[tuple[str, str], bytes]:
        """The bytes of small feeds and parameters that this instruction is not supposed to write."""
        written = {(self.plan.slots[o.buffer].device, self.plan.slots[o.buffer].space) for o, _ in writes}
        return {
            key: region.data.tobytes()
            for key, region in self.regions.items()
            if key[1] not in ("arena", "scratch") and key not in written and region.data.size <= 1 << 12
        }

    def _check_pinned(self, label: str, before: Mapping[tuple[str, str], bytes]) -> None:
        for key, data in before.items():
            if self.regions[key].data.tobytes() != data:
                raise ExecutionError(f"{label} changed {key[1]} on {key[0]}, which it does not write")


def _is_watched(space: str) -> bool:
    """Whether the space begins a run without any value in it."""
    return space == "arena" or space.startswith("output:")


def _accesses(instruction: object) -> tuple[list[tuple[Operand, str]], list[tuple[Operand, str]]]:
    """(operand, value) pairs that an instruction reads and writes."""
    if isinstance(instruction, Call):
        reads = [(o, o.value) for o in instruction.inputs if o is not None]
        return reads, [(o, o.value) for o in instruction.outputs if o is not None]
    if isinstance(instruction, Transfer):
        return [(instruction.source, instruction.source.value)], [(instruction.target, instruction.target.value)]
    return [], []


def checked_reference(label: str, spec: OpSpec) -> Callable[..., Sequence[NDArray[Any]]]:
    """`spec.reference`, which raises `ExecutionError` where it writes an input, or returns one undeclared.

    Passes and the validator believe what an op declares. A result that is its input breaks as soon as something else
    is written over that input, or as another output of the same node is.
    """

    def reference(
        inputs: Sequence[NDArray[Any] | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[NDArray[Any]]:
        before = [None if array is None else array.tobytes() for array in inputs]
        results = spec.reference(inputs, attrs, types)
        for index, (array, data) in enumerate(zip(inputs, before, strict=True)):
            if array is None:
                continue
            if array.tobytes() != data:
                raise ExecutionError(f"{label}: its reference writes input {index}; it must make new arrays")
            for output, result in enumerate(results):
                view = spec.view_of(output)
                if (view is None or view.input != index) and np.may_share_memory(result, array):
                    raise ExecutionError(
                        f"{label}: output {output} shares memory with input {index}, not declared: "
                        f"copy it in the reference of {spec.name}, or declare View({output}, {index}, ...)"
                    )
        return results

    return reference
