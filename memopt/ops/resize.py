"""Ops: Resize, with ONNX's attributes; what ONNX passes as inputs (roi, scales, sizes) are attributes. Its gradient.

Holds true: `scales`, where given, say how coordinates are computed and `sizes` how much is made; either may be derived
from the other. At most two neighbouring axes, in mode nearest (every dtype) or linear (float32 and float64), have a
kernel; other forms run as a host call. The kernel reads what the reference reads. A resize is linear in its input, so
the gradient, `ResizeGrad`, reads dY alone: it gives each element the shares that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.movement_common import Array, copy_call, data_type, float_attr, int_attr, ints_attr, present, stand_in
from memopt.ops.nn_common import of_first_output
from memopt.ops.resize_tables import COORDINATES, ROUNDINGS, Resized, nearest, outside, shares
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Scalar, Types, View
from memopt.types import TensorType

__all__ = ["OPS"]

_MODES = ("nearest", "linear", "cubic")
_FLOATS = ("float32", "float64")
#: float32 counts exactly up to here; a longer axis has no kernel.
_MOST_EXACT = 1 << 24
_MOST_SCALE = float(np.finfo(np.float32).max)


def _choice(attrs: Attrs, name: str, choices: Sequence[str]) -> str:
    value = str(attrs[name])
    if value not in choices:
        raise TypeInferenceError(f"{name} = {value!r} is not one of {', '.join(choices)}")
    return value


def _lengths(source: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The sizes of the result and the scale of each axis."""
    sizes, scales = ints_attr(attrs, "sizes"), cast("tuple[float, ...] | None", attrs.get("scales"))
    if sizes is None and scales is None:
        raise TypeInferenceError("neither sizes nor scales is given; give one of them")
    for name, numbers in (("sizes", sizes), ("scales", scales)):
        if numbers is not None and len(numbers) != source.rank:
            raise TypeInferenceError(f"{name} = {numbers} do not fit {source}: want {source.rank} numbers")
    if scales is not None and not all(0 < scale < _MOST_SCALE for scale in scales):
        raise TypeInferenceError(f"scales = {scales}; want numbers above 0 that fit in float32")
    if sizes is None:
        with np.errstate(over="ignore"):
            single = np.array(source.shape, np.float32) * np.array(scales, np.float32)
        if not np.isfinite(single).all():
            raise TypeInferenceError(f"scales = {scales} are too large for {source}")
        sizes = tuple(int(np.floor(size)) for size in single)
    if any(size < 0 or (size > 0) > (dim > 0) for size, dim in zip(sizes, source.shape, strict=True)):
        raise TypeInferenceError(f"sizes = {sizes} cannot be made from {source}")
    if scales is not None and any(s and d * f < 0.49 for s, d, f in zip(sizes, source.shape, scales, strict=True)):
        raise TypeInferenceError(f"scales = {scales} do not make sizes = {sizes} of {source}")
    if scales is None:
        pairs = zip(sizes, source.shape, strict=True)
        scales = tuple(float(np.float32(size) / np.float32(dim)) if dim and size else 1.0 for size, dim in pairs)
    return sizes, tuple(float(np.float32(scale)) for scale in scales)


def _axes(source: TensorType, attrs: Attrs) -> list[Resized]:
    """Every axis of the source."""
    sizes, scales = _lengths(source, attrs)
    mode = _choice(attrs, "coordinate_transformation_mode", COORDINATES)
    roi = cast("tuple[float, ...] | None", attrs.get("roi"))
    regions = [(0.0, 1.0)] * source.rank
    if mode == "tf_crop_and_resize":
        if roi is None or len(roi) != 2 * source.rank or not all(math.isfinite(end) for end in roi):
            raise TypeInferenceError(f"roi = {roi} does not fit {source}: want {2 * source.rank} finite numbers")
        regions = list(zip(roi[: source.rank], roi[source.rank :], strict=True))
    axes = []
    for size, out, scale, region in zip(source.shape, sizes, scales, regions, strict=True):
        plain = mode == "tf_crop_and_resize" and size == out and region == (0.0, 1.0)
        axes.append(Resized(size, out, scale, "asymmetric" if plain else mode, region))
    return axes


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    mode = _choice(attrs, "mode", _MODES)
    _choice(attrs, "nearest_mode", ROUNDINGS)
    if mode != "nearest" and source.dtype == "bool":
        raise TypeInferenceError(f"mode = {mode!r} does not fit {source}")
    return [source.with_shape([axis.out for axis in _axes(source, attrs)])]


