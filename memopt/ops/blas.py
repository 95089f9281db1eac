"""Ops: matrix products. `FusedMatMul` is MatMul with a factor and transposed operands (onnxruntime's name and
attributes).

Holds true: float32 and float64 run by the BLAS routine of their type, other types as host calls; batches broadcast as
in NumPy, and what need not be told apart is folded, so that a product with shared weights is one routine call. A
factor may be strided where BLAS can read its matrices as they lie: rows or columns are contiguous, and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.blas_rules import GRADIENTS
from memopt.ops.movement_common import in_storage
from memopt.ops.nn_common import Array, Arrays, flat, gemm_routine, kernel_dtype, need_same_dtype, present, wide
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Routine,
    Types,
)
from memopt.strides import Strides, reshaped
from memopt.types import TensorType

__all__ = ["OPS"]

#: Batch axes that the kernel steps over, after folding.
_BATCH_AXES = 3


def _matrix_shapes(a: TensorType, b: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The factors' shapes, after any transpose, with a vector as a row (left) or a column (right)."""
    left, right = (a.shape if a.rank > 1 else (1, *a.shape)), (b.shape if b.rank > 1 else (*b.shape, 1))
    return _turned(left, attrs, "transA"), _turned(right, attrs, "transB")


def _turned(shape: tuple[int, ...], attrs: Attrs, flag: str) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if attrs.get(flag) else shape


