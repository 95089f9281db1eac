"""Reduction kernels: compiled against the reference, in place where declared, and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.checks import call_of, check_kernel
from tests.ops.test_elementwise import random

REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
]
WAYS = [
    ((2, 3, 4), (0, 1, 2)),
    ((2, 3, 4), (1,)),
    ((2, 3, 4, 5), (0, 2, 3)),
    ((3, 2, 4), (0, 2)),
    ((2, 1, 3), (1,)),
    ((5, 37), (1,)),
    ((0, 3), (1,)),
    ((), ()),
]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op):
    for shape, axes in WAYS:
        check_kernel(op, [random(shape)], axes=axes)
    check_kernel(op, [random((3, 4, 300))], axes=(1,), plain=False)
    if op in ("ReduceSum", "ReduceProd", "ReduceSumSquare", "ReduceL2"):
        check_kernel(op, [np.zeros((0, 3), "f")], axes=(0,))
        check_kernel(op, [np.zeros((2, 0), "f")], axes=(1,))


@pytest.mark.parametrize(("op", "dtype"), [("ReduceSum", "int32"), ("ReduceMean", "int64"), ("ReduceMax", "bool")])
def test_other_dtypes(op, dtype):
    x = random((3, 40), dtype)
    check_kernel(op, [x], axes=(1,))
    check_kernel(op, [x], axes=(0,))


def test_nan_and_infinity():
    x = random((3, 40))
    x[0, 5], x[1, 39], x[2, 0] = np.nan, np.inf, np.nan
    for axes in ((0,), (1,)):
        check_kernel("ReduceMax", [x], axes=axes)
        check_kernel("ReduceMin", [x], axes=axes)


def test_a_long_sum_is_exact_to_the_last_bit():
    x = np.full(1_000_000, 0.1, "f")
    (got,) = check_kernel("ReduceSum", [x], keepdims=0, plain=False)
    assert got == np.float32(x.astype("f8").sum())


def test_no_kernel_runs_on_the_host():
    assert call_of("ReduceSum", [random((2, 3, 2, 3, 2, 3))], axes=(0, 2, 4))[0] is None
    assert call_of("Softmax", [random((2, 3)).astype("float16")])[0] is None


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op):
    x = random((2, 5, 7)) * 20
    for axis in (0, 1, 2):
        check_kernel(op, [x], axis=axis, rtol=1e-5)
    check_kernel(op, [random((3, 4, 300))], axis=1, plain=False, rtol=1e-5)
    check_kernel(op, [np.zeros((2, 0), "f")])
    check_kernel(op, [np.array([[1, np.nan, 2], [-np.inf, 0, 1], [1000, 1000, -1000]], "f")], rtol=1e-5)


@pytest.mark.parametrize("last", [0, 1])
def test_argmax(last):
    x = np.floor(random((3, 4, 300)))
    x[0, 1, 5] = x[0, 3, 5] = x[2, 1, 299] = np.nan
    for axis in (0, 1, 2):
        check_kernel("ArgMax", [x], axis=axis, select_last_index=last, plain=False)
    check_kernel("ArgMax", [x[:, :, :6].copy()], axis=1, select_last_index=last)


def test_cumsum():
    for options in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
        check_kernel("CumSum", [random((3, 5))], axis=1, **options)
        check_kernel("CumSum", [random((3, 5))], axis=0, **options)
    check_kernel("CumSum", [random((2, 3, 300))], axis=1, plain=False)
    check_kernel("CumSum", [random((9,), "int32")], axis=0)
