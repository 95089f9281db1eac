"""Kernels: reductions, softmax, argmax and cumulative sums, over flat arrays whose folded extents come as scalars.

Holds true: sums and products accumulate in float64 (floats) or in 64-bit integers, are rounded once, and are added up
in a fixed order that depends on the shape (and on strides, where there are any) only. `softmax` and `log_softmax` read
what an element depends on before they write it, so output and input may be the same bytes.
"""

from __future__ import annotations

from typing import Any

from memopt.kernels.abi import register_jitable
from memopt.kernels.elementwise import absolute, div, exp, log, maximum, minimum, sqrt
from memopt.kernels.local import BLOCK, block_like, block_wide, fdiv, like
from memopt.kernels.movement import strided

__all__ = [
    "argmax",
    "cumsum",
    "exp_sums",
    "log_softmax",
    "log_softmax_strided",
    "reduce_l1",
    "reduce_l2",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
    "softmax",
    "softmax_strided",
    "tile_of",
]

#: A contiguous run is reduced as rows of this many neighbours: so many totals, which are then combined.
RUN = 64


@register_jitable
def tile_of(axis, inner, i):
    """How to walk an axis at columns i and following: (width, rows, stride, tail).

    That is `rows` rows of `width` neighbours, `stride` apart, then `tail` more neighbours. Neighbours are columns, or,
    where there is one column, a run of the axis itself.
    """
    if inner > 1:
        return min(BLOCK, inner - i), axis, inner, 0
    width = min(RUN, axis)
    rows = axis // width if width > 0 else 0
    return width, rows, width, axis - rows * width


def _reducer(accumulators: Any, start: Any, prepare: Any, combine: Any, finish: Any) -> Any:
    """The kernel that reduces axes `a` and `b` of x, folded to (o, a, m, b, i), to y, folded to (o, m, i).

    Of x, each of the axes has a step; that of `i` is 1, and so is that of `b` where `i` is 1 long.
    `accumulators(x)` makes the block of them, `start(first)` the neutral value; `combine(total, prepare(x))` takes an
    element in, `finish(total, count)` makes the result.
    """

    @register_jitable
    def kernel(y, x, num_o, num_a, num_m, num_b, num_i, step_o, step_a, step_m, step_b):
        block = accumulators(x)
        count = num_a * num_b
        for o in range(num_o):
            for m in range(num_m):
                for i in range(0, num_i, BLOCK):
                    base = o * step_o + m * step_m + i
                    width, rows, stride, tail = tile_of(num_b, num_i, i)
                    if num_i > 1:
                        stride = step_b
                    for j in range(max(width, 1)):
                        block[j] = start(like(x[base + j], block[0])) if count > 0 else start(like(0, block[0]))
                    for a in range(num_a):
                        for k in range(rows + 1):
                            at = base + a * step_a + k * stride
                            row = x[at : at + (width if k < rows else tail)]
                            for j in range(row.size):
                                block[j] = combine(block[j], prepare(like(row[j], block[0])))
                    if num_i == 1:
                        for j in range(1, width):
                            block[0] = combine(block[0], block[j])
                        width = 1
                    at = (o * num_m + m) * num_i + i
                    out = y[at : at + width]
                    for j in range(width):
                        out[j] = finish(block[j], count)
        return 0

    return kernel


@register_jitable
def _zero(first):
    return like(0, first)


@register_jitable
def _one(first):
    return like(1, first)


@register_jitable
def _same(x):
    return x


@register_jitable
def _square(x):
    return x * x


@register_jitable
def _plus(x, y):
    return x + y


@register_jitable
def _times(x, y):
    return x * y


@register_jitable
def _total(total, count):
    return total


@register_jitable
def _root(total, count):
    return sqrt(like(total, 0.5))


reduce_sum = _reducer(block_wide, _zero, _same, _plus, _total)
reduce_mean = _reducer(block_wide, _zero, _same, _plus, div)
reduce_prod = _reducer(block_wide, _one, _same, _times, _total)
reduce_sum_square = _reducer(block_wide, _zero, _square, _plus, _total)
reduce_l1 = _reducer(block_wide, _zero, absolute, _plus, _total)
reduce_l2 = _reducer(block_wide, _zero, _square, _plus, _root)
reduce_max = _reducer(block_like, _same, _same, maximum, _total)
reduce_min = _reducer(block_like, _same, _same, minimum, _total)