def _taps(axis: Resized, attrs: Attrs) -> tuple[Array, Array]:
    """The elements that each position of an axis takes, and their shares, both (taps, out)."""
    if attrs["mode"] == "nearest":
        taken = nearest(axis, str(attrs["nearest_mode"]))[None]
        return taken, np.ones(taken.shape)
    flags = (bool(int_attr(attrs, "exclude_outside")), bool(int_attr(attrs, "antialias")))
    return shares(axis, str(attrs["mode"]), float_attr(attrs, "cubic_coeff_a"), *flags)


def _reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    """Axis by axis; sums in float64."""
    array = present(arrays)
    result = outputs[0]
    if result.num_elements == 0:
        return [np.empty(result.shape, result.dtype)]
    axes = _axes(TensorType.of(array.shape, array.dtype), attrs)
    found: Array = array
    for number, axis in enumerate(axes):
        if not axis.changes:
            continue
        taken, parts = _taps(axis, attrs)
        if attrs["mode"] == "nearest":
            found = np.take(found, taken[0], axis=number)
            continue
        source = np.moveaxis(found.astype(np.float64), number, -1)
        sums = np.zeros((*source.shape[:-1], axis.out))
        for elements, part in zip(taken, parts, strict=True):
            sums += source[..., elements] * part
        found = np.moveaxis(sums, -1, number)
    found = np.array(found)
    for number, axis in enumerate(axes):
        if axis.mode == "tf_crop_and_resize":
            where: list[Any] = [slice(None)] * found.ndim
            where[number] = outside(axis)
            found[tuple(where)] = float_attr(attrs, "extrapolation_value")
    if result.dtype.startswith(("int", "uint")) and found.dtype.kind == "f":
        limits = np.iinfo(result.dtype)
        found = np.clip(found, limits.min, limits.max)
        found = np.rint(found) if bool(int_attr(attrs, "antialias")) else found
    return [np.array(found.astype(result.dtype), order="C")]


