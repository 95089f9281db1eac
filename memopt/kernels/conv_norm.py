"""Kernel: convolution of one tap over an input that is normalised on the way, on flat arrays.

Holds true: layouts are those of `memopt.kernels.conv`. A block of the input is prepared in scratch: to each element
happens what `nn.batch_norm` and the loops of `Mul`, `Add` and `Relu` do to it, in that order. Then it is multiplied by
its part of the weights. `bias`, `gain` and `offset` are read only if `has_bias`, `has_gain` and `has_offset`.
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.conv_fused import factor_of
from memopt.kernels.nn_rows import fill

__all__ = ["pointwise"]


@register_jitable
def prepare_run(
    block, at, x, x_at, count, c, scale, shift, mean, var, gain, offset, epsilon, has_gain, has_offset, relu
):  # fmt: skip
    """Set `count` elements of scratch to those of channel `c` from `x_at` on, normalised, scaled and activated."""
    run, seen = block[at : at + count], x[x_at : x_at + count]
    middle, low, factor = mean[c], shift[c], factor_of(scale, var, c, epsilon)
    for i in range(count):
        run[i] = (seen[i] - middle) * factor + low
    if has_gain:
        times = gain[c]
        for i in range(count):
            run[i] *= times
    if has_offset:
        more = offset[c]
        for i in range(count):
            run[i] += more
    if relu:
        zero = block.dtype.type(0)
        for i in range(count):
            run[i] = zero if run[i] < zero else run[i]


@register_jitable
def pointwise(
    out, x, scale, shift, mean, var, weights, bias, gain, offset, scratch,
    routine, batch, channels, maps, positions, block_channels, block_columns,
    epsilon, has_bias, has_gain, has_offset, relu,
):  # fmt: skip
    """As `conv.conv_pointwise` in one group; scratch holds `block_channels` x `block_columns` of the prepared input."""
    for n in range(batch):
        for start in range(0, positions, block_columns):
            count, to = min(block_columns, positions - start), n * maps * positions + start
            if has_bias:
                for m in range(maps):
                    fill(out, to + m * positions, count, bias[m])
            for first in range(0, channels, block_channels):
                depth = min(block_channels, channels - first)
                for c in range(first, first + depth):
                    prepare_run(
                        scratch, (c - first) * count, x, (n * channels + c) * positions + start, count, c,
                        scale, shift, mean, var, gain, offset, epsilon, has_gain, has_offset, relu,
                    )  # fmt: skip
                gemm(
                    routine, maps, count, depth, 1.0,
                    weights, first, channels, False,
                    scratch, 0, count, False,
                    1.0 if has_bias or first > 0 else 0.0, out, to, positions,
                )  # fmt: skip
    return STATUS_OK
