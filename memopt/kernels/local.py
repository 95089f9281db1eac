"""What the generated loops stand on: a block of stack memory, conversion to another operand's type, plain division.

Each is a Python function with its own lowering, so that it means the same in Python and in compiled code. They are
lowered *in the caller* (no call, and `block_like` lives as long as the kernel that asks for it).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable
from numba.np.arrayobj import make_array, populate_array

__all__ = ["BLOCK", "block_like", "block_wide", "fdiv", "idiv", "like"]

#: Elements of a block. A loop computes a block on the stack and then stores it: the block aliases nothing, so LLVM
#: vectorises the loop whether or not the output is one of the inputs, and both ways give the same bits.
BLOCK = 256


def block_like(array: Any) -> Any:
    """`BLOCK` uninitialised elements of the dtype of `array`, on the stack."""
    return np.empty(BLOCK, array.dtype)


def block_wide(array: Any) -> Any:
    """`BLOCK` uninitialised accumulators on the stack for sums of `array`'s elements: float64, int64 or uint64."""
    return np.empty(BLOCK, {"f": np.float64, "u": np.uint64}.get(array.dtype.kind, np.int64))


def like(value: Any, example: Any) -> Any:
    """`value` converted to the type of the scalar `example`, as C converts (int to a narrower int wraps)."""
    kind = np.dtype(type(example))
    if kind.kind in "iu" and isinstance(value, (int, np.integer)):
        return np.array(int(value) & (2**64 - 1), np.uint64).astype(kind)[()]
    return np.asarray(value).astype(kind)[()]


def fdiv(x: Any, y: Any) -> Any:
    """x / y for floats of one type: IEEE, no error at 0."""
    return np.divide(x, y)


def idiv(x: Any, y: Any) -> Any:
    """x / y for integers of one type, truncated towards zero; y is not 0, and x / y fits."""
    quotient = abs(int(x)) // abs(int(y))
    return type(x)(quotient if (x < 0) == (y < 0) else -quotient)


def _stack_array(context: Any, builder: Any, array_type: Any) -> Any:
    element = context.get_data_type(array_type.dtype)
    width = context.get_abi_sizeof(element)
    array = make_array(array_type)(context, builder)
    populate_array(
        array,
        data=cgutils.alloca_once(builder, element, size=BLOCK),
        shape=[context.get_constant(types.intp, BLOCK)],
        strides=[context.get_constant(types.intp, width)],
        itemsize=context.get_constant(types.intp, width),
        meminfo=None,
    )
    return array._getvalue()


@type_callable(block_like)
def _type_block_like(context: Any) -> Any:
    return lambda array: types.Array(array.dtype, 1, "C")


@lower_builtin(block_like, types.Array)
def _lower_block_like(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return _stack_array(context, builder, signature.return_type)


def _wide(dtype: Any) -> Any:
    if isinstance(dtype, types.Float):
        return types.float64
    return types.int64 if isinstance(dtype, types.Boolean) or dtype.signed else types.uint64


@type_callable(block_wide)
def _type_block_wide(context: Any) -> Any:
    return lambda array: types.Array(_wide(array.dtype), 1, "C")


@lower_builtin(block_wide, types.Array)
def _lower_block_wide(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return _stack_array(context, builder, signature.return_type)


@type_callable(like)
def _type_like(context: Any) -> Any:
    return lambda value, example: types.unliteral(example)


@lower_builtin(like, types.Any, types.Any)
def _lower_like(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return context.cast(builder, args[0], signature.args[0], signature.return_type)


@type_callable(fdiv)
def _type_fdiv(context: Any) -> Any:
    return lambda x, y: x if x == y else None


@lower_builtin(fdiv, types.Float, types.Float)
def _lower_fdiv(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fdiv(*args)


@type_callable(idiv)
def _type_idiv(context: Any) -> Any:
    return lambda x, y: x if x == y else None


@lower_builtin(idiv, types.Integer, types.Integer)
def _lower_idiv(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.sdiv(*args) if signature.return_type.signed else builder.udiv(*args)
