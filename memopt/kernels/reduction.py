"""Kernels: reductions, softmax, argmax and cumulative sums, over flat arrays whose folded extents come as scalars.

Holds true: sums and products accumulate in float64 (floats) or in 64-bit integers, are rounded once, and are added up
in a fixed order that depends on the shape only. `softmax` and `log_softmax` read what an element depends on before
they write it, so output and input may be the same bytes.
"""

from __future__ import annotations

from typing import Any

from memopt.kernels.abi import register_jitable
from memopt.kernels.elementwise import div, exp, log, maximum, minimum, sqrt
from memopt.kernels.local import BLOCK, block_like, block_wide, fdiv, like

__all__ = [
    "argmax",
    "cumsum",
    "log_softmax",
    "reduce_l2",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
    "softmax",
]

#: A contiguous run is added up in this many interleaved sums, which LLVM keeps in vector registers.
LANES = 16


def _reducer(accumulators: Any, start: Any, prepare: Any, combine: Any, finish: Any) -> Any:
    """The kernel that reduces axes `a` and `b` of x, folded to (o, a, m, b, i), to y, folded to (o, m, i).

    `accumulators(x)` makes the block of them, `start(first)` the neutral value; `combine(total, prepare(x))` takes an
    element in, `finish(total, count)` makes the result.
    """

    @register_jitable
    def run_total(block, x, base, num_a, stride_a, num_b):
        """Reduce `num_a` runs of `num_b` neighbours."""
        first = like(x[base], block[0]) if num_a * num_b > 0 else like(0, block[0])
        for lane in range(LANES):
            block[lane] = start(first)
        for a in range(num_a):
            run = x[base + a * stride_a : base + a * stride_a + num_b]
            whole = num_b - num_b % LANES
            for k in range(0, whole, LANES):
                part = run[k : k + LANES]
                for lane in range(LANES):
                    block[lane] = combine(block[lane], prepare(like(part[lane], block[0])))
            for k in range(whole, num_b):
                block[k - whole] = combine(block[k - whole], prepare(like(run[k], block[0])))
        total = block[0]
        for lane in range(1, LANES):
            total = combine(total, block[lane])
        return total

    @register_jitable
    def rows_total(block, x, base, width, num_a, stride_a, num_b, stride_b):
        """Reduce `num_a * num_b` rows of `width` neighbours, elementwise, into the block."""
        head = x[base : base + width] if num_a * num_b > 0 else x[0:0]
        for j in range(width):
            block[j] = start(like(head[j], block[0])) if head.size > 0 else start(like(0, block[0]))
        for a in range(num_a):
            for b in range(num_b):
                at = base + a * stride_a + b * stride_b
                row = x[at : at + width]
                for j in range(width):
                    block[j] = combine(block[j], prepare(like(row[j], block[0])))

    @register_jitable
    def kernel(y, x, num_o, num_a, num_m, num_b, num_i):
        block = accumulators(x)
        count = num_a * num_b
        stride_m = num_b * num_i
        stride_a = num_m * stride_m
        for o in range(num_o):
            for m in range(num_m):
                base = o * num_a * stride_a + m * stride_m
                at = (o * num_m + m) * num_i
                if num_i == 1:
                    y[at] = like(finish(run_total(block, x, base, num_a, stride_a, num_b), count), y[at])
                    continue
                for i in range(0, num_i, BLOCK):
                    width = min(BLOCK, num_i - i)
                    rows_total(block, x, base + i, width, num_a, stride_a, num_b, num_i)
                    out = y[at + i : at + i + width]
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
reduce_l2 = _reducer(block_wide, _zero, _square, _plus, _root)
reduce_max = _reducer(block_like, _same, _same, maximum, _total)
reduce_min = _reducer(block_like, _same, _same, minimum, _total)


@register_jitable
def softmax(y, x, outer, axis, inner):
    """y = exp(x - max) / sum(exp(x - max)) along `axis` of (outer, axis, inner)."""
    peak, total = block_like(x), block_wide(x)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            base = o * axis * inner + i
            _exp_sums(y, x, base, width, axis, inner, peak, total, True)
            for k in range(axis):
                out = y[base + k * inner : base + k * inner + width]
                for j in range(width):
                    out[j] = fdiv(out[j], like(total[j], out[j]))
    return 0


@register_jitable
def log_softmax(y, x, outer, axis, inner):
    """y = x - max - log(sum(exp(x - max))) along `axis` of (outer, axis, inner)."""
    peak, total = block_like(x), block_wide(x)
    for o in range(outer):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            base = o * axis * inner + i
            _exp_sums(y, x, base, width, axis, inner, peak, total, False)
            for j in range(width):
                total[j] = log(total[j])
            for k in range(axis):
                row = x[base + k * inner : base + k * inner + width]
                out = y[base + k * inner : base + k * inner + width]
                for j in range(width):
                    out[j] = like(like(row[j] - peak[j], total[j]) - total[j], out[j])
    return 0


@register_jitable
def _exp_sums(y, x, base, width, axis, inner, peak, total, store):
    """The maxima along the axis and the sums of exp(x - maximum), which go to y if `store`."""
    if inner == 1:
        _exp_sum(y, x, base, axis, peak, total, store)
        return
    for k in range(axis):
        row = x[base + k * inner : base + k * inner + width]
        for j in range(width):
            peak[j] = maximum(peak[j], row[j]) if k > 0 else row[j]
    for k in range(axis):
        row = x[base + k * inner : base + k * inner + width]
        out = y[base + k * inner : base + k * inner + width]
        for j in range(width):
            value = exp(row[j] - peak[j])
            total[j] = total[j] + value if k > 0 else like(value, total[j])
            if store:
                out[j] = value


@register_jitable
def _exp_sum(y, x, base, axis, peak, total, store):
    """The same for one contiguous run."""
    row = x[base : base + axis]
    out = y[base : base + axis]
    if axis == 0:
        return
    top = row[0]
    for k in range(1, axis):
        top = maximum(top, row[k])
    added = 0.0
    for k in range(axis):
        value = exp(row[k] - top)
        added += value
        if store:
            out[k] = value
    peak[0] = top
    total[0] = added


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
