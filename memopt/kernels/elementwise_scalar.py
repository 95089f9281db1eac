"""Scalar functions: what the elementwise ops do to one element.

Holds true of every scalar function: the result has the type of its first value operand (comparisons: bool), whatever
wider type the arithmetic took; integers wrap; a NaN goes through; nothing raises. So a chain of ops in one expression
gives the same bits as the ops one after the other.
"""

# ruff: noqa: D103 - a scalar function is named after what it computes

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from memopt.kernels.abi import register_jitable
from memopt.kernels.local import fdiv, idiv, like
from memopt.kernels.real32 import erf32, exp32, expm1_32, tanh32

__all__ = [
    "absolute", "add", "at_least", "at_most", "ceil", "cos", "div", "elu", "equal", "erf", "exp", "expm1", "floor",
    "gelu", "gelu_tanh", "greater", "greater_equal", "hard_sigmoid", "hard_swish", "leaky_relu", "less", "less_equal",
    "log", "log1p", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "mul", "neg", "power", "prelu",
    "reciprocal", "relu", "rint", "selu", "sigmoid", "sign", "sin", "softplus", "softsign", "sqrt", "sub", "tanh",
    "where",
]  # fmt: skip


def _from_math(name: str, compiled: Any, plain: Any, single: Any = None) -> Any:
    """A scalar function that is `plain` in Python and `compiled` in compiled code (`single` for float32)."""

    def function(x):
        return like(plain(x), x)

    function.__name__ = function.__qualname__ = name

    @overload(function)
    def _jitted(x):
        chosen = single if single is not None and x == types.float32 else compiled
        return lambda x: chosen(x)

    return function


exp = _from_math("exp", math.exp, np.exp, exp32)
tanh = _from_math("tanh", math.tanh, np.tanh, tanh32)
erf = _from_math("erf", math.erf, math.erf, erf32)
expm1 = _from_math("expm1", math.expm1, np.expm1, expm1_32)
log = _from_math("log", math.log, np.log)
sqrt = _from_math("sqrt", math.sqrt, np.sqrt)
sin = _from_math("sin", math.sin, np.sin)
cos = _from_math("cos", math.cos, np.cos)
log1p = _from_math("log1p", math.log1p, np.log1p)
floor = _from_math("floor", np.floor, np.floor)
ceil = _from_math("ceil", np.ceil, np.ceil)
rint = _from_math("rint", np.rint, np.rint)


# -- one operand ------------------------------------------------------------------------------------------------------


@register_jitable
def absolute(x):
    return x if x > 0 else like(like(0, x) - x, x)  # 0 - (-0.0) is 0.0


@register_jitable
def neg(x):
    return like(-x, x)


@register_jitable
def sign(x):
    return like(1, x) if x > 0 else (like(-1, x) if x < 0 else x)


@register_jitable
def reciprocal(x):
    return fdiv(like(1, x), x)


@register_jitable
def sigmoid(x):
    return fdiv(like(1, x), like(1, x) + exp(-x))


@register_jitable
def relu(x):
    return like(0, x) if x < 0 else x


@register_jitable
def leaky_relu(x, alpha):
    return like(alpha, x) * x if x < 0 else x


@register_jitable
def elu(x, alpha):
    return x if x > 0 else like(alpha, x) * expm1(x)


@register_jitable
def selu(x, alpha, gamma):
    return like(gamma, x) * elu(x, alpha)


@register_jitable
def at_least(x, low):
    return like(low, x) if x < like(low, x) else x


@register_jitable
def at_most(x, high):
    return like(high, x) if x > like(high, x) else x


@register_jitable
def hard_sigmoid(x, alpha, beta):
    return at_most(at_least(like(alpha, x) * x + like(beta, x), 0), 1)


@register_jitable
def hard_swish(x):
    return x * hard_sigmoid(x, 1 / 6, 0.5)


@register_jitable
def gelu(x):
    return like(0.5, x) * x * (like(1, x) + erf(x * like(0.7071067811865476, x)))


@register_jitable
def gelu_tanh(x):
    inner = like(0.7978845608028654, x) * (x + like(0.044715, x) * x * x * x)
    return like(0.5, x) * x * (like(1, x) + tanh(inner))


@register_jitable
def softplus(x):
    return at_least(x, 0) + log1p(exp(-absolute(x)))


@register_jitable
def softsign(x):
    return fdiv(x, like(1, x) + absolute(x))


@register_jitable
def logical_not(x):
    return not x


# -- two operands and more --------------------------------------------------------------------------------------------


@register_jitable
def add(x, y):
    return like(x + y, x)


@register_jitable
def sub(x, y):
    return like(x - y, x)


@register_jitable
def mul(x, y):
    return like(x * y, x)


@register_jitable
def _integer_div(x, y):
    """Truncated towards zero; x / 0 is 0, and the most negative integer / -1 wraps to itself."""
    if y == 0:
        return like(0, x)
    if y == -1:
        return like(-x, x)
    return idiv(x, like(y, x))


def div(x, y):
    """x / y: IEEE for floats, `_integer_div` for integers."""
    return fdiv(x, like(y, x)) if isinstance(x, (float, np.floating)) else _integer_div(x, y)


@overload(div)
def _div_jitted(x, y):
    if isinstance(x, types.Float):
        return lambda x, y: fdiv(x, like(y, x))
    return lambda x, y: _integer_div(x, y)


@register_jitable
def _integer_power(x, y):
    """Exact, modulo the type's width; a negative power of anything but 1 and -1 is 0, its truncated value."""
    result = like(1, x)
    if y < 0:
        if x == 1 or x == -1:
            return x if y % 2 != 0 else result
        return like(0, x)
    base = x
    while y > 0:
        if y % 2 != 0:
            result = like(result * base, x)
        base = like(base * base, x)
        y = y // 2
    return result


def power(x, y):
    """x ** y, of x's type."""
    if isinstance(x, (float, np.floating)) or isinstance(y, (float, np.floating)):
        return like(np.power(x, like(y, x) if isinstance(x, np.floating) else y), x)
    return _integer_power(x, y)


@overload(power)
def _power_jitted(x, y):
    if isinstance(x, types.Float):

        def real_power(x, y):
            exponent = like(y, x)
            return x * x if exponent == 2 else like(math.pow(x, exponent), x)

        return real_power
    if isinstance(y, types.Float):
        return lambda x, y: like(math.pow(float(x), float(y)), x)
    return lambda x, y: _integer_power(x, y)


@register_jitable
def prelu(x, slope):
    return like(slope * x, x) if x < 0 else x


@register_jitable
def minimum(x, y):
    return x if x < y or x != x else like(y, x)


@register_jitable
def maximum(x, y):
    return x if x > y or x != x else like(y, x)


@register_jitable
def equal(x, y):
    return x == y


@register_jitable
def less(x, y):
    return x < y


@register_jitable
def less_equal(x, y):
    return x <= y


@register_jitable
def greater(x, y):
    return x > y


@register_jitable
def greater_equal(x, y):
    return x >= y


@register_jitable
def logical_and(x, y):
    return x & y


@register_jitable
def logical_or(x, y):
    return x | y


@register_jitable
def where(condition, x, y):
    return x if condition else like(y, x)
