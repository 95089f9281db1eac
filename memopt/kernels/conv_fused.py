"""Kernels: convolution, then batch normalisation, an addend and an activation, on flat arrays.

Holds true: the geometry is named as in `memopt.kernels.conv`, in NCHW. A block of the convolution's result is made in
scratch; then it is normalised (only if `has_norm`), added to `z` (only if `has_z`), clipped at 0 (only if `relu`) and
stored. Each element of z is read before the element of the output at its place is written, and by no later block: the
two may be the same bytes. To each element happens what `conv`, `nn.batch_norm` and the loops of `Add` and `Relu` do to
it, in that order.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.conv import im2col
from memopt.kernels.nn_rows import add_taps, copy_strided, fill, inner_range

__all__ = ["direct", "gemm_blocks", "pointwise_blocks"]


@register_jitable
def finish_run(out, at, z, block, block_at, count, m, scale, shift, mean, var, epsilon, has_norm, has_z, relu):
    """Store `count` results of map `m` from scratch at `at`, normalised, added to z and clipped at 0.

    What is computed goes to scratch first: it aliases neither z nor the output, so both loops are vectorised.
    """
    run = block[block_at : block_at + count]
    to = out[at : at + count]
    if has_norm:
        kind = block.dtype.type
        middle, low = kind(mean[m]), kind(shift[m])
        factor = kind(scale[m] / math.sqrt(np.float64(var[m]) + epsilon))
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
