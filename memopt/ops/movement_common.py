"""What the data movement ops share: attribute checks, and the one strided copy that most of them are.

Holds true: a movement op needs no arithmetic on its elements, so its kernel sees unsigned integers of the element's
width (signed ones where a fill value is passed), and its shapes are folded before the kernel is asked for: at most
`MAX_DIMS` loops are left, or there is no kernel and the op runs as a host call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.spec import ArrayArg, Attrs, KernelCall, KernelQuery, Scalar, Types
from memopt.strides import Strides, extent, row_strides
from memopt.types import TensorType, itemsize

__all__ = [
    "MAX_DIMS",
    "Array",
    "StridedCopy",
    "bits_of",
    "copy_call",
    "copy_numbers",
    "data_type",
    "flat_copy",
    "float_attr",
    "in_storage",
    "int_attr",
    "ints_attr",
    "norm_axes",
    "norm_axis",
    "present",
    "stand_in",
    "strided_call",
]

Array = NDArray[Any]

#: Loops of the strided copy kernel.
MAX_DIMS = 6


def data_type(types: Types, index: int = 0) -> TensorType:
    """The type of input (or output) `index`, which must be there."""
    found = types[index] if index < len(types) else None
    if found is None:
        raise TypeInferenceError(f"its operand {index} is absent")
    return found


def present(arrays: Sequence[Array | None], index: int = 0) -> Array:
    """The array of operand `index`, which must be there."""
    found = arrays[index]
    if found is None:
        raise TypeInferenceError(f"its operand {index} is absent")
    return found


def int_attr(attrs: Attrs, name: str, default: int = 0) -> int:
    """The integer attribute `name`, or `default`."""
    value = attrs.get(name, default)
    return int(value) if not isinstance(value, (str, tuple)) else default


def float_attr(attrs: Attrs, name: str, default: float = 0.0) -> float:
    """The float attribute `name`, or `default`."""
    value = attrs.get(name, default)
    return float(value) if not isinstance(value, (str, tuple)) else default


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...] | None:
    """The integers attribute `name`, or None where it is absent."""
    value = attrs.get(name)
    return tuple(int(v) for v in value) if isinstance(value, tuple) else None


def norm_axis(axis: int, rank: int, *, past_end: bool = False) -> int:
    """`axis` counted from the front; `past_end` allows `axis == rank`."""
    most = rank if past_end else rank - 1
    if not -rank <= axis <= most:
        raise TypeInferenceError(f"axis {axis} is not in [{-rank}, {most}]")
    return axis + rank if axis < 0 else axis


def norm_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """`axes` counted from the front, each once."""
    found = tuple(norm_axis(axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise TypeInferenceError(f"axes {tuple(axes)} name an axis twice")
    return found


def stand_in(dtype: str, *, signed: bool = False) -> str:
    """The integer dtype of `dtype`'s width."""
    return f"{'int' if signed else 'uint'}{8 * itemsize(dtype)}"


def bits_of(value: float, dtype: str) -> int:
    """The bytes of `value` as `dtype`, read as a signed integer of the same width."""
    with np.errstate(all="ignore"):
        return int(np.asarray(value).astype(dtype).view(stand_in(dtype, signed=True)))


def in_storage(query: KernelQuery, index: int = 0) -> tuple[TensorType, Strides]:
    """The storage of input `index` as one flat tensor, and how the input steps through it."""
    source, strides = data_type(query.inputs, index), query.stride_of(index)
    return source.with_shape((extent(source.shape, strides),)), strides or row_strides(source.shape)


def copy_call(query: KernelQuery) -> KernelCall | None:
    """The copy of input 0 to output 0, in its order; a contiguous copy onto itself is skipped."""
    source = data_type(query.inputs)
    if query.stride_of(0) is not None:
        storage, reads = in_storage(query)
        copy = StridedCopy(source.shape, row_strides(source.shape), reads)
        return strided_call(storage, data_type(query.outputs), copy)
    return flat_copy(source)


def copy_numbers(query: KernelQuery) -> tuple[Scalar, ...] | None:
    """The scalars of the strided copy of input 0 to an output of its shape, for a kernel that then goes on in place;
    None if it needs more than `MAX_DIMS` loops.
    """
    shape, (storage, reads) = data_type(query.inputs).shape, in_storage(query)
    call = strided_call(storage, data_type(query.inputs), StridedCopy(shape, row_strides(shape), reads))
    return None if call is None else call.scalars


def flat_copy(source: TensorType) -> KernelCall:
    """The copy of a contiguous input 0 of this type to output 0, in words of 8 bytes where they fit."""
    dtype, count = stand_in(source.dtype), source.num_elements
    if source.nbytes % 8 == 0:
        dtype, count = "uint64", source.nbytes // 8
    return KernelCall("movement.copy", (ArrayArg("out", 0, (count,), dtype), ArrayArg("in", 0, (count,), dtype)))


@dataclass(frozen=True, slots=True)
class StridedCopy:
    """A copy `out[out_at + i . out_strides] = in[in_at + i . in_strides]` for all i in `dims`; strides in elements."""

    dims: tuple[int, ...]
    out_strides: tuple[int, ...]
    in_strides: tuple[int, ...]
    out_at: int = 0
    in_at: int = 0

    def folded(self) -> StridedCopy:
        """The same copy with the fewest loops: axes of length 1 dropped, axes that run on merged."""
        axes: list[list[int]] = []
        for dim, out, source in zip(self.dims, self.out_strides, self.in_strides, strict=True):
            if dim == 1:
                continue
            if axes and axes[-1][1] == dim * out and axes[-1][2] == dim * source:
                axes[-1] = [axes[-1][0] * dim, out, source]
            else:
                axes.append([dim, out, source])
        # Loops may run in any order: last the one that writes neighbours, before it the one that reads them.
        axes.sort(key=lambda axis: (axis[1] == 1, abs(axis[2]) == 1, axis[1] * -1))
        dims, outs, ins = ([axis[k] for axis in axes] for k in range(3))
        return StridedCopy(tuple(dims), tuple(outs), tuple(ins), self.out_at, self.in_at)


def strided_call(source: TensorType, result: TensorType, copy: StridedCopy) -> KernelCall | None:
    """The kernel call of a strided copy from input 0 to output 0; None if it needs more than `MAX_DIMS` loops.

    `source` has as many elements as input 0's storage (see `in_storage`).
    """
    copy = copy.folded()
    pad = MAX_DIMS - len(copy.dims)
    if pad < 0:
        return None
    scalars: list[Scalar] = []
    for numbers, filler in ((copy.dims, 1), (copy.out_strides, 0), (copy.in_strides, 0)):
        scalars += [filler] * pad + list(numbers)
    dtype = stand_in(source.dtype)
    arrays = (
        ArrayArg("out", 0, (math.prod(result.shape),), dtype),
        ArrayArg("in", 0, (math.prod(source.shape),), dtype),
    )
    return KernelCall("movement.strided", arrays, (*scalars, copy.out_at, copy.in_at))
