"""Matrix products by BLAS against the references, against themselves as plain Python, and accumulating in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.kernels.blas import set_blas_threads
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_blas import MATMUL_SHAPES


@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES[:-1])
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    arrays = [floats(*a), floats(*b, seed=1)]
    wanted = reference("MatMul", arrays)
    for plain in (False, True):
        assert_close(run_by_kernel("MatMul", arrays, plain=plain), wanted)


def test_a_batch_with_too_many_axes_and_other_types_are_host_calls() -> None:
    a, b = MATMUL_SHAPES[-1]
    spec = get_op("MatMul")
    assert spec.kernel(make_query("MatMul", [floats(*a), floats(*b)])) is None
    assert spec.kernel(make_query("MatMul", [np.ones((2, 2), np.int32)] * 2)) is None
    assert spec.kernel(make_query("MatMul", [np.ones((2, 0), np.float32), np.ones((0, 2), np.float32)])) is None


@pytest.mark.parametrize("sizes", [(3, 5), (1, 5), (3, 1), (1, 1)])
@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(sizes: tuple[int, int], trans: tuple[int, int]) -> None:
    m, n = sizes
    a, b = floats(*((4, m) if trans[0] else (m, 4))), floats(*((n, 4) if trans[1] else (4, n)), seed=1)
    attrs = {"transA": trans[0], "transB": trans[1], "alpha": 0.5, "beta": -2.0}
    for addend in (None, floats(seed=2), floats(n, seed=2), floats(m, 1, seed=2), floats(m, n, seed=2)):
        wanted = reference("Gemm", [a, b, addend], attrs)
        for plain in (False, True):
            assert_close(run_by_kernel("Gemm", [a, b, addend], attrs, plain=plain), wanted)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.75])
@pytest.mark.parametrize("rows", [1, 3])
def test_gemm_in_place_over_its_addend_is_bit_equal(beta: float, rows: int) -> None:
    arrays = [floats(rows, 4), floats(4, 5), floats(rows, 5, seed=1)]
    apart = run_by_kernel("Gemm", arrays, {"beta": beta})[0]
    assert run_by_kernel("Gemm", arrays, {"beta": beta}, inplace={0: 2})[0].tobytes() == apart.tobytes()


def test_float64() -> None:
    arrays: list[Any] = [floats(3, 4, dtype="float64"), floats(4, 5, dtype="float64"), floats(5, dtype="float64")]
    assert_close(run_by_kernel("Gemm", arrays), reference("Gemm", arrays), 1e-13)
    assert_close(run_by_kernel("MatMul", arrays[:2]), reference("MatMul", arrays[:2]), 1e-13)
    assert_close(run_by_kernel("MatMul", [arrays[0], arrays[1][:, 0].copy()]), [arrays[0] @ arrays[1][:, 0]], 1e-13)


def test_the_threads_of_blas_can_be_set() -> None:
    before = set_blas_threads(1)
    if before is None:
        pytest.skip("SciPy's BLAS is not an OpenBLAS with a known name")
    assert set_blas_threads(before) == 1
