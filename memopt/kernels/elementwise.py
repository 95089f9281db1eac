"""Scalar functions, and the generator of the loops that apply an expression of them to arrays.

Holds true of every scalar function: the result has the type of its first value operand (comparisons: bool), whatever
wider type the arithmetic took; integers wrap; a NaN goes through; nothing raises. So a chain of ops in one expression gives
the same bits as the ops one after the other.

Holds true of every loop: an element is written after all operands of its block were read, so the output may be the same
bytes as any input that has its shape (and element width); in place and out of place give the same bits.
"""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import overload

from memopt.errors import OptionError
from memopt.kernels.abi import register_jitable
from memopt.kernels.local import fdiv, idiv, like

if TYPE_CHECKING:
    from memopt.ops.spec import KernelCall

__all__ = ["SCALAR_FUNCTIONS", "generate"]


def _from_math(name: str, compiled: Any, plain: Any) -> Any:
    """A scalar function that is `plain` in Python and `compiled` in compiled code, both of the operand's type."""

    def function(x):
        return like(plain(x), x)

    function.__name__ = function.__qualname__ = name

    @overload(function)
    def _jitted(x):
        return lambda x: compiled(x)

    return function


exp = _from_math("exp", math.exp, np.exp)
log = _from_math("log", math.log, np.log)
sqrt = _from_math("sqrt", math.sqrt, np.sqrt)
tanh = _from_math("tanh", math.tanh, np.tanh)
sin = _from_math("sin", math.sin, np.sin)
cos = _from_math("cos", math.cos, np.cos)
erf = _from_math("erf", math.erf, math.erf)
expm1 = _from_math("expm1", math.expm1, np.expm1)
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


