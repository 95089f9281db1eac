"""Concat, Split and Gather of strided inputs: each part, or each block behind an index, moves by one strided copy.

Holds true: the kernels are others than those of contiguous inputs, which stay what they are. They take up to `_PARTS`
parts, and copies of up to `_DIMS` loops once folded; beyond that there is no kernel. Parts of a Concat that are rows,
only farther apart than they are long, may be as many as contiguous ones, and lie in the result already.
"""

from __future__ import annotations

import math
from typing import Literal

from memopt.ops.movement_common import StridedCopy, data_type, in_storage, stand_in
from memopt.ops.spec import ArrayArg, KernelCall, KernelQuery, Scalar
from memopt.strides import reshaped, row_strides
from memopt.types import TensorType

__all__ = ["strided_concat", "strided_gather", "strided_split"]

_PARTS = 4
#: Concat has kernels of rows for these numbers of parts.
_ROW_PARTS = (4, 16, 32, 64)
_DIMS = 4
#: What stands for a part that there is not.
_NOTHING = StridedCopy((0,), (1,), (1,))


def strided_concat(query: KernelQuery, axis: int) -> KernelCall | None:
    """The parts, of which any may be strided, side by side along `axis`."""
    rows = _concat_of_rows(query, axis)
    if rows is not None:
        return rows
    result, at = data_type(query.outputs), 0
    writes = row_strides(result.shape)
    parts, copies = [], []
    for i in range(len(query.inputs)):
        shape = data_type(query.inputs, i).shape
        storage, reads = in_storage(query, i)
        parts.append(_flat("in", i, storage))
        copies.append(StridedCopy(shape, writes, reads, out_at=at))
        at += shape[axis] * writes[axis]
    walks = _numbers(copies + [_NOTHING] * (_PARTS - len(copies)))
    arrays = (_flat("out", 0, result), *_filled(parts))
    return None if walks is None else KernelCall("movement.concat_strided", arrays, walks)


def _concat_of_rows(query: KernelQuery, axis: int) -> KernelCall | None:
    """The call where each part is (outer, row), its rows contiguous and equally far apart."""
    result, found = data_type(query.outputs), len(query.inputs)
    count = next((count for count in _ROW_PARTS if count >= found), None)
    outer = math.prod(result.shape[:axis])
    parts: list[ArrayArg] = []
    numbers: list[Scalar] = [outer, math.prod(result.shape[axis:])]
    for i in range(found):
        shape, (storage, reads) = data_type(query.inputs, i).shape, in_storage(query, i)
        row = math.prod(shape[axis:])
        steps = reshaped(shape, reads, (outer, row))
        if count is None or steps is None or (row > 1 and steps[1] != 1):
            return None
        parts.append(_flat("in", i, storage))
        numbers += [row, steps[0]]
    missing = (count or 0) - found
    arrays = (_flat("out", 0, result), *parts, *parts[-1:] * missing)
    return KernelCall(f"movement.concat_rows{count}", arrays, (*numbers, *(0,) * 2 * missing))


def strided_split(query: KernelQuery, axis: int) -> KernelCall | None:
    """A strided input, cut along `axis`."""
    storage, reads = in_storage(query)
    parts, copies, at = [], [], 0
    for i in range(len(query.outputs)):
        part = data_type(query.outputs, i)
        parts.append(_flat("out", i, part))
        copies.append(StridedCopy(part.shape, row_strides(part.shape), reads, in_at=at))
        at += part.shape[axis] * reads[axis]
    walks = _numbers(copies + [_NOTHING] * (_PARTS - len(copies)))
    arrays = (*_filled(parts), _flat("in", 0, storage))
    return None if walks is None else KernelCall("movement.split_strided", arrays, walks)


def strided_gather(query: KernelQuery, axis: int) -> KernelCall | None:
    """Blocks of a strided input; the axes before `axis` must step as one."""
    source, indices = data_type(query.inputs), data_type(query.inputs, 1)
    storage, reads = in_storage(query)
    outer, block = math.prod(source.shape[:axis]), source.shape[axis + 1 :]
    step = reshaped(source.shape[:axis], reads[:axis], (outer,))
    walk = _numbers([StridedCopy(block, row_strides(block), reads[axis + 1 :])])
    if step is None or walk is None:
        return None
    arrays = (
        _flat("out", 0, data_type(query.outputs)),
        _flat("in", 0, storage),
        ArrayArg("in", 1, (indices.num_elements,), indices.dtype),
    )
    return KernelCall("movement.gather_strided", arrays, (outer, source.shape[axis], *step, reads[axis], *walk))


def _flat(role: Literal["in", "out"], index: int, type: TensorType) -> ArrayArg:
    return ArrayArg(role, index, (type.num_elements,), stand_in(type.dtype))


def _filled(parts: list[ArrayArg]) -> list[ArrayArg]:
    """The parts, the last repeated up to as many as the kernels take."""
    return parts + parts[-1:] * (_PARTS - len(parts))


def _numbers(copies: list[StridedCopy]) -> tuple[Scalar, ...] | None:
    """The copies as the kernels take them; None for more than `_PARTS`, or of more than `_DIMS` loops."""
    numbers: list[Scalar] = []
    for copy in copies:
        copy = copy.folded()
        pad = _DIMS - len(copy.dims)
        if pad < 0 or len(copies) > _PARTS:
            return None
        for values, filler in ((copy.dims, 1), (copy.out_strides, 0), (copy.in_strides, 0)):
            numbers += [filler] * pad + list(values)
        numbers += [copy.out_at, copy.in_at]
    return tuple(numbers)
