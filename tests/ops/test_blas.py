"""References of the matrix products against NumPy and onnxruntime, and their types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_onnxruntime

MATMUL_SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (1, 3, 4, 5)),
    ((2, 3, 1, 4), (3, 4, 1)),
    ((2, 1, 2, 3, 4), (3, 1, 4, 5)),
    ((2, 1, 2, 1, 2, 3), (1, 3, 1, 2, 3, 2)),
]


@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES)
def test_matmul_equals_onnxruntime(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    arrays = [floats(*a), floats(*b, seed=1)]
    assert_close(reference("MatMul", arrays), run_by_onnxruntime("MatMul", arrays))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8", "int64"])
def test_matmul_of_other_types(dtype: str) -> None:
    a, b = np.arange(6).reshape(2, 3).astype(dtype), np.arange(12).reshape(3, 4).astype(dtype)
    np.testing.assert_array_equal(
        reference("MatMul", [a, b])[0], np.arange(6).reshape(2, 3) @ np.arange(12).reshape(3, 4)
    )


@pytest.mark.parametrize("empty", [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((0, 2, 3), (3, 2))])
def test_empty_products(empty: Any) -> None:
    arrays = [np.ones(shape, np.float32) for shape in empty]
    np.testing.assert_array_equal(reference("MatMul", arrays)[0], np.matmul(*arrays))


@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("addend", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
def test_gemm_equals_onnxruntime(trans: tuple[int, int], addend: tuple[int, ...] | None) -> None:
    a, b = floats(*((4, 3) if trans[0] else (3, 4))), floats(*((5, 4) if trans[1] else (4, 5)), seed=1)
    arrays = [a, b] if addend is None else [a, b, floats(*addend, seed=2)]
    attrs = {"transA": trans[0], "transB": trans[1], "alpha": 0.5, "beta": -2.0}
    assert_close(reference("Gemm", arrays, attrs), run_by_onnxruntime("Gemm", arrays, attrs))


def test_gemm_of_integers_is_exact() -> None:
    a = np.array([[2**40, 1]], np.int64)
    found = reference("Gemm", [a, a.T.copy(), np.array([3])], {"alpha": 2.0, "beta": 3.0})[0]
    assert found[0, 0] == 2 * ((2**40) ** 2 + 1) % 2**64 + 9


def test_gemm_accumulates_into_a_full_addend_only() -> None:
    (pair,) = get_op("Gemm").inplace
    assert (pair.output, pair.input, pair.repeats) == (0, 2, False)
    for shape, allowed in (((3, 5), True), ((1, 5), False), ((5,), False)):
        query = make_query("Gemm", [floats(3, 4), floats(4, 5), floats(*shape)])
        assert pair.condition is not None
        assert (pair.condition(query.inputs, query.outputs, query.attrs) is None) == allowed


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("MatMul", [(2, 3), (4, 5)], {}, ["3 columns meet 4 rows"]),
        ("MatMul", [(), (4, 5)], {}, ["A is f32[]"]),
        ("MatMul", [(2, 3, 4), (3, 4, 5)], {}, ["batches do not broadcast"]),
        ("Gemm", [(2, 3), (4, 3)], {"transA": 1, "transB": 1}, ["transA = 1", "2 columns meet 3 rows"]),
        ("Gemm", [(2, 3, 1), (3, 4)], {}, ["two matrices"]),
        ("Gemm", [(2, 3), (3, 4), (2, 3)], {}, ["C is f32[2,3]", "[2,4]"]),
        ("Gemm", [(1, 3), (3, 4), (2, 4)], {}, ["C is f32[2,4]", "[1,4]"]),
    ],
)
def test_errors_name_the_shapes(op: str, shapes: Any, attrs: Any, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query(op, [np.zeros(shape, np.float32) for shape in shapes], attrs)
    for word in words:
        assert word in str(error.value)
