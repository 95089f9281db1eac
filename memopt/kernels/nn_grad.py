"""Kernels: the gradients of normalisation.

Holds true: each is right when dX is the same bytes as dY or as X: a channel, row or plane is read whole, then written
element by element from the same elements. Sums are of float64, in one fixed order.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.local import BLOCK, block_like
from memopt.kernels.nn import channel_statistics, sum_squares
from memopt.kernels.pool import sum_run

__all__ = ["batch_norm", "instance_norm", "layer_norm"]


@register_jitable
def gradient_sums(dy, x, mean):
    """The sums of dy and of dy * (x - mean), of flat arrays, in float64 and four lanes."""
    s0 = s1 = s2 = s3 = 0.0
    t0 = t1 = t2 = t3 = 0.0
    size = len(dy)
    for i in range(0, size // 4 * 4, 4):
        g0, g1, g2, g3 = np.float64(dy[i]), np.float64(dy[i + 1]), np.float64(dy[i + 2]), np.float64(dy[i + 3])
        s0 += g0
        s1 += g1
        s2 += g2
        s3 += g3
        t0 += g0 * (x[i] - mean)
        t1 += g1 * (x[i + 1] - mean)
        t2 += g2 * (x[i + 2] - mean)
        t3 += g3 * (x[i + 3] - mean)
    for i in range(size // 4 * 4, size):
        s0 += dy[i]
        t0 += np.float64(dy[i]) * (x[i] - mean)
    return (s0 + s1) + (s2 + s3), (t0 + t1) + (t2 + t3)


@register_jitable
def gradient_run(dx, dy, x, mean, factor, slope, shift):
    """dx = factor * dy + slope * (x - mean) + shift, in the arrays' own dtype, a block at a time."""
    real = dx.dtype.type
    mean, factor, slope, shift = real(mean), real(factor), real(slope), real(shift)
    block = block_like(dx)
    for start in range(0, len(dx), BLOCK):
        count = min(BLOCK, len(dx) - start)
        part_dx, part_dy, part_x = dx[start : start + count], dy[start : start + count], x[start : start + count]
        for i in range(count):
            block[i] = factor * part_dy[i] + slope * (part_x[i] - mean) + shift
        for i in range(count):
            part_dx[i] = block[i]


@register_jitable
def batch_norm(dx, dscale, dbias, dy, x, scale, given_mean, given_var, epsilon, training, has_stats):
    """Channel by channel of (outer, channels, inner); without `has_stats` the statistics are taken from X again."""
    outer, channels, inner = x.shape
    count = max(outer * inner, 1)
    for c in range(channels):
        mean, var = np.float64(given_mean[c]), np.float64(given_var[c])
        if not has_stats:  # rounded as they would have been saved
            batch_mean, batch_var = channel_statistics(x, c)
            mean, var = np.float64(x.dtype.type(batch_mean)), np.float64(x.dtype.type(batch_var))
        inverse = 1.0 / math.sqrt(var + epsilon)
        total = spread = 0.0
        for n in range(outer):
            part, part_spread = gradient_sums(dy[n, c], x[n, c], mean)
            total += part
            spread += part_spread
        factor, slope, shift = scale[c] * inverse, 0.0, 0.0
        if training:
            slope, shift = -factor * inverse * inverse * spread / count, -factor * total / count
        for n in range(outer):
            gradient_run(dx[n, c], dy[n, c], x[n, c], mean, factor, slope, shift)
        dscale[c] = spread * inverse
        dbias[c] = total
    return STATUS_OK


@register_jitable
def instance_norm(dx, dscale, dbias, dy, x, scale, epsilon):
    """Plane by plane of (batch, channels, positions)."""
    batch, channels, positions = x.shape
    for c in range(channels):
        all_total = all_spread = 0.0
        for n in range(batch):
            run = x[n, c]
            mean = sum_run(run) / positions
            inverse = 1.0 / math.sqrt(sum_squares(run, mean) / positions + epsilon)
            total, spread = gradient_sums(dy[n, c], run, mean)
            factor = scale[c] * inverse
            slope, shift = -factor * inverse * inverse * spread / positions, -factor * total / positions
            gradient_run(dx[n, c], dy[n, c], run, mean, factor, slope, shift)
            all_total += total
            all_spread += spread * inverse
        dscale[c] = all_spread
        dbias[c] = all_total
    return STATUS_OK


@register_jitable
def scaled_sums(dy, x, scale, mean, scale_sums, bias_sums, inverse):
    """The sums of dy * scale and of dy * scale * (x - mean) of a row; adds the row to the sums of dScale and dB."""
    s0 = s1 = s2 = s3 = 0.0
    t0 = t1 = t2 = t3 = 0.0
    size = len(dy)
    for i in range(0, size // 4 * 4, 4):
        g0 = np.float64(dy[i]) * scale[i]
        g1 = np.float64(dy[i + 1]) * scale[i + 1]
        g2 = np.float64(dy[i + 2]) * scale[i + 2]
        g3 = np.float64(dy[i + 3]) * scale[i + 3]
        s0 += g0
        s1 += g1
        s2 += g2
        s3 += g3
        t0 += g0 * (x[i] - mean)
        t1 += g1 * (x[i + 1] - mean)
        t2 += g2 * (x[i + 2] - mean)
        t3 += g3 * (x[i + 3] - mean)
    for i in range(size // 4 * 4, size):
        g0 = np.float64(dy[i]) * scale[i]
        s0 += g0
        t0 += g0 * (x[i] - mean)
    for i in range(size):
        scale_sums[i] += np.float64(dy[i]) * ((x[i] - mean) * inverse)
        bias_sums[i] += dy[i]
    return (s0 + s1) + (s2 + s3), (t0 + t1) + (t2 + t3)


@register_jitable
def scaled_run(dx, dy, x, scale, mean, factor, slope, shift):
    """dx = factor * dy * scale + slope * (x - mean) + shift, in the arrays' own dtype, a block at a time."""
    real = dx.dtype.type
    mean, factor, slope, shift = real(mean), real(factor), real(slope), real(shift)
    block = block_like(dx)
    for start in range(0, len(dx), BLOCK):
        count = min(BLOCK, len(dx) - start)
        part_dx, part_dy, part_x = dx[start : start + count], dy[start : start + count], x[start : start + count]
        part_scale = scale[start : start + count]
        for i in range(count):
            block[i] = factor * (part_dy[i] * part_scale[i]) + slope * (part_x[i] - mean) + shift
        for i in range(count):
            part_dx[i] = block[i]


@register_jitable
def layer_norm(dx, dscale, dbias, dy, x, scale, sums, epsilon, has_bias):
    """Row by row of (rows, inner). `sums` is scratch of shape (2, inner); `dbias` is written only if `has_bias`."""
    rows, inner = x.shape
    scale_sums, bias_sums = sums[0], sums[1]
    for i in range(inner):
        scale_sums[i] = 0.0
        bias_sums[i] = 0.0
    for r in range(rows):
        row, slopes = x[r], dy[r]
        mean = sum_run(row) / inner
        inverse = 1.0 / math.sqrt(sum_squares(row, mean) / inner + epsilon)
        total, spread = scaled_sums(slopes, row, scale, mean, scale_sums, bias_sums, inverse)
        slope, shift = -inverse * inverse * inverse * spread / inner, -inverse * total / inner
        scaled_run(dx[r], slopes, row, scale, mean, inverse, slope, shift)
    for i in range(inner):
        dscale[i] = scale_sums[i]
        if has_bias:
            dbias[i] = bias_sums[i]
    return STATUS_OK
