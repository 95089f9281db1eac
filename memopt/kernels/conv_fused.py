"""Kernels: convolution, then batch normalisation, an addend and an activation, on flat arrays.

Holds true: layouts and the geometry are those of `memopt.kernels.conv`. A block of the convolution's result is made in
scratch; then it is normalised (only if `has_norm`), added to `z` (only if `has_z`), clipped at 0 (only if `relu`) and
stored. Each element of z is read before the element of the output at its place is written, and by no later block: the
two may be the same bytes. To each element happens what `conv`, `nn.batch_norm` and the loops of `Add` and `Relu` do to
it, in that order.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.conv import fill_pixels, im2col, im2row
from memopt.kernels.nn_rows import add_taps, copy_strided, fill, inner_range

__all__ = ["direct", "direct_nhwc", "gemm_blocks", "gemm_blocks_nhwc", "pointwise_blocks", "pointwise_blocks_nhwc"]


@register_jitable
def factor_of(scale, var, m, epsilon):
    """What a deviation from the mean of map `m` is multiplied by, rounded as `nn.batch_norm` does."""
    return scale.dtype.type(scale[m] / math.sqrt(np.float64(var[m]) + epsilon))


@register_jitable
def finish_run(out, at, z, block, block_at, count, m, scale, shift, mean, var, epsilon, has_norm, has_z, relu):
    """Store `count` results of map `m` from scratch at `at`, normalised, added to z and clipped at 0.

    What is computed goes to scratch first: it aliases neither z nor the output, so both loops are vectorised.
    """
    run = block[block_at : block_at + count]
    to = out[at : at + count]
    if has_norm:
        middle, low, factor = mean[m], shift[m], factor_of(scale, var, m, epsilon)
        if has_z:
            other = z[at : at + count]
            for i in range(count):
                run[i] = other[i] + ((run[i] - middle) * factor + low)
        else:
            for i in range(count):
                run[i] = (run[i] - middle) * factor + low
    elif has_z:
        other = z[at : at + count]
        for i in range(count):
            run[i] = other[i] + run[i]
    if relu:
        zero = block.dtype.type(0)
        for i in range(count):
            to[i] = zero if run[i] < zero else run[i]
    else:
        copy_strided(out, at, block, block_at, 1, count)


@register_jitable
def finish_block(
    out, base, z, block, block_at, count, positions, first, maps,
    scale, shift, mean, var, epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """`finish_run` for each of `maps` maps from `first` on: rows of `count` in scratch, `positions` apart at `base`."""
    for m in range(maps):
        finish_run(
            out, base + m * positions, z, block, block_at + m * count, count, first + m,
            scale, shift, mean, var, epsilon, has_norm, has_z, relu,
        )  # fmt: skip


@register_jitable
def fill_rows(block, at, count, maps, bias, first):
    """Set `maps` rows of `count` in scratch to the biases from `first` on."""
    for m in range(maps):
        fill(block, at + m * count, count, bias[first + m])


@register_jitable
def gemm_blocks(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    routine, batch, channels, maps, group, has_bias,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_gemm`; scratch holds a block of the result, and behind it one of im2col."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    columns = scratch[out_group * block_columns :]
    for n in range(batch):
        for g in range(group):
            first = g * out_group
            start = 0
            while start < positions:
                count = min(block_columns, positions - start)
                if block_columns < ow:
                    count = min(count, ow - start % ow)  # a part of one row
                if has_bias:
                    fill_rows(scratch, 0, count, out_group, bias, first)
                for c in range(0, in_group, block_channels):
                    depth = min(block_channels, in_group - c)
                    plane = (n * channels + g * in_group + c) * h * w
                    im2col(columns, x, plane, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow)
                    gemm(
                        routine, out_group, count, depth * num_taps, 1.0,
                        weights, first * rows + c * num_taps, rows, False,
                        columns, 0, count, False,
                        1.0 if has_bias or c > 0 else 0.0, scratch, 0, count,
                    )  # fmt: skip
                finish_block(
                    out, (n * maps + first) * positions + start, z, scratch, 0, count, positions, first, out_group,
                    scale, shift, mean, var, epsilon, has_norm, has_z, relu,
                )  # fmt: skip
                start += count
    return STATUS_OK


@register_jitable
def pointwise_blocks(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    routine, batch, channels, maps, group, has_bias, positions, block_columns,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_pointwise`, `block_columns` positions at a time."""
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for g in range(group):
            first = g * out_group
            for start in range(0, positions, block_columns):
                count = min(block_columns, positions - start)
                if has_bias:
                    fill_rows(scratch, 0, count, out_group, bias, first)
                gemm(
                    routine, out_group, count, in_group, 1.0,
                    weights, first * in_group, in_group, False,
                    x, (n * channels + g * in_group) * positions + start, positions, False,
                    1.0 if has_bias else 0.0, scratch, 0, count,
                )  # fmt: skip
                finish_block(
                    out, (n * maps + first) * positions + start, z, scratch, 0, count, positions, first, out_group,
                    scale, shift, mean, var, epsilon, has_norm, has_z, relu,
                )  # fmt: skip
    return STATUS_OK


