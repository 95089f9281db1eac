"""Kernels: the gradients of convolution, on flat arrays.

Holds true: the geometry is named as in `memopt.kernels.conv`, in NCHW. Outputs are set, not added to; every sum is
taken in one fixed order.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.conv import im2col
from memopt.kernels.local import BLOCK, block_like
from memopt.kernels.nn_rows import (
    add_products,
    add_spread,
    add_taps,
    fill,
    first_valid,
    past_valid,
)

__all__ = [
    "input_direct",
    "input_gemm",
    "input_pointwise",
    "weight_direct",
    "weight_gemm",
    "weight_pointwise",
]


@register_jitable
def spread_rows(dx, x_at, scratch, at, h, w, sh, sw, row_off, col_off, first, last, ow):
    """Add one row of the im2col matrix for the output rows [first, last) to what its tap saw of the plane at `x_at`."""
    low = first_valid(-col_off, sw, ow)
    high = max(past_valid(-col_off, sw, ow, w), low)
    if high <= low:
        return
    one = dx.dtype.type(1)
    if sw == 1 and sh == 1 and ow == w:
        # The rows of a plane follow each other at both ends: one run, once zeros stand where it wraps around.
        top = min(max(first, -row_off), last)
        end = max(min(last, h - row_off), top)
        if end > top:
            start = at + (top - first) * ow
            for row in range(end - top):
                fill(scratch, start + row * ow, low, 0)
                fill(scratch, start + row * ow + high, ow - high, 0)
            count = (end - top) * ow - low - (ow - high)
            add_spread(dx, x_at + (top + row_off) * w + low + col_off, 1, scratch, start + low, count, one)
        return
    for row in range(first, last):
        line = row * sh + row_off
        if 0 <= line < h:
            add_spread(dx, x_at + line * w + low * sw + col_off, sw, scratch, at + low, high - low, one)
        at += ow


@register_jitable
def spread_part(dx, x_at, scratch, at, h, w, sh, sw, row_off, col_off, row, left, right):
    """As `spread_rows`, for the positions [left, right) of one output row."""
    line = row * sh + row_off
    if 0 <= line < h:
        for col in range(left, right):
            place = col * sw + col_off
            if 0 <= place < w:
                dx[x_at + line * w + place] += scratch[at + col - left]


@register_jitable
def col2im(dx, x_at, scratch, channels, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow):
    """Add the matrix (channels * kh * kw, count) to what its taps saw at the output positions [start, start + count).

    The positions are whole rows, or a part of one row. What `scratch` holds is spent.
    """
    row, col = start // ow, start % ow
    whole = col == 0 and count % ow == 0
    at = 0
    for c in range(channels):
        plane = x_at + c * h * w
        for i in range(kh):
            for j in range(kw):
                row_off, col_off = i * dh - top, j * dw - left
                if whole:
                    spread_rows(
                        dx, plane, scratch, at, h, w, sh, sw, row_off, col_off, row, row + count // ow, ow
                    )  # fmt: skip
                else:
                    spread_part(dx, plane, scratch, at, h, w, sh, sw, row_off, col_off, row, col, col + count)
                at += count


@register_jitable
def input_gemm(
    dx, dy, weights, scratch,
    routine, batch, channels, maps, group,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
):  # fmt: skip
    """The weights' transpose times dY, in blocks of an im2col matrix, each added to where its taps look."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    for n in range(batch):
        for g in range(group):
            image = (n * channels + g * in_group) * h * w
            fill(dx, image, in_group * h * w, 0)
            base = (n * maps + g * out_group) * positions
            start = 0
            while start < positions:
                count = min(block_columns, positions - start)
                if block_columns < ow:
                    count = min(count, ow - start % ow)  # a part of one row
                for c in range(0, in_group, block_channels):
                    depth = min(block_channels, in_group - c)
                    gemm(
                        routine, depth * num_taps, count, out_group, 1.0,
                        weights, g * out_group * rows + c * num_taps, rows, True,
                        dy, base + start, positions, False,
                        0.0, scratch, 0, count,
                    )  # fmt: skip
                    plane = image + c * h * w
                    col2im(dx, plane, scratch, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow)
                start += count
    return STATUS_OK


@register_jitable
def input_pointwise(dx, dy, weights, routine, batch, channels, maps, group, positions):
    """One tap, stride 1, no pads: one product an image."""
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for g in range(group):
            gemm(
                routine, in_group, positions, out_group, 1.0,
                weights, g * out_group * in_group, in_group, True,
                dy, (n * maps + g * out_group) * positions, positions, False,
                0.0, dx, (n * channels + g * in_group) * positions, positions,
            )  # fmt: skip
    return STATUS_OK


