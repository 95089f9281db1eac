"""Update kernels: against the reference, in every combination of in place and out of place, and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.ops import KernelQuery, get_op
from memopt.types import TensorType as T
from tests.kernels.checks import check_kernel, execute


def state(count, size=600, dtype="float32"):
    draw = np.random.default_rng(3)
    return [np.abs(draw.standard_normal(size)).astype(dtype) for _ in range(count)]


RATE = np.array([0.1], "f")


@pytest.mark.parametrize("size", [0, 1, 600])
def test_sgd(size):
    check_kernel("SGD", [*state(2, size), RATE], plain=size < 9)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov):
    check_kernel("Momentum", [*state(3), RATE], plain=False, use_nesterov=nesterov, weight_decay=0.1)
    check_kernel("Momentum", [*state(3, 5), RATE], use_nesterov=nesterov)


@pytest.mark.parametrize("op", ["Adam", "AdamW"])
def test_adam(op):
    check_kernel(op, [*state(4), np.array(7), RATE], plain=False, weight_decay=0.1)
    check_kernel(op, [*state(4, 5), np.array([0]), RATE])


def test_increment():
    check_kernel("Increment", [np.array(41)])
    check_kernel("Increment", [np.array([0.5], "f")], step=0.25)
    check_kernel("Increment", [np.array([2**64 - 1], "uint64")])


def test_repeated_operands():
    (x,) = state(1, 9)
    check_kernel("SGD", [x, x, RATE])


def test_a_device_may_want_another_float():
    """A rate that stayed float64 beside a parameter that a device sees as float32."""
    p, g = state(2, 9)
    types = (T((9,)), T((9,)), T((), "float64"))
    call = get_op("SGD").kernel(KernelQuery(types, (T((9,)),), {}))
    out = np.empty(9, "f")
    execute(call, [p, g, np.array(0.1)], [out])
    np.testing.assert_array_equal(out, p - np.float32(0.1) * g)