@register_jitable
def direct(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    batch, channels, maps, group, has_bias, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_rows,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_direct`; scratch holds `block_rows` output rows of one map."""
    inner, outer = inner_range(left, sw, ow, w, kw, dw)
    in_group, out_group = channels // group, maps // group
    for n in range(batch):
        for m in range(maps):
            image = (n * channels + m // out_group * in_group) * h * w
            start = bias[m] if has_bias else 0.0
            for first in range(0, oh, block_rows):
                count = min(block_rows, oh - first)
                fill(scratch, 0, count * ow, start)
                for row in range(count):
                    for c in range(in_group):
                        for i in range(kh):
                            line = (first + row) * sh + i * dh - top
                            if 0 <= line < h:
                                tap = ((m * in_group + c) * kh + i) * kw
                                line_at = image + (c * h + line) * w
                                add_taps(
                                    scratch, row * ow, ow, x, line_at, w, weights, tap, kw, sw, dw, left, inner, outer
                                )  # fmt: skip
                at = ((n * maps + m) * oh + first) * ow
                finish_run(
                    out, at, z, scratch, 0, count * ow, m, scale, shift, mean, var, epsilon, has_norm, has_z, relu
                )  # fmt: skip
    return STATUS_OK


# -- NHWC: scratch begins with the factors of all maps ----------------------------------------------------------------


@register_jitable
def find_factors(scratch, maps, scale, var, epsilon, has_norm):
    """Set the first `maps` elements of scratch to the factors of the maps."""
    if has_norm:
        for m in range(maps):
            scratch[m] = factor_of(scale, var, m, epsilon)


@register_jitable
def finish_pixels(
    out, at, z, block, block_at, count, width, first, maps, shift, mean, has_norm, has_z, relu
):  # fmt: skip
    """As `finish_run`, for `count` pixels of `width` maps, from `first` on, of `maps`; in scratch `width` apart."""
    factors, middles, lows = block[first : first + width], mean[first : first + width], shift[first : first + width]
    for p in range(count):
        run = block[block_at + p * width : block_at + (p + 1) * width]
        place = at + p * maps
        to, other = out[place : place + width], z[place : place + width]
        if has_norm and has_z:
            for m in range(width):
                run[m] = other[m] + ((run[m] - middles[m]) * factors[m] + lows[m])
        elif has_norm:
            for m in range(width):
                run[m] = (run[m] - middles[m]) * factors[m] + lows[m]
        elif has_z:
            for m in range(width):
                run[m] = other[m] + run[m]
        if relu:
            zero = block.dtype.type(0)
            for m in range(width):
                to[m] = zero if run[m] < zero else run[m]
        else:
            for m in range(width):
                to[m] = run[m]


@register_jitable
def gemm_blocks_nhwc(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    routine, batch, channels, maps, group, has_bias,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_channels, block_columns,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_gemm_nhwc`; scratch holds factors, a block of the result, and one of im2row."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = in_group * num_taps
    find_factors(scratch, maps, scale, var, epsilon, has_norm)
    columns = scratch[maps + out_group * block_columns :]
    for n in range(batch):
        for g in range(group):
            first = g * out_group
            for start in range(0, positions, block_columns):
                count = min(block_columns, positions - start)
                if has_bias:
                    fill_pixels(scratch, maps, out_group, count, out_group, bias, first, has_bias)
                for c in range(0, in_group, block_channels):
                    depth = min(block_channels, in_group - c)
                    im2row(
                        columns, x, n * h * w * channels, g * in_group + c, channels, depth, start, count,
                        h, w, kh, kw, sh, sw, dh, dw, top, left, ow,
                    )  # fmt: skip
                    gemm(
                        routine, count, out_group, depth * num_taps, 1.0,
                        columns, 0, depth * num_taps, False,
                        weights, first * rows + c * num_taps, rows, True,
                        1.0 if has_bias or c > 0 else 0.0, scratch, maps, out_group,
                    )  # fmt: skip
                at = (n * positions + start) * maps + first
                finish_pixels(
                    out, at, z, scratch, maps, count, out_group, first, maps, shift, mean, has_norm, has_z, relu
                )  # fmt: skip
    return STATUS_OK


@register_jitable
def pointwise_blocks_nhwc(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    routine, batch, channels, maps, group, has_bias, positions, block_columns,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_pointwise_nhwc`, `block_columns` pixels at a time; scratch holds factors and a block."""
    in_group, out_group = channels // group, maps // group
    pixels = batch * positions
    find_factors(scratch, maps, scale, var, epsilon, has_norm)
    for g in range(group):
        first = g * out_group
        for start in range(0, pixels, block_columns):
            count = min(block_columns, pixels - start)
            if has_bias:
                fill_pixels(scratch, maps, out_group, count, out_group, bias, first, has_bias)
            gemm(
                routine, count, out_group, in_group, 1.0,
                x, start * channels + g * in_group, channels, False,
                weights, first * in_group, in_group, True,
                1.0 if has_bias else 0.0, scratch, maps, out_group,
            )  # fmt: skip
            at = start * maps + first
            finish_pixels(
                out, at, z, scratch, maps, count, out_group, first, maps, shift, mean, has_norm, has_z, relu
            )  # fmt: skip
    return STATUS_OK


@register_jitable
def direct_nhwc(
    out, x, weights, bias, scale, shift, mean, var, z, scratch,
    batch, channels, maps, group, has_bias, h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_rows,
    epsilon, has_norm, has_z, relu,
):  # fmt: skip
    """As `conv.conv_direct_nhwc`; scratch holds factors and one pixel."""
    in_group, out_group, num_taps = channels // group, maps // group, kh * kw
    find_factors(scratch, maps, scale, var, epsilon, has_norm)
    for n in range(batch):
        for p in range(oh * ow):
            row, col = p // ow, p % ow
            fill_pixels(scratch, maps, maps, 1, maps, bias, 0, has_bias)
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
                            scratch[maps + m] += weights[tap + c * num_taps] * x[source + c]
            at = (n * oh * ow + p) * maps
            finish_pixels(out, at, z, scratch, maps, 1, maps, 0, maps, shift, mean, has_norm, has_z, relu)
    return STATUS_OK
