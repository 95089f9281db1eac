"""The two casts that numba lacks: an int to a typed pointer, and an int to a function to be called."""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.extending import intrinsic

__all__ = ["as_pointer", "call_entry"]


@intrinsic  # type: ignore[untyped-decorator] # numba carries no types
def as_pointer(typingctx: Any, address: Any, dtype: Any) -> Any:
    """`address` (an int) as a pointer to `dtype` (a numba type), for `carray`."""
    pointer = types.CPointer(dtype.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.intp, dtype), codegen


@intrinsic  # type: ignore[untyped-decorator] # numba carries no types
def call_entry(typingctx: Any, address: Any, frame: Any) -> Any:
    """Call the entry point at `address` with the address of its frame; returns its status."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = llvm.FunctionType(llvm.IntType(32), [llvm.IntType(64)])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int32(types.intp, types.intp), codegen
