"""`generate`: the loop that applies an expression of scalar functions to arrays; and all the scalar functions.

Holds true: the functions are those of `elementwise_scalar` (forward) and `elementwise_grad` (gradients); an expression
may call nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memopt.kernels.elementwise_grad import (
    above,
    abs_grad,
    below,
    cos_grad,
    div_grad,
    div_or_zero,
    elu_grad,
    elu_grad_input,
    erf_grad,
    gelu_grad,
    gelu_tanh_grad,
    hard_sigmoid_grad,
    hard_swish_grad,
    leaky_relu_grad,
    masked,
    mse_grad,
    power_grad,
    power_grad_exponent,
    prelu_grad,
    prelu_grad_slope,
    reciprocal_grad,
    reduce_prod_grad,
    relu_grad,
    same,
    scale,
    selu_grad,
    selu_grad_input,
    sigmoid_grad,
    sin_grad,
    softplus_grad,
    softsign_grad,
    sqrt_grad,
    tanh_grad,
    tie_share,
    unless,
)  # fmt: skip
from memopt.kernels.elementwise_loops import loop_text
from memopt.kernels.elementwise_scalar import (
    absolute,
    add,
    at_least,
    at_most,
    ceil,
    cos,
    div,
    elu,
    equal,
    erf,
    exp,
    expm1,
    floor,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    mul,
    neg,
    power,
    prelu,
    reciprocal,
    relu,
    rint,
    selu,
    sigmoid,
    sign,
    sin,
    softplus,
    softsign,
    sqrt,
    sub,
    tanh,
    where,
)  # fmt: skip
from memopt.kernels.local import fdiv, like

if TYPE_CHECKING:
    from memopt.ops.spec import KernelCall

__all__ = [
    "SCALAR_FUNCTIONS", "above", "abs_grad", "absolute", "add", "at_least", "at_most", "below", "ceil", "cos",
    "cos_grad", "div", "div_grad", "div_or_zero", "elu", "elu_grad", "elu_grad_input", "equal", "erf", "erf_grad",
    "exp", "expm1", "fdiv", "floor", "gelu", "gelu_grad", "gelu_tanh", "gelu_tanh_grad", "generate", "greater",
    "greater_equal", "hard_sigmoid", "hard_sigmoid_grad", "hard_swish", "hard_swish_grad", "leaky_relu",
    "leaky_relu_grad", "less", "less_equal", "like", "log", "log1p", "logical_and", "logical_not", "logical_or",
    "masked", "maximum", "minimum", "mse_grad", "mul", "neg", "power", "power_grad", "power_grad_exponent", "prelu",
    "prelu_grad", "prelu_grad_slope", "reciprocal", "reciprocal_grad", "reduce_prod_grad", "relu", "relu_grad",
    "rint", "same", "scale", "selu", "selu_grad", "selu_grad_input", "sigmoid", "sigmoid_grad", "sign", "sin",
    "sin_grad", "softplus", "softplus_grad", "softsign", "softsign_grad", "sqrt", "sqrt_grad", "sub", "tanh",
    "tanh_grad", "tie_share", "unless", "where",
]  # fmt: skip

#: Every name that an expression may call.
SCALAR_FUNCTIONS = frozenset(__all__) - {"SCALAR_FUNCTIONS", "generate"}


def generate(function: str, call: KernelCall) -> str:
    """The text that defines `kernel(y, x0, x1, …, scalars)` for `call.expression` and the loop named `function`.

    `memopt.kernels.elementwise_loops` says which loops there are. Raises `OptionError` for another loop, and for an
    expression that is not calls of scalar functions.
    """
    return loop_text(function, call, SCALAR_FUNCTIONS)
