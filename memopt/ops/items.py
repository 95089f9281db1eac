"""Calls item by item: a kernel for one item of axis 0, called once for each.

Holds true: item i of every output depends on item i of the inputs that go along, and on the whole of the others
(`OpSpec.items`). So the items of a value may lie apart, as those of a part of a Concat do at batch sizes above 1,
though the kernel knows nothing of strides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from memopt.ops.spec import DEFAULT_LAYOUT, Attrs, ItemRule, KernelCall, KernelQuery, OpSpec, Types
from memopt.strides import Strides, canonical, row_strides
from memopt.types import TensorType

__all__ = ["Calls", "along", "broadcast_items", "choose_calls", "scratch_bytes"]


class Calls(NamedTuple):
    """`call`, done `times` times: operand `i` moves on by `in_steps[i]` or `out_steps[i]` elements each time."""

    call: KernelCall
    times: int = 1
    in_steps: tuple[int, ...] = ()
    out_steps: tuple[int, ...] = ()


def choose_calls(spec: OpSpec, query: KernelQuery) -> Calls | None:
    """How kernels do `query`: in one call if one can, else item by item; None if only NumPy can."""
    call = None if any(one is not None for one in query.out_strides) else spec.kernel_for(query)
    if call is not None or not (any(query.strides) or any(query.out_strides)):
        return None if call is None else Calls(call)
    item = _of_one_item(spec, query)
    call = None if item is None else spec.kernel_for(item[0])
    if item is None or call is None:
        return None
    return Calls(call, *item[1:])


def scratch_bytes(spec: OpSpec, query: KernelQuery) -> int:
    """Bytes of workspace that the chosen calls need (each uses the same)."""
    calls = choose_calls(spec, query)
    if calls is None:
        return 0
    item = _of_one_item(spec, query) if calls.in_steps else None
    return spec.workspace(query if item is None else item[0])


def along(*indexes: int) -> ItemRule:
    """The items of these inputs go along; every other input is read whole."""
    return lambda inputs, outputs, attrs: tuple(i in indexes for i in range(len(inputs)))


def broadcast_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Elementwise with broadcasting: an input goes along if it has the output's axis 0."""
    out = outputs[0]
    if out is None or not out.rank:
        return None
    return tuple(t is not None and t.rank == out.rank and t.shape[0] == out.shape[0] for t in inputs)


def _of_one_item(
    spec: OpSpec, query: KernelQuery
) -> tuple[KernelQuery, int, tuple[int, ...], tuple[int, ...]] | None:
    """The query for one item, how many there are, and the steps between them; None if it cannot be done so."""
    present = [type for type in query.outputs if type is not None]
    counts = {type.shape[:1] for type in present}
    rule = None if spec.items is None else spec.items(query.inputs, query.outputs, query.attrs)
    if rule is None or query.layout != DEFAULT_LAYOUT or len(counts) != 1 or not next(iter(counts)):
        return None
    (count,) = counts.pop()
    inputs = []
    for i, (type, goes) in enumerate(zip(query.inputs, rule, strict=True)):
        if goes and (type is None or type.shape[:1] != (count,)):
            return None
        inputs.append(_item(type, query.stride_of(i)) if goes else (type, query.stride_of(i), 0))
    outputs = [_item(t, query.out_stride_of(i)) for i, t in enumerate(query.outputs)]
    if not count or any(strides is not None for _, strides, _ in outputs):
        return None
    item = replace(
        query,
        inputs=tuple(type for type, _, _ in inputs),
        outputs=tuple(type for type, _, _ in outputs),
        strides=tuple(strides for _, strides, _ in inputs) if any(s is not None for _, s, _ in inputs) else (),
        out_strides=(),
    )
    return item, count, tuple(step for _, _, step in inputs), tuple(step for _, _, step in outputs)


def _item(type: TensorType | None, strides: Strides | None) -> tuple[TensorType | None, Strides | None, int]:
    """The type and strides of one item, and the step to the next in elements."""
    if type is None:
        return None, None, 0
    shape, steps = (1, *type.shape[1:]), row_strides(type.shape) if strides is None else strides
    return type.with_shape(shape), canonical(shape, steps), steps[0]
