"""Each kernel, compiled and as plain Python, against the op's reference."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.kernels.abi import STATUS_BAD_INDEX
from memopt.ops import KernelQuery, get_op
from memopt.runtime.entry import run_kernel
from memopt.types import TensorType

ANY = settings(deadline=None, max_examples=30)


def both(op, inputs, num_outputs=1, /, **attrs):
    """Run `op` by its kernel, compiled and plain, and check each against the reference; returns the status."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = tuple(TensorType.of(a.shape, a.dtype) for a in inputs)
    out_types = tuple(spec.infer(types, full, num_outputs))
    call = spec.kernel(KernelQuery(types, out_types, full))
    assert call is not None
    status = 0
    for compiled in (True, False):
        outputs = [np.full(t.shape, 77, t.dtype) for t in out_types]
        operands = {"in": inputs, "out": outputs}
        arrays = [operands[a.role][a.index].reshape(-1).view(a.dtype).reshape(a.shape) for a in call.arrays]
        if compiled:
            status = run_kernel(call, arrays)
        else:
            family, name = call.kernel.split(".")
            kernel = getattr(importlib.import_module(f"memopt.kernels.{family}"), name)
            assert kernel(*arrays, *call.scalars) == status
        if status == 0:
            for got, want in zip(outputs, spec.reference(inputs, full, out_types), strict=True):
                np.testing.assert_array_equal(got, want)
    return status


def data(*shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))) + 1).astype(dtype).reshape(shape)


SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=5).map(tuple)
DTYPES = st.sampled_from(["bool", "float16", "float32", "float64", "int64"])


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64"])
def test_copy(dtype):
    for shape in ((), (3,), (2, 4), (0, 2)):
        both("Identity", [data(*shape, dtype=dtype)])
        both("Unsqueeze", [data(*shape, dtype=dtype)], axes=(0,))


def test_copy_onto_itself():
    spec = get_op("Reshape")
    x = data(2, 3)
    call = spec.kernel(KernelQuery((TensorType((2, 3)),), (TensorType((6,)),), spec.complete_attrs({"shape": (6,)})))
    words = x.reshape(-1).view(call.arrays[0].dtype)
    assert run_kernel(call, [words, words]) == 0
    np.testing.assert_array_equal(x, data(2, 3))


@ANY
@given(SHAPES, DTYPES, st.data())
def test_transpose(shape, dtype, draw):
    both("Transpose", [data(*shape, dtype=dtype)], perm=tuple(draw.draw(st.permutations(range(len(shape))))))


def test_transpose_blocks():
    both("Transpose", [data(70, 33)])
    both("Transpose", [data(2, 40, 3, 50)], perm=(0, 3, 2, 1))
    both("Transpose", [data(1, 2, 5, 7, 3)], perm=(0, 2, 1, 3, 4))
    both("Transpose", [data(2, 2, 2, 3, 2, 2)], perm=(5, 4, 3, 2, 1, 0))


def test_no_kernel_beyond_six_axes():
    spec = get_op("Transpose")
    shape, perm = (2,) * 7, (6, 5, 4, 3, 2, 1, 0)
    query = KernelQuery((TensorType(shape),), (TensorType(shape),), {"perm": perm})
    assert spec.kernel(query) is None


@ANY
@given(SHAPES.filter(len), DTYPES, st.data())
def test_slice(shape, dtype, draw):
    bound = st.integers(-6, 6)
    ends = tuple(draw.draw(bound) for _ in shape)
    starts = tuple(draw.draw(bound) for _ in shape)
    steps = tuple(draw.draw(st.sampled_from([-2, -1, 1, 2])) for _ in shape)
    both("Slice", [data(*shape, dtype=dtype)], starts=starts, ends=ends, steps=steps)


