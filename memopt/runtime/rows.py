"""From a plan's instructions to the machine's rows: which kernel, on which addresses.

Holds true: a row stands for one `call` or `transfer`, or for one item of it (`memopt.ops.items`); `rebind` and `free`
move no bytes and have none, nor has a call that makes views in strides. A transfer is
the op that does the same (`Identity`, `Cast`, `Transpose`), so that there is one implementation of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from memopt.errors import ExecutionError
from memopt.ir import view_input, view_steps
from memopt.lowering import Call, Operand, Transfer, kernel_query
from memopt.lowering.frees import touched
from memopt.ops import DEFAULT_LAYOUT, Calls, KernelCall, KernelQuery, OpSpec, choose_calls, get_op
from memopt.plan import MemoryPlan
from memopt.runtime.memory import Region
from memopt.runtime.sanitizer import checked_reference
from memopt.strides import canonical, extent
from memopt.types import TensorType, itemsize

__all__ = ["Row", "make_rows", "operand_view", "stored_shape"]

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
Regions = Mapping[tuple[str, str], Region]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: either a kernel call with its operands' addresses, or a host call. `label` is for messages.

    `host(True)` checks besides that the op's reference keeps its word; see `memopt.runtime.sanitizer`.
    """

    instruction: int
    label: str
    call: KernelCall | None
    addresses: tuple[int, ...]
    host: Callable[[bool], None] | None = None


def stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of the bytes: a rank-4 tensor in NHWC lies as (n, h, w, c)."""
    return tuple(shape[axis] for axis in _TO_NHWC) if layout == "NHWC" and len(shape) == 4 else shape


def operand_view(plan: MemoryPlan, regions: Regions, operand: Operand, shape: tuple[int, ...]) -> NDArray[Any]:
    """The operand's bytes as an array of the logical `shape` (a transposed view, if they lie in NHWC)."""
    slot = plan.slots[operand.buffer]
    placement = operand.placement
    region = regions[slot.device, slot.space]
    start = slot.offset + operand.offset
    if operand.strides is not None:
        base = region.view(start, (extent(shape, operand.strides),), placement.dtype)
        return as_strided(base, shape, [step * base.itemsize for step in operand.strides])
    array = region.view(start, stored_shape(shape, placement.layout), placement.dtype)
    return array.transpose(_TO_NCHW) if array.ndim == 4 and placement.layout == "NHWC" else array


def make_rows(plan: MemoryPlan, regions: Regions) -> list[Row]:
    """The rows of a plan over the given regions."""
    maker = _RowMaker(plan, regions)
    rows: list[Row] = []
    for position, instruction in enumerate(plan.program.instructions):
        for operand in touched(instruction):
            if min(operand.strides or (), default=0) < 0:  # it would leave its region at the lower end
                raise ExecutionError(f"instruction {position}: %{operand.value} is in strides {operand.strides}")
        if isinstance(instruction, Call):
            if not makes_views(plan, instruction):
                rows += maker.call(position, instruction)
        elif isinstance(instruction, Transfer):
            rows += maker.transfer(position, instruction)
    return rows


def makes_views(plan: MemoryPlan, call: Call) -> bool:
    """Whether the call has an output in strides that lies where its op says that it is a view of its input: then all of
    its outputs do (the validator sees to that), and no kernel runs.
    """
    node = plan.graph.node(call.node)
    for value, output in zip(node.outputs, call.outputs, strict=True):
        found = None if value is None else view_input(value)
        if value is None or output is None or output.strides is None or found is None:
            continue
        source = call.inputs[found[0]]
        steps = None if source is None else view_steps(value, source.strides)
        if source is None or steps is None or source.placement != output.placement:
            continue
        offset = source.offset + steps.first * itemsize(source.placement.dtype)
        where = source.buffer, offset, canonical(value.shape, steps.strides)
        if where == (output.buffer, output.offset, canonical(value.shape, output.strides)):
            return True
    return False