def _infer_matmul(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    a, b = present(types, 0, "A"), present(types, 1, "B")
    need_same_dtype(types, ("A", "B"))
    if a.rank == 0 or b.rank == 0:
        raise TypeInferenceError(f"A is {a} and B is {b}; want vectors, matrices or batches of them")
    if (attrs.get("transA") and a.rank < 2) or (attrs.get("transB") and b.rank < 2):
        raise TypeInferenceError(f"A is {a} and B is {b}; a vector cannot be transposed")
    left, right = _matrix_shapes(a, b, attrs)
    if left[-1] != right[-2]:
        raise TypeInferenceError(f"A is {a} and B is {b}: {left[-1]} columns meet {right[-2]} rows")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise TypeInferenceError(f"A is {a} and B is {b}: their batches do not broadcast") from None
    shape = (*batch, *((left[-2],) if a.rank > 1 else ()), *((right[-1],) if b.rank > 1 else ()))
    return [a.with_shape(shape)]


def _reference_matmul(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    a, b = arrays[0], arrays[1]
    assert a is not None
    assert b is not None
    dtype = a.dtype
    a = np.swapaxes(a, -1, -2) if attrs.get("transA") else a
    b = np.swapaxes(b, -1, -2) if attrs.get("transB") else b
    product = _scaled(np.matmul(wide(a), wide(b)), cast(float, attrs.get("alpha", 1.0)))
    return [np.asarray(product, dtype).reshape(outputs[0].shape)]


class _Factor(NamedTuple):
    """op(X) as BLAS reads it: `rows` x `columns`, stored with `ld` elements from one row to the next; `turned` says
    that it is the transpose of what is stored. `batch` axes step over the storage by `steps` elements.
    """

    rows: int
    columns: int
    turned: bool
    ld: int
    batch: tuple[int, ...] = ()
    steps: Strides = ()


def _in_rows(shape: Sequence[int], steps: Strides) -> tuple[bool, int] | None:
    """(whether its columns are the stored rows, elements from one stored row to the next) of the matrices in the last
    two axes; None if neither rows nor columns are contiguous, or they overlap.
    """
    rows, columns = shape[-2:]
    down, right = steps[-2:]
    if columns == 1 or right == 1:
        step = columns if rows == 1 else down
        return (False, step) if step >= columns else None
    if rows == 1 or down == 1:
        return (True, right) if right >= rows else None
    return None


def _factor(query: KernelQuery, index: int, flag: str, *, rows_run_on: bool = False) -> _Factor | None:
    """Input `index`, transposed if the attribute `flag` says so; None where BLAS cannot read it in its strides.

    `rows_run_on`: the batch is more rows, if its strides allow that.
    """
    shape, steps = present(query.inputs, index, flag).shape, in_storage(query, index)[1]
    if len(shape) == 1:  # a row on the left, a column on the right
        shape, steps = ((1, *shape), (0, *steps)) if index == 0 else ((*shape, 1), (*steps, 0))
    turn = bool(query.attrs.get(flag))
    if rows_run_on and not turn:
        folded = (math.prod(shape[:-1]), shape[-1])
        whole = reshaped(shape, steps, folded)
        if whole is not None and _in_rows(folded, whole) is not None:
            shape, steps = folded, whole
    found = _in_rows(shape, steps)
    if found is None:
        return None
    rows, columns = reversed(shape[-2:]) if turn else shape[-2:]
    return _Factor(rows, columns, found[0] != turn, found[1], shape[:-2], steps[:-2])


def _fold_batch(left: _Factor, right: _Factor) -> list[tuple[int, int, int]]:
    """The broadcast batch as few axes as possible: (size, step of the left operand, of the right), in elements."""
    rank = max(len(left.batch), len(right.batch))
    sides = []
    for factor in (left, right):
        steps = (step if size > 1 else 0 for size, step in zip(factor.batch, factor.steps, strict=True))
        pad = rank - len(factor.batch)
        sides.append(((1,) * pad + factor.batch, (0,) * pad + tuple(steps)))
    (sizes_left, steps_left), (sizes_right, steps_right) = sides
    axes: list[tuple[int, int, int]] = []
    for axis in range(rank - 1, -1, -1):
        size, step_left, step_right = max(sizes_left[axis], sizes_right[axis]), steps_left[axis], steps_right[axis]
        if size == 1:
            continue
        if axes and (step_left, step_right) == (axes[0][0] * axes[0][1], axes[0][0] * axes[0][2]):
            axes[0] = (axes[0][0] * size, *axes[0][1:])
        else:
            axes.insert(0, (size, step_left, step_right))
    return axes


def _kernel_matmul(query: KernelQuery) -> KernelCall | None:
    dtype = kernel_dtype(query)
    if dtype is None:
        return None
    shared = math.prod(present(query.inputs, 1, "B").shape[:-2]) == 1  # weights: the batch is more rows
    left, right = _factor(query, 0, "transA", rows_run_on=shared), _factor(query, 1, "transB")
    if left is None or right is None:
        return None
    axes = _fold_batch(left, right)
    if len(axes) > _BATCH_AXES:
        return None
    axes = [(1, 0, 0)] * (_BATCH_AXES - len(axes)) + axes
    arrays = (flat("out", 0, query.outputs[0]), *_factor_arrays(query))
    alpha = float(cast(float, query.attrs.get("alpha", 1.0)))
    steps = tuple(number for axis in axes for number in axis)
    return KernelCall("blas.matmul", arrays, (*_product_scalars(dtype, left, right), alpha, *steps))


def _factor_arrays(query: KernelQuery) -> tuple[ArrayArg, ArrayArg]:
    """The storage of both factors."""
    a, b = (flat("in", index, in_storage(query, index)[0]) for index in (0, 1))
    return a, b


def _product_scalars(dtype: str, left: _Factor, right: _Factor) -> tuple[Routine | int, ...]:
    """Routines, sizes, and how both factors are stored."""
    stored = (int(left.turned), left.ld, int(right.turned), right.ld)
    return (*_routines(dtype), left.rows, right.columns, left.columns, *stored)


def _routines(dtype: str) -> tuple[Routine, Routine]:
    """The matrix-matrix and the matrix-vector routine."""
    return Routine(gemm_routine(dtype)), Routine("sgemv" if dtype == "float32" else "dgemv")


def _gemm_sizes(types: Types, attrs: Attrs) -> tuple[int, int, int]:
    """Rows, columns and depth of the product."""
    a, b = present(types, 0, "A"), present(types, 1, "B")
    if a.rank != 2 or b.rank != 2:
        raise TypeInferenceError(f"A is {a} and B is {b}; want two matrices")
    rows, depth = reversed(a.shape) if attrs["transA"] else a.shape
    deep, columns = reversed(b.shape) if attrs["transB"] else b.shape
    if depth != deep:
        trans = f"transA = {attrs['transA']} and transB = {attrs['transB']}"
        raise TypeInferenceError(f"A is {a} and B is {b}, with {trans}: {depth} columns meet {deep} rows")
    return rows, columns, depth


def _infer_gemm(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    need_same_dtype(types, ("A", "B", "C"))
    rows, columns, _ = _gemm_sizes(types, attrs)
    addend = types[2] if len(types) > 2 else None
    if addend is not None:
        shape = (1,) * (2 - addend.rank) + addend.shape
        if len(shape) != 2 or shape[0] not in (1, rows) or shape[1] not in (1, columns):
            raise TypeInferenceError(f"C is {addend}, which does not broadcast to [{rows},{columns}]")
    return [present(types, 0, "A").with_shape((rows, columns))]


def _reference_gemm(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    a, b, c = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    assert a is not None
    assert b is not None
    dtype = a.dtype
    product = np.matmul(wide(a.T if attrs["transA"] else a), wide(b.T if attrs["transB"] else b))
    result = _scaled(product, cast(float, attrs["alpha"]))
    if c is not None and attrs["beta"] != 0:
        result = result + _scaled(wide(c), cast(float, attrs["beta"]))
    return [np.array(result, dtype).reshape(outputs[0].shape)]


def _scaled(array: Array, factor: float) -> Array:
    """`factor * array` in the array's dtype (integers: exact for an integer factor, else rounded towards zero)."""
    if factor == 1:
        return array
    scaled = array * (int(factor) if array.dtype.kind in "iu" and factor == int(factor) else factor)
    return np.asarray(scaled).astype(array.dtype)


def _kernel_gemm(query: KernelQuery) -> KernelCall | None:
    dtype = kernel_dtype(query)
    if dtype is None:
        return None
    attrs = query.attrs
    left, right = _factor(query, 0, "transA"), _factor(query, 1, "transB")
    if left is None or right is None:
        return None
    addend = query.inputs[2] if len(query.inputs) > 2 else None
    beta = float(cast(float, attrs["beta"])) if addend is not None else 0.0
    step_row = step_column = 0
    if addend is not None:
        shape = (1,) * (2 - addend.rank) + addend.shape
        step_row, step_column = (shape[1] if shape[0] > 1 else 0), (1 if shape[1] > 1 else 0)
    factors = _factor_arrays(query)
    source = flat("in", 2, addend) if addend is not None else factors[0]
    arrays = (flat("out", 0, query.outputs[0]), *factors, source)
    alpha = float(cast(float, attrs["alpha"]))
    scalars = (*_product_scalars(dtype, left, right), alpha, beta, step_row, step_column)
    return KernelCall("blas.gemm_add", arrays, scalars)


def _not_full(inputs: Types, outputs: Types, attrs: Attrs) -> str | None:
    """C may be accumulated into if it has the output's full shape."""
    addend, out = inputs[2] if len(inputs) > 2 else None, outputs[0]
    if addend is None or out is None or addend.num_elements != out.num_elements:
        return f"C is {addend}, not the full {out}"
    return None


_SCALED = {"alpha": Attr("float", 1.0), "transA": Attr("int", 0), "transB": Attr("int", 0)}


def _matmul_spec(name: str, attrs: dict[str, Attr]) -> OpSpec:
    return OpSpec(
        name=name,
        inputs=(Input("A"), Input("B")),
        outputs=(Output("Y"),),
        infer=_infer_matmul,
        reference=_reference_matmul,
        attrs=attrs,
        kernel=_kernel_matmul,
        strided=(0, 1),
        gradient=GRADIENTS[name],
    )


OPS: tuple[OpSpec, ...] = (
    _matmul_spec("MatMul", {}),
    _matmul_spec("FusedMatMul", _SCALED),
    OpSpec(
        name="Gemm",
        inputs=(Input("A"), Input("B"), Input("C", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_gemm,
        reference=_reference_gemm,
        attrs={**_SCALED, "beta": Attr("float", 1.0)},
        inplace=(InplacePair(0, 2, _not_full),),
        kernel=_kernel_gemm,
        strided=(0, 1),
        gradient=GRADIENTS["Gemm"],
    ),
)
