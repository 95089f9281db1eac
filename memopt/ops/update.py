"""Ops: updates. By definition the output is written to the input's *variable*: a parameter, its moments, its step.

The formulas are PyTorch's, with p the parameter, g its gradient, lr the rate (a scalar tensor, shape [] or [1]):

    SGD         p - lr g
    Momentum    g' = g + weight_decay p;  v' = mu v + g';  p - lr v'   (use_nesterov: p - lr (g' + mu v'))
    Adam        g' = g + weight_decay p;  t = step + 1;
                m' = beta1 m + (1 - beta1) g';  v' = beta2 v + (1 - beta2) g'^2;
                p - lr / (1 - beta1^t) m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon)
    AdamW       as Adam with g' = g, and (1 - lr weight_decay) p for p
    Increment   x + step

Each is elementwise: right where an output and the input that it updates are the same bytes, and where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.elementwise_infer import FLOAT, NUMBER, inplace_over, present
from memopt.ops.elementwise_loops import ScalarForm, loop_call
from memopt.ops.elementwise_math import real
from memopt.ops.spec import (
    ANY_LAYOUT,
    ArrayArg,
    Attr,
    Attrs,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Reference,
    Types,
)
from memopt.types import TensorType

__all__ = ["OPS"]

Array = NDArray[Any]


def _like_param(names: Sequence[str], inputs: Sequence[TensorType]) -> TensorType:
    """The parameter's type, once gradient and moments are known to have it."""
    param = inputs[0]
    if param.dtype not in FLOAT:
        raise TypeInferenceError(f"the parameter must be of a float dtype, got {param}")
    for name, type in zip(names[1:], inputs[1:], strict=True):
        if type != param:
            raise TypeInferenceError(f"{name} must have the parameter's type {param}, got {type}")
    return param


def _check_scalar(name: str, type: TensorType, dtypes: Sequence[str]) -> None:
    if type.shape not in ((), (1,)) or type.dtype not in dtypes:
        raise TypeInferenceError(f"{name} must be one number of dtype {' or '.join(dtypes)}, got {type}")


