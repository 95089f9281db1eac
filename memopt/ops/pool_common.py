"""What pooling and its gradients share: the window, what it counts, and where its maximum is.

Holds true: each position of a valid window sees data; the maximum of padding alone would be nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import WINDOW_ATTRS, Array, Window, make_window, taps
from memopt.ops.spec import Attr, Attrs
from memopt.types import TensorType

__all__ = ["POOL_ATTRS", "counts", "ends", "lowest", "max_with_indices", "need_images", "pool_window"]

POOL_ATTRS = {**WINDOW_ATTRS, "ceil_mode": Attr("int", 0), "kernel_shape": Attr("ints", required=True)}


def pool_window(data: TensorType, attrs: Attrs) -> Window:
    """The pool's window; each of its positions must see data, since the maximum of padding alone is nothing."""
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    for axis in range(len(window.out)):
        if not _seen(window, axis, 0, window.sizes[axis]).all():
            raise TypeInferenceError(
                f"pads = {window.begin + window.end}: with kernel_shape = {window.kernel} and dilations = "
                f"{window.dilations}, a window would see only padding on spatial axis {axis}"
            )
    return window


def _seen(window: Window, axis: int, low: int, high: int) -> Array:
    """For each output position of `axis`: how many taps lie in [low, high)."""
    starts = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
    return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def need_images(data: TensorType) -> None:
    """Raise unless `data` are images."""
    if data.rank < 3:
        raise TypeInferenceError(f"X is {data}; want (N, C, spatial...)")


def counts(window: Window, include_pad: bool) -> Array:
    """How many positions each window averages over, of shape `window.out`."""
    found = np.ones(window.out)
    for axis, size in enumerate(window.sizes):
        low, high = (-window.begin[axis], size + window.end[axis]) if include_pad else (0, size)
        along = _seen(window, axis, low, high)
        found *= along.reshape(-1, *(1,) * (len(window.sizes) - axis - 1))
    return found


def ends(window: Window) -> tuple[int, int]:
    """The pads after the data, of height and width."""
    return (0, window.end[0]) if len(window.end) == 1 else (window.end[0], window.end[1])


def lowest(dtype: np.dtype[Any]) -> float | int:
    """What is below all numbers of `dtype`, or the least of them."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def max_with_indices(data: Array, window: Window, attrs: Attrs) -> Sequence[Array]:
    """The maxima and where in the flattened data they are: the first one in row-major order of the window."""
    order: Literal["C", "F"] = "F" if attrs["storage_order"] == 1 else "C"
    places = np.arange(math.prod(window.sizes), dtype=np.int64).reshape(window.sizes, order=order)
    shape = (*data.shape[:2], *window.out)
    best, where = np.full(shape, lowest(data.dtype), data.dtype), np.full(shape, -1, np.int64)
    numbers = [np.array(place) for _, place in taps(places, window, -1)]
    for (_, seen), place in zip(taps(data, window, lowest(data.dtype)), numbers, strict=True):
        better = (place >= 0) & ((where < 0) | (seen > best) | (np.isnan(seen) & ~np.isnan(best)))
        best = np.where(better, seen, best)
        where = np.where(better, place, where)
    planes = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(*shape[:2], *(1,) * len(window.out))
    return [best, where + planes * math.prod(window.sizes)]