def _moves_nothing(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    return None if any(axis.changes for axis in _axes(data_type(types), attrs)) else 0


# -- the kernels ------------------------------------------------------------------------------------------------------


def _image(axes: list[Resized], layout: str) -> tuple[int, Resized, Resized, int] | None:
    """The source as (outer, rows, columns, inner), of which rows and columns are resized; None where it is not so."""
    if layout == "NHWC" and len(axes) == 4:
        axes = [axes[0], axes[2], axes[3], axes[1]]
    where = [number for number, axis in enumerate(axes) if axis.changes]
    crops = any(axis.mode == "tf_crop_and_resize" for axis in axes)
    if not where or where[-1] - where[0] > 1 or crops or max(axis.size for axis in axes) > _MOST_EXACT:
        return None
    first, last = where[0], where[-1]
    rows = axes[first] if first < last else Resized(1, 1, 1.0, "asymmetric")
    outer, inner = (math.prod(axis.size for axis in part) for part in (axes[:first], axes[last + 1 :]))
    return outer, rows, axes[last], inner


def _has_kernel(source: TensorType, attrs: Attrs) -> bool:
    """Whether the kernels compute this mode in this dtype; they have no wide filters."""
    if attrs["mode"] == "nearest":
        return True
    wide = int_attr(attrs, "exclude_outside") or int_attr(attrs, "antialias")
    return attrs["mode"] == "linear" and source.dtype in _FLOATS and not wide


def _workspace(choose: Callable[[KernelQuery], KernelCall | None]) -> Callable[[KernelQuery], int]:
    """The table of the columns: for each the element that it takes (nearest), or that and its share (linear)."""

    def workspace(query: KernelQuery) -> int:
        call = choose(query)
        table = None if call is None else next((array for array in call.arrays if array.role == "scratch"), None)
        return 0 if table is None else math.prod(table.shape) * np.dtype(table.dtype).itemsize

    return workspace


def _call(query: KernelQuery, source: TensorType, dtype: str, *, grad: bool) -> KernelCall | None:
    """The kernel that resizes `source`, or that gives it its gradient; both see the same two images."""
    image = _image(_axes(source, query.attrs), query.layout)
    if image is None:
        return None
    outer, rows, columns, inner = image
    small, large = (outer, rows.size, columns.size * inner), (outer, rows.out, columns.out * inner)
    arrays = [ArrayArg("out", 0, small if grad else large, dtype), ArrayArg("in", 0, large if grad else small, dtype)]
    scalars: list[Scalar] = [inner]
    for line in (rows.line, columns.line):
        scalars += [float(number) for number in (line.before, line.factor, line.divisor, line.after)]
    family = "resize_grad" if grad else "resize"
    if query.attrs["mode"] == "linear":
        table = ArrayArg("scratch", 0, (2, columns.out), dtype)
        return KernelCall(f"{family}.linear", (*arrays, table), tuple(scalars))
    rounding = ROUNDINGS.index(str(query.attrs["nearest_mode"]))
    table = ArrayArg("scratch", 0, (columns.out,), "int64")
    return KernelCall(f"{family}.nearest", (*arrays, table), (rounding, *scalars))


def _kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    if result.num_elements and not any(axis.changes for axis in _axes(source, query.attrs)):
        return copy_call(query)
    if result.num_elements == 0 or not _has_kernel(source, query.attrs):
        return None
    dtype = stand_in(source.dtype) if query.attrs["mode"] == "nearest" else source.dtype
    return _call(query, source, dtype, grad=False)


# -- the gradient -----------------------------------------------------------------------------------------------------


def _infer_grad(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    grad = data_type(types)
    source = grad.with_shape(ints_attr(attrs, "shape") or ())
    (result,) = _infer([source], attrs, 1)
    if grad != result or not grad.dtype.startswith("float"):
        raise TypeInferenceError(f"dY is {grad}; want floats of the shape {list(result.shape)} of the resized image")
    return [source]


def _reference_grad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    """Axis by axis, back to what was taken, in shares; what a crop fills gives nothing. In float64."""
    found, source = present(arrays).astype(np.float64), outputs[0]
    if source.num_elements == 0 or found.size == 0:
        return [np.zeros(source.shape, source.dtype)]
    for number, axis in enumerate(_axes(source, attrs)):
        if not axis.changes:
            continue
        taken, parts = _taps(axis, attrs)
        if axis.mode == "tf_crop_and_resize":
            parts = np.where(outside(axis), 0.0, parts)
        slope = np.moveaxis(found, number, -1)
        sums = np.zeros((*slope.shape[:-1], axis.size))
        for elements, part in zip(taken, parts, strict=True):
            where: Any = (..., elements)
            np.add.at(sums, where, slope * part)
        found = np.moveaxis(sums, -1, number)
    return [np.array(found.astype(source.dtype), order="C")]


def _kernel_grad(query: KernelQuery) -> KernelCall | None:
    source, grad = data_type(query.outputs), data_type(query.inputs)
    if source.num_elements == 0 or grad.num_elements == 0:
        return None
    if not any(axis.changes for axis in _axes(source, query.attrs)):
        return copy_call(query)
    if source.dtype not in _FLOATS or not _has_kernel(source, query.attrs):
        return None
    return _call(query, source, source.dtype, grad=True)


def _gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    return [builder.op("ResizeGrad", grad, shape=node.inputs[0].shape, **node.attrs)]


_ATTRS = {
    "antialias": Attr("int", 0),
    "coordinate_transformation_mode": Attr("str", "half_pixel"),
    "cubic_coeff_a": Attr("float", -0.75),
    "exclude_outside": Attr("int", 0),
    "extrapolation_value": Attr("float", 0.0),
    "mode": Attr("str", "nearest"),
    "nearest_mode": Attr("str", "round_prefer_floor"),
    "roi": Attr("floats"),
    "scales": Attr("floats"),
    "sizes": Attr("ints"),
}

OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "Resize",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer,
        reference=_reference,
        attrs=_ATTRS,
        views=(View(0, 0, _moves_nothing),),
        workspace=_workspace(_kernel),
        kernel=_kernel,
        layouts=("NHWC",),
        gradient=of_first_output(_gradient),
    ),
    OpSpec(
        "ResizeGrad",
        inputs=(Input("dY"),),
        outputs=(Output("dX"),),
        infer=_infer_grad,
        reference=_reference_grad,
        attrs={**_ATTRS, "shape": Attr("ints", required=True)},
        workspace=_workspace(_kernel_grad),
        kernel=_kernel_grad,
        layouts=("NHWC",),
    ),
)
