"""Elementwise ops that gradients are made of: `ReluGrad(dY, Y)` and the like, `Scale`, `Masked`, `DivOrZero`.

Holds true: each reads the forward's output where that says enough (Relu, Sigmoid, Tanh, Sqrt, …), else its input; its
result may lie over any operand of its shape, so that a gradient can take over the bytes of what it reads.

Conventions where there is no derivative, as in PyTorch if not said otherwise: 0 at 0 for Relu and Abs, the slope at 0
for LeakyRelu and PRelu; 0 at the limits of Clip (as PyTorch's ReLU6 and Hardtanh; its clamp lets the gradient pass),
so that it can be told from the output; Max and Min share the gradient evenly between equal operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.elementwise_entry import Entry, FormRule, calls, float_attr
from memopt.ops.elementwise_infer import FLOAT, NUMBER, broadcast_shapes, present, same_dtype
from memopt.ops.elementwise_loops import ScalarForm
from memopt.ops.elementwise_math import Meaning, real
from memopt.ops.spec import Attr, Attrs, Types
from memopt.types import TensorType

__all__ = ["MEANINGS", "TABLE"]

Array = NDArray[Any]

_TWO_OVER_ROOT_PI = 1.1283791670955126
_INVERSE_ROOT_2PI = 0.3989422804014327


# -- types and forms --------------------------------------------------------------------------------------------------


def _infer_power_grad(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """dY and X have one float dtype, the exponent any number's."""
    grad, base, exponent = present(types)
    same_dtype(FLOAT)([grad, base], attrs, num_outputs)
    if exponent.dtype not in NUMBER:
        raise TypeInferenceError(f"the exponent must be a number, got {exponent}")
    return [TensorType(broadcast_shapes([grad, base, exponent]), grad.dtype)]