#: Every name that an expression may call.
SCALAR_FUNCTIONS = frozenset({
    "absolute", "add", "at_least", "at_most", "ceil", "cos", "div", "elu", "equal", "erf", "exp", "expm1", "fdiv", "floor",
    "gelu", "gelu_tanh", "greater", "greater_equal", "hard_sigmoid", "hard_swish", "leaky_relu", "less", "less_equal", "like",
    "log", "log1p", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "mul", "neg", "power", "prelu",
    "reciprocal", "relu", "rint", "selu", "sigmoid", "sign", "sin", "softplus", "softsign", "sqrt", "sub", "tanh", "where",
})  # fmt: skip
#: Conversions that an expression may call: NumPy's scalar types (a float that does not fit an integer type gives any value).
_CONVERSIONS = frozenset({
    "bool_", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip


# -- the loops --------------------------------------------------------------------------------------------------------

_FLAT = """\
@register_jitable
def kernel({arguments}):
    size = y.size
    block = block_like(y)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
{views}
        for i in range(stop - start):
            block[i] = {expression}
        for i in range(stop - start):
            out[i] = block[i]
    return 0"""


def generate(function: str, call: KernelCall) -> str:
    """The text that defines `kernel(y, x0, x1, …, scalars)` for `call.expression` and the loop `function`.

    "flat"           every operand has as many elements as the output; scalars are the expression's s0, s1, …
    "broadcast<r>_<steps>"   r nested loops; `steps` says for each input how it steps along the innermost one: "1" (by one
                     element), "0" (not at all) or "s" (by its stride). The scalars are the r extents, then for each input
                     its r strides in elements, then s0, s1, …

    Raises `OptionError` for another loop or for an expression that is not calls of scalar functions.
    """
    num_inputs = sum(array.role == "in" for array in call.arrays)
    match = re.fullmatch(r"broadcast(\d+)_([01s]+)", function)
    if function != "flat" and (match is None or len(match[2]) != num_inputs):
        raise OptionError(f"there is no elementwise loop {function!r} for {num_inputs} inputs; there are flat and broadcast<r>_<steps>")
    rank = int(match[1]) if match else 0
    num_params = len(call.scalars) - rank * (1 + num_inputs)
    names = _checked_names(call.expression, num_inputs, num_params)
    lines = ["from memopt.kernels.abi import register_jitable", "from memopt.kernels.local import BLOCK, block_like"]
    functions = sorted(names - _CONVERSIONS)
    if functions:
        lines.append(f"from memopt.kernels.elementwise import {', '.join(functions)}")
    if names & _CONVERSIONS:
        lines.append(f"from numpy import {', '.join(sorted(names & _CONVERSIONS))}")
    params = [f"s{i}" for i in range(num_params)]
    body = _broadcast(call.expression, rank, match[2], params) if match else _flat(call.expression, num_inputs, params)
    return "\n".join([*lines, "", "", body])


def _checked_names(expression: str, num_inputs: int, num_params: int) -> set[str]:
    """The functions that `expression` calls. It is checked since the text becomes code, and a graph may come from a file."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise OptionError(f"elementwise expression {expression!r} is not an expression") from None
    operands = {f"x{i}" for i in range(num_inputs)} | {f"s{i}" for i in range(num_params)}
    functions: set[str] = set()
    stack: list[ast.expr] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            functions.add(node.func.id)
            stack.extend(node.args)
        elif isinstance(node, ast.Name) and node.id in operands:
            continue
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise OptionError(f"elementwise expression {expression!r} holds {ast.unparse(node)!r}; it may hold calls, {sorted(operands)} and numbers")
    unknown = functions - SCALAR_FUNCTIONS - _CONVERSIONS
    if unknown:
        raise OptionError(f"elementwise expression {expression!r} calls {sorted(unknown)}, which are not scalar functions")
    return functions


def _with_operands(expression: str, reads: list[str]) -> str:
    return re.sub(r"\bx(\d+)\b", lambda match: reads[int(match[1])], expression)


def _flat(expression: str, num_inputs: int, params: list[str]) -> str:
    views = ["        out = y[start:stop]"] + [f"        v{i} = x{i}[start:stop]" for i in range(num_inputs)]
    arguments = ["y", *(f"x{i}" for i in range(num_inputs)), *params]
    text = _with_operands(expression, [f"v{i}[i]" for i in range(num_inputs)])
    return _FLAT.format(arguments=", ".join(arguments), views="\n".join(views), expression=text)


def _broadcast(expression: str, rank: int, steps: str, params: list[str]) -> str:
    inputs = range(len(steps))
    extents = [f"n{d}" for d in range(rank)]
    strides = [f"t{i}_{d}" for i in inputs for d in range(rank)]
    arguments = ["y", *(f"x{i}" for i in inputs), *extents, *strides, *params]
    lines = ["@register_jitable", f"def kernel({', '.join(arguments)}):", "    block = block_like(y)"]
    lines += [f"    if {' * '.join(extents)} == 0:", "        return 0", "    row = 0"]
    for d in range(rank - 1):
        lines.append("    " * (d + 1) + f"for i{d} in range(n{d}):")
    pad = "    " * rank
    last = rank - 1
    reads = []
    rows = []
    for i, step in enumerate(steps):
        place = " + ".join([f"i{d} * t{i}_{d}" for d in range(last)]) or "0"
        lines.append(f"{pad}p{i} = {place}")
        if step == "0":
            lines.append(f"{pad}c{i} = x{i}[p{i}]")
        elif step == "1":
            rows.append(f"{pad}    v{i} = x{i}[p{i} + start:p{i} + stop]")
        reads.append({"0": f"c{i}", "1": f"v{i}[i]", "s": f"x{i}[p{i} + (start + i) * t{i}_{last}]"}[step])
    lines += [
        f"{pad}for start in range(0, n{last}, BLOCK):",
        f"{pad}    stop = min(start + BLOCK, n{last})",
        f"{pad}    out = y[row + start:row + stop]",
        *rows,
        f"{pad}    for i in range(stop - start):",
        f"{pad}        block[i] = {_with_operands(expression, reads)}",
        f"{pad}    for i in range(stop - start):",
        f"{pad}        out[i] = block[i]",
        f"{pad}row += n{last}",
        "    return 0",
    ]
    return "\n".join(lines)
