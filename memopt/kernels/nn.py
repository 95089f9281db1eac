"""Kernels: normalisation and dropout.

Holds true: each but `lrn` is right when its output and its data are the same bytes, and then as fast: LLVM vectorises a
loop that knows that they are one array, or that leaves a run on the stack before it stores it. Statistics are sums in
float64. A channel's parameters are read before any statistics of that channel are written: they may be the same bytes.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_OK, register_jitable
from memopt.kernels.local import BLOCK, block_like
from memopt.kernels.movement import strided
from memopt.kernels.pool import sum_run

__all__ = [
    "batch_norm",
    "batch_norm_train",
    "dropout",
    "dropout_mask",
    "instance_norm",
    "layer_norm",
    "layer_norm_strided",
    "lrn",
]


@register_jitable
def sum_squares(values, mean):
    """The sum of squared distances from `mean` of a flat array, in float64 and four lanes."""
    lane0 = lane1 = lane2 = lane3 = 0.0
    size = len(values)
    for i in range(size // 4):
        lane0 += (values[4 * i] - mean) ** 2
        lane1 += (values[4 * i + 1] - mean) ** 2
        lane2 += (values[4 * i + 2] - mean) ** 2
        lane3 += (values[4 * i + 3] - mean) ** 2
    for i in range(size // 4 * 4, size):
        lane0 += (values[i] - mean) ** 2
    return (lane0 + lane1) + (lane2 + lane3)


@register_jitable
def normalise_run(out, values, mean, factor, shift):
    """out = (values - mean) * factor + shift, in the arrays' own dtype."""
    mean, factor, shift = values.dtype.type(mean), values.dtype.type(factor), values.dtype.type(shift)
    if out.ctypes.data == values.ctypes.data:
        for i in range(len(out)):
            out[i] = (out[i] - mean) * factor + shift
    else:
        for i in range(len(values)):
            out[i] = (values[i] - mean) * factor + shift


@register_jitable
def batch_norm(out, x, scale, bias, mean, var, epsilon):
    """Normalise each channel of (outer, channels, inner) with the statistics given."""
    outer, channels, inner = x.shape
    for c in range(channels):
        factor = scale[c] / math.sqrt(np.float64(var[c]) + epsilon)
        if inner == 1:
            for n in range(outer):
                out[n, c, 0] = (x[n, c, 0] - mean[c]) * x.dtype.type(factor) + bias[c]
        else:
            for n in range(outer):
                normalise_run(out[n, c], x[n, c], mean[c], factor, bias[c])
    return STATUS_OK


@register_jitable
def channel_statistics(x, c):
    """The mean and the biased variance of channel `c` of (outer, channels, inner)."""
    outer, _, inner = x.shape
    total = 0.0
    for n in range(outer):
        total += sum_run(x[n, c])
    mean = total / (outer * inner)
    total = 0.0
    for n in range(outer):
        total += sum_squares(x[n, c], mean)
    return mean, total / (outer * inner)


@register_jitable
def batch_norm_train(
    out, new_mean, new_var, saved_mean, saved_var, x, scale, bias, mean, var, epsilon, momentum, has_running, has_saved
):  # fmt: skip
    """Normalise each channel with its own statistics, then move the running ones towards them (biased variance).

    The statistics of the batch are written only if `has_saved`, the running ones only if `has_running`.
    """
    outer, channels, _ = x.shape
    for c in range(channels):
        batch_mean, batch_var = channel_statistics(x, c)
        factor, shift = scale[c] / math.sqrt(batch_var + epsilon), bias[c]
        old_mean, old_var = mean[c], var[c]
        for n in range(outer):
            normalise_run(out[n, c], x[n, c], batch_mean, factor, shift)
        if has_running:
            new_mean[c] = old_mean * momentum + batch_mean * (1.0 - momentum)
            new_var[c] = old_var * momentum + batch_var * (1.0 - momentum)
        if has_saved:
            saved_mean[c] = batch_mean
            saved_var[c] = batch_var
    return STATUS_OK


@register_jitable
def layer_norm(out, x, scale, bias, epsilon, has_bias):
    """Normalise each row of (rows, inner), then scale and shift each of its elements."""
    rows, inner = x.shape
    block = block_like(x)
    for r in range(rows):
        mean = sum_run(x[r]) / inner
        factor = 1.0 / math.sqrt(sum_squares(x[r], mean) / inner + epsilon)
        for start in range(0, inner, BLOCK):
            stop = min(start + BLOCK, inner)
            run, to, scales, shifts = x[r, start:stop], out[r, start:stop], scale[start:stop], bias[start:stop]
            if has_bias:
                for i in range(stop - start):
                    block[i] = (run[i] - mean) * factor * scales[i] + shifts[i]
            else:
                for i in range(stop - start):
                    block[i] = (run[i] - mean) * factor * scales[i]
            for i in range(stop - start):
                to[i] = block[i]
    return STATUS_OK


@register_jitable
def layer_norm_strided(out, x, scale, bias, epsilon, has_bias, *walk):
    """`layer_norm` of the rows that the strided copy `walk` brings to out; out and x are flat."""
    strided(out, x, *walk)
    rows = out.reshape((out.size // scale.size, scale.size))
    return layer_norm(rows, rows, scale, bias, epsilon, has_bias)


@register_jitable
def instance_norm(out, x, scale, bias, epsilon):
    """Normalise each plane of (batch * channels, positions), then scale and shift by channel."""
    planes, positions = x.shape
    for plane in range(planes):
        values, c = x[plane], plane % len(scale)
        mean = sum_run(values) / positions
        factor = scale[c] / math.sqrt(sum_squares(values, mean) / positions + epsilon)
        normalise_run(out[plane], values, mean, factor, bias[c])
    return STATUS_OK


@register_jitable
def lrn(out, x, size, alpha, beta, bias):
    """x / (bias + alpha * sum of squares over `size` channels) ** beta, of (batch, channels, positions)."""
    batch, channels, positions = x.shape
    for n in range(batch):
        for c in range(channels):
            to, values = out[n, c], x[n, c]
            for i in range(positions):
                to[i] = 0
            for k in range(max(c - (size - 1) // 2, 0), min(c + size // 2 + 1, channels)):
                other = x[n, k]
                for i in range(positions):
                    to[i] += other[i] * other[i]
            if beta == 0.75:
                for i in range(positions):
                    root = math.sqrt(bias + alpha * to[i])
                    to[i] = values[i] / (root * math.sqrt(root))
            else:
                for i in range(positions):
                    to[i] = values[i] * (bias + alpha * to[i]) ** -beta
    return STATUS_OK


@register_jitable
def draw(start, index):
    """Draw number `index`, of 53 bits, from the state `start` (SplitMix64)."""
    z = np.uint64(start) + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(11)


@register_jitable
def dropout(out, x, start, limit, factor):
    """x * factor where the draw is at least `limit`, else 0."""
    below = np.uint64(limit)
    block = block_like(x)
    for first in range(0, len(x), BLOCK):
        run, to = x[first : first + BLOCK], out[first : first + BLOCK]
        for i in range(len(run)):
            block[i] = run[i] * np.float64(factor) if draw(start, first + i) >= below else 0.0
        for i in range(len(run)):
            to[i] = block[i]
    return STATUS_OK


@register_jitable
def dropout_mask(out, mask, x, start, limit, factor):
    """As `dropout`, and which elements stayed."""
    below = np.uint64(limit)
    for i in range(len(x)):
        mask[i] = draw(start, i) >= below
        out[i] = x[i] * np.float64(factor) if mask[i] else 0.0
    return STATUS_OK
