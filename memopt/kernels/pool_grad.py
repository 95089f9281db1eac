"""Kernels: the gradients of pooling.

Holds true: data are flat, (planes, height, width); the geometry is named as in `memopt.kernels.conv`. dX is set, not
added to; sums are taken in one fixed order.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.nn_rows import fill
from memopt.kernels.pool import taps_inside

__all__ = ["average_pool", "global_average", "max_pool"]


@register_jitable
def taps_range(start, gap, num_taps, size):
    """The taps [low, high) of a window at `start` that lie in [0, size)."""
    low = 0 if start >= 0 else min((-start + gap - 1) // gap, num_taps)
    high = min((size - start + gap - 1) // gap, num_taps) if start < size else 0
    return low, max(high, low)


@register_jitable
def first_largest(x, plane, w, line, lines, dh, place, places, dw):
    """Where the first maximum (a NaN before all) of `lines` x `places` taps is, row by row from (line, place) on."""
    where = plane + line * w + place
    best = x[where]
    for i in range(lines):
        at = plane + (line + i * dh) * w + place
        for j in range(places):
            value = x[at + j * dw]
            if value > best or (value != value and best == best):
                best, where = value, at + j * dw
    return where


@register_jitable
def max_pool(dx, dy, x, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow):
    """Add each window's gradient to the first element that has its maximum."""
    fill(dx, 0, planes * h * w, 0)
    for plane in range(planes):
        at = plane * oh * ow
        for row in range(oh):
            line = row * sh - top
            first_line, past_line = taps_range(line, dh, kh, h)
            line += first_line * dh
            for col in range(ow):
                place = col * sw - left
                first, past = taps_range(place, dw, kw, w)
                where = first_largest(
                    x, plane * h * w, w, line, past_line - first_line, dh, place + first * dw, past - first, dw
                )  # fmt: skip
                dx[where] += dy[at + row * ow + col]
    return STATUS_OK


@register_jitable
def average_pool(
    dx, dy, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, include_pad, bottom, right
):  # fmt: skip
    """Share each window's gradient out among the elements that it saw."""
    edge_top, edge_left = (top, left) if include_pad else (0, 0)
    edge_bottom, edge_right = (bottom, right) if include_pad else (0, 0)
    fill(dx, 0, planes * h * w, 0)
    for row in range(oh):
        rows = taps_inside(row, sh, top, kh, dh, -edge_top, h + edge_bottom)
        first_line, past_line = taps_range(row * sh - top, dh, kh, h)
        for col in range(ow):
            count = rows * taps_inside(col, sw, left, kw, dw, -edge_left, w + edge_right)
            first, past = taps_range(col * sw - left, dw, kw, w)
            divisor = dx.dtype.type(max(count, 1))
            for plane in range(planes):
                share = dy[(plane * oh + row) * ow + col] / divisor
                for i in range(first_line, past_line):
                    line = plane * h + row * sh - top + i * dh
                    for j in range(first, past):
                        dx[line * w + col * sw - left + j * dw] += share
    return STATUS_OK


@register_jitable
def global_average(dx, dy):
    """Share each number out among the positions of its plane."""
    planes, positions = dx.shape
    for plane in range(planes):
        share = dx.dtype.type(dy[plane] / positions)
        line = dx[plane]
        for i in range(positions):
            line[i] = share
    return STATUS_OK
