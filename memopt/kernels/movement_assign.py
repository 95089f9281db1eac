"""Kernels: writing a block of one tensor into another."""

from __future__ import annotations

from memopt.kernels.abi import register_jitable
from memopt.kernels.movement import copy, strided

__all__ = ["slice_assign"]


@register_jitable
def slice_assign(
    out, x, value, n0, n1, n2, n3, n4, n5, p0, p1, p2, p3, p4, p5, q0, q1, q2, q3, q4, q5, out_at, in_at
):  # fmt: skip
    """out = x, then out[out_at + i . p] = value[in_at + i . q] for all i below n; all flat, out may be x."""
    copy(out, x)
    return strided(
        out, value, n0, n1, n2, n3, n4, n5, p0, p1, p2, p3, p4, p5, q0, q1, q2, q3, q4, q5, out_at, in_at
    )  # fmt: skip
