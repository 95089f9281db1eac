"""Kernels: gradients of data movement. Each fills its output with zeros, then adds dy to it in the order of dy."""

from __future__ import annotations

from memopt.kernels.abi import STATUS_BAD_INDEX, STATUS_OK, register_jitable
from memopt.kernels.local import like
from memopt.kernels.movement import source_index, strided

__all__ = ["gather_grad", "pad_grad", "slice_grad"]


@register_jitable
def _clear(flat):
    for i in range(flat.size):
        flat[i] = like(0, flat[0])


@register_jitable
def gather_grad(dx, dy, indices):
    """dx[o, indices[i], :] += dy[o, i, :]; an index below 0 counts from the end. A bad one: nothing is written."""
    outer, dim, inner = dx.shape
    for i in range(indices.size):
        if not -dim <= indices[i] < dim:
            return STATUS_BAD_INDEX
    _clear(dx.reshape(-1))
    for o in range(outer):
        for i in range(indices.size):
            at = indices[i]
            if at < 0:
                at += dim
            row, grad = dx[o, at], dy[o, i]
            for j in range(inner):
                row[j] += grad[j]
    return STATUS_OK


@register_jitable
def slice_grad(
    dx, dy, n0, n1, n2, n3, n4, n5, p0, p1, p2, p3, p4, p5, q0, q1, q2, q3, q4, q5, out_at, in_at
):  # fmt: skip
    """dx[out_at + i . p] = dy[in_at + i . q] for all i below n, and zeros elsewhere; both flat."""
    _clear(dx)
    return strided(
        dx, dy, n0, n1, n2, n3, n4, n5, p0, p1, p2, p3, p4, p5, q0, q1, q2, q3, q4, q5, out_at, in_at
    )  # fmt: skip


@register_jitable
def pad_grad(dx, dy, b0, b1, b2, b3, b4, mode):
    """dy added up where each of its elements came from; see `movement.pad` for b and the modes."""
    d0, d1, d2, d3, d4 = dx.shape
    n0, n1, n2, n3, n4 = dy.shape
    _clear(dx.reshape(-1))
    for i0 in range(n0):
        s0 = source_index(i0, b0, d0, mode)
        for i1 in range(n1):
            s1 = source_index(i1, b1, d1, mode)
            for i2 in range(n2):
                s2 = source_index(i2, b2, d2, mode)
                for i3 in range(n3):
                    s3 = source_index(i3, b3, d3, mode)
                    if s0 < 0 or s1 < 0 or s2 < 0 or s3 < 0:
                        continue
                    row, grad = dx[s0, s1, s2, s3], dy[i0, i1, i2, i3]
                    for i4 in range(n4):
                        s4 = source_index(i4, b4, d4, mode)
                        if s4 >= 0:
                            row[s4] += grad[i4]
    return STATUS_OK
