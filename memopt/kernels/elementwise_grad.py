"""Scalar functions of gradients: from dy, the gradient of an element of a result, to that of an element of an operand.

Holds true: as in `elementwise_scalar`, the result has the type of the first operand. y stands for the forward's result,
x for its operand.
"""

# ruff: noqa: D103 - a scalar function is named after what it computes

from __future__ import annotations

from memopt.kernels.abi import register_jitable
from memopt.kernels.elementwise_scalar import cos, erf, exp, expm1, log, power, sin, tanh
from memopt.kernels.local import fdiv, like

__all__ = [
    "above",
    "abs_grad",
    "below",
    "cos_grad",
    "div_grad",
    "div_or_zero",
    "elu_grad",
    "elu_grad_input",
    "erf_grad",
    "gelu_grad",
    "gelu_tanh_grad",
    "hard_sigmoid_grad",
    "hard_swish_grad",
    "leaky_relu_grad",
    "masked",
    "mse_grad",
    "power_grad",
    "power_grad_exponent",
    "prelu_grad",
    "prelu_grad_slope",
    "reciprocal_grad",
    "reduce_prod_grad",
    "relu_grad",
    "same",
    "scale",
    "selu_grad",
    "selu_grad_input",
    "sigmoid_grad",
    "sin_grad",
    "softplus_grad",
    "softsign_grad",
    "sqrt_grad",
    "tanh_grad",
    "tie_share",
    "unless",
]  # fmt: skip


# -- of the result ----------------------------------------------------------------------------------------------------


@register_jitable
def relu_grad(dy, y):
    return like(0, dy) if y <= 0 else dy


@register_jitable
def leaky_relu_grad(dy, y, alpha):
    return dy if y > 0 else like(alpha, dy) * dy


@register_jitable
def elu_grad(dy, y, alpha):
    return dy if y > 0 else dy * (y + like(alpha, y))


@register_jitable
def elu_grad_input(dy, x, alpha):
    return dy if x > 0 else dy * (like(alpha, x) * exp(x))


@register_jitable
def selu_grad(dy, y, alpha, gamma):
    return like(gamma, dy) * dy if y > 0 else dy * (y + like(alpha * gamma, y))


@register_jitable
def selu_grad_input(dy, x, alpha, gamma):
    return like(gamma, dy) * dy if x > 0 else dy * (like(alpha * gamma, x) * exp(x))


@register_jitable
def sigmoid_grad(dy, y):
    return dy * (y * (like(1, y) - y))


@register_jitable
def tanh_grad(dy, y):
    return dy * (like(1, y) - y * y)


@register_jitable
def sqrt_grad(dy, y):
    return fdiv(dy, like(2, y) * y)


@register_jitable
def reciprocal_grad(dy, y):
    return -dy * (y * y)


@register_jitable
def softplus_grad(dy, y):
    """dy * sigmoid(x), which is 1 - exp(-y)."""
    return dy * -expm1(-y)


@register_jitable
def softsign_grad(dy, y):
    slope = like(1, y) - (y if y > 0 else -y)
    return dy * (slope * slope)


@register_jitable
def hard_sigmoid_grad(dy, y, alpha):
    return like(alpha, dy) * dy if y > 0 and y < 1 else like(0, dy)


@register_jitable
def above(dy, y, low):
    return like(0, dy) if y <= like(low, y) else dy


@register_jitable
def below(dy, y, high):
    return like(0, dy) if y >= like(high, y) else dy


# -- of the operand ---------------------------------------------------------------------------------------------------


@register_jitable
def abs_grad(dy, x):
    return dy if x > 0 else (-dy if x < 0 else dy * x)


@register_jitable
def hard_swish_grad(dy, x):
    if x <= -3:
        return like(0, dy)
    return dy * (fdiv(x, like(3, x)) + like(0.5, x)) if x < 3 else dy


@register_jitable
def sin_grad(dy, x):
    return dy * cos(x)


@register_jitable
def cos_grad(dy, x):
    return -dy * sin(x)


@register_jitable
def erf_grad(dy, x):
    return dy * (like(1.1283791670955126, x) * exp(-x * x))


@register_jitable(inline="always")  # too large for LLVM to inline by itself, and a call would not vectorise
def gelu_grad(dy, x):
    half = like(0.5, x)
    density = like(0.3989422804014327, x) * exp(-half * x * x)
    return dy * (half * (like(1, x) + erf(x * like(0.7071067811865476, x))) + x * density)


@register_jitable(inline="always")  # too large for LLVM to inline by itself, and a call would not vectorise
def gelu_tanh_grad(dy, x):
    half, one, cubic, root = like(0.5, x), like(1, x), like(0.044715, x), like(0.7978845608028654, x)
    inner = tanh(root * (x + cubic * x * x * x))
    slope = root * (one + like(3, x) * cubic * x * x)
    return dy * (half * (one + inner) + half * x * (one - inner * inner) * slope)


@register_jitable
def prelu_grad(dy, x, slope):
    return dy if x > 0 else slope * dy


@register_jitable
def prelu_grad_slope(dy, x):
    return like(0, dy) if x > 0 else dy * x


# -- of several -------------------------------------------------------------------------------------------------------


@register_jitable
def div_grad(dy, y, b):
    """That of the divisor: -dy * (a / b) / b."""
    return -dy * fdiv(y, b)


@register_jitable
def power_grad(dy, x, exponent):
    """That of the base; 0 where the exponent is 0, whatever the base."""
    e = like(exponent, x)
    return like(0, dy) if e == 0 else dy * (e * power(x, e - like(1, e)))


@register_jitable
def power_grad_exponent(dy, x, exponent):
    """That of the exponent; 0 for 0 to a power of 0 or more."""
    e = like(exponent, x)
    return like(0, dy) if x == 0 and e >= 0 else dy * (power(x, e) * log(x))


@register_jitable
def same(y, x):
    """1 where x is y, else 0."""
    return like(1, y) if x == y else like(0, y)


@register_jitable
def tie_share(dy, hit, count):
    """dy shared between `count` operands, if this one is among them."""
    return like(0, dy) if hit == 0 else fdiv(dy, count)


@register_jitable
def reduce_prod_grad(dy, product, zeros, x):
    """`product` is that of the elements that are not 0, `zeros` the number of those that are."""
    if x == 0:
        return dy * product if zeros == 1 else like(0, dy)
    return dy * fdiv(product, x) if zeros == 0 else like(0, dy)


@register_jitable
def mse_grad(dy, x, target, factor):
    return like(factor, dy) * dy * (x - target)


@register_jitable
def scale(x, factor):
    return like(factor, x) * x


@register_jitable
def masked(x, mask):
    return x if mask else like(0, x)


@register_jitable
def unless(x, mask):
    return like(0, x) if mask else x


@register_jitable
def div_or_zero(a, b):
    return like(0, a) if b == 0 else fdiv(a, b)