def _infer_sgd(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    inputs = present(types)
    _check_scalar("lr", inputs[2], FLOAT)
    return [_like_param(("param", "grad"), inputs[:2])]


def _infer_momentum(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    inputs = present(types)
    _check_scalar("lr", inputs[3], FLOAT)
    return [_like_param(("param", "grad", "velocity"), inputs[:3])] * 2


def _infer_adam(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    inputs = present(types)
    _check_scalar("step", inputs[4], ("int64",))
    _check_scalar("lr", inputs[5], FLOAT)
    return [*[_like_param(("param", "grad", "m", "v"), inputs[:4])] * 3, inputs[4]]


def _infer_increment(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    (data,) = present(types)
    if data.dtype not in NUMBER:
        raise TypeInferenceError(f"Increment counts numbers, got {data}")
    if data.dtype not in FLOAT and not real(attrs, "step").is_integer():
        raise TypeInferenceError(f"Increment: step = {attrs['step']!r} is not whole, but x is {data}")
    return [data]


# -- the meaning ------------------------------------------------------------------------------------------------------


def _number(array: Array) -> float:
    return float(array.reshape(-1)[0])


def _sgd(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    param, grad, rate = arrays
    return [param - param.dtype.type(_number(rate)) * grad]


def _momentum(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    param, grad, velocity, rate = arrays
    real_of = param.dtype.type
    mu = real_of(real(attrs, "mu"))
    slope = grad + real_of(real(attrs, "weight_decay")) * param
    speed = mu * velocity + slope
    return [param - real_of(_number(rate)) * (slope + mu * speed if attrs["use_nesterov"] else speed), speed]


def _adam_step(arrays: Sequence[Array], attrs: Attrs, decoupled: bool) -> Sequence[Array]:
    param, grad, m, v, step, rate = arrays
    real_of = param.dtype.type
    lr, beta1, beta2, decay = _number(rate), real(attrs, "beta1"), real(attrs, "beta2"), real(attrs, "weight_decay")
    count = int(_number(step)) + 1
    slope = grad if decoupled else grad + real_of(decay) * param
    mean = real_of(beta1) * m + real_of(1 - beta1) * slope
    square = real_of(beta2) * v + real_of(1 - beta2) * (slope * slope)
    pace = real_of(np.float64(lr) / np.float64(1 - beta1**count))
    root = real_of(np.sqrt(1 - beta2**count))
    kept = real_of(1 - lr * decay) * param if decoupled else param
    new = kept - pace * (mean / (np.sqrt(square) / root + real_of(real(attrs, "epsilon"))))
    return [new, mean, square, step + 1]


def _adam(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    return _adam_step(arrays, attrs, decoupled=False)


def _adamw(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    return _adam_step(arrays, attrs, decoupled=True)


def _increment(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = arrays
    step = real(attrs, "step")
    return [np.add(x, np.asarray(step if x.dtype.kind == "f" else int(step)).astype(x.dtype))]


def _reference(meaning: Any) -> Reference:
    def reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            results = meaning([np.asarray(a) for a in arrays], attrs)
        return [np.array(a, dtype=t.dtype).reshape(t.shape) for a, t in zip(results, outputs, strict=True)]

    return reference


# -- kernels ----------------------------------------------------------------------------------------------------------


def _arrays(query: KernelQuery) -> tuple[ArrayArg, ...] | None:
    """Every operand as a flat array, outputs first; None where there is no kernel for a dtype."""
    outputs = [ArrayArg("out", i, (t.num_elements,), t.dtype) for i, t in enumerate(query.outputs) if t is not None]
    inputs = [ArrayArg("in", i, (t.num_elements,), t.dtype) for i, t in enumerate(query.inputs) if t is not None]
    complete = len(outputs) == len(query.outputs) and len(inputs) == len(query.inputs)
    return (*outputs, *inputs) if complete and all(a.dtype != "float16" for a in (*outputs, *inputs)) else None


def _sgd_kernel(query: KernelQuery) -> KernelCall | None:
    arrays = _arrays(query)
    return None if arrays is None else KernelCall("update.sgd", arrays)


def _momentum_kernel(query: KernelQuery) -> KernelCall | None:
    arrays = _arrays(query)
    attrs = query.attrs
    scalars = (real(attrs, "mu"), real(attrs, "weight_decay"), int(cast(bool, attrs["use_nesterov"])))
    return None if arrays is None else KernelCall("update.momentum", arrays, scalars)


def _adam_call(query: KernelQuery, decoupled: int) -> KernelCall | None:
    arrays = _arrays(query)
    scalars = tuple(real(query.attrs, name) for name in ("beta1", "beta2", "epsilon", "weight_decay"))
    return None if arrays is None else KernelCall("update.adam", arrays, (*scalars, decoupled))


def _adam_kernel(query: KernelQuery) -> KernelCall | None:
    return _adam_call(query, 0)


def _adamw_kernel(query: KernelQuery) -> KernelCall | None:
    return _adam_call(query, 1)


def _increment_kernel(query: KernelQuery) -> KernelCall | None:
    (data,), (output,) = query.inputs, query.outputs
    if data is None or output is None:
        return None
    step = real(query.attrs, "step")
    form = ScalarForm("add(x0, like(s0, x0))", (step if data.dtype in FLOAT else int(step),))
    return loop_call(form, [data], output, query.layout)


# -- the table --------------------------------------------------------------------------------------------------------


def _over(output: int, source: int) -> InplacePair:
    """Output `output` over the input that it updates."""
    same_place = inplace_over(source)

    def condition(inputs: Types, outputs: Types, attrs: Attrs) -> str | None:
        return same_place(inputs, [outputs[output]], attrs)

    return InplacePair(output, source, condition, repeats=True)


def _spec(name: str, infer: Any, meaning: Any, kernel: Any, slots: dict[str, Any]) -> OpSpec:
    """`slots`: the names of "inputs" and "outputs", and "attrs"; an output is named after the input that it updates."""
    updates = {i: slots["inputs"].index(output) for i, output in enumerate(slots["outputs"])}
    return OpSpec(
        name=name,
        inputs=tuple(Input(slot) for slot in slots["inputs"]),
        outputs=tuple(Output(slot) for slot in slots["outputs"]),
        infer=infer,
        reference=_reference(meaning),
        attrs=slots.get("attrs", {}),
        inplace=tuple(_over(output, source) for output, source in updates.items()),
        updates=updates,
        kernel=kernel,
        layouts=(ANY_LAYOUT,),
    )


def _adam_slots(weight_decay: float) -> dict[str, Any]:
    defaults = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": weight_decay}
    return {
        "inputs": ("param", "grad", "m", "v", "step", "lr"),
        "outputs": ("param", "m", "v", "step"),
        "attrs": {name: Attr("float", value) for name, value in defaults.items()},
    }


_SGD: dict[str, Any] = {"inputs": ("param", "grad", "lr"), "outputs": ("param",)}
_MOMENTUM: dict[str, Any] = {
    "inputs": ("param", "grad", "velocity", "lr"),
    "outputs": ("param", "velocity"),
    "attrs": {"mu": Attr("float", 0.9), "use_nesterov": Attr("bool", False), "weight_decay": Attr("float", 0.0)},
}
_INCREMENT: dict[str, Any] = {"inputs": ("x",), "outputs": ("x",), "attrs": {"step": Attr("float", 1.0)}}

OPS: tuple[OpSpec, ...] = (
    _spec("SGD", _infer_sgd, _sgd, _sgd_kernel, _SGD),
    _spec("Momentum", _infer_momentum, _momentum, _momentum_kernel, _MOMENTUM),
    _spec("Adam", _infer_adam, _adam, _adam_kernel, _adam_slots(0.0)),
    _spec("AdamW", _infer_adam, _adamw, _adamw_kernel, _adam_slots(0.01)),
    _spec("Increment", _infer_increment, _increment, _increment_kernel, _INCREMENT),
)
