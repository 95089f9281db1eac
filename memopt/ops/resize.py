"""Ops: Resize, with ONNX's attributes; what ONNX passes as inputs (roi, scales, sizes) are attributes.

Holds true: `scales`, where given, say how coordinates are computed and `sizes` how much is made; either may be derived
from the other. At most two neighbouring axes, in mode nearest (every dtype) or linear (float32 and float64), have a
kernel; other forms run as a host call. The kernel reads what the reference reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.movement_common import Array, copy_call, data_type, float_attr, int_attr, ints_attr, present, stand_in
from memopt.ops.resize_tables import COORDINATES, ROUNDINGS, Resized, nearest, outside, weights
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Scalar, Types, View
from memopt.types import TensorType

__all__ = ["OPS"]

_MODES = ("nearest", "linear", "cubic")
_FLOATS = ("float32", "float64")
#: float32 counts exactly up to here; a longer axis has no kernel.
_MOST_EXACT = 1 << 24


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
    if scales is not None and not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise TypeInferenceError(f"scales = {scales}; want numbers above 0")
    if sizes is None:
        single = [np.float32(dim) * np.float32(scale) for dim, scale in zip(source.shape, scales or (), strict=True)]
        sizes = tuple(int(np.floor(size)) for size in single)
    if any(size < 0 or (size > 0) > (dim > 0) for size, dim in zip(sizes, source.shape, strict=True)):
        raise TypeInferenceError(f"sizes = {sizes} cannot be made from {source}")
    if scales is None:
        pairs = zip(sizes, source.shape, strict=True)
        scales = tuple(float(np.float32(size) / np.float32(dim)) if dim and size else 1.0 for size, dim in pairs)
    return sizes, tuple(float(np.float32(scale)) for scale in scales)


def _axes(source: TensorType, attrs: Attrs) -> list[Resized]:
    """Every axis of the source."""
    sizes, scales = _lengths(source, attrs)
    mode = _choice(attrs, "coordinate_transformation_mode", COORDINATES)
    roi = cast("tuple[float, ...] | None", attrs.get("roi"))
    if mode == "tf_crop_and_resize" and (roi is None or len(roi) != 2 * source.rank):
        raise TypeInferenceError(f"roi = {roi} does not fit {source}: want {2 * source.rank} numbers")
    regions = [(0.0, 1.0)] * source.rank
    if mode == "tf_crop_and_resize" and roi is not None:
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


def _reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    """Axis by axis; sums in float64."""
    array = present(arrays)
    result = outputs[0]
    if result.num_elements == 0:
        return [np.empty(result.shape, result.dtype)]
    axes, mode = _axes(TensorType.of(array.shape, array.dtype), attrs), str(attrs["mode"])
    found: Array = array
    for number, axis in enumerate(axes):
        if not axis.changes:
            continue
        if mode == "nearest":
            found = np.take(found, nearest(axis, str(attrs["nearest_mode"])), axis=number)
            continue
        matrix = weights(
            axis,
            mode,
            float_attr(attrs, "cubic_coeff_a"),
            bool(int_attr(attrs, "exclude_outside")),
            bool(int_attr(attrs, "antialias")),
        )
        found = np.moveaxis(np.moveaxis(found.astype(np.float64), number, -1) @ matrix.T, -1, number)
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


def _image(query: KernelQuery) -> tuple[int, Resized, Resized, int] | None:
    """The source as (outer, rows, columns, inner), of which rows and columns are resized; None where it is not so."""
    axes = _axes(data_type(query.inputs), query.attrs)
    if query.layout == "NHWC" and len(axes) == 4:
        axes = [axes[0], axes[2], axes[3], axes[1]]
    where = [number for number, axis in enumerate(axes) if axis.changes]
    crops = any(axis.mode == "tf_crop_and_resize" for axis in axes)
    if not where or where[-1] - where[0] > 1 or crops or max(axis.size for axis in axes) > _MOST_EXACT:
        return None
    first, last = where[0], where[-1]
    rows = axes[first] if first < last else Resized(1, 1, 1.0, "asymmetric")
    outer, inner = (math.prod(axis.size for axis in part) for part in (axes[:first], axes[last + 1 :]))
    return outer, rows, axes[last], inner


def _is_linear(query: KernelQuery) -> bool:
    """Whether the linear kernel is meant; it has no wide filters."""
    return (
        query.attrs["mode"] == "linear"
        and data_type(query.inputs).dtype in _FLOATS
        and not int_attr(query.attrs, "exclude_outside")
        and not int_attr(query.attrs, "antialias")
    )


def _workspace(query: KernelQuery) -> int:
    """The table of the columns: for each the element that it takes (nearest), or that and its share (linear)."""
    call = _kernel(query)
    table = None if call is None else next((array for array in call.arrays if array.role == "scratch"), None)
    return 0 if table is None else math.prod(table.shape) * np.dtype(table.dtype).itemsize


def _kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    if result.num_elements and not any(axis.changes for axis in _axes(source, query.attrs)):
        return copy_call(query)
    mode = query.attrs["mode"]
    if result.num_elements == 0 or (mode != "nearest" and not _is_linear(query)):
        return None
    image = _image(query)
    if image is None:
        return None
    outer, rows, columns, inner = image
    scalars: list[Scalar] = [inner]
    for line in (rows.line, columns.line):
        scalars += [float(number) for number in (line.before, line.factor, line.divisor, line.after)]
    dtype = stand_in(source.dtype) if mode == "nearest" else source.dtype
    arrays = (
        ArrayArg("out", 0, (outer, rows.out, columns.out * inner), dtype),
        ArrayArg("in", 0, (outer, rows.size, columns.size * inner), dtype),
    )
    if mode == "linear":
        return KernelCall("resize.linear", (*arrays, ArrayArg("scratch", 0, (2, columns.out), dtype)), tuple(scalars))
    rounding = ROUNDINGS.index(str(query.attrs["nearest_mode"]))
    table = ArrayArg("scratch", 0, (columns.out,), "int64")
    return KernelCall("resize.nearest", (*arrays, table), (rounding, *scalars))


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "Resize",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer,
        reference=_reference,
        attrs={
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
        },
        views=(View(0, 0, _moves_nothing),),
        workspace=_workspace,
        kernel=_kernel,
        layouts=("NHWC",),
    ),
)
