"""Kernels: movement. Elements are integers of the data's width; strides and offsets are in elements."""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from memopt.kernels.abi import STATUS_BAD_INDEX, STATUS_OK, register_jitable
from memopt.kernels.local import block_like

__all__ = [
    "concat",
    "concat_rows4",
    "concat_rows16",
    "concat_rows32",
    "concat_rows64",
    "concat_strided",
    "copy",
    "fill",
    "gather",
    "gather_strided",
    "pad",
    "source_index",
    "split",
    "split_strided",
    "strided",
]

#: Runs of fewer elements are moved by a loop: a call costs more.
_SHORT = 32
#: Side of the square blocks of a transpose.
_BLOCK = 8


@intrinsic
def _memmove(typingctx, to, source, nbytes):
    """C's memmove, on addresses."""

    def codegen(context, builder, signature, args):
        byte = cgutils.voidptr_t
        to, source = (builder.inttoptr(address, byte) for address in args[:2])
        cgutils.raw_memmove(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


def _move(to, source):
    """to = source, flat and contiguous arrays of one size and dtype."""
    to[:] = source


@overload(_move)
def _move_jitted(to, source):
    def move(to, source):
        if to.size < _SHORT:
            for i in range(to.size):
                to[i] = source[i]
        else:
            _memmove(to.ctypes.data, source.ctypes.data, to.size * to.itemsize)

    return move


@register_jitable
def copy(out, x):
    """out = x; both flat. Where both are the same bytes there is nothing to do."""
    if out.ctypes.data != x.ctypes.data:
        _move(out, x)
    return STATUS_OK


@register_jitable
def fill(out, bits):
    """out = bits, everywhere; out is flat and signed."""
    for i in range(out.size):
        out[i] = bits
    return STATUS_OK


@register_jitable
def _rows(out, x, n, m, out_step, in_step, out_at, in_at):
    """n runs of m neighbours on both sides."""
    for i in range(n):
        o = out_at + i * out_step
        s = in_at + i * in_step
        _move(out[o : o + m], x[s : s + m])


@register_jitable
def _blocks(out, x, n, m, out_step, in_step, out_at, in_at):
    """A matrix transposed: out[i * out_step + j] = x[i + j * in_step].

    Square blocks go by way of the stack: each run of a block is read and written at once, before lines of the cache
    that lie a power of 2 apart can drive each other out.
    """
    block = block_like(x)
    for j0 in range(0, m, _BLOCK):
        for i0 in range(0, n, _BLOCK):
            o, s = out_at + i0 * out_step + j0, in_at + i0 + j0 * in_step
            width, height = min(_BLOCK, m - j0), min(_BLOCK, n - i0)
            if width == _BLOCK and height == _BLOCK:
                for j in range(_BLOCK):
                    row = x[s + j * in_step : s + j * in_step + _BLOCK]
                    for i in range(_BLOCK):
                        block[i * _BLOCK + j] = row[i]
                for i in range(_BLOCK):
                    to = out[o + i * out_step : o + i * out_step + _BLOCK]
                    for j in range(_BLOCK):
                        to[j] = block[i * _BLOCK + j]
            else:
                for i in range(height):
                    for j in range(width):
                        out[o + i * out_step + j] = x[s + i + j * in_step]


@register_jitable
def _plane(out, x, n, m, p0, p1, q0, q1, out_at, in_at):
    """The two inner loops of a strided copy."""
    if p1 == 1 and q1 == 1:
        _rows(out, x, n, m, p0, q0, out_at, in_at)
    elif p1 == 1 and q0 == 1:
        _blocks(out, x, n, m, p0, q1, out_at, in_at)
    elif p1 == 1 and q1 == 0 and m > 0:
        for i in range(n):
            o = out_at + i * p0
            value, to = x[in_at + i * q0], out[o : o + m]
            for j in range(m):
                to[j] = value
    else:
        for i in range(n):
            o = out_at + i * p0
            s = in_at + i * q0
            for j in range(m):
                out[o + j * p1] = x[s + j * q1]


@register_jitable
def strided(
    out, x, n0, n1, n2, n3, n4, n5, p0, p1, p2, p3, p4, p5, q0, q1, q2, q3, q4, q5, out_at, in_at
):  # fmt: skip
    """out[out_at + i . p] = x[in_at + i . q] for all i below n; both flat, p and q in elements."""
    for i0 in range(n0):
        for i1 in range(n1):
            o1, s1 = out_at + i0 * p0 + i1 * p1, in_at + i0 * q0 + i1 * q1
            for i2 in range(n2):
                for i3 in range(n3):
                    o3, s3 = o1 + i2 * p2 + i3 * p3, s1 + i2 * q2 + i3 * q3
                    _plane(out, x, n4, n5, p4, p5, q4, q5, o3, s3)
    return STATUS_OK


@register_jitable
def concat(out, *parts):
    """The matrices `parts` side by side in the matrix out; parts beyond the width of out are fillers."""
    rows, width = out.shape
    at = 0
    for k in range(len(parts)):
        if at >= width:
            break
        part = parts[k]
        for i in range(rows):
            to = out[i, at : at + part.shape[1]]
            if to.ctypes.data != part[i].ctypes.data:  # else it was made where it belongs
                _move(to, part[i])
        at += part.shape[1]
    return STATUS_OK


@register_jitable
def split(*arrays):
    """The last array's columns, cut over the arrays before it; arrays beyond its width are fillers."""
    x = arrays[len(arrays) - 1]
    rows, width = x.shape
    at = 0
    for k in range(len(arrays) - 1):
        if at >= width:
            break
        part = arrays[k]
        for i in range(rows):
            _move(part[i], x[i, at : at + part.shape[1]])
        at += part.shape[1]
    return STATUS_OK


@register_jitable
def _walk(out, x, out_at, in_at, numbers):
    """A strided copy of four loops, `out_at` and `in_at` further on. The numbers are 4 extents, 4 strides written, 4
    strides read, and where it starts on either side.
    """
    strided(
        out, x,
        1, 1, numbers[0], numbers[1], numbers[2], numbers[3],
        0, 0, numbers[4], numbers[5], numbers[6], numbers[7],
        0, 0, numbers[8], numbers[9], numbers[10], numbers[11],
        out_at + numbers[12], in_at + numbers[13],
    )  # fmt: skip


def _concat_rows(count):
    """As `concat`, of `count` flat parts whose rows lie apart. The numbers are how many rows, how wide out is, and for
    each part how wide it is and how far it is from one of its rows to the next.
    """

    @register_jitable
    def kernel(out, *operands):
        parts, numbers = operands[:count], operands[count:]
        rows, width = numbers[0], numbers[1]
        at = 0
        for k in range(count):
            if at >= width:
                break
            part, size, step = parts[k], numbers[2 + 2 * k], numbers[3 + 2 * k]
            made_there = out[at:].ctypes.data == part.ctypes.data and (step == width or rows == 1)
            if not made_there:
                _rows(out, part, rows, size, width, step, at, 0)
            at += size
        return STATUS_OK

    return kernel


concat_rows4, concat_rows16, concat_rows32, concat_rows64 = (_concat_rows(count) for count in (4, 16, 32, 64))


@register_jitable
def concat_strided(out, x0, x1, x2, x3, *numbers):
    """Up to four parts, each brought to its place in out by a walk; all flat. A walk of extent 0 stands for no part."""
    _walk(out, x0, 0, 0, numbers[:14])
    _walk(out, x1, 0, 0, numbers[14:28])
    _walk(out, x2, 0, 0, numbers[28:42])
    _walk(out, x3, 0, 0, numbers[42:])
    return STATUS_OK


@register_jitable
def split_strided(y0, y1, y2, y3, x, *numbers):
    """Up to four parts of x, each brought out of it by a walk; all flat. A walk of extent 0 stands for no part."""
    _walk(y0, x, 0, 0, numbers[:14])
    _walk(y1, x, 0, 0, numbers[14:28])
    _walk(y2, x, 0, 0, numbers[28:42])
    _walk(y3, x, 0, 0, numbers[42:])
    return STATUS_OK


@register_jitable
def source_index(i, before, dim, mode):
    """Which element of an axis of length dim stands at i in the padded axis; -1 for the fill value."""
    at = i - before
    if 0 <= at < dim:
        return at
    if mode == 0:
        return -1
    if mode == 1:
        return -at if at < 0 else 2 * (dim - 1) - at
    return 0 if at < 0 else dim - 1


@register_jitable
def _pad_row(out, x, before, mode, bits):
    """One innermost axis: the run that is copied, and what stands before and after it."""
    n, dim = out.size, x.size
    first = min(max(before, 0), n)
    last = min(max(before + dim, first), n)
    for i in range(first):
        s = source_index(i, before, dim, mode)
        out[i] = bits if s < 0 else x[s]
    _move(out[first:last], x[first - before : last - before])
    for i in range(last, n):
        s = source_index(i, before, dim, mode)
        out[i] = bits if s < 0 else x[s]


@register_jitable
def pad(out, x, b0, b1, b2, b3, b4, mode, bits):
    """x framed by b elements before each axis: mode 0 fills with bits, 1 reflects, 2 repeats the edge; b < 0 crops."""
    d0, d1, d2, d3, _ = x.shape
    n0, n1, n2, n3, n4 = out.shape
    for i0 in range(n0):
        s0 = source_index(i0, b0, d0, mode)
        for i1 in range(n1):
            s1 = source_index(i1, b1, d1, mode)
            for i2 in range(n2):
                s2 = source_index(i2, b2, d2, mode)
                for i3 in range(n3):
                    s3 = source_index(i3, b3, d3, mode)
                    row = out[i0, i1, i2, i3]
                    if s0 < 0 or s1 < 0 or s2 < 0 or s3 < 0:
                        for i4 in range(n4):
                            row[i4] = bits
                    else:
                        _pad_row(row, x[s0, s1, s2, s3], b4, mode, bits)
    return STATUS_OK


@register_jitable
def gather(out, x, indices):
    """out[o, i, :] = x[o, indices[i], :]; an index below 0 counts from the end. A bad one: nothing is written."""
    outer, dim, _ = x.shape
    for i in range(indices.size):
        if not -dim <= indices[i] < dim:
            return STATUS_BAD_INDEX
    for o in range(outer):
        for i in range(indices.size):
            at = indices[i]
            if at < 0:
                at += dim
            _move(out[o, i], x[o, at])
    return STATUS_OK


@register_jitable
def gather_strided(out, x, indices, outer, dim, outer_step, step, *walk):
    """As `gather`, of x that steps through flat storage; `walk` brings over the block at one index."""
    for i in range(indices.size):
        if not -dim <= indices[i] < dim:
            return STATUS_BAD_INDEX
    inner = walk[0] * walk[1] * walk[2] * walk[3]
    for o in range(outer):
        for i in range(indices.size):
            at = indices[i]
            if at < 0:
                at += dim
            _walk(out, x, (o * indices.size + i) * inner, o * outer_step + at * step, walk)
    return STATUS_OK