def _infer_masked(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, mask = present(types)
    same_dtype(FLOAT)([data], attrs, num_outputs)
    if mask.dtype != "bool":
        raise TypeInferenceError(f"the mask must be bool, got {mask}")
    return [TensorType(broadcast_shapes([data, mask]), data.dtype)]


def _infer_extremum(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    num_operands = len(types) - 2
    if not 0 <= cast(int, attrs["index"]) < num_operands:
        raise TypeInferenceError(f"index = {attrs['index']} is not one of the {num_operands} operands")
    return same_dtype(FLOAT)(types, attrs, num_outputs)


def _extremum(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm:
    """dY / (number of operands that equal Y) where operand `index` does, else 0."""
    count = "same(x1, x2)"
    for i in range(3, len(inputs)):
        count = f"add({count}, same(x1, x{i}))"
    return ScalarForm(f"tie_share(x0, same(x1, x{cast(int, attrs['index']) + 2}), {count})")


def _clip_grad(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm:
    text = "x0"
    scalars: list[int | float] = []
    for function, name in (("above", "min"), ("below", "max")):
        if attrs.get(name) is not None:
            text = f"{function}({text}, x1, s{len(scalars)})"
            scalars.append(real(attrs, name))
    return ScalarForm(text, tuple(scalars))


def _masked(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm:
    return ScalarForm("unless(x0, x1)" if attrs["invert"] else "masked(x0, x1)")


def _gelu_grad(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm:
    return ScalarForm("gelu_tanh_grad(x0, x1)" if attrs["approximate"] == "tanh" else "gelu_grad(x0, x1)")


def _of(function: str, *params: str) -> FormRule:
    """`function`, or `function_input` where the attribute `of` says that R is the forward's input."""
    output_form, input_form = calls(function, *params), calls(f"{function}_input", *params)
    return lambda inputs, output, attrs: (input_form if attrs["of"] == "input" else output_form)(inputs, output, attrs)


def _pair(name: str, reads: str, form: FormRule, attrs: dict[str, Attr] | None = None) -> Entry:
    """A gradient of dY and one forward value."""
    return Entry(name, ("dY", reads), same_dtype(FLOAT), form, attrs or {})


_OF = Attr("str", "output")
TABLE: list[Entry] = [
    _pair("ReluGrad", "Y", calls("relu_grad")),
    _pair("LeakyReluGrad", "R", calls("leaky_relu_grad", "alpha"), {"alpha": float_attr(0.01)}),
    _pair("EluGrad", "R", _of("elu_grad", "alpha"), {"alpha": float_attr(1.0), "of": _OF}),
    _pair(
        "SeluGrad",
        "R",
        _of("selu_grad", "alpha", "gamma"),
        {"alpha": float_attr(1.67326319217681884765625), "gamma": float_attr(1.05070102214813232421875), "of": _OF},
    ),
    _pair("SigmoidGrad", "Y", calls("sigmoid_grad")),
    _pair("TanhGrad", "Y", calls("tanh_grad")),
    _pair("SqrtGrad", "Y", calls("sqrt_grad")),
    _pair("ReciprocalGrad", "Y", calls("reciprocal_grad")),
    _pair("SoftplusGrad", "Y", calls("softplus_grad")),
    _pair("SoftsignGrad", "Y", calls("softsign_grad")),
    _pair("HardSigmoidGrad", "Y", calls("hard_sigmoid_grad", "alpha"), {"alpha": float_attr(0.2)}),
    _pair("ClipGrad", "Y", _clip_grad, {"min": Attr("float"), "max": Attr("float")}),
    _pair("HardSwishGrad", "X", calls("hard_swish_grad")),
    _pair("SinGrad", "X", calls("sin_grad")),
    _pair("CosGrad", "X", calls("cos_grad")),
    _pair("ErfGrad", "X", calls("erf_grad")),
    _pair("GeluGrad", "X", _gelu_grad, {"approximate": Attr("str", "none")}),
    _pair("AbsGrad", "X", calls("abs_grad")),
    _pair("PReluGradSlope", "X", calls("prelu_grad_slope")),
    Entry("PReluGrad", ("dY", "X", "slope"), same_dtype(FLOAT), calls("prelu_grad")),
    Entry("DivGrad", ("dY", "Y", "B"), same_dtype(FLOAT), calls("div_grad")),
    Entry("PowGrad", ("dY", "X", "exponent"), _infer_power_grad, calls("power_grad")),
    Entry("PowGradExponent", ("dY", "X", "exponent"), _infer_power_grad, calls("power_grad_exponent")),
    Entry("ExtremumGrad", ("dY", "Y", "*X"), _infer_extremum, _extremum, {"index": Attr("int", required=True)}),
    Entry("ReduceProdGrad", ("dY", "product", "zeros", "X"), same_dtype(FLOAT), calls("reduce_prod_grad")),
    Entry(
        "MSELossGrad",
        ("dY", "input", "target"),
        same_dtype(FLOAT),
        calls("mse_grad", "factor"),
        {"factor": float_attr(1.0)},
    ),
    Entry("Scale", ("X",), same_dtype(FLOAT), calls("scale", "factor"), {"factor": float_attr(1.0)}),
    Entry("Masked", ("X", "mask"), _infer_masked, _masked, {"invert": Attr("int", 0)}),
    Entry("DivOrZero", ("A", "B"), same_dtype(FLOAT), calls("div_or_zero")),
]


# -- the meaning, in NumPy --------------------------------------------------------------------------------------------


def _where(condition: Any, x: Any, y: Any) -> Array:
    return np.asarray(np.where(condition, x, y))


def _elu_grad(a: Sequence[Array], k: Attrs) -> Array:
    alpha, gamma = real(k, "alpha"), real(k, "gamma") if "gamma" in k else 1.0
    dy, ref = a[0].astype(np.float64), a[1].astype(np.float64)
    slope = alpha * gamma * np.exp(ref) if k["of"] == "input" else ref + alpha * gamma
    return dy * _where(ref > 0, gamma, slope)


def _gelu_slope(x: Array, approximate: bool) -> Array:
    from scipy.special import erf

    x = x.astype(np.float64)
    if not approximate:
        return np.asarray(0.5 * (1 + erf(x / np.sqrt(2))) + x * _INVERSE_ROOT_2PI * np.exp(-0.5 * x * x))
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2))


def _extremum_share(a: Sequence[Array], k: Attrs) -> Array:
    dy, y, *operands = np.broadcast_arrays(*a)
    hits = [operand == y for operand in operands]
    count = np.sum(hits, axis=0)
    return _where(hits[cast(int, k["index"])], dy / np.maximum(count, 1), 0)


def _power_grad(a: Sequence[Array], k: Attrs) -> Array:
    dy, x, e = a[0], a[1], a[2].astype(a[1].dtype)
    return _where(e == 0, 0, dy * (e * np.power(x, e - x.dtype.type(1))))


def _power_grad_exponent(a: Sequence[Array], k: Attrs) -> Array:
    dy, x, e = a[0], a[1], a[2].astype(a[1].dtype)
    return _where((x == 0) & (e >= 0), 0, dy * (np.power(x, e) * np.log(x)))


def _reduce_prod_grad(a: Sequence[Array], k: Attrs) -> Array:
    dy, product, count, x = a
    return dy * _where(x == 0, _where(count == 1, product, 0), _where(count == 0, product / x, 0))


def _clip_share(a: Sequence[Array], k: Attrs) -> Array:
    grad = a[0]
    if k.get("min") is not None:
        grad = _where(a[1] <= a[1].dtype.type(real(k, "min")), 0, grad)
    if k.get("max") is not None:
        grad = _where(a[1] >= a[1].dtype.type(real(k, "max")), 0, grad)
    return grad


def _erf_slope(x: Array) -> Array:
    return np.asarray(_TWO_OVER_ROOT_PI * np.exp(-np.square(x.astype(np.float64))))


def _hard_swish_slope(x: Array) -> Array:
    return _where(x <= -3, 0, _where(x < 3, x / 3 + 0.5, 1))


def _real_of(k: Attrs, name: str, like: Array) -> Any:
    return like.dtype.type(real(k, name))


MEANINGS: dict[str, Meaning] = {
    "ReluGrad": lambda a, k: _where(a[1] <= 0, 0, a[0]),
    "LeakyReluGrad": lambda a, k: _where(a[1] > 0, a[0], _real_of(k, "alpha", a[0]) * a[0]),
    "EluGrad": _elu_grad,
    "SeluGrad": _elu_grad,
    "SigmoidGrad": lambda a, k: a[0] * (a[1] * (1 - a[1])),
    "TanhGrad": lambda a, k: a[0] * (1 - a[1] * a[1]),
    "SqrtGrad": lambda a, k: a[0] / (2 * a[1]),
    "ReciprocalGrad": lambda a, k: -a[0] * (a[1] * a[1]),
    "SoftplusGrad": lambda a, k: a[0] * -np.expm1(-a[1]),
    "SoftsignGrad": lambda a, k: a[0] * np.square(1 - np.abs(a[1])),
    "HardSigmoidGrad": lambda a, k: _where((a[1] > 0) & (a[1] < 1), _real_of(k, "alpha", a[0]) * a[0], 0),
    "ClipGrad": _clip_share,
    "HardSwishGrad": lambda a, k: a[0] * _hard_swish_slope(a[1]),
    "SinGrad": lambda a, k: a[0] * np.cos(a[1]),
    "CosGrad": lambda a, k: -a[0] * np.sin(a[1]),
    "ErfGrad": lambda a, k: a[0] * _erf_slope(a[1]),
    "GeluGrad": lambda a, k: a[0] * _gelu_slope(a[1], k["approximate"] == "tanh"),
    "AbsGrad": lambda a, k: a[0] * np.sign(a[1]),
    "PReluGradSlope": lambda a, k: _where(a[1] > 0, 0, a[0] * a[1]),
    "PReluGrad": lambda a, k: _where(a[1] > 0, a[0], a[2] * a[0]),
    "DivGrad": lambda a, k: -a[0] * (a[1] / a[2]),
    "PowGrad": _power_grad,
    "PowGradExponent": _power_grad_exponent,
    "ExtremumGrad": _extremum_share,
    "ReduceProdGrad": _reduce_prod_grad,
    "MSELossGrad": lambda a, k: _real_of(k, "factor", a[0]) * a[0] * (a[1] - a[2]),
    "Scale": lambda a, k: _real_of(k, "factor", a[0]) * a[0],
    "Masked": lambda a, k: _where(a[1] ^ bool(k["invert"]), a[0], 0),
    "DivOrZero": lambda a, k: _where(a[1] == 0, 0, a[0] / a[1]),
}
