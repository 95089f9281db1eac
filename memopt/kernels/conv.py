"""Kernels: convolution, on flat arrays.

Holds true: data and outputs are (batch, channels, height, width), or (batch, height, width, channels) in the kernels
that end in `_nhwc`; weights are (maps, channels of a group, height, width) in both. The image has height `h` and width
`w`, the kernel `kh` and `kw`, strides are `sh` and `sw`, dilations `dh` and `dw`, pads before `top` and `left`, and
the output has `oh` and `ow`; the pads after the data follow. `bias` is read only if `has_bias`.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.nn_rows import add_taps, copy_strided, fill, first_valid, inner_range, past_valid

__all__ = [
    "conv_direct",
    "conv_direct_nhwc",
    "conv_gemm",
    "conv_gemm_nhwc",
    "conv_pointwise",
    "conv_pointwise_nhwc",
]


@register_jitable
def column_rows(scratch, at, x, x_at, h, w, sh, sw, row_off, col_off, first, last, ow):
    """One row of the im2col matrix for the output rows [first, last): tap (row_off, col_off) of the plane at `x_at`."""
    low = first_valid(-col_off, sw, ow)
    high = max(past_valid(-col_off, sw, ow, w), low)
    if sw == 1 and sh == 1 and ow == w:
        # The rows of a plane follow each other at both ends: one run, then zeros where it wrapped around.
        top = min(max(first, -row_off), last)
        end = max(min(last, h - row_off), top)
        fill(scratch, at, (top - first) * ow, 0)
        fill(scratch, at + (end - first) * ow, (last - end) * ow, 0)
        if end > top:
            start = at + (top - first) * ow
            count = (end - top) * ow - low - (ow - high)
            if high > low:
                copy_strided(scratch, start + low, x, x_at + (top + row_off) * w + low + col_off, 1, count)
            for row in range(end - top):
                fill(scratch, start + row * ow, low, 0)
                fill(scratch, start + row * ow + high, ow - high, 0)
        return
    for row in range(first, last):
        line = row * sh + row_off
        if line < 0 or line >= h or high <= low:
            fill(scratch, at, ow, 0)
        else:
            fill(scratch, at, low, 0)
            copy_strided(scratch, at + low, x, x_at + line * w + low * sw + col_off, sw, high - low)
            fill(scratch, at + high, ow - high, 0)
        at += ow


@register_jitable
def column_part(scratch, at, x, x_at, h, w, sh, sw, row_off, col_off, row, left, right):
    """One row of the im2col matrix for the positions [left, right) of one output row."""
    line = row * sh + row_off
    for col in range(left, right):
        place = col * sw + col_off
        inside = 0 <= line < h and 0 <= place < w
        scratch[at + col - left] = x[x_at + line * w + place] if inside else 0


@register_jitable
def im2col(scratch, x, x_at, channels, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow):
    """The matrix (channels * kh * kw, count) of what the taps see at the output positions [start, start + count).

    The positions are whole rows, or a part of one row.
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
                    column_rows(
                        scratch, at, x, plane, h, w, sh, sw, row_off, col_off, row, row + count // ow, ow
                    )  # fmt: skip
                else:
                    column_part(scratch, at, x, plane, h, w, sh, sw, row_off, col_off, row, col, col + count)
                at += count


