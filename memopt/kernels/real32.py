"""exp, expm1, tanh and erf of float32, in float64 without calls or branches, so that loops over them vectorise.

Holds true: the float64 result has a relative error below 1e-9, so that the float32 result is the rounded true one in
all but one or two cases in a thousand, and then its neighbour; a NaN gives a NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.extending import lower_builtin, type_callable

from memopt.kernels.abi import register_jitable
from memopt.kernels.local import fdiv

__all__ = ["erf32", "exp32", "expm1_32", "tanh32"]

#: Added to a float64 below 2**51, it leaves the nearest integer in the low bits.
_MAGIC = 6755399441055744.0


def _scaled(x: Any, shifted: Any) -> Any:
    """x * 2**n, where `shifted` is the integer n plus `_MAGIC`; neither x nor the result is subnormal."""
    return np.ldexp(x, int(shifted - _MAGIC)) if shifted == shifted else x


@type_callable(_scaled)
def _type_scaled(context: Any) -> Any:
    return lambda x, shifted: types.float64


@lower_builtin(_scaled, types.float64, types.float64)
def _lower_scaled(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    word = llvm.IntType(64)
    bits, shifted = (builder.bitcast(arg, word) for arg in args)
    exponent = builder.shl(shifted, llvm.Constant(word, 52))
    return builder.bitcast(builder.add(bits, exponent), llvm.DoubleType())


@register_jitable
def _exp64(x):
    """exp(x) for |x| <= 700: x = n log 2 + r, and the series of exp(r) to the 11th power of r."""
    shifted = x * 1.4426950408889634 + _MAGIC
    n = shifted - _MAGIC
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    total = 2.505210838544172e-08
    total = total * r + 2.755731922398589e-07
    total = total * r + 2.7557319223985893e-06
    total = total * r + 2.48015873015873e-05
    total = total * r + 0.0001984126984126984
    total = total * r + 0.001388888888888889
    total = total * r + 0.008333333333333333
    total = total * r + 0.041666666666666664
    total = total * r + 0.16666666666666666
    total = total * r + 0.5
    total = total * r + 1.0
    total = total * r + 1.0
    return _scaled(total, shifted)


@register_jitable
def _within(x, limit):
    """x, moved into [-limit, limit]; a NaN stays."""
    x = limit if x > limit else x
    return -limit if x < -limit else x


@register_jitable
def exp32(x):
    """exp(x), 0 and infinity where it is out of range."""
    result = _exp64(_within(np.float64(x), 200.0))
    return x if x != x else np.float32(result)


@register_jitable
def expm1_32(x):
    """exp(x) - 1, without cancellation."""
    wide = _within(np.float64(x), 200.0)
    near = wide + 0.5 * wide * wide
    result = near if abs(wide) < 1e-5 else _exp64(wide) - 1.0
    return x if x != x else np.float32(result)


@register_jitable
def tanh32(x):
    """tanh(x) from exp(2 x), near 0 from its series."""
    wide = _within(np.float64(x), 20.0)
    grown = _exp64(2.0 * wide)
    near = wide - wide * wide * wide * 0.3333333333333333
    result = near if abs(wide) < 1e-3 else fdiv(grown - 1.0, grown + 1.0)
    return x if x != x else np.float32(result)


@register_jitable
def erf32(x):
    """erf(x): x times the polynomial in x**2 that interpolates erf(x) / x at Chebyshev nodes; erf(4) rounds to 1."""
    wide = _within(np.float64(x), 4.0)
    u = wide * wide * 0.125 - 1.0
    total = 9.403816578637098e-05
    total = total * u - 0.000246422017593623
    total = total * u + 0.0001732295034487736
    total = total * u - 0.0003255196142593992
    total = total * u + 0.0014101528933356117
    total = total * u - 0.0029097129787577338
    total = total * u + 0.004774946220279435
    total = total * u - 0.008384044254958969
    total = total * u + 0.014381038744725426
    total = total * u - 0.02256255830424042
    total = total * u + 0.03305329169588628
    total = total * u - 0.04574431267171725
    total = total * u + 0.059887829583056336
    total = total * u - 0.07473048679757296
    total = total * u + 0.0902089413427898
    total = total * u - 0.10771029288637649
    total = total * u + 0.13167511777583008
    total = total * u - 0.1765762358003929
    total = total * u + 0.3535309956434049
    return x if x != x else np.float32(wide * total)
