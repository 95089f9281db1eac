"""Where the positions of a resized axis lie in its source, and what they take of it.

Holds true: coordinates are computed in float32, as onnxruntime does, by one formula with four numbers (`Line`), which
the kernels use too: both read the same elements. Sums of weights are 1, but for rows outside of a cropped region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COORDINATES", "ROUNDINGS", "Line", "Resized", "nearest", "outside", "shares"]

Array = NDArray[Any]

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class Line:
    """Position i of the result lies at (i + before) * factor / divisor + after of the source, in float32."""

    before: float
    factor: float
    divisor: float
    after: float

    def places(self, count: int) -> Array:
        """Where the first `count` positions lie, float32."""
        i = np.arange(count).astype(np.float32)
        scaled = (i + np.float32(self.before)) * np.float32(self.factor)
        return np.asarray(scaled / np.float32(self.divisor) + np.float32(self.after), np.float32)


@dataclass(frozen=True, slots=True)
class Resized:
    """One axis: `size` elements become `out`, `scale` to one; `region` is the part that a crop takes, in [0, 1]."""

    size: int
    out: int
    scale: float
    mode: str
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def changes(self) -> bool:
        """Whether this is more than a copy."""
        return self.out != self.size or self.scale != 1 or self.mode == "tf_crop_and_resize"

    @property
    def line(self) -> Line:
        """The ONNX formula of the coordinate mode."""
        size, out, scale = self.size, self.out, self.scale
        if self.mode == "asymmetric":
            return Line(0, 1, scale, 0)
        if self.mode == "tf_half_pixel_for_nn":
            return Line(0.5, 1, scale, 0)
        if self.mode == "tf_crop_and_resize":
            start, end = self.region
            if out > 1:
                return Line(0, (end - start) * (size - 1), out - 1, start * (size - 1))
            return Line(0, 0, 1, 0.5 * (start + end) * (size - 1))
        if self.mode == "align_corners":
            return Line(0, size - 1, out - 1, 0) if out > 1 else Line(0, 0, 1, 0)
        if self.mode == "pytorch_half_pixel" and out == 1:
            return Line(0, 0, 1, 0)
        if self.mode == "half_pixel_symmetric":
            return Line(0.5, 1, scale, size / 2 * (1 - out / (scale * size)) - 0.5)
        return Line(0.5, 1, scale, -0.5)


def nearest(axis: Resized, rounding: str) -> Array:
    """For each position of the result the element that it takes, int64."""
    places = axis.line.places(axis.out).astype(np.float64)
    if rounding == "round_prefer_floor":
        found = np.ceil(places - 0.5)
    elif rounding == "round_prefer_ceil":
        found = np.floor(places + 0.5)
    else:
        found = np.floor(places) if rounding == "floor" else np.ceil(places)
    return np.asarray(np.clip(found, 0, axis.size - 1), np.int64)


def outside(axis: Resized) -> Array:
    """Which positions of the result lie outside of the source (a crop fills them)."""
    places = axis.line.places(axis.out)
    return np.asarray((places < 0) | (places > axis.size - 1))


def _triangle(x: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(x), 0))


def _cubic(coefficient: float) -> Callable[[Array], Array]:
    a = coefficient

    def weigh(x: Array) -> Array:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((x - 5) * x + 8) * x * a - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return weigh


@dataclass(frozen=True, slots=True)
class _Filter:
    weigh: Callable[[Array], Array]
    radius: int


def shares(axis: Resized, mode: str, coefficient: float, exclude_outside: bool, antialias: bool) -> tuple[Array, Array]:
    """What each position takes in mode "linear" or "cubic": elements and their shares, both of shape (taps, out).

    `antialias` widens the filter where the axis shrinks; `exclude_outside` gives what would look beyond the ends no
    share, else it sees the element at the end.
    """
    filter = _Filter(_triangle, 1) if mode == "linear" else _Filter(_cubic(coefficient), 2)
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    places = axis.line.places(axis.out).astype(np.float64)
    reach = int(np.ceil(filter.radius / shrink))
    taps = np.floor(places) + np.arange(-reach, reach + 2)[:, None]
    found = filter.weigh((taps - places) * shrink)
    if exclude_outside:
        found = np.where((taps < 0) | (taps >= axis.size), 0.0, found)
    if exclude_outside or antialias:
        found = found / found.sum(axis=0)
    used = found.any(axis=1)
    return np.clip(taps, 0, axis.size - 1).astype(np.int64)[used], found[used]
