"""Kernels: transposed convolution, on flat arrays.

Holds true: it spreads what a convolution gathers, so the geometry is named from the side of that convolution, as in
`memopt.kernels.conv`: the *result* is its image (`h` and `w`), X has a value for each of its `oh` * `ow` positions. The
result has `maps` channels, X has `channels`; weights are (channels, maps of a group, kh, kw).
"""

from __future__ import annotations

from memopt.kernels.abi import STATUS_OK, gemm, register_jitable
from memopt.kernels.conv_grad import col2im
from memopt.kernels.nn_rows import fill

__all__ = ["spread_gemm"]


@register_jitable
def spread_gemm(
    out, x, weights, bias, scratch,
    routine, batch, channels, maps, group, has_bias,
    h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow, block_maps, block_columns,
):  # fmt: skip
    """The weights' transpose times X, in blocks of an im2col matrix, each added to where its taps lie."""
    positions, num_taps = oh * ow, kh * kw
    in_group, out_group = channels // group, maps // group
    rows = out_group * num_taps
    for n in range(batch):
        for m in range(maps):
            fill(out, (n * maps + m) * h * w, h * w, bias[m] if has_bias else 0)
        for g in range(group):
            image = (n * maps + g * out_group) * h * w
            base = (n * channels + g * in_group) * positions
            start = 0
            while start < positions:
                count = min(block_columns, positions - start)
                if block_columns < ow:
                    count = min(count, ow - start % ow)  # a part of one row
                for m in range(0, out_group, block_maps):
                    depth = min(block_maps, out_group - m)
                    gemm(
                        routine, depth * num_taps, count, in_group, 1.0,
                        weights, g * in_group * rows + m * num_taps, rows, True,
                        x, base + start, positions, False,
                        0.0, scratch, 0, count,
                    )  # fmt: skip
                    plane = image + m * h * w
                    col2im(out, plane, scratch, depth, start, count, h, w, kh, kw, sh, sw, dh, dw, top, left, ow)
                start += count
    return STATUS_OK
