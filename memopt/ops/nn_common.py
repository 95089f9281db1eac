"""What the op families `blas`, `conv`, `pool` and `nn` share: checks of types, and sliding windows over spatial axes.

Holds true: a `Window` is valid: every size, stride and dilation is at least 1, every pad at least 0, every output
size at least 1, and its pads are explicit, whatever `auto_pad` said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.spec import ArrayArg, Attr, Attrs, GradientRule, KernelQuery, Types
from memopt.types import TensorType

__all__ = [
    "EPSILON",
    "KERNEL_FLOATS",
    "WINDOW_ATTRS",
    "Array",
    "Arrays",
    "Window",
    "along_channels",
    "explicit_pads",
    "flat",
    "gemm_routine",
    "image_sizes",
    "kernel_dtype",
    "make_window",
    "need_channels",
    "need_float",
    "need_same_dtype",
    "of_first_output",
    "per_axis",
    "present",
    "real",
    "taps",
    "wide",
]

Array = NDArray[Any]
Arrays = Sequence[Array | None]

#: The dtypes for which this family has compiled kernels.
KERNEL_FLOATS = ("float32", "float64")

#: What a normalisation adds to a variance by default.
EPSILON = 1e-5

WINDOW_ATTRS = {
    "auto_pad": Attr("str", "NOTSET"),
    "dilations": Attr("ints"),
    "pads": Attr("ints"),
    "strides": Attr("ints"),
}


def present(types: Types, index: int, name: str) -> TensorType:
    """The type of input number `index`, which must be there."""
    found = types[index] if index < len(types) else None
    if found is None:
        raise TypeInferenceError(f"input {name} is missing")
    return found


def real(attrs: Attrs, name: str) -> float:
    """The attribute `name` as a float."""
    return float(cast(float, attrs[name]))


def along_channels(vector: Array | None, rank: int) -> Array:
    """One number a channel, so that it broadcasts against (N, C, spatial...), in float64."""
    assert vector is not None
    return vector.astype(np.float64).reshape(-1, *(1,) * (rank - 2))


def of_first_output(
    build: Callable[[Any, Any, Any], Sequence[Any]],
    needs_inputs: tuple[int, ...] = (),
    needs_outputs: tuple[int, ...] = (),
) -> GradientRule:
    """The rule of an op that is differentiable in its first output only: `build(builder, node, dY)`."""

    def gradients(builder: Any, node: Any, output_grads: Sequence[Any]) -> Sequence[Any]:
        if output_grads[0] is None:
            return [None] * len(node.inputs)
        return build(builder, node, output_grads[0])

    return GradientRule(gradients, needs_inputs, needs_outputs)


def need_float(name: str, type: TensorType) -> None:
    """Raise unless `type` is a floating type."""
    if not type.dtype.startswith("float"):
        raise TypeInferenceError(f"{name} is {type}; want a floating type")


def need_same_dtype(types: Types, names: Sequence[str]) -> None:
    """Raise unless all inputs that are there have the dtype of the first."""
    first = present(types, 0, names[0])
    for name, type in zip(names, types, strict=False):
        if type is not None and type.dtype != first.dtype:
            raise TypeInferenceError(f"{name} is {type}, but {names[0]} is {first}; want one dtype")


def need_channels(name: str, type: TensorType | None, channels: int) -> None:
    """Raise unless `type` is that of one number a channel."""
    if type is not None and type.shape != (channels,):
        raise TypeInferenceError(f"{name} has shape {list(type.shape)}; want [{channels}], one number a channel")


def kernel_dtype(query: KernelQuery) -> str | None:
    """The one dtype of all operands if there are kernels for it (and something to compute), else None."""
    types = [type for type in (*query.inputs, *query.outputs) if type is not None]
    dtype = types[0].dtype
    if dtype not in KERNEL_FLOATS or any(type.dtype != dtype or type.num_elements == 0 for type in types):
        return None
    return dtype


def gemm_routine(dtype: str) -> str:
    """The BLAS routine for matrix products in `dtype`."""
    return "sgemm" if dtype == "float32" else "dgemm"


def flat(role: Any, index: int, type: TensorType | None) -> ArrayArg:
    """Operand `index` as a flat array of its own dtype (shape `(1,)` if empty)."""
    if type is None:
        raise ValueError(f"operand {role} {index} is absent")
    return ArrayArg(role, index, (type.num_elements,), type.dtype)


def wide(array: Array) -> Array:
    """`array` in a type in which sums of its values are well represented: float16 as float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `kernel` taps, `dilations` apart, that steps by `strides` over `sizes` within pads."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether output and input positions are the same: one tap, stride 1, no pads."""
        return all(k == 1 for k in self.kernel) and all(s == 1 for s in self.strides) and not any(self.begin + self.end)

    @property
    def num_taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def num_positions(self) -> int:
        return math.prod(self.out)