@ANY
@given(SHAPES, DTYPES, st.data())
def test_expand_and_tile(shape, dtype, draw):
    shape = shape[:4]
    thin = tuple(draw.draw(st.sampled_from([1, dim])) for dim in shape)
    lead = draw.draw(st.sampled_from([(), (2,), (1,)]))
    both("Expand", [data(*thin, dtype=dtype)], shape=lead + shape)
    repeats = tuple(draw.draw(st.integers(0, 3)) for _ in shape[:3])
    both("Tile", [data(*shape[:3], dtype=dtype)], repeats=repeats)


@ANY
@given(SHAPES.filter(len), DTYPES, st.data())
def test_concat_and_split(shape, dtype, draw):
    axis = draw.draw(st.integers(0, len(shape) - 1))
    sizes = draw.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    parts = [data(*shape[:axis], size, *shape[axis + 1 :], dtype=dtype) for size in sizes]
    both("Concat", parts, axis=axis)
    both("Split", [np.concatenate(parts, axis)], len(sizes), axis=axis, split=tuple(sizes))


def test_concat_of_many():
    both("Concat", [data(2, i % 3 + 1) + i for i in range(33)], axis=1)
    spec = get_op("Concat")
    types = (TensorType((1,)),) * 65
    assert spec.kernel(KernelQuery(types, (TensorType((65,)),), {"axis": 0})) is None


def test_concat_variants_are_few():
    spec = get_op("Concat")
    counts = set()
    for n in range(2, 33):
        types = (TensorType((1, 2, 3, 3)),) * n
        counts.add(len(spec.kernel(KernelQuery(types, (TensorType((1, 2 * n, 3, 3)),), {"axis": 1})).arrays))
    assert counts == {5, 17, 33}


@ANY
@given(SHAPES.filter(len), DTYPES, st.sampled_from(["constant", "reflect", "edge"]), st.data())
def test_pad(shape, dtype, mode, draw):
    def most(dim):
        return 3 if mode == "constant" else (max(dim - 1, 0) if mode == "reflect" else 3 * (dim > 0))

    before = [draw.draw(st.integers(-(dim // 2), most(dim))) for dim in shape]
    after = [draw.draw(st.integers(-(dim // 2), most(dim))) for dim in shape]
    both("Pad", [data(*shape, dtype=dtype)], pads=tuple(before + after), mode=mode, value=5.0)


def test_pad_folds_axes():
    both("Pad", [data(2, 2, 2, 2, 2, 3)], pads=(0, 0, 0, 0, 1, 0) * 2, value=-1.5)
    both("Pad", [data(2, 3, dtype="int64")], pads=(1, 1, 1, 1), value=-7.0)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gather(index):
    x = data(3, 4, 5)
    for axis in (0, 1, -1):
        assert both("Gather", [x, np.array([[0, -1], [2, 1]], index)], axis=axis) == 0
    assert both("Gather", [x, np.array(-3, index)]) == 0
    assert both("Gather", [x, np.empty((0,), index)]) == 0
    for bad in (3, -4):
        assert both("Gather", [x, np.array([0, bad], index)]) == STATUS_BAD_INDEX


def test_depth_and_space():
    both("DepthToSpace", [data(2, 8, 2, 3)], blocksize=2)
    both("DepthToSpace", [data(2, 8, 2, 3)], blocksize=2, mode="CRD")
    both("SpaceToDepth", [data(2, 2, 4, 6)], blocksize=2)
    both("SpaceToDepth", [data(2, 2, 4, 6)], blocksize=2, mode="CRD")
    both("SpaceToDepth", [data(2, 2, 4, 6)], blocksize=1)


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64", "int64"])
def test_fill(dtype):
    both("ConstantOfShape", [], shape=(3, 2), value=1.0, dtype=dtype)
    if dtype != "bool":
        both("ConstantOfShape", [], shape=(), value=-2.0, dtype=dtype)
    both("Constant", [], value=(1.0,), shape=(2,), dtype=dtype)


def test_small_constants_are_host_calls():
    spec = get_op("Constant")
    attrs = spec.complete_attrs({"value": (1.0, 2.0), "shape": (2,)})
    assert spec.kernel(KernelQuery((), (TensorType((2,)),), attrs)) is None