class _RowMaker:
    def __init__(self, plan: MemoryPlan, regions: Regions) -> None:
        self.plan, self.regions = plan, regions

    def call(self, position: int, call: Call) -> list[Row]:
        node = self.plan.graph.node(call.node)
        device = self.plan.machine.device(call.device)
        strides = tuple(None if o is None else o.strides for o in call.inputs)
        out_strides = tuple(None if o is None else o.strides for o in call.outputs)
        query = kernel_query(node, device, call.layout, self.plan.program.scratch_limit, (strides, out_strides))
        label = f"instruction {position} (call {call.node} ({call.op}) on {call.device})"
        shapes = (
            tuple(None if v is None else v.shape for v in node.inputs),
            tuple(None if v is None else v.shape for v in node.outputs),
        )
        return self._rows(position, label, node.spec, query, (call.inputs, call.outputs), shapes)

    def transfer(self, position: int, move: Transfer) -> list[Row]:
        value = self.plan.graph.value(move.source.value)
        have, want = move.source.placement, move.target.placement
        label = f"instruction {position} (transfer {move.kind} of %{value.name})"
        source = TensorType(stored_shape(value.shape, have.layout), have.dtype)
        target = TensorType(stored_shape(value.shape, want.layout), want.dtype)
        if have.layout != want.layout:
            perm = _TO_NHWC if have.layout == DEFAULT_LAYOUT else _TO_NCHW
            spec, attrs = get_op("Transpose"), {"perm": perm}
        elif have.dtype != want.dtype:
            spec, attrs = get_op("Cast"), {"to": want.dtype}  # type: ignore[dict-item]
        else:
            spec, attrs = get_op("Identity"), {}
        query = KernelQuery((source,), (target,), spec.complete_attrs(attrs), strides=(move.source.strides,))
        operands = (self._plain(move.source),), (self._plain(move.target),)
        return self._rows(position, label, spec, query, operands, ((source.shape,), (target.shape,)))

    @staticmethod
    def _plain(operand: Operand) -> Operand:
        """The operand's bytes in the order in which they lie."""
        placement = operand.placement
        plain = type(placement)(placement.device, placement.dtype, DEFAULT_LAYOUT)
        return replace(operand, placement=plain)

    def _rows(
        self,
        position: int,
        label: str,
        spec: OpSpec,
        query: KernelQuery,
        operands: tuple[Sequence[Operand | None], Sequence[Operand | None]],
        shapes: tuple[Sequence[tuple[int, ...] | None], Sequence[tuple[int, ...] | None]],
    ) -> list[Row]:
        calls = choose_calls(spec, query)
        if calls is None:
            return [Row(position, label, None, (), self._host_call(label, spec, query, operands, shapes))]
        return [self._row(position, label, calls, item, operands) for item in range(calls.times)]

    def _row(
        self,
        position: int,
        label: str,
        calls: Calls,
        item: int,
        operands: tuple[Sequence[Operand | None], Sequence[Operand | None]],
    ) -> Row:
        """One kernel call, of item number `item`."""
        kernel, addresses = calls.call, []
        for arg in kernel.arrays:
            size = itemsize(arg.dtype) * math.prod(arg.shape)
            if arg.role == "scratch":
                device = next(o.placement.device for o in (*operands[1], *operands[0]) if o is not None)
                addresses.append(self.regions[device, "scratch"].address_of(0, size, f"{label}: scratch"))
                continue
            side = 0 if arg.role == "in" else 1
            operand, steps = operands[side][arg.index], (calls.in_steps, calls.out_steps)[side]
            if operand is None:
                raise ExecutionError(
                    f"{label}: the kernel {kernel.kernel} asks for {arg.role} {arg.index}, which is absent"
                )
            slot = self.plan.slots[operand.buffer]
            region, what = self.regions[slot.device, slot.space], f"{label}: {arg.role}put {arg.index}"
            skip = item * steps[arg.index] * itemsize(operand.placement.dtype) if steps else 0
            addresses.append(region.address_of(slot.offset + operand.offset + skip, size, what))
        return Row(position, label, kernel, tuple(addresses))

    def _host_call(
        self,
        label: str,
        spec: OpSpec,
        query: KernelQuery,
        operands: tuple[Sequence[Operand | None], Sequence[Operand | None]],
        shapes: tuple[Sequence[tuple[int, ...] | None], Sequence[tuple[int, ...] | None]],
    ) -> Callable[[bool], None]:
        """The op's NumPy reference on the plan's own bytes: those that the regions have when it runs."""

        def views(side: int, types: Sequence[TensorType | None]) -> list[NDArray[Any] | None]:
            found: list[NDArray[Any] | None] = []
            for operand, shape, type in zip(operands[side], shapes[side], types, strict=True):
                if operand is not None and shape is not None:
                    found.append(operand_view(self.plan, self.regions, operand, shape))
                else:  # absent, or read for its shape only
                    found.append(None if type is None else np.broadcast_to(np.zeros((), type.dtype), type.shape))
            return found

        views(0, query.inputs), views(1, query.outputs)  # bytes outside of a region are an error now, not in a run
        attrs = query.attrs

        def run(check: bool) -> None:
            inputs, outputs = views(0, query.inputs), views(1, query.outputs)
            types = list(spec.infer(query.inputs, attrs, len(outputs)))
            types = [want if want is not None else type for want, type in zip(query.outputs, types, strict=False)]
            reference = checked_reference(label, spec) if check else spec.reference
            with np.errstate(all="ignore"):
                results = reference(inputs, attrs, types)
            for out, operand, result in zip(outputs, operands[1], results, strict=False):
                if out is not None and operand is not None:
                    if result.shape != out.shape:
                        raise ExecutionError(f"{label}: made {list(result.shape)}, planned was {list(out.shape)}")
                    out[...] = result

        return run