def make_window(sizes: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> Window:
    """The window that the ONNX attributes describe; raises `TypeInferenceError` naming the attribute and its value."""
    rank = len(sizes)
    if len(kernel) != rank or any(k < 1 for k in kernel):
        raise TypeInferenceError(f"kernel_shape = {tuple(kernel)} does not fit {rank} spatial axes of 1 or more")
    strides = per_axis(attrs, "strides", rank)
    dilations = per_axis(attrs, "dilations", rank)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    begin, end = _pads(attrs, sizes, strides, spans)
    ceil = bool(attrs.get("ceil_mode", 0))
    out = []
    for axis in range(rank):
        room = sizes[axis] + begin[axis] + end[axis] - spans[axis]
        steps = -(-room // strides[axis]) if ceil else room // strides[axis]
        if ceil and steps * strides[axis] >= sizes[axis] + begin[axis]:
            steps -= 1  # a last window that would start in the padding after the data
        if room < 0 or steps < 0:
            raise TypeInferenceError(
                f"kernel_shape = {tuple(kernel)} with dilations = {dilations} spans {spans[axis]} positions on spatial "
                f"axis {axis}, which has {sizes[axis]} and pads = {(begin[axis], end[axis])}: the output would be empty"
            )
        out.append(steps + 1)
    return Window(tuple(sizes), tuple(kernel), strides, dilations, begin, end, tuple(out))


def per_axis(attrs: Attrs, name: str, rank: int) -> tuple[int, ...]:
    """The attribute `name`, of 1 or more for each spatial axis; 1 where it is absent."""
    values = cast("tuple[int, ...]", attrs.get(name, (1,) * rank))
    if len(values) != rank or any(v < 1 for v in values):
        raise TypeInferenceError(f"{name} = {values} does not fit: want {rank} integers of 1 or more")
    return values


def explicit_pads(attrs: Attrs, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The attribute `pads`, before and after each spatial axis, which must fit `auto_pad`."""
    mode = attrs["auto_pad"]
    pads = cast("tuple[int, ...]", attrs.get("pads", (0,) * (2 * rank)))
    if len(pads) != 2 * rank or any(p < 0 for p in pads):
        raise TypeInferenceError(f"pads = {pads} does not fit: want {2 * rank} integers of 0 or more")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise TypeInferenceError(f"auto_pad = {mode!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    if mode != "NOTSET" and any(pads):
        raise TypeInferenceError(f"pads = {pads} and auto_pad = {mode!r} exclude each other; give one of them")
    return pads[:rank], pads[rank:]


def _pads(
    attrs: Attrs, sizes: Sequence[int], strides: Sequence[int], spans: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads before and after each spatial axis."""
    mode = attrs["auto_pad"]
    begin, end = explicit_pads(attrs, len(sizes))
    if mode in ("NOTSET", "VALID"):
        return begin, end
    total = [max((-(-n // s) - 1) * s + span - n, 0) for n, s, span in zip(sizes, strides, spans, strict=True)]
    small = tuple(t // 2 for t in total)
    large = tuple(t - t // 2 for t in total)
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def image_sizes(window: Window) -> tuple[tuple[int, int], ...]:
    """The window as seen in two dimensions: (height, width) pairs of sizes, kernel, strides, dilations, begin, out.

    A window over one axis is one over images of height 1.
    """
    fields = (window.sizes, window.kernel, window.strides, window.dilations, window.begin, window.out)
    if len(window.sizes) == 1:
        return tuple((0 if i == 4 else 1, field[0]) for i, field in enumerate(fields))
    return tuple((field[0], field[1]) for field in fields)


def taps(array: Array, window: Window, fill: float) -> Iterator[tuple[int, Array]]:
    """For each tap of the window: its number, and what it sees at every position, a strided view of the padded array.

    `array` has its spatial axes last; the views have the shape `(..., *window.out)`. `fill` stands in the padding.
    """
    spatial = len(window.sizes)
    after = []
    for axis in range(spatial):
        span = (window.kernel[axis] - 1) * window.dilations[axis] + 1
        reach = (window.out[axis] - 1) * window.strides[axis] + span
        after.append(max(reach - window.sizes[axis] - window.begin[axis], 0))
    widths = [(0, 0)] * (array.ndim - spatial) + list(zip(window.begin, after, strict=True))
    padded = np.pad(array, widths, constant_values=array.dtype.type(fill)) if any(window.begin) or any(after) else array
    for number, tap in enumerate(product(*(range(k) for k in window.kernel))):
        where: list[Any] = [Ellipsis]
        for axis in range(spatial):
            start, step = tap[axis] * window.dilations[axis], window.strides[axis]
            where.append(slice(start, start + (window.out[axis] - 1) * step + 1, step))
        yield number, padded[tuple(where)]
