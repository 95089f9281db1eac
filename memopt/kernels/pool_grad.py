"""Kernels: the gradients of pooling.

Holds true: data are flat, (planes, height, width); the geometry is named as in `memopt.kernels.conv`. dX is set, not
added to; sums are taken in one fixed order.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.local import BLOCK, block_like
from memopt.kernels.nn_rows import add_spread, copy_strided, fill, first_valid, inner_range, past_valid
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
def keep_first_larger(best, offsets, offset, x, at, step, count):
    """Where x[at + i * step] is larger than best[i] (or NaN, and that is not): keep it, and `offset`."""
    run = x[at : at + (count - 1) * step + 1]
    if step == 2:
        for i in range(count):
            old, new = best[i], run[2 * i]
            stays = old >= new or old != old
            best[i] = old if stays else new
            offsets[i] = offsets[i] if stays else offset
    else:
        for i in range(count):
            old, new = best[i], run[i * step]
            stays = old >= new or old != old
            best[i] = old if stays else new
            offsets[i] = offsets[i] if stays else offset


@register_jitable
def add_to_largest(dx, dy, dy_at, x, at, w, lines, dh, num_taps, dw, step, count, best, offsets):
    """Add `count` gradients to the first maxima of windows that are `step` apart from `at` on and lie in the data.

    `best` and `offsets` are blocks of the dtype of the data, which holds any distance in a plane exactly.
    """
    copy_strided(best, 0, x, at, step, count)
    fill(offsets, 0, count, 0)
    for i in range(lines):
        for j in range(num_taps):
            offset = i * dh * w + j * dw
            if offset > 0:
                keep_first_larger(best, offsets, dx.dtype.type(offset), x, at + offset, step, count)
    for i in range(count):
        dx[at + i * step + int(offsets[i])] += dy[dy_at + i]


@register_jitable
def max_pool(dx, dy, x, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow):
    """Add each window's gradient to the first element that has its maximum."""
    best, offsets = block_like(dx), block_like(dx)
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    if outer - inner < 4 or h * w >= 1 << 24:  # too few for blocks, or too far apart for float32
        inner = outer = ow
    fill(dx, 0, planes * h * w, 0)
    for plane in range(planes):
        for row in range(oh):
            at = (plane * oh + row) * ow
            line = row * sh - top
            first_line, past_line = taps_range(line, dh, kh, h)
            line, lines = line + first_line * dh, past_line - first_line
            for start in range(inner, outer, BLOCK):
                count = min(BLOCK, outer - start)
                place = (plane * h + line) * w + start * sw - left
                add_to_largest(dx, dy, at + start, x, place, w, lines, dh, kw, dw, sw, count, best, offsets)
            for p in range(inner + ow - outer):
                col = p if p < inner else p - inner + outer
                place = col * sw - left
                first, past = taps_range(place, dw, kw, w)
                where = first_largest(x, plane * h * w, w, line, lines, dh, place + first * dw, past - first, dw)
                dx[where] += dy[at + col]
    return STATUS_OK


@register_jitable
def average_pool(
    dx, dy, planes, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, include_pad, bottom, right
):  # fmt: skip
    """Share each window's gradient out among the elements that it saw, a row of windows and a tap at a time."""
    block, one = block_like(dx), dx.dtype.type(1)
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    edge_top, edge_left = (top, left) if include_pad else (0, 0)
    edge_bottom, edge_right = (bottom, right) if include_pad else (0, 0)
    fill(dx, 0, planes * h * w, 0)
    for plane in range(planes):
        for row in range(oh):
            at = (plane * oh + row) * ow
            rows = taps_inside(row, sh, top, kh, dh, -edge_top, h + edge_bottom)
            first_line, past_line = taps_range(row * sh - top, dh, kh, h)
            for start in range(0, ow, BLOCK):
                end = min(start + BLOCK, ow)
                copy_strided(block, 0, dy, at + start, 1, end - start)
                for col in range(start, end):
                    cols = kw
                    if col < inner or col >= outer:
                        cols = taps_inside(col, sw, left, kw, dw, -edge_left, w + edge_right)
                    block[col - start] /= dx.dtype.type(max(rows * cols, 1))
                for j in range(kw):
                    low = max(first_valid(left - j * dw, sw, ow), start)
                    high = min(past_valid(left - j * dw, sw, ow, w), end)
                    for i in range(first_line, past_line if high > low else first_line):
                        line = plane * h + row * sh - top + i * dh
                        place = line * w + low * sw + j * dw - left
                        add_spread(dx, place, sw, block, low - start, high - low, one)
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
