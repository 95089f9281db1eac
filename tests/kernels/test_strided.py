"""Kernels of strided inputs: their result is that of the reference on the same NumPy view, whatever the strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ops import KernelQuery, get_op
from memopt.runtime.entry import run_kernel
from memopt.types import TensorType as T
from tests.nn_harness import reference
from tests.strided_views import query_of, run_strided, views

Array = np.ndarray[Any, Any]

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def matrix(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def check(op: str, arrays: list[Array | None], attrs: dict[str, Any] | None = None, **options: Any) -> bool:
    """Whether there is a kernel; if so, it must give what the reference does (of `exact` ops, the same bits)."""
    exact = options.pop("exact", True)
    found = run_strided(op, arrays, attrs, **options)
    if found is None:
        return False
    wanted = reference(op, arrays, attrs, outputs=options.get("outputs", 1))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0 if exact else 2e-5, atol=0 if exact else 1e-6)
    return True


# -- elementwise ------------------------------------------------------------------------------------------------------


@st.composite
def broadcast(draw: st.DrawFn, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """A strided view that broadcasts to `shape`."""
    tail = shape[draw(st.integers(0, len(shape))) :]
    return draw(views(tuple(draw(st.sampled_from((dim, dim, dim, 1))) for dim in tail), dtype))


@settings(max_examples=50)
@given(st.data(), SHAPES)
def test_elementwise_in_plain_python(data: st.DataObject, shape: tuple[int, ...]) -> None:
    a, b = data.draw(broadcast(shape)), data.draw(broadcast(shape))
    assert check("Sub", [a, b], plain=True)
    mask = data.draw(broadcast(shape, "int8")) > 0
    assert check("Where", [mask, a, b], plain=True)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (matrix(5, 3).T, matrix(3, 5)),
        (matrix(5, 3).T, matrix(5, 3, seed=1).T),
        (matrix(270, 261).T, matrix(261, 270, seed=1)),  # more than one tile
        (matrix(4, 300)[1:3, 7:290], matrix(2, 283)),
        (matrix(300, 4)[::2, 1], matrix(150)),
        (np.broadcast_to(matrix(6, 1), (6, 7)), matrix(7, 6).T),
        (matrix(2, 3, 4, 5).transpose(3, 1, 0, 2), matrix(5, 3, 2, 4)),
    ],
)
def test_elementwise(a: Array, b: Array) -> None:
    assert check("Sub", [a, b])


def test_elementwise_of_contiguous_inputs_is_what_it_was() -> None:
    query = query_of("Add", [matrix(3, 4), matrix(3, 4)], {})
    assert query.strides == (None, None)
    plain = get_op("Add").kernel(KernelQuery(query.inputs, query.outputs, query.attrs))
    assert get_op("Add").kernel_for(query) == plain
    assert plain.kernel == "elementwise.flat"


def test_elementwise_of_strides_has_no_kernel_in_another_layout() -> None:
    image = T((2, 3, 4, 5))
    query = KernelQuery((image, image), (image,), {}, "NHWC", strides=(None, (60, 1, 15, 3)))
    assert get_op("Add").kernel_for(query) is None


# -- matrix products --------------------------------------------------------------------------------------------------


@st.composite
def factors(draw: st.DrawFn, trans: tuple[int, int], batches: tuple[Any, Any]) -> list[Array]:
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    shapes = ((k, m) if trans[0] else (m, k), (n, k) if trans[1] else (k, n))
    return [draw(views((*batch, *shape))) for batch, shape in zip(batches, shapes, strict=True)]


@settings(max_examples=80)
@given(st.data(), st.tuples(st.integers(0, 1), st.integers(0, 1)), st.booleans())
def test_matmul(data: st.DataObject, trans: tuple[int, int], plain: bool) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    batches = [[data.draw(st.sampled_from((dim, dim, 1))) for dim in batch] for _ in range(2)]
    batches[1] = batches[1][data.draw(st.integers(0, len(batch))) :]
    attrs = {"transA": trans[0], "transB": trans[1], "alpha": 2.0}
    check("FusedMatMul", data.draw(factors(trans, (batches[0], batches[1]))), attrs, plain=plain)


@settings(max_examples=50)
@given(st.data(), st.tuples(st.integers(0, 1), st.integers(0, 1)), st.booleans())
def test_gemm(data: st.DataObject, trans: tuple[int, int], plain: bool) -> None:
    a, b = data.draw(factors(trans, ((), ())))
    size = (a.shape[trans[0]], b.shape[1 - trans[1]])
    addend = data.draw(st.sampled_from((None, matrix(*size), matrix(size[1]))))
    attrs = {"transA": trans[0], "transB": trans[1], "alpha": 2.0, "beta": -1.0}
    check("Gemm", [a, b, addend], attrs, plain=plain)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (matrix(4, 3).T, matrix(4, 5)),  # transposed
        (matrix(3, 9)[:, 2:6], matrix(6, 4).T[:, 1:6]),  # with gaps
        (matrix(2, 5, 3, 4).transpose(0, 2, 1, 3), matrix(2, 6, 3, 4).transpose(0, 2, 3, 1)),  # heads of attention
        (matrix(2, 3, 4)[:, 1:], matrix(4, 5)),  # rows of a batch that do not run on
        (np.broadcast_to(matrix(3, 4), (2, 3, 4)), matrix(2, 4, 5)),
        (matrix(8)[::2], matrix(4, 5)),
        (matrix(3, 4), matrix(4, 3)[:, 1]),
        (matrix(3, 4)[:, 1:2], matrix(1, 5)),
        (matrix(4, 1, 8)[..., ::2], matrix(4, 3)),
    ],
)
def test_what_blas_reads_in_place(a: Array, b: Array) -> None:
    for plain in (False, True):
        assert check("MatMul", [a, b], plain=plain)


@pytest.mark.parametrize(
    "a",
    [
        matrix(3, 8)[:, ::2],
        np.broadcast_to(matrix(1, 4), (3, 4)),
        np.broadcast_to(matrix(3, 1), (3, 4)),
        np.lib.stride_tricks.as_strided(matrix(9), (3, 4), (8, 4)),
        matrix(2, 4, 3, 2).transpose(1, 0, 2, 3)[..., 1],
    ],
)
def test_what_blas_cannot_read_has_no_kernel(a: Array) -> None:
    b = matrix(a.shape[-1], 2)
    assert not check("MatMul", [a, b])
    assert not check("MatMul", [matrix(2, a.shape[-2]), a])
    if a.ndim == 2:
        assert not check("Gemm", [a, b, None])


def test_the_addend_of_gemm_is_contiguous() -> None:
    assert not check("Gemm", [matrix(3, 4), matrix(4, 5), matrix(5, 3).T])


# -- movement ---------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.data(), SHAPES, st.booleans())
def test_concat(data: st.DataObject, shape: tuple[int, ...], plain: bool) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    parts = [data.draw(views((*shape[:axis], n, *shape[axis + 1 :]))) for n in lengths]
    assert check("Concat", parts, {"axis": axis}, plain=plain)


@settings(max_examples=50)
@given(st.data(), SHAPES, st.booleans())
def test_split(data: st.DataObject, shape: tuple[int, ...], plain: bool) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    split = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(sum))
    whole = data.draw(views((*shape[:axis], sum(split), *shape[axis + 1 :])))
    assert check("Split", [whole], {"axis": axis, "split": split}, outputs=len(split), plain=plain)


def test_many_strided_parts_have_no_kernel() -> None:
    assert not check("Concat", [matrix(3, 2).T] * 5, {"axis": 0})
    rows = [matrix(3, 9, seed=i)[:, i : 2 * i + 1] for i in range(5)]  # but rows do
    assert check("Concat", rows, {"axis": 1}, plain=True)
    assert not check("Concat", [matrix(3, 4)[:, :2]] * 65, {"axis": 1})


def test_concat_leaves_rows_that_lie_in_the_result() -> None:
    """Its own inputs may be slices of its result: written there, in strides, before it runs."""
    whole = matrix(4, 6)
    parts = [whole[:, :2], whole[:, 2:3], whole[:, 3:]]
    call = get_op("Concat").kernel_for(query_of("Concat", parts, {"axis": 1}))
    out, other = whole.copy().reshape(-1), matrix(4, 3, seed=1)
    assert run_kernel(call, [out, out, out[2:], out[3:], out[3:]]) == 0
    np.testing.assert_array_equal(out, whole.reshape(-1))
    mixed = get_op("Concat").kernel_for(query_of("Concat", [*parts[:2], other], {"axis": 1}))
    assert run_kernel(mixed, [out, out, out[2:], other, other]) == 0
    np.testing.assert_array_equal(out.reshape(4, 6), np.concatenate([whole[:, :3], other], axis=1))
    assert not check("Split", [matrix(2, 5).T], {"axis": 0, "split": [1] * 5}, outputs=5)


@settings(max_examples=50)
@given(st.data(), SHAPES, st.booleans())
def test_gather(data: st.DataObject, shape: tuple[int, ...], plain: bool) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    dim = shape[axis]
    indices = np.array(data.draw(st.lists(st.integers(-dim, dim - 1), max_size=5)), np.int64)
    check("Gather", [data.draw(views(shape)), indices], {"axis": axis}, plain=plain)


def test_gather_of_heads() -> None:
    """The three factors of attention, picked from one product whose axes were permuted."""
    heads = matrix(2, 5, 3, 4, 6).transpose(2, 0, 3, 1, 4)
    for index in range(3):
        assert check("Gather", [heads, np.array(index)], {"axis": 0})
    assert not check("Gather", [matrix(4, 3, 2).transpose(1, 0, 2), np.array([0, 1])], {"axis": 2})


# -- rows and reductions ----------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.data(), SHAPES, st.booleans())
def test_reductions(data: st.DataObject, shape: tuple[int, ...], plain: bool) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    op = data.draw(st.sampled_from(("ReduceMax", "ReduceSumSquare"))) if plain else "ReduceSum"
    check(op, [data.draw(views(shape))], {"axes": axes, "keepdims": 0}, plain=plain)


@pytest.mark.parametrize(
    ("x", "axes"),
    [
        (matrix(2, 5, 6, 3).transpose(0, 2, 3, 1), (1, 2)),  # channels first in storage
        (matrix(4, 900)[:, 100:], (1,)),
        (matrix(4, 900)[:, 100:], (0,)),
        (matrix(5, 4).T, (0,)),
        (np.broadcast_to(matrix(4, 1, 5), (4, 3, 5)), (1,)),
    ],
)
def test_what_reductions_walk(x: Array, axes: tuple[int, ...]) -> None:
    assert check("ReduceSum", [x], {"axes": axes})
    assert not check("ReduceSum", [matrix(2, 3, 4)[..., ::2]], {"axes": (2,)})


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), SHAPES, st.booleans())
def test_rows(data: st.DataObject, shape: tuple[int, ...], plain: bool) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = data.draw(views(shape))
    assert check("Softmax", [x], {"axis": axis}, plain=plain, exact=False)
    assert check("LogSoftmax", [x], {"axis": axis}, plain=True, exact=False)
    scale = matrix(*shape[axis:], seed=1)
    assert check("LayerNormalization", [x, scale, scale * 2], {"axis": axis}, plain=plain, exact=False)
