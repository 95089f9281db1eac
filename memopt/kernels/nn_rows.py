"""What the kernels of `conv` and `pool` do with one row: runs of elements that are contiguous, or some `step` apart.

Holds true: a row of `ow` outputs sees a row of `w` data; tap j of output position p is data position
p * step + j * gap - before. Positions all of whose taps lie in the data, [inner, outer), take three taps a pass; the
others go one by one.
"""

from __future__ import annotations

from memopt.kernels.abi import register_jitable

__all__ = [
    "add_one",
    "add_products",
    "add_spread",
    "add_taps",
    "copy_strided",
    "fill",
    "first_valid",
    "inner_range",
    "keep_larger",
    "keep_larger_taps",
    "larger",
    "past_valid",
]


@register_jitable
def first_valid(before, step, size):
    """The first output position whose tap at `position * step - before` is not below 0, at most `size`."""
    return min(max((before + step - 1) // step, 0), size)


@register_jitable
def past_valid(before, step, size, length):
    """One past the last output position whose tap at `position * step - before` is below `length`, at least 0."""
    return max(min((length - 1 + before) // step + 1, size), 0)


@register_jitable
def inner_range(before, step, ow, w, num_taps, gap):
    """The output positions [inner, outer) all of whose taps lie in the data."""
    inner = first_valid(before, step, ow)
    return inner, max(past_valid(before - (num_taps - 1) * gap, step, ow, w), inner)


@register_jitable
def fill(array, start, count, value):
    """Set `count` elements from `start` on."""
    part = array[start : start + count]
    for i in range(count):
        part[i] = value


@register_jitable
def copy_strided(to, to_at, source, source_at, step, count):
    """Copy `count` elements that are `step` apart to contiguous ones."""
    part = to[to_at : to_at + count]
    if step == 1:
        run = source[source_at : source_at + count]
        for i in range(count):
            part[i] = run[i]
    else:
        run = source[source_at : source_at + (count - 1) * step + 1]
        for i in range(count):
            part[i] = run[i * step]


@register_jitable
def add_one(to, to_at, source, source_at, step, count, factor):
    """to[i] += factor * source[i * step]."""
    part = to[to_at : to_at + count]
    run = source[source_at : source_at + (count - 1) * step + 1]
    if step == 1:
        for i in range(count):
            part[i] += factor * run[i]
    elif step == 2:
        for i in range(count):
            part[i] += factor * run[2 * i]
    else:
        for i in range(count):
            part[i] += factor * run[i * step]


@register_jitable
def add_three(to, to_at, source, source_at, step, gap, count, factor0, factor1, factor2):
    """to[i] += the sum over three taps, `gap` apart, of factor * source[i * step + tap * gap]."""
    part = to[to_at : to_at + count]
    size = (count - 1) * step + 1
    run0 = source[source_at : source_at + size]
    run1 = source[source_at + gap : source_at + gap + size]
    run2 = source[source_at + 2 * gap : source_at + 2 * gap + size]
    if step == 1:
        for i in range(count):
            part[i] += factor0 * run0[i] + factor1 * run1[i] + factor2 * run2[i]
    elif step == 2:
        for i in range(count):
            part[i] += factor0 * run0[2 * i] + factor1 * run1[2 * i] + factor2 * run2[2 * i]
    else:
        for i in range(count):
            part[i] += factor0 * run0[i * step] + factor1 * run1[i * step] + factor2 * run2[i * step]


@register_jitable
def factor_of(factors, factor_at, tap):
    """The factor of a tap: 1 where `factor_at` is negative."""
    return factors[factor_at + tap] if factor_at >= 0 else factors.dtype.type(1)


@register_jitable
def add_taps(out, at, ow, x, source, w, factors, factor_at, num_taps, step, gap, before, inner, outer):
    """Add to the row of `ow` outputs at `at` its taps in the row of `w` data at `source`, each times its factor.

    A negative `factor_at` stands for factors of 1.
    """
    if outer > inner:
        place = source + inner * step - before
        tap = 0
        while tap + 3 <= num_taps:
            factor0 = factor_of(factors, factor_at, tap)
            factor1 = factor_of(factors, factor_at, tap + 1)
            factor2 = factor_of(factors, factor_at, tap + 2)
            add_three(out, at + inner, x, place + tap * gap, step, gap, outer - inner, factor0, factor1, factor2)
            tap += 3
        while tap < num_taps:
            add_one(out, at + inner, x, place + tap * gap, step, outer - inner, factor_of(factors, factor_at, tap))
            tap += 1
    for p in range(inner + ow - outer):
        col = p if p < inner else p - inner + outer
        for tap in range(num_taps):
            place = col * step + tap * gap - before
            if 0 <= place < w:
                out[at + col] += factor_of(factors, factor_at, tap) * x[source + place]


@register_jitable
def add_spread(to, to_at, step, source, source_at, count, factor):
    """to[i * step] += factor * source[i]."""
    part = to[to_at : to_at + (count - 1) * step + 1]
    run = source[source_at : source_at + count]
    if step == 1:
        for i in range(count):
            part[i] += factor * run[i]
    elif step == 2:
        for i in range(count):
            part[2 * i] += factor * run[i]
    else:
        for i in range(count):
            part[i * step] += factor * run[i]


@register_jitable
def add_products(block, a, a_at, b, b_at, step, count):
    """block[i] += a[i] * b[i * step], of at most `BLOCK` elements."""
    run = a[a_at : a_at + count]
    other = b[b_at : b_at + (count - 1) * step + 1]
    if step == 1:
        for i in range(count):
            block[i] += run[i] * other[i]
    elif step == 2:
        for i in range(count):
            block[i] += run[i] * other[2 * i]
    else:
        for i in range(count):
            block[i] += run[i] * other[i * step]


@register_jitable
def larger(a, b):
    """The maximum; NaN if either is NaN."""
    return a if a >= b or a != a else b


@register_jitable
def keep_larger(to, to_at, source, source_at, step, count):
    """to[i] = larger(to[i], source[i * step])."""
    part = to[to_at : to_at + count]
    run = source[source_at : source_at + (count - 1) * step + 1]
    if step == 1:
        for i in range(count):
            part[i] = larger(part[i], run[i])
    elif step == 2:
        for i in range(count):
            part[i] = larger(part[i], run[2 * i])
    else:
        for i in range(count):
            part[i] = larger(part[i], run[i * step])


@register_jitable
def keep_larger_three(to, to_at, source, source_at, step, gap, count):
    """to[i] = the larger of itself and three taps, source[i * step + tap * gap]."""
    part = to[to_at : to_at + count]
    size = (count - 1) * step + 1
    run0 = source[source_at : source_at + size]
    run1 = source[source_at + gap : source_at + gap + size]
    run2 = source[source_at + 2 * gap : source_at + 2 * gap + size]
    if step == 1:
        for i in range(count):
            part[i] = larger(larger(part[i], run0[i]), larger(run1[i], run2[i]))
    elif step == 2:
        for i in range(count):
            part[i] = larger(larger(part[i], run0[2 * i]), larger(run1[2 * i], run2[2 * i]))
    else:
        for i in range(count):
            part[i] = larger(larger(part[i], run0[i * step]), larger(run1[i * step], run2[i * step]))


@register_jitable
def keep_larger_taps(out, at, ow, x, source, w, num_taps, step, gap, before, inner, outer):
    """Keep, in the row of `ow` outputs at `at`, the larger of each and its taps in the row of `w` data at `source`."""
    if outer > inner:
        place = source + inner * step - before
        tap = 0
        while tap + 3 <= num_taps:
            keep_larger_three(out, at + inner, x, place + tap * gap, step, gap, outer - inner)
            tap += 3
        while tap < num_taps:
            keep_larger(out, at + inner, x, place + tap * gap, step, outer - inner)
            tap += 1
    for p in range(inner + ow - outer):
        col = p if p < inner else p - inner + outer
        for tap in range(num_taps):
            place = col * step + tap * gap - before
            if 0 <= place < w:
                out[at + col] = larger(out[at + col], x[source + place])
