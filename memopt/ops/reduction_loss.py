"""Losses: `SoftmaxCrossEntropyLoss` (ONNX's, without weights), its gradient from the log-probabilities, `MSELoss`.

Holds true: sums accumulate in float64. The backward of the cross entropy reads its second output, `log_prob`, and the
labels; a node without that output makes it anew. A label outside of the classes (and not `ignore_index`) is an error
when it is run. The mean over no labels at all is NaN, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import ExecutionError, TypeInferenceError
from memopt.ops.elementwise_infer import FLOAT, present
from memopt.ops.gradients import reshape_to
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    GradientRule,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Types,
)
from memopt.types import TensorType

__all__ = ["OPS"]

Array = NDArray[Any]
_REDUCTIONS = ("none", "sum", "mean")
#: No label is this: the value of `ignore_index` where nothing is ignored.
_NO_LABEL = -(2**63)


def _reduction(attrs: Attrs) -> str:
    if attrs["reduction"] not in _REDUCTIONS:
        raise TypeInferenceError(f"reduction {attrs['reduction']!r} is not one of {', '.join(_REDUCTIONS)}")
    return str(attrs["reduction"])


def _loss_type(each: TensorType, attrs: Attrs) -> TensorType:
    return each if _reduction(attrs) == "none" else each.with_shape(())


# -- SoftmaxCrossEntropyLoss ------------------------------------------------------------------------------------------


def _check_labels(scores: TensorType, labels: TensorType) -> TensorType:
    """The type of the losses before they are reduced."""
    if scores.dtype not in FLOAT or scores.rank < 2:
        raise TypeInferenceError(f"scores are {scores}; want floats of shape (N, C, ...)")
    if scores.shape[1] == 0:
        raise TypeInferenceError(f"scores are {scores}; want at least one class")
    each = scores.with_shape((scores.shape[0], *scores.shape[2:]))
    if labels.dtype not in ("int32", "int64") or labels.shape != each.shape:
        raise TypeInferenceError(f"labels are {labels}; want int32 or int64 of shape {list(each.shape)}")
    return each


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    scores, labels = present(types)
    return [_loss_type(_check_labels(scores, labels), attrs), scores][:num_outputs]


def _infer_grad(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, log_prob, labels = present(types)
    wanted = _loss_type(_check_labels(log_prob, labels), attrs)
    if grad != wanted:
        raise TypeInferenceError(f"dY is {grad}, but the loss is {wanted}")
    return [log_prob]


def _folded(type: TensorType) -> tuple[int, int, int]:
    return type.shape[0], type.shape[1], math.prod(type.shape[2:])


def _picked(labels: Array, classes: int, attrs: Attrs) -> tuple[Array, Array]:
    """(which labels count, the labels with 0 for those that do not), both of the shape (N, inner)."""
    labels = labels.reshape(labels.shape[0], math.prod(labels.shape[1:])).astype(np.int64)
    counts = labels != attrs.get("ignore_index", _NO_LABEL)
    if np.any(counts & ((labels < 0) | (labels >= classes))):
        raise ExecutionError(f"SoftmaxCrossEntropyLoss: a label is not in [0, {classes})")
    return counts, np.where(counts, labels, 0)


def _loss(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    scores, labels = (np.asarray(a) for a in arrays)
    n, classes, inner = _folded(TensorType.of(scores.shape))
    x = scores.reshape(n, classes, inner).astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis=1, keepdims=True, initial=-np.inf)
        log_prob = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    counts, index = _picked(labels, classes, attrs)
    each = np.where(counts, -np.take_along_axis(log_prob, index[:, None], axis=1)[:, 0], 0.0)
    with np.errstate(all="ignore"):
        reduced = {"none": each, "sum": np.sum(each), "mean": np.sum(each) / np.sum(counts, dtype=np.float64)}
    results = (reduced[str(attrs["reduction"])], log_prob)
    return [np.array(r).astype(t.dtype).reshape(t.shape) for r, t in zip(results, outputs, strict=False)]


def _loss_grad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    grad, log_prob, labels = (np.asarray(a) for a in arrays)
    n, classes, inner = _folded(outputs[0])
    counts, index = _picked(labels, classes, attrs)
    share = np.broadcast_to(grad.astype(np.float64).reshape((n, inner) if grad.ndim else (1, 1)), (n, inner))
    if attrs["reduction"] == "mean":
        share = share / max(int(np.sum(counts)), 1)
    hits = np.arange(classes)[None, :, None] == index[:, None, :]
    slope = np.exp(log_prob.reshape(n, classes, inner).astype(np.float64)) - hits
    return [(slope * np.where(counts, share, 0.0)[:, None]).reshape(log_prob.shape).astype(log_prob.dtype)]


def _scalars(attrs: Attrs, scores: TensorType) -> tuple[int, ...]:
    mode = _REDUCTIONS.index(str(attrs["reduction"]))
    return (*_folded(scores), cast(int, attrs.get("ignore_index", _NO_LABEL)), mode)


def _operands(query: KernelQuery) -> tuple[ArrayArg, ...] | None:
    """All operands as flat arrays, outputs first; None where a dtype has no kernel."""
    sides: tuple[tuple[Any, Types], ...] = (("out", query.outputs), ("in", query.inputs))
    arrays = [ArrayArg(role, i, (t.num_elements,), t.dtype) for role, side in sides for i, t in enumerate(side) if t]
    floats = {a.dtype for a in arrays if a.dtype.startswith("float")}
    return tuple(arrays) if len(floats) == 1 and "float16" not in floats else None


def _loss_kernel(query: KernelQuery) -> KernelCall | None:
    arrays, scores = _operands(query), query.inputs[0]
    if arrays is None or scores is None:
        return None
    name = "cross_entropy" if len([t for t in query.outputs if t]) == 1 else "cross_entropy_log_prob"
    if query.outputs[0] is None:
        return None
    return KernelCall(f"reduction_loss.{name}", arrays, _scalars(query.attrs, scores))


def _loss_grad_kernel(query: KernelQuery) -> KernelCall | None:
    arrays, log_prob = _operands(query), query.inputs[1]
    if arrays is None or log_prob is None:
        return None
    return KernelCall("reduction_loss.cross_entropy_grad", arrays, _scalars(query.attrs, log_prob))


def _cross_entropy_rule(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    scores, labels = node.inputs
    log_prob = node.outputs[1] if len(node.outputs) > 1 else None
    if log_prob is None:
        log_prob = builder.op("LogSoftmax", scores, axis=1)
    options = {name: node.attrs[name] for name in ("reduction", "ignore_index") if name in node.attrs}
    parts = []
    if grads[0] is not None:
        parts.append(builder.op("SoftmaxCrossEntropyLossGrad", grads[0], log_prob, labels, **options))
    if len(grads) > 1 and grads[1] is not None:
        parts.append(builder.op("LogSoftmaxGrad", grads[1], log_prob, axis=1))
    return [parts[0] if len(parts) == 1 else builder.op("Sum", *parts), None]


# -- MSELoss ----------------------------------------------------------------------------------------------------------


def _infer_mse(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, target = present(types)
    if data != target or data.dtype not in FLOAT:
        raise TypeInferenceError(f"input is {data} and target {target}; want one float type")
    return [_loss_type(data, attrs)]


def _mse(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    x, target = (np.asarray(a).astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        each = np.square(x - target)
        reduced = {"none": each, "sum": np.sum(each), "mean": np.sum(each) / np.float64(each.size)}
    return [np.array(reduced[str(attrs["reduction"])]).astype(outputs[0].dtype).reshape(outputs[0].shape)]


def _mse_kernel(query: KernelQuery) -> KernelCall | None:
    arrays = _operands(query)
    if arrays is None:
        return None
    return KernelCall("reduction_loss.squared_error", arrays, (_REDUCTIONS.index(str(query.attrs["reduction"])),))


def _mse_rule(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    data, target = node.inputs
    share = 1 / max(data.type.num_elements, 1) if node.attrs["reduction"] == "mean" else 1.0
    found = builder.op("MSELossGrad", grads[0], data, target, factor=2 * share)
    found = reshape_to(builder, found, data.shape)
    return [found, builder.op("Neg", found) if builder.wants(1) else None]


# -- the table --------------------------------------------------------------------------------------------------------

_MODE = Attr("str", "mean")
OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="SoftmaxCrossEntropyLoss",
        inputs=(Input("scores"), Input("labels")),
        outputs=(Output("output"), Output("log_prob", optional=True)),
        infer=_infer,
        reference=_loss,
        attrs={"reduction": _MODE, "ignore_index": Attr("int")},
        inplace=(InplacePair(1, 0),),
        kernel=_loss_kernel,
        gradient=GradientRule(_cross_entropy_rule, needs_inputs=(0, 1), needs_outputs=(1,)),
    ),
    OpSpec(
        name="SoftmaxCrossEntropyLossGrad",
        inputs=(Input("dY"), Input("log_prob"), Input("labels")),
        outputs=(Output("dX"),),
        infer=_infer_grad,
        reference=_loss_grad,
        attrs={"reduction": _MODE, "ignore_index": Attr("int")},
        inplace=(InplacePair(0, 1),),
        kernel=_loss_grad_kernel,
    ),
    OpSpec(
        name="MSELoss",
        inputs=(Input("input"), Input("target")),
        outputs=(Output("output"),),
        infer=_infer_mse,
        reference=_mse,
        attrs={"reduction": _MODE},
        kernel=_mse_kernel,
        gradient=GradientRule(_mse_rule, needs_inputs=(0, 1)),
    ),
)