@register_jitable
def softmax(y, x, outer, axis, inner):
    """y = exp(x - max) / sum(exp(x - max)) along `axis` of (outer, axis, inner)."""
    peak, total, powers = block_like(x), block_wide(x), block_like(y)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            base = o * axis * inner + i
            tile = tile_of(axis, inner, i)
            width, rows, stride, tail = tile
            exp_sums(y, x, base, tile, peak, total, powers, inner == 1, True)
            for k in range(rows + 1):
                out = y[base + k * stride : base + k * stride + (width if k < rows else tail)]
                for j in range(out.size):
                    out[j] = fdiv(out[j], like(total[j], out[j]))
    return 0


@register_jitable
def log_softmax(y, x, outer, axis, inner):
    """y = x - max - log(sum(exp(x - max))) along `axis` of (outer, axis, inner)."""
    peak, total, powers = block_like(x), block_wide(x), block_like(y)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            base = o * axis * inner + i
            tile = tile_of(axis, inner, i)
            width, rows, stride, tail = tile
            exp_sums(y, x, base, tile, peak, total, powers, inner == 1, False)
            for j in range(width):
                total[j] = log(total[j])
            for k in range(rows + 1):
                at, count = base + k * stride, width if k < rows else tail
                row, out = x[at : at + count], y[at : at + count]
                for j in range(count):
                    out[j] = like(like(row[j] - peak[j], total[j]) - total[j], out[j])
    return 0


@register_jitable
def softmax_strided(y, x, outer, axis, inner, *walk):
    """`softmax` of what the strided copy `walk` brings to y."""
    strided(y, x, *walk)
    return softmax(y, y, outer, axis, inner)


@register_jitable
def log_softmax_strided(y, x, outer, axis, inner, *walk):
    """`log_softmax` of what the strided copy `walk` brings to y."""
    strided(y, x, *walk)
    return log_softmax(y, y, outer, axis, inner)


@register_jitable
def exp_sums(y, x, base, tile, peak, total, powers, one_run, store):
    """Fill `peak` with the maxima and `total` with the sums of exp(x - maximum), which go to y if `store`.

    Where the axis is `one_run`, all `width` entries are its maximum and its sum.
    """
    width, rows, stride, tail = tile
    for j in range(width):
        peak[j] = x[base + j] if rows > 0 else like(0, peak[0])
        total[j] = 0.0
    for k in range(rows + 1):
        row = x[base + k * stride : base + k * stride + (width if k < rows else tail)]
        for j in range(row.size):
            peak[j] = maximum(peak[j], row[j])
    if one_run:
        for j in range(1, width):
            peak[0] = maximum(peak[0], peak[j])
        peak[:width] = peak[0]
    for k in range(rows + 1):
        at, count = base + k * stride, width if k < rows else tail
        row, out = x[at : at + count], y[at : at + count]
        for j in range(count):
            powers[j] = exp(row[j] - peak[j])
        for j in range(count):
            total[j] += powers[j]
        if store:
            for j in range(count):
                out[j] = powers[j]
    if one_run:
        for j in range(1, width):
            total[0] += total[j]
        total[:width] = total[0]


@register_jitable
def argmax(y, x, outer, axis, inner, last):
    """The index of the maximum along `axis`: the first, or if `last` the last; a NaN counts as the maximum."""
    best, index = block_like(x), block_like(y)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            base = o * axis * inner + i
            for k in range(axis):
                row = x[base + k * inner : base + k * inner + width]
                for j in range(width):
                    value = row[j]
                    if k == 0 or _beats(value, best[j], last):
                        best[j] = value
                        index[j] = k
            out = y[o * inner + i : o * inner + i + width]
            for j in range(width):
                out[j] = index[j]
    return 0


@register_jitable
def _beats(value, best, last):
    if last != 0:
        return value >= best or value != value
    return value > best or (value != value and best == best)


@register_jitable
def cumsum(y, x, outer, axis, inner, exclusive, reverse):
    """Sums of the elements up to each one along `axis`: without itself if `exclusive`, from the end if `reverse`."""
    total = block_wide(x)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            for j in range(width):
                total[j] = like(0, total[j])
            for step in range(axis):
                k = axis - 1 - step if reverse != 0 else step
                at = (o * axis + k) * inner + i
                row = x[at : at + width]
                out = y[at : at + width]
                for j in range(width):
                    before = total[j]
                    total[j] = before + like(row[j], before)
                    out[j] = like(before if exclusive != 0 else total[j], out[j])
    return 0
