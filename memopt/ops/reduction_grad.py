"""`SoftmaxGrad` and `LogSoftmaxGrad`: from the gradient and the forward's *output* alone, in place over either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.elementwise_infer import FLOAT, present
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    ChooseKernel,
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


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, result = present(types)
    axis = cast(int, attrs["axis"])
    if grad != result or grad.dtype not in FLOAT:
        raise TypeInferenceError(f"dY is {grad} and Y is {result}; want one float type")
    if not -grad.rank <= axis < grad.rank:
        raise TypeInferenceError(f"axis {axis} is out of range for {grad}: want {-grad.rank} to {grad.rank - 1}")
    return [grad]


def _reference(log: bool) -> Reference:
    def reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
        grad, y = (np.asarray(a).astype(np.float64) for a in arrays)
        axis = cast(int, attrs["axis"])
        with np.errstate(all="ignore"):
            if log:
                result = grad - np.exp(y) * np.sum(grad, axis=axis, keepdims=True)
            else:
                result = y * (grad - np.sum(grad * y, axis=axis, keepdims=True))
        return [result.astype(outputs[0].dtype)]

    return reference


def _kernel(function: str) -> ChooseKernel:
    def kernel(query: KernelQuery) -> KernelCall | None:
        data = query.inputs[0]
        types = [t for t in (*query.outputs, *query.inputs) if t is not None]
        if data is None or any(t.dtype != data.dtype for t in types) or data.dtype == "float16":
            return None
        axis = cast(int, query.attrs["axis"]) % data.rank
        extents = (math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]))
        shape = (data.num_elements,)
        arrays = (
            ArrayArg("out", 0, shape, data.dtype),
            ArrayArg("in", 0, shape, data.dtype),
            ArrayArg("in", 1, shape, data.dtype),
        )
        return KernelCall(f"reduction_grad.{function}", arrays, extents)

    return kernel


def _spec(name: str, function: str) -> OpSpec:
    return OpSpec(
        name=name,
        inputs=(Input("dY"), Input("Y")),
        outputs=(Output("dX"),),
        infer=_infer,
        reference=_reference(log=name == "LogSoftmaxGrad"),
        attrs={"axis": Attr("int", -1)},
        inplace=(InplacePair(0, 0, repeats=True), InplacePair(0, 1, repeats=True)),
        kernel=_kernel(function),
    )


OPS: tuple[OpSpec, ...] = (_spec("SoftmaxGrad", "softmax_grad"), _spec("LogSoftmaxGrad", "log_softmax_grad"))
