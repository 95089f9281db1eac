"""Kernels: pooling.

Holds true: data and outputs are flat, (planes, height, width), or (batch, height, width, channels) in the kernels that
end in `_nhwc`; the geometry is named as in `memopt.kernels.conv`. A row (or a pixel's channels) of the output collects
its taps one by one, so the inner loops are over contiguous outputs. Sums of long runs are of float64, in four lanes.
"""

from __future__ import annotations

import numpy as np

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.nn_rows import (
    add_one,
    add_taps,
    fill,
    inner_range,
    keep_larger,
    keep_larger_taps,
    larger,
)

__all__ = [
    "average_pool",
    "average_pool_nhwc",
    "global_average",
    "global_average_nhwc",
    "global_max",
    "global_max_nhwc",
    "max_pool",
    "max_pool_nhwc",
]


@register_jitable
def max_pool(out, x, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow):
    """The maximum of each window."""
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    for plane in range(planes):
        for row in range(oh):
            at = (plane * oh + row) * ow
            fill(out, at, ow, -np.inf)
            for i in range(kh):
                line = row * sh + i * dh - top
                if line < 0 or line >= h:
                    continue
                keep_larger_taps(out, at, ow, x, (plane * h + line) * w, w, kw, sw, dw, left, inner, outer)
    return STATUS_OK


@register_jitable
def taps_inside(position, step, before, num_taps, dilation, low, high):
    """How many taps of the window at `position` lie in [low, high)."""
    count = 0
    for i in range(num_taps):
        place = position * step + i * dilation - before
        if low <= place < high:
            count += 1
    return count


@register_jitable
def divide(out, at, count, divisor):
    """Divide `count` elements by `divisor`, at least 1."""
    part, by = out[at : at + count], out.dtype.type(max(divisor, 1))
    for i in range(count):
        part[i] /= by


@register_jitable
def average_pool(
    out, x, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, include_pad, bottom, right
):  # fmt: skip
    """The mean of each window, over the data or (`include_pad`) over data and pads."""
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    edge_top, edge_left = (top, left) if include_pad else (0, 0)
    edge_bottom, edge_right = (bottom, right) if include_pad else (0, 0)
    for plane in range(planes):
        for row in range(oh):
            at = (plane * oh + row) * ow
            fill(out, at, ow, 0.0)
            for i in range(kh):
                line = row * sh + i * dh - top
                if line < 0 or line >= h:
                    continue
                add_taps(out, at, ow, x, (plane * h + line) * w, w, x, -1, kw, sw, dw, left, inner, outer)
            rows = taps_inside(row, sh, top, kh, dh, -edge_top, h + edge_bottom)
            divide(out, at + inner, outer - inner, rows * kw)
            for p in range(inner + ow - outer):
                col = p if p < inner else p - inner + outer
                divide(out, at + col, 1, rows * taps_inside(col, sw, left, kw, dw, -edge_left, w + edge_right))
    return STATUS_OK


@register_jitable
def max_pool_nhwc(out, x, batch, channels, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow):
    """As `max_pool`, all channels of a pixel at a time."""
    for n in range(batch):
        for p in range(oh * ow):
            at = (n * oh * ow + p) * channels
            fill(out, at, channels, -np.inf)
            for i in range(kh):
                line = p // ow * sh + i * dh - top
                if line < 0 or line >= h:
                    continue
                for j in range(kw):
                    place = p % ow * sw + j * dw - left
                    if 0 <= place < w:
                        keep_larger(out, at, x, ((n * h + line) * w + place) * channels, 1, channels)
    return STATUS_OK


@register_jitable
def average_pool_nhwc(
    out, x, batch, channels, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, include_pad, bottom, right
):  # fmt: skip
    """As `average_pool`, all channels of a pixel at a time."""
    edge_top, edge_left = (top, left) if include_pad else (0, 0)
    edge_bottom, edge_right = (bottom, right) if include_pad else (0, 0)
    for n in range(batch):
        for p in range(oh * ow):
            row, col = p // ow, p % ow
            at = (n * oh * ow + p) * channels
            fill(out, at, channels, 0.0)
            for i in range(kh):
                line = row * sh + i * dh - top
                if line < 0 or line >= h:
                    continue
                for j in range(kw):
                    place = col * sw + j * dw - left
                    if 0 <= place < w:
                        add_one(out, at, x, ((n * h + line) * w + place) * channels, 1, channels, x.dtype.type(1))
            rows = taps_inside(row, sh, top, kh, dh, -edge_top, h + edge_bottom)
            cols = taps_inside(col, sw, left, kw, dw, -edge_left, w + edge_right)
            divide(out, at, channels, rows * cols)
    return STATUS_OK


@register_jitable
def sum_run(values):
    """The sum of a flat array, in float64 and four lanes."""
    lane0 = lane1 = lane2 = lane3 = 0.0
    size = len(values)
    for i in range(size // 4):
        lane0 += values[4 * i]
        lane1 += values[4 * i + 1]
        lane2 += values[4 * i + 2]
        lane3 += values[4 * i + 3]
    for i in range(size // 4 * 4, size):
        lane0 += values[i]
    return (lane0 + lane1) + (lane2 + lane3)


@register_jitable
def global_average(out, x):
    """The mean of each row of (planes, positions)."""
    planes, positions = x.shape
    for plane in range(planes):
        out[plane] = sum_run(x[plane]) / positions
    return STATUS_OK


@register_jitable
def global_average_nhwc(out, x):
    """The mean over the positions of (batch, positions, channels)."""
    batch, positions, channels = x.shape
    for n in range(batch):
        line = out[n]
        for c in range(channels):
            line[c] = 0
        for p in range(positions):
            pixel = x[n, p]
            for c in range(channels):
                line[c] += pixel[c]
        for c in range(channels):
            line[c] /= positions
    return STATUS_OK


@register_jitable
def global_max(out, x):
    """The maximum of each row of (planes, positions)."""
    planes, positions = x.shape
    for plane in range(planes):
        best = x[plane, 0]
        for p in range(1, positions):
            best = larger(best, x[plane, p])
        out[plane] = best
    return STATUS_OK


@register_jitable
def global_max_nhwc(out, x):
    """The maximum over the positions of (batch, positions, channels)."""
    batch, positions, channels = x.shape
    for n in range(batch):
        line = out[n]
        for c in range(channels):
            line[c] = x[n, 0, c]
        for p in range(1, positions):
            pixel = x[n, p]
            for c in range(channels):
                line[c] = larger(line[c], pixel[c])
    return STATUS_OK
