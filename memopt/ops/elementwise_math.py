"""The meaning of elementwise ops, in NumPy: functions of (arrays, attrs), with broadcasting.

Results are converted to the output's dtype by the caller (`reference_of`), which also hides IEEE flags and computes
float16 in float32. Integers wrap; a NaN goes through `Relu`, `Min`, `Max` and `Clip` (as in onnxruntime).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.ops.spec import Attrs, Reference
from memopt.types import TensorType

__all__ = ["MEANINGS", "Meaning", "clip_limits", "real", "reference_of"]

Array = NDArray[Any]
Meaning = Callable[[Sequence[Array], Attrs], Any]


def reference_of(meaning: Meaning) -> Reference:
    """`meaning` as an op's reference: one output, a fresh array of exactly the output's shape and dtype."""

    def reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
        given = [np.asarray(a) for a in arrays]
        wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in given]
        with np.errstate(all="ignore"):
            result = np.array(meaning(wide, attrs)).astype(outputs[0].dtype)
        return [np.array(np.broadcast_to(result, outputs[0].shape))]

    return reference


def real(attrs: Attrs, name: str) -> float:
    """A float attribute."""
    return cast(float, attrs[name])


def clip_limits(attrs: Attrs, dtype: str) -> tuple[int | float | None, int | float | None]:
    """(min, max) of a `Clip` as numbers of `dtype`; None where there is no limit (or it limits nothing)."""
    low, high = cast("float | None", attrs.get("min")), cast("float | None", attrs.get("max"))
    if np.dtype(dtype).kind == "f":
        return low, high
    info = np.iinfo(dtype)
    whole_low = None if low is None or low <= info.min else math.ceil(min(low, info.max))
    whole_high = None if high is None or high >= info.max else math.floor(max(high, info.min))
    return whole_low, whole_high


def _clip(x: Array, attrs: Attrs) -> Array:
    low, high = clip_limits(attrs, x.dtype.name)
    if low is not None:
        x = np.where(x < x.dtype.type(low), x.dtype.type(low), x)
    if high is not None:
        x = np.where(x > x.dtype.type(high), x.dtype.type(high), x)
    return x


def _erf(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(x))


def _gelu(x: Array, attrs: Attrs) -> Array:
    x = x.astype(np.float64)
    if attrs["approximate"] == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2))))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _div(x: Array, y: Array) -> Array:
    """Integers: truncated towards zero; x / 0 is 0, and the most negative integer / -1 wraps."""
    if x.dtype.kind == "f":
        return np.asarray(np.divide(x, y))
    x, y = np.broadcast_arrays(x, y)
    safe = np.where((y == 0) | ((y == -1) if y.dtype.kind == "i" else False), y.dtype.type(1), y)
    quotient = np.floor_divide(x, safe)
    quotient = quotient + ((quotient < 0) & (quotient * safe != x)).astype(x.dtype)
    return np.where(y == 0, x.dtype.type(0), np.where(safe != y, np.negative(x), quotient))


def _pow(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y.astype(x.dtype)))
    if y.dtype.kind == "f":
        return np.asarray(np.power(x.astype(np.float64), y))
    base, exponent = np.broadcast_arrays(x, y)
    if exponent.dtype.kind == "i":
        unit = np.abs(base) == 1 if base.dtype.kind == "i" else base == 1
        base = np.where((exponent < 0) & ~unit, base.dtype.type(0), base)
        exponent = np.where(exponent < 0, np.where(unit, np.negative(exponent), 1), exponent)
    return _integer_power(base, exponent.astype(np.uint64))


def _integer_power(base: Array, exponent: Array) -> Array:
    """By squaring, modulo the width of `base`."""
    result = np.ones_like(base)
    while exponent.any():
        result = np.where(exponent % np.uint64(2) != 0, np.multiply(result, base), result)
        base = np.multiply(base, base)
        exponent = exponent // np.uint64(2)
    return result


def _cast(x: Array, to: str) -> Array:
    """As C converts: towards zero; an integer wraps; a float that does not fit an integer gives any value, no error."""
    if x.dtype.kind == "f" and to in ("int8", "int16", "uint8", "uint16"):
        return x.astype(np.int32).astype(to)
    return x.astype(to)


def _leaky(x: Array, slope: Array | float) -> Array:
    return np.where(x < 0, np.asarray(slope, x.dtype) * x, x)


MEANINGS: dict[str, Meaning] = {
    "Abs": lambda a, k: np.abs(a[0]),
    "Neg": lambda a, k: np.negative(a[0]),
    "Exp": lambda a, k: np.exp(a[0]),
    "Log": lambda a, k: np.log(a[0]),
    "Sqrt": lambda a, k: np.sqrt(a[0]),
    "Reciprocal": lambda a, k: np.divide(a[0].dtype.type(1), a[0]),
    "Sigmoid": lambda a, k: 1 / (1 + np.exp(-a[0].astype(np.float64))),
    "Tanh": lambda a, k: np.tanh(a[0]),
    "Relu": lambda a, k: np.maximum(a[0], a[0].dtype.type(0)),
    "LeakyRelu": lambda a, k: _leaky(a[0], real(k, "alpha")),
    "Elu": lambda a, k: _elu(a[0], real(k, "alpha")),
    "Selu": lambda a, k: real(k, "gamma") * _elu(a[0], real(k, "alpha")),
    "HardSigmoid": lambda a, k: np.clip(real(k, "alpha") * a[0] + real(k, "beta"), 0, 1),
    "HardSwish": lambda a, k: a[0] * np.clip(a[0] / 6 + 0.5, 0, 1),
    "Clip": lambda a, k: _clip(a[0], k),
    "Floor": lambda a, k: np.floor(a[0]),
    "Ceil": lambda a, k: np.ceil(a[0]),
    "Round": lambda a, k: np.rint(a[0]),
    "Sign": lambda a, k: np.sign(a[0]),
    "Sin": lambda a, k: np.sin(a[0]),
    "Cos": lambda a, k: np.cos(a[0]),
    "Erf": lambda a, k: _erf(a[0]),
    "Gelu": lambda a, k: _gelu(a[0], k),
    "Softplus": lambda a, k: np.logaddexp(a[0], a[0].dtype.type(0)),
    "Softsign": lambda a, k: a[0] / (1 + np.abs(a[0])),
    "Not": lambda a, k: np.logical_not(a[0]),
    "Cast": lambda a, k: _cast(a[0], str(k["to"])),
    "Add": lambda a, k: np.add(a[0], a[1]),
    "Sub": lambda a, k: np.subtract(a[0], a[1]),
    "Mul": lambda a, k: np.multiply(a[0], a[1]),
    "Div": lambda a, k: _div(a[0], a[1]),
    "Pow": lambda a, k: _pow(a[0], a[1]),
    "PRelu": lambda a, k: _leaky(a[0], a[1]),
    "Min": lambda a, k: reduce(np.minimum, a),
    "Max": lambda a, k: reduce(np.maximum, a),
    "Sum": lambda a, k: reduce(np.add, a),
    "Mean": lambda a, k: reduce(np.add, a) / len(a),
    "Equal": lambda a, k: np.equal(a[0], a[1]),
    "Less": lambda a, k: np.less(a[0], a[1]),
    "LessOrEqual": lambda a, k: np.less_equal(a[0], a[1]),
    "Greater": lambda a, k: np.greater(a[0], a[1]),
    "GreaterOrEqual": lambda a, k: np.greater_equal(a[0], a[1]),
    "And": lambda a, k: np.logical_and(a[0], a[1]),
    "Or": lambda a, k: np.logical_or(a[0], a[1]),
    "Where": lambda a, k: np.where(a[0], a[1], a[2]),
}
