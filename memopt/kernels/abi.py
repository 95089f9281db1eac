"""What kernels may call besides plain loops: BLAS by address, and the status codes.

An address that is captured as a global would be frozen into numba's cache and be wrong in the next process; so the
runtime resolves a `Routine` to an address when it builds a frame, and the kernel receives it as an int.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

__all__ = ["STATUS_BAD_INDEX", "STATUS_MESSAGES", "STATUS_OK", "gemm", "register_jitable"]

STATUS_OK = 0
STATUS_BAD_INDEX = 1
STATUS_MESSAGES = {
    STATUS_BAD_INDEX: "an index in the data is outside of its tensor",
}


@intrinsic
def _call_gemm(typingctx, address, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """Call a Fortran `?gemm` at `address`; sizes are ints, matrices are addresses, alpha and beta of the routine's
    dtype.
    """
    signature = types.void(address, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

    def codegen(context, builder, sig, args):
        (addr, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) = args
        byte, word = llvm.IntType(8), llvm.IntType(32)

        def slot(value, to):
            if isinstance(to, llvm.IntType):
                value = builder.trunc(value, to) if value.type.width > to.width else value
            place = cgutils.alloca_once(builder, value.type)
            builder.store(value, place)
            return builder.bitcast(place, byte.as_pointer())

        def pointer(value):
            return builder.inttoptr(value, byte.as_pointer())

        operands = [
            slot(ta, byte), slot(tb, byte), slot(m, word), slot(n, word), slot(k, word), slot(alpha, None),
            pointer(a), slot(lda, word), pointer(b), slot(ldb, word), slot(beta, None), pointer(c), slot(ldc, word),
        ]  # fmt: skip
        kind = llvm.FunctionType(llvm.VoidType(), [byte.as_pointer()] * len(operands))
        builder.call(builder.inttoptr(addr, kind.as_pointer()), operands)
        return context.get_dummy_value()

    return signature, codegen


def gemm(address, m, n, k, alpha, a, a_at, lda, trans_a, b, b_at, ldb, trans_b, beta, c, c_at, ldc):
    """C = alpha * op(A) @ op(B) + beta * C, row-major, on flat arrays.

    A is `a[a_at:]` with row stride `lda` (elements): op(A) is m x k, transposed from k x m if `trans_a`. Likewise
    op(B), k x n; C is m x n. `address` is that of `sgemm` or `dgemm`, after the arrays' dtype. beta = 0 does not read
    C.
    """
    rows_a, cols_a = (k, m) if trans_a else (m, k)
    rows_b, cols_b = (n, k) if trans_b else (k, n)
    size = a.itemsize
    op_a = np.lib.stride_tricks.as_strided(a.reshape(-1)[a_at:], (rows_a, cols_a), (lda * size, size))
    op_b = np.lib.stride_tricks.as_strided(b.reshape(-1)[b_at:], (rows_b, cols_b), (ldb * size, size))
    out = np.lib.stride_tricks.as_strided(c.reshape(-1)[c_at:], (m, n), (ldc * size, size))
    product = (op_a.T if trans_a else op_a) @ (op_b.T if trans_b else op_b)
    out[...] = alpha * product + (beta * out if beta != 0 else 0)


@overload(gemm, inline="never")
def _gemm_jitted(address, m, n, k, alpha, a, a_at, lda, trans_a, b, b_at, ldb, trans_b, beta, c, c_at, ldc):
    size = a.dtype.bitwidth // 8
    real = np.float32 if size == 4 else np.float64

    def call(address, m, n, k, alpha, a, a_at, lda, trans_a, b, b_at, ldb, trans_b, beta, c, c_at, ldc):
        # Fortran reads row-major matrices as their transposes: C' = op(B)' op(A)'.
        if m > 0 and n > 0:
            _call_gemm(
                address,
                84 if trans_b else 78,  # "T" or "N"
                84 if trans_a else 78,
                n, m, k,
                real(alpha),
                b.ctypes.data + b_at * size, ldb,
                a.ctypes.data + a_at * size, lda,
                real(beta),
                c.ctypes.data + c_at * size, ldc,
            )  # fmt: skip

    return call
