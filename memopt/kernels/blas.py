"""Kernels: matrix products by BLAS, on flat arrays.

Holds true: a product of one row or one column goes to the matrix-vector routine, which reads the matrix once, where it
lies; `?gemm` would first copy it. beta = 0 never reads what the output held. A factor may have gaps between its rows
(`lda`, `ldb`: elements from one stored row to the next); the result is contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable

__all__ = ["gemm_add", "gemv", "matmul", "set_blas_threads"]


def set_blas_threads(count: int) -> int | None:
    """Let SciPy's BLAS use `count` threads; returns how many it used before, or None if it is no known OpenBLAS.

    Its threads wait for each other by spinning: where other processes hold the cores, each product of two threads may
    take a scheduler's time slice longer than one of one thread.
    """
    found = _openblas_calls()
    if found is None:
        return None
    get, put = found
    before = int(get())
    if before != count:
        put(ctypes.c_int(count))
    return before


@lru_cache(maxsize=1)
def _openblas_calls() -> tuple[Callable[[], int], Callable[[ctypes.c_int], None]] | None:
    """The getter and the setter of the number of threads of SciPy's own OpenBLAS."""
    from scipy.linalg import cython_blas

    library = ctypes.CDLL(cython_blas.__file__)
    for prefix in ("scipy_openblas", "openblas"):
        if hasattr(library, f"{prefix}_set_num_threads"):
            return getattr(library, f"{prefix}_get_num_threads"), getattr(library, f"{prefix}_set_num_threads")
    return None


@intrinsic
def _call_gemv(typingctx, address, trans, m, n, alpha, a, lda, x, incx, beta, y):
    """Call a Fortran `?gemv` at `address`, with a result that is contiguous."""
    signature = types.void(address, trans, m, n, alpha, a, lda, x, incx, beta, y)

    def codegen(context, builder, sig, args):
        (addr, trans, m, n, alpha, a, lda, x, incx, beta, y) = args
        byte, word = llvm.IntType(8), llvm.IntType(32)

        def slot(value, to):
            if isinstance(to, llvm.IntType):
                value = builder.trunc(value, to) if value.type.width > to.width else value
            place = cgutils.alloca_once(builder, value.type)
            builder.store(value, place)
            return builder.bitcast(place, byte.as_pointer())

        def pointer(value):
            return builder.inttoptr(value, byte.as_pointer())

        one = slot(llvm.Constant(word, 1), word)
        operands = [
            slot(trans, byte), slot(m, word), slot(n, word), slot(alpha, None), pointer(a), slot(lda, word),
            pointer(x), slot(incx, word), slot(beta, None), pointer(y), one,
        ]  # fmt: skip
        kind = llvm.FunctionType(llvm.VoidType(), [byte.as_pointer()] * len(operands))
        builder.call(builder.inttoptr(addr, kind.as_pointer()), operands)
        return context.get_dummy_value()

    return signature, codegen


def gemv(address, m, n, alpha, a, a_at, lda, trans, x, x_at, incx, beta, y, y_at):
    """y = alpha * op(A) x + beta * y, row-major, on flat arrays.

    A is `a[a_at:]` with row stride `lda` (elements): op(A) is m x n, transposed from n x m if `trans`. x is every
    `incx`-th element from `x[x_at]` on; y is contiguous. `address` is that of `sgemv` or `dgemv`, after the arrays'
    dtype.
    """
    rows, columns = (n, m) if trans else (m, n)
    size = a.itemsize
    matrix = np.lib.stride_tricks.as_strided(a.reshape(-1)[a_at:], (rows, columns), (lda * size, size))
    vector = np.lib.stride_tricks.as_strided(x.reshape(-1)[x_at:], (n,), (incx * size,))
    out = y.reshape(-1)[y_at : y_at + m]
    out[...] = alpha * ((matrix.T if trans else matrix) @ vector) + (beta * out if beta != 0 else 0)


@overload(gemv, inline="never")
def _gemv_jitted(address, m, n, alpha, a, a_at, lda, trans, x, x_at, incx, beta, y, y_at):
    size = a.dtype.bitwidth // 8
    real = np.float32 if size == 4 else np.float64

    def call(address, m, n, alpha, a, a_at, lda, trans, x, x_at, incx, beta, y, y_at):
        if m > 0 and n > 0:
            _call_gemv(
                address,
                78 if trans else 84,  # Fortran reads the matrix as its transpose
                m if trans else n, n if trans else m,
                real(alpha),
                a.ctypes.data + a_at * size, lda,
                x.ctypes.data + x_at * size, incx,
                real(beta),
                y.ctypes.data + y_at * size,
            )  # fmt: skip

    return call


@register_jitable
def _product(routine, vector_routine, m, n, k, alpha, a, a_at, lda, trans_a, b, b_at, ldb, trans_b, beta, c, c_at):
    """C = alpha op(A) op(B) + beta C, by the fitting routine; C is contiguous."""
    if m == 1:
        step = lda if trans_a else 1
        gemv(vector_routine, n, k, alpha, b, b_at, ldb, not trans_b, a, a_at, step, beta, c, c_at)
    elif n == 1:
        step = 1 if trans_b else ldb
        gemv(vector_routine, m, k, alpha, a, a_at, lda, trans_a, b, b_at, step, beta, c, c_at)
    else:
        gemm(routine, m, n, k, alpha, a, a_at, lda, trans_a, b, b_at, ldb, trans_b, beta, c, c_at, n)


@register_jitable
def matmul(
    out, a, b, routine, vector_routine, m, n, k, trans_a, lda, trans_b, ldb, alpha,
    size0, a_step0, b_step0, size1, a_step1, b_step1, size2, a_step2, b_step2,
):  # fmt: skip
    """A batch of products alpha op(A) op(B) over three axes; steps are in elements, 0 where that operand is the same.
    """
    ta, tb = trans_a != 0, trans_b != 0
    at = 0
    for i in range(size0):
        for j in range(size1):
            for e in range(size2):
                a_at = i * a_step0 + j * a_step1 + e * a_step2
                b_at = i * b_step0 + j * b_step1 + e * b_step2
                _product(routine, vector_routine, m, n, k, alpha, a, a_at, lda, ta, b, b_at, ldb, tb, 0.0, out, at)
                at += m * n
    return STATUS_OK


@register_jitable
def gemm_add(
    out, a, b, c, routine, vector_routine, m, n, k, trans_a, lda, trans_b, ldb, alpha, beta, row_step, column_step
):  # fmt: skip
    """alpha op(A) op(B) + beta C; C is `c[row * row_step + column * column_step]`, or the output's own bytes."""
    if beta != 0.0:
        for i in range(m):
            line = out[i * n : (i + 1) * n]
            if column_step == 1:
                source = c[i * row_step : i * row_step + n]
                for j in range(n):
                    line[j] = beta * source[j]
            else:
                value = beta * c[i * row_step]
                for j in range(n):
                    line[j] = value
    keep = 1.0 if beta != 0.0 else 0.0
    ta, tb = trans_a != 0, trans_b != 0
    _product(routine, vector_routine, m, n, k, alpha, a, 0, lda, ta, b, 0, ldb, tb, keep, out, 0)
    return STATUS_OK