@register_jitable
def conv_gemm(
    out, x, weights, bias, scratch,
    routine, batch, channels, maps, group, has_bias,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
):  # fmt: skip
    """im2col in blocks of `block_channels` x `block_columns`, each multiplied by its part of the weights."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    for n in range(batch):
        for g in range(group):
            base = (n * maps + g * out_group) * positions
            start = 0
            while start < positions:
                count = min(block_columns, positions - start)
                if block_columns < ow:
                    count = min(count, ow - start % ow)  # a part of one row
                if has_bias:
                    for m in range(out_group):
                        fill(out, base + m * positions + start, count, bias[g * out_group + m])
                for c in range(0, in_group, block_channels):
                    depth = min(block_channels, in_group - c)
                    plane = (n * channels + g * in_group + c) * h * w
                    im2col(scratch, x, plane, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow)
                    gemm(
                        routine, out_group, count, depth * num_taps, 1.0,
                        weights, g * out_group * rows + c * num_taps, rows, False,
                        scratch, 0, count, False,
                        1.0 if has_bias or c > 0 else 0.0, out, base + start, positions,
                    )  # fmt: skip
                start += count
    return STATUS_OK


@register_jitable
def conv_pointwise(out, x, weights, bias, routine, batch, channels, maps, group, has_bias, positions):
    """One tap, stride 1, no pads: the image is the im2col matrix."""
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for g in range(group):
            base = (n * maps + g * out_group) * positions
            if has_bias:
                for m in range(out_group):
                    fill(out, base + m * positions, positions, bias[g * out_group + m])
            gemm(
                routine, out_group, positions, in_group, 1.0,
                weights, g * out_group * in_group, in_group, False,
                x, (n * channels + g * in_group) * positions, positions, False,
                1.0 if has_bias else 0.0, out, base, positions,
            )  # fmt: skip
    return STATUS_OK


@register_jitable
def conv_direct(
    out, x, weights, bias,
    batch, channels, maps, group, has_bias, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow,
):  # fmt: skip
    """Row by row of the taps into one output row at a time: for groups of few channels."""
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for m in range(maps):
            first = (n * channels + m // out_group * in_group) * h * w
            start = bias[m] if has_bias else 0.0
            for row in range(oh):
                at = ((n * maps + m) * oh + row) * ow
                fill(out, at, ow, start)
                for c in range(in_group):
                    for i in range(kh):
                        line = row * sh + i * dh - top
                        if 0 <= line < h:
                            tap = ((m * in_group + c) * kh + i) * kw
                            line_at = first + (c * h + line) * w
                            add_taps(out, at, ow, x, line_at, w, weights, tap, kw, sw, dw, left, inner, outer)
    return STATUS_OK


@register_jitable
def im2row(scratch, x, image, first, channels, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow):
    """The matrix (count, depth * kh * kw) of what the taps see at [start, start + count), of an NHWC image at `image`.

    Channels [first, first + depth) of `channels`; the columns are in the order of the weights: channel, row, column.
    """
    num_taps = kh * kw
    for p in range(count):
        row, col = (start + p) // ow, (start + p) % ow
        for i in range(kh):
            line = row * sh + i * dh - top
            for j in range(kw):
                place = col * sw + j * dw - left
                at = p * depth * num_taps + i * kw + j
                if 0 <= line < h and 0 <= place < w:
                    pixel = image + (line * w + place) * channels + first
                    for c in range(depth):
                        scratch[at + c * num_taps] = x[pixel + c]
                else:
                    for c in range(depth):
                        scratch[at + c * num_taps] = 0


@register_jitable
def fill_pixels(out, at, stride, count, maps, bias, bias_at, has_bias):
    """Set `maps` channels of `count` pixels, `stride` elements apart, to the bias, or 0."""
    for p in range(count):
        for m in range(maps):
            out[at + p * stride + m] = bias[bias_at + m] if has_bias else 0.0


@register_jitable
def conv_gemm_nhwc(
    out, x, weights, bias, scratch,
    routine, batch, channels, maps, group, has_bias,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
):  # fmt: skip
    """As `conv_gemm`: pixels are the rows of the im2col matrix, and of the output."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    for n in range(batch):
        for g in range(group):
            for start in range(0, positions, block_columns):
                count = min(block_columns, positions - start)
                base = (n * positions + start) * maps + g * out_group
                if has_bias:
                    fill_pixels(out, base, maps, count, out_group, bias, g * out_group, has_bias)
                for c in range(0, in_group, block_channels):
                    depth = min(block_channels, in_group - c)
                    im2row(
                        scratch, x, n * h * w * channels, g * in_group + c, channels, depth, start, count,
                        h, w, kh, kw, sh, sw, dh, dw, top, left, ow,
                    )  # fmt: skip
                    gemm(
                        routine, count, out_group, depth * num_taps, 1.0,
                        scratch, 0, depth * num_taps, False,
                        weights, g * out_group * rows + c * num_taps, rows, True,
                        1.0 if has_bias or c > 0 else 0.0, out, base, maps,
                    )  # fmt: skip
    return STATUS_OK


@register_jitable
def conv_pointwise_nhwc(out, x, weights, bias, routine, batch, channels, maps, group, has_bias, positions):
    """As `conv_pointwise`: one product for the whole batch."""
    in_group, out_group = channels // group, maps // group
    pixels = batch * positions
    for g in range(group):
        if has_bias:
            fill_pixels(out, g * out_group, maps, pixels, out_group, bias, g * out_group, has_bias)
        gemm(
            routine, pixels, out_group, in_group, 1.0,
            x, g * in_group, channels, False,
            weights, g * out_group * in_group, in_group, True,
            1.0 if has_bias else 0.0, out, g * out_group, maps,
        )  # fmt: skip
    return STATUS_OK


@register_jitable
def conv_direct_nhwc(
    out, x, weights, bias,
    batch, channels, maps, group, has_bias, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow,
):  # fmt: skip
    """As `conv_direct`: tap by tap into all channels of one output pixel."""
    in_group, out_group, num_taps = channels // group, maps // group, kh * kw
    for n in range(batch):
        for p in range(oh * ow):
            row, col = p // ow, p % ow
            at = (n * oh * ow + p) * maps
            fill_pixels(out, at, maps, 1, maps, bias, 0, has_bias)
            for i in range(kh):
                line = row * sh + i * dh - top
                if line < 0 or line >= h:
                    continue
                for j in range(kw):
                    place = col * sw + j * dw - left
                    if place < 0 or place >= w:
                        continue
                    pixel = ((n * h + line) * w + place) * channels
                    for m in range(maps):
                        tap = m * in_group * num_taps + i * kw + j
                        source = pixel + m // out_group * in_group
                        for c in range(in_group):
                            out[at + m] += weights[tap + c * num_taps] * x[source + c]
    return STATUS_OK
