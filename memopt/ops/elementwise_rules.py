"""Gradient rules of the elementwise ops. What each reads of the forward: see its `needs_inputs` and `needs_outputs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memopt.ops.elementwise_math import real
from memopt.ops.gradients import NO_GRADIENT, only_first, sum_to
from memopt.ops.spec import GradientRule

__all__ = ["GRADIENTS"]


def _of_output(op: str, *attrs: str) -> GradientRule:
    """`op(dY, Y)`, with the named attributes of the forward node."""
    return GradientRule(only_first(lambda b, n, d: b.op(op, d, n.outputs[0], **_some(n, attrs))), needs_outputs=(0,))


def _of_input(op: str, *attrs: str) -> GradientRule:
    """`op(dY, X)`, with the named attributes of the forward node."""
    return GradientRule(only_first(lambda b, n, d: b.op(op, d, n.inputs[0], **_some(n, attrs))), needs_inputs=(0,))


def _some(node: Any, attrs: Sequence[str]) -> dict[str, Any]:
    return {name: node.attrs[name] for name in attrs if name in node.attrs}


def _signed(op: str, *attrs: str) -> GradientRule:
    """As `_of_output`, but where alpha <= 0 the output does not tell the input's sign, and the input is read."""

    def gradient(builder: Any, node: Any, grad: Any) -> Any:
        options = _some(node, attrs)
        from_output = real(node.attrs, "alpha") > 0 and real({"gamma": 1.0, **options}, "gamma") > 0
        if op != "LeakyReluGrad" and not from_output:
            options["of"] = "input"
        return builder.op(op, grad, node.outputs[0] if from_output else node.inputs[0], **options)

    return GradientRule(only_first(gradient), needs_inputs=(0,), needs_outputs=(0,))


def _cast(builder: Any, node: Any, grad: Any) -> Any:
    source = node.inputs[0].dtype
    return builder.op("Cast", grad, to=source) if source.startswith("float") else None


# -- several operands -------------------------------------------------------------------------------------------------


def _add(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    return [_to_operand(builder, node, i, grads[0]) for i in range(len(node.inputs))]


def _to_operand(builder: Any, node: Any, index: int, grad: Any) -> Any:
    return sum_to(builder, grad, node.inputs[index].shape) if builder.wants(index) else None


def _sub(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    left, right = _add(builder, node, grads)
    return [left, None if right is None else builder.op("Neg", right)]


def _mul(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    a, b = node.inputs
    if a is b:  # a square
        return [builder.op("Scale", builder.op("Mul", grads[0], a), factor=2.0), None]
    return [
        sum_to(builder, builder.op("Mul", grads[0], b), a.shape) if builder.wants(0) else None,
        sum_to(builder, builder.op("Mul", grads[0], a), b.shape) if builder.wants(1) else None,
    ]


def _div(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    (a, b), y = node.inputs, node.outputs[0]
    return [
        sum_to(builder, builder.op("Div", grads[0], b), a.shape) if builder.wants(0) else None,
        sum_to(builder, builder.op("DivGrad", grads[0], y, b), b.shape) if builder.wants(1) else None,
    ]


def _pow(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    x, exponent = node.inputs
    base_grad = exponent_grad = None
    if builder.wants(0):
        base_grad = sum_to(builder, builder.op("PowGrad", grads[0], x, exponent), x.shape)
    if builder.wants(1):
        exponent_grad = sum_to(builder, builder.op("PowGradExponent", grads[0], x, exponent), exponent.shape)
        if exponent.dtype != x.dtype:
            exponent_grad = builder.op("Cast", exponent_grad, to=exponent.dtype)
    return [base_grad, exponent_grad]


def _prelu(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    x, slope = node.inputs
    return [
        builder.op("PReluGrad", grads[0], x, slope) if builder.wants(0) else None,
        sum_to(builder, builder.op("PReluGradSlope", grads[0], x), slope.shape) if builder.wants(1) else None,
    ]


def _mean(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    share = builder.op("Scale", grads[0], factor=1 / len(node.inputs))
    return _add(builder, node, [share])


def _extremum(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    if len(node.inputs) == 1:
        return [grads[0]]
    found: list[Any] = [None] * len(node.inputs)
    for index, value in enumerate(node.inputs):
        if builder.wants(index):
            share = builder.op("ExtremumGrad", grads[0], node.outputs[0], *node.inputs, index=index)
            found[index] = sum_to(builder, share, value.shape)
    return found


def _where(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    condition, x, y = node.inputs
    found: list[Any] = [None] * 3
    for index, (value, invert) in enumerate(((x, 0), (y, 1)), start=1):
        if builder.wants(index):
            found[index] = sum_to(builder, builder.op("Masked", grads[0], condition, invert=invert), value.shape)
    return found


def _masked(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    part = builder.op("Masked", grads[0], node.inputs[1], invert=node.attrs["invert"])
    return [sum_to(builder, part, node.inputs[0].shape), None]


#: Max, Min and other variadic ops: as many inputs as a node may have.
_ALL = tuple(range(64))

GRADIENTS: dict[str, GradientRule] = {
    "Abs": _of_input("AbsGrad"),
    "Neg": GradientRule(only_first(lambda b, n, d: b.op("Neg", d))),
    "Exp": _of_output("Mul"),
    "Log": _of_input("Div"),
    "Sqrt": _of_output("SqrtGrad"),
    "Reciprocal": _of_output("ReciprocalGrad"),
    "Sigmoid": _of_output("SigmoidGrad"),
    "Tanh": _of_output("TanhGrad"),
    "Relu": _of_output("ReluGrad"),
    "LeakyRelu": _signed("LeakyReluGrad", "alpha"),
    "Elu": _signed("EluGrad", "alpha"),
    "Selu": _signed("SeluGrad", "alpha", "gamma"),
    "HardSigmoid": _of_output("HardSigmoidGrad", "alpha"),
    "HardSwish": _of_input("HardSwishGrad"),
    "Clip": _of_output("ClipGrad", "min", "max"),
    "Sin": _of_input("SinGrad"),
    "Cos": _of_input("CosGrad"),
    "Erf": _of_input("ErfGrad"),
    "Gelu": _of_input("GeluGrad", "approximate"),
    "Softplus": _of_output("SoftplusGrad"),
    "Softsign": _of_output("SoftsignGrad"),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign"), NO_GRADIENT),
    "Cast": GradientRule(only_first(_cast)),
    "Add": GradientRule(_add),
    "Sum": GradientRule(_add),
    "Mean": GradientRule(_mean),
    "Sub": GradientRule(_sub),
    "Mul": GradientRule(_mul, needs_inputs=(0, 1)),
    "Div": GradientRule(_div, needs_inputs=(1,), needs_outputs=(0,)),
    "Pow": GradientRule(_pow, needs_inputs=(0, 1)),
    "PRelu": GradientRule(_prelu, needs_inputs=(0, 1)),
    "Max": GradientRule(_extremum, needs_inputs=_ALL, needs_outputs=(0,)),
    "Min": GradientRule(_extremum, needs_inputs=_ALL, needs_outputs=(0,)),
    "Where": GradientRule(_where, needs_inputs=(0,)),
    "Scale": GradientRule(only_first(lambda b, n, d: b.op("Scale", d, factor=n.attrs["factor"]))),
    "Masked": GradientRule(_masked, needs_inputs=(1,)),
}
