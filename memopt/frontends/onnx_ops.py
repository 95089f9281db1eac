"""The one table of ONNX forms: op type -> the function that turns a node of any opset from 7 on into ours.

Holds true: an op that is not in the table passes as it is, attributes included. In ours, what ONNX passes as a
constant input (shape, axes, pads, limits) is an attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memopt.frontends.onnx_node import NodeView, Step, tensor_attribute
from memopt.frontends.onnx_tensor import dtype_name, element_dtype, read_tensor
from memopt.frontends.problems import RefusedError
from memopt.types import DTYPES

__all__ = ["NORMALISERS", "Normaliser"]

Normaliser = Callable[[NodeView], list[Step]]


# -- shapes and axes ----------------------------------------------------------------------------------------------


def _given(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if value is not None}


def _reshape(view: NodeView) -> list[Step]:
    return view.step(num_inputs=1, shape=view.ints(1, "shape"), allowzero=view.attrs.get("allowzero"))


def _axes(view: NodeView) -> tuple[int, ...] | None:
    """The axes, from input 1 or, in older opsets, from the attribute."""
    return view.ints(1, "axes") if view.has(1) else view.attrs.get("axes")


def _with_axes(view: NodeView) -> list[Step]:
    return view.step(num_inputs=1, axes=_axes(view))


def _reduce(view: NodeView) -> list[Step]:
    axes = _axes(view)
    if not axes:
        if view.attrs.get("noop_with_empty_axes", 0):
            return view.step("Identity", num_inputs=1)
        axes = None
    return view.step(num_inputs=1, axes=axes, keepdims=view.attrs.get("keepdims"))


def _cum_sum(view: NodeView) -> list[Step]:
    axis = view.number(1, "axis")
    return view.step(num_inputs=1, **{**view.attrs, "axis": None if axis is None else int(axis)})


def _expand(view: NodeView) -> list[Step]:
    return view.step(num_inputs=1, shape=view.ints(1, "shape"))


def _tile(view: NodeView) -> list[Step]:
    return view.step(num_inputs=1, repeats=view.ints(1, "repeats"))


def _slice(view: NodeView) -> list[Step]:
    if view.opset < 10:
        return view.plain()
    names = ("starts", "ends", "axes", "steps")
    return [Step("Slice", view.inputs[:1], view.outputs, _given({n: view.ints(i, n) for i, n in enumerate(names, 1)}))]


def _split(view: NodeView) -> list[Step]:
    split = view.ints(1, "split") if view.has(1) else view.attrs.get("split")
    return view.step(num_inputs=1, axis=view.attrs.get("axis"), split=split, num_outputs=view.attrs.get("num_outputs"))


def _pad(view: NodeView) -> list[Step]:
    if view.opset < 11:
        return view.plain()
    pads, axes, rank = view.ints(1, "pads") or (), view.ints(3, "axes"), view.type().rank
    if axes is not None:
        if len(pads) != 2 * len(axes) or not all(-rank <= axis < rank for axis in axes):
            raise RefusedError(f"its pads {pads} do not fit the axes {axes} of {view.type()}")
        full = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            full[axis % rank], full[rank + axis % rank] = pads[i], pads[len(axes) + i]
        pads = tuple(full)
    return view.step(num_inputs=1, pads=pads, mode=view.attrs.get("mode"), value=view.number(2, "constant_value"))


# -- resizing -------------------------------------------------------------------------------------------------------


def _floats(view: NodeView, index: int, what: str) -> tuple[float, ...] | None:
    """The numbers of input `index`; None if it is absent or empty."""
    data = view.constant(index, what)
    return tuple(float(number) for number in data.reshape(-1)) if data is not None and data.size else None


def _old_resize(view: NodeView, scales: tuple[float, ...] | None) -> list[Step]:
    """Upsample, and the Resize of opset 10: down to the next element, or up to it where the axis shrinks."""
    if scales is None:
        raise RefusedError("it has no scales")
    if any(scale < 1 for scale in scales) and any(scale > 1 for scale in scales):
        raise RefusedError(f"its scales {scales} both shrink and grow; export the model with opset 11 or later")
    return view.step(
        "Resize",
        num_inputs=1,
        scales=scales,
        mode={"bilinear": "linear"}.get(mode := view.attrs.get("mode", "nearest"), mode),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="ceil" if any(scale < 1 for scale in scales) else "floor",
    )


def _upsample(view: NodeView) -> list[Step]:
    return _old_resize(view, _floats(view, 1, "scales") if view.has(1) else view.attrs.get("scales"))


def _resize_axes(view: NodeView) -> tuple[int, ...]:
    rank = view.type().rank
    axes = view.attrs.pop("axes", None) or tuple(range(rank))
    if len({axis % rank for axis in axes if -rank <= axis < rank}) != len(axes):
        raise RefusedError(f"its axes {axes} are not axes of {view.type()}")
    return tuple(axis % rank for axis in axes)


def _spread(values: Any, axes: tuple[int, ...], default: list[Any], what: str) -> tuple[Any, ...] | None:
    """One value for each axis: `values` at `axes`, else the default."""
    if values is None:
        return None
    if len(values) != len(axes):
        raise RefusedError(f"its {what} {values} do not fit its axes {axes}")
    full = list(default)
    for axis, value in zip(axes, values, strict=True):
        full[axis] = value
    return tuple(full)


def _resize(view: NodeView) -> list[Step]:
    """`axes` and the policy on aspect ratios are worked out here: ours has one size and one scale for each axis."""
    if view.opset < 11:
        return _old_resize(view, _floats(view, 1, "scales"))
    shape, axes = view.type().shape, _resize_axes(view)
    attrs, ones = view.attrs, [1.0] * len(shape)
    policy = attrs.pop("keep_aspect_ratio_policy", "stretch")
    scales, sizes = _floats(view, 2, "scales"), view.ints(3, "sizes") or None
    if sizes is not None and policy != "stretch" and len(sizes) == len(axes) and all(shape[axis] for axis in axes):
        ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        scales = (scale,) * len(axes)
        sizes = tuple(math.floor(scale * shape[axis] + 0.5) for axis in axes)
    if attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = _floats(view, 1, "roi") or ()
        starts, ends = roi[: len(axes)], roi[len(axes) :]
        region = _spread(starts, axes, [0.0] * len(shape), "roi"), _spread(ends, axes, ones, "roi")
        attrs["roi"] = (*(region[0] or ()), *(region[1] or ()))
    return view.step(
        num_inputs=1,
        **attrs,
        scales=_spread(scales, axes, ones, "scales"),
        sizes=_spread(sizes, axes, list(shape), "sizes"),
    )


# -- data from attributes -----------------------------------------------------------------------------------------


def _constant_of_shape(view: NodeView) -> list[Step]:
    shape, tensor = view.ints(0, "shape"), tensor_attribute(view, "value")
    if tensor is None:
        return view.step(num_inputs=0, shape=shape)
    data = read_tensor(tensor, "its value", None)
    if data.size != 1:
        raise RefusedError(f"its value has {data.size} elements; want one number")
    number = data.reshape(-1)[0]
    if data.dtype.kind in "iu" and int(float(number)) != int(number):
        raise RefusedError(f"its value {number} has no exact float64")
    return view.step(num_inputs=0, shape=shape, value=float(number), dtype=data.dtype.name)


def _cast(view: NodeView) -> list[Step]:
    to = element_dtype(view.attrs.get("to", 0))
    if to is None:
        raise RefusedError(f"it casts to {dtype_name(view.attrs.get('to', 0))}; memopt has {', '.join(DTYPES)}")
    return view.step(to=to)


def _cast_like(view: NodeView) -> list[Step]:
    return view.step("Cast", num_inputs=1, to=view.type(1).dtype)


# -- arithmetic -----------------------------------------------------------------------------------------------------


def _clip(view: NodeView) -> list[Step]:
    """Limits that are computed from the feeds become Max and Min."""
    if view.opset < 11:
        return view.plain()
    if all(view.is_constant(i) or not view.has(i) for i in (1, 2)):
        return view.step(num_inputs=1, min=view.number(1, "min"), max=view.number(2, "max"))
    source, between = view.inputs[0], f"{view.outputs[0]}/clip"
    steps = [Step("Max", [source, view.inputs[1]], [between])] if view.has(1) else []
    if not view.has(2):
        steps[-1].outputs = view.outputs
        return steps
    return [*steps, Step("Min", [between if steps else source, view.inputs[2]], view.outputs)]


def _softmax(view: NodeView) -> list[Step]:
    """Before opset 13 the input is seen as a matrix, split before `axis`, and each row is one distribution."""
    if view.opset >= 13:
        return view.step(axis=view.attrs.get("axis", -1))
    shape, axis = view.type().shape, view.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise RefusedError(f"its axis {axis} is not one of {view.type()}")
    axis = axis + len(shape) if axis < 0 else axis
    if axis < len(shape) and math.prod(shape[axis + 1 :]) == 1:
        return view.step(axis=axis)
    flat, done = f"{view.outputs[0]}/flat", f"{view.outputs[0]}/rows"
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    return [
        Step("Reshape", view.inputs, [flat], {"shape": matrix, "allowzero": 1}),
        Step(view.op, [flat], [done], {"axis": 1}),
        Step("Reshape", [done], view.outputs, {"shape": shape, "allowzero": 1}),
    ]


# -- layers that behave differently in training --------------------------------------------------------------------


def _dropout(view: NodeView) -> list[Step]:
    if view.has(2):
        training = view.constant(2, "training_mode")
        if training is not None and training.any():
            raise RefusedError("it is in training mode; export the model for inference")
    return [Step("Dropout", view.inputs[:1], view.outputs)]


def _batch_normalization(view: NodeView) -> list[Step]:
    attrs = view.attrs
    if attrs.get("training_mode", 0) or any(view.wants(i) for i in range(1, 5)):
        raise RefusedError("it is in training mode; export the model for inference")
    if not attrs.get("spatial", 1):
        raise RefusedError("spatial = 0 (one mean for each activation) is not supported")
    return [Step("BatchNormalization", view.inputs, view.outputs[:1], {"epsilon": attrs.get("epsilon", 1e-5)})]


_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
)

NORMALISERS: dict[str, Normaliser] = {
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "CumSum": _cum_sum,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "Expand": _expand,
    "LogSoftmax": _softmax,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _with_axes,
    "Tile": _tile,
    "Unsqueeze": _with_axes,
    "Upsample": _upsample,
    **dict.fromkeys(_REDUCTIONS, _reduce),
}