@register_jitable
def input_direct(
    dx, dy, weights,
    batch, channels, maps, group, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow,
):  # fmt: skip
    """Row by row: stride 1 collects the taps of each row of dX, another stride spreads each row of dY."""
    in_group, out_group = channels // group, maps // group
    reach = (kw - 1) * dw - left  # a row of dX at p sees dY at p + left - j * dw
    inner = min(max(reach, 0), w)
    outer = max(min(ow - left, w), inner)
    for n in range(batch):
        for c in range(channels):
            plane = (n * channels + c) * h * w
            fill(dx, plane, h * w, 0)
            g = c // in_group
            for m in range(g * out_group, (g + 1) * out_group):
                taps = (m * in_group + c - g * in_group) * kh * kw
                for row in range(oh):
                    source = ((n * maps + m) * oh + row) * ow
                    for i in range(kh):
                        line = row * sh + i * dh - top
                        if line < 0 or line >= h:
                            continue
                        at, tap = plane + line * w, taps + i * kw
                        if sw == 1:
                            add_taps(dx, at, w, dy, source, ow, weights, tap, kw, 1, -dw, -left, inner, outer)
                        else:
                            for j in range(kw):
                                low = first_valid(left - j * dw, sw, ow)
                                high = past_valid(left - j * dw, sw, ow, w)
                                if high > low:
                                    place = at + low * sw + j * dw - left
                                    add_spread(dx, place, sw, dy, source + low, high - low, weights[tap + j])
    return STATUS_OK


@register_jitable
def weight_gemm(
    dw_, dy, x, scratch,
    routine, batch, channels, maps, group,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
):  # fmt: skip
    """dY times the transpose of the im2col matrix, block by block."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    for g in range(group):
        for c in range(0, in_group, block_channels):
            depth = min(block_channels, in_group - c)
            for n in range(batch):
                plane = (n * channels + g * in_group + c) * h * w
                start = 0
                while start < positions:
                    count = min(block_columns, positions - start)
                    if block_columns < ow:
                        count = min(count, ow - start % ow)  # a part of one row
                    im2col(scratch, x, plane, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow)
                    gemm(
                        routine, out_group, depth * num_taps, count, 1.0,
                        dy, (n * maps + g * out_group) * positions + start, positions, False,
                        scratch, 0, count, True,
                        1.0 if n > 0 or start > 0 else 0.0, dw_, g * out_group * rows + c * num_taps, rows,
                    )  # fmt: skip
                    start += count
    return STATUS_OK


@register_jitable
def weight_pointwise(dw_, dy, x, routine, batch, channels, maps, group, positions):
    """One tap, stride 1, no pads: the image is the im2col matrix."""
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for g in range(group):
            gemm(
                routine, out_group, in_group, positions, 1.0,
                dy, (n * maps + g * out_group) * positions, positions, False,
                x, (n * channels + g * in_group) * positions, positions, True,
                1.0 if n > 0 else 0.0, dw_, g * out_group * in_group, in_group,
            )  # fmt: skip
    return STATUS_OK


@register_jitable
def weight_direct(
    dw_, dy, x,
    batch, channels, maps, group, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow,
):  # fmt: skip
    """For each weight, the products of rows of dY with the rows that its tap saw, a block of columns at a time."""
    in_group, out_group = channels // group, maps // group
    block = block_like(dw_)
    for m in range(maps):
        for c in range(in_group):
            for i in range(kh):
                for j in range(kw):
                    low = first_valid(left - j * dw, sw, ow)
                    high = past_valid(left - j * dw, sw, ow, w)
                    total = 0.0
                    while low < high:
                        count = min(BLOCK, high - low)
                        fill(block, 0, count, 0)
                        for n in range(batch):
                            plane = (n * channels + m // out_group * in_group + c) * h * w
                            for row in range(oh):
                                line = row * sh + i * dh - top
                                if 0 <= line < h:
                                    place = plane + line * w + low * sw + j * dw - left
                                    add_products(
                                        block, dy, ((n * maps + m) * oh + row) * ow + low, x, place, sw, count
                                    )  # fmt: skip
                        for p in range(count):
                            total += block[p]
                        low += count
                    dw_[((m * in_group + c) * kh + i) * kw + j] = total
    return STATUS_OK
