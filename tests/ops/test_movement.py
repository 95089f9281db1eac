"""The references against NumPy's own words and the ONNX reference evaluator; views and types."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ops import all_ops, get_op
from memopt.types import TensorType


def run(op, arrays, num_outputs=1, /, **attrs):
    """Infer, run the reference, check that it makes what was inferred and no view; returns the outputs."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = [TensorType.of(a.shape, a.dtype) for a in arrays]
    outputs = spec.infer(types, full, num_outputs)
    assert len(outputs) == num_outputs
    results = spec.reference(arrays, full, outputs)
    for result, type in zip(results, outputs, strict=True):
        assert (result.shape, result.dtype.name) == (type.shape, type.dtype)
        assert not any(np.shares_memory(result, a) for a in arrays)
    return results if num_outputs > 1 else results[0]


def refused(op, shapes, match, num_outputs=1, /, **attrs):
    spec = get_op(op)
    with pytest.raises(TypeInferenceError, match=match):
        spec.infer([TensorType.of(s) for s in shapes], spec.complete_attrs(attrs), num_outputs)


def view_offset(op, shape, attrs, num_outputs=1, output=0, dtype="float32"):
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = [TensorType.of(shape, dtype)]
    view = spec.view_of(output)
    assert view is not None
    assert view.input == 0
    return view.byte_offset(types, spec.infer(types, full, num_outputs), full, output)


def data(*shape, dtype="float32"):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def test_ops_registered():
    names = {spec.name for spec in all_ops()}
    assert names >= {"Identity", "Reshape", "Concat", "Split", "Slice", "Pad", "Gather", "Shape", "ConstantOfShape"}


@pytest.mark.parametrize(
    ("shape", "wanted", "options", "result"),
    [
        ((2, 3, 4), (4, -1), {}, (4, 6)),
        ((2, 3, 4), (0, 0, 2, -1), {}, (2, 3, 2, 2)),
        ((0, 4), (2, 0), {"allowzero": 1}, (2, 0)),
        ((3, 0, 2), (0, -1, 2), {}, None),
        ((1,), (), {}, ()),
        ((), (1, 1), {}, (1, 1)),
    ],
)
def test_reshape(shape, wanted, options, result):
    if result is None:
        assert run("Reshape", [data(*shape)], shape=wanted, **options).shape == (3, 0, 2)
    else:
        out = run("Reshape", [data(*shape)], shape=wanted, **options)
        assert out.shape == result
        assert list(out.ravel()) == list(data(*shape).ravel())


def test_reshape_refuses():
    refused("Reshape", [(2, 3)], "6 elements, 8 wanted", shape=(2, 4))
    refused("Reshape", [(2, 3)], "more than one", shape=(-1, -1))
    refused("Reshape", [(0, 3)], "more than one", shape=(-1, 0), allowzero=1)
    refused("Reshape", [(2, 3)], "copies dimension 2", shape=(2, 3, 0))
    refused("Reshape", [(2, 3)], "dimension -2", shape=(2, -2))
    refused("Reshape", [(2, 3)], "4 known", shape=(4, -1))


def test_flatten_squeeze_unsqueeze():
    x = data(2, 1, 3, 1)
    assert run("Flatten", [x]).shape == (2, 3)
    assert run("Flatten", [x], axis=0).shape == (1, 6)
    assert run("Flatten", [x], axis=4).shape == (6, 1)
    assert run("Flatten", [x], axis=-1).shape == (6, 1)
    assert run("Squeeze", [x]).shape == (2, 3)
    assert run("Squeeze", [x], axes=(-1,)).shape == (2, 1, 3)
    assert run("Unsqueeze", [x], axes=(0, -1)).shape == (1, 2, 1, 3, 1, 1)
    refused("Squeeze", [(2, 1)], "not of length 1", axes=(0,))
    refused("Unsqueeze", [(2,)], "twice", axes=(0, -3))
    refused("Flatten", [(2,)], "axis 2", axis=2)


@pytest.mark.parametrize("op", ["Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"])
def test_views_at_zero(op):
    spec = get_op(op)
    assert spec.view_of(0) is not None
    assert [(p.output, p.input, p.repeats) for p in spec.inplace] == [(0, 0, False)]


def test_transpose():
    x = data(2, 3, 4)
    np.testing.assert_array_equal(run("Transpose", [x]), x.T)
    np.testing.assert_array_equal(run("Transpose", [x], perm=(1, 0, 2)), x.transpose(1, 0, 2))
    assert view_offset("Transpose", (2, 3), {}) is None
    assert view_offset("Transpose", (1, 3), {}) == 0
    assert view_offset("Transpose", (1, 3, 1, 2), {"perm": (2, 1, 3, 0)}) == 0
    refused("Transpose", [(2, 3)], "not an order", perm=(0,))
    condition = get_op("Transpose").inplace[0].condition
    types = [TensorType((2, 3))]
    assert condition(types, [TensorType((3, 2))], {"perm": (1, 0)}) is not None


def test_concat_and_split():
    a, b = data(2, 3), data(2, 1)
    np.testing.assert_array_equal(run("Concat", [a, b, a], axis=-1), np.concatenate([a, b, a], 1))
    np.testing.assert_array_equal(run("Concat", [data(0, 4), data(3, 4)], axis=0), data(3, 4))
    refused("Concat", [(2, 3), (3, 3)], "does not join", axis=1)
    refused("Concat", [(2, 3), (2,)], "does not join", axis=0)
    x = data(2, 7)
    for parts in (run("Split", [x], 3, axis=1), run("Split", [x], 3, axis=1, num_outputs=3)):
        assert [p.shape for p in parts] == [(2, 3), (2, 3), (2, 1)]
        np.testing.assert_array_equal(np.concatenate(parts, 1), x)
    parts = run("Split", [x], 3, axis=1, split=(1, 0, 6))
    assert [p.shape for p in parts] == [(2, 1), (2, 0), (2, 6)]
    refused("Split", [(2, 7)], "does not cut", 2, axis=1, split=(3, 3))
    refused("Split", [(2, 7)], "num_outputs is 3", 2, axis=1, num_outputs=3)
    refused("Split", [(2,)], "does not cut", 4)


def test_split_and_slice_views():
    assert [view_offset("Split", (4, 3), {"axis": 0}, 2, i) for i in (0, 1)] == [0, 24]
    assert [view_offset("Split", (1, 4, 3), {"axis": 1}, 2, i, "float64") for i in (0, 1)] == [0, 48]
    assert view_offset("Split", (4, 4), {"axis": 1}, 2, 1) is None
    rows = {"starts": (1,), "ends": (3,), "axes": (0,)}
    assert view_offset("Slice", (4, 5), rows) == 20
    assert view_offset("Slice", (4, 5), rows | {"axes": (1,)}) is None
    assert view_offset("Slice", (4, 5), rows | {"steps": (2,)}) == 20  # one row
    assert view_offset("Slice", (4, 5), {"starts": (3,), "ends": (-9,), "axes": (0,), "steps": (-1,)}) is None
    assert view_offset("Slice", (4, 5), {"starts": (2, 1), "ends": (3, 4)}) == 44
    assert view_offset("Slice", (4, 1), {"starts": (2, 0), "ends": (4, 1)}) == 8


@pytest.mark.parametrize(
    ("attrs", "index"),
    [
        ({"starts": (1,), "ends": (100,)}, np.s_[1:]),
        ({"starts": (-3, 4), "ends": (-1, 0), "axes": (1, -1), "steps": (1, -2)}, np.s_[:, -3:-1, 4:0:-2]),
        ({"starts": (9,), "ends": (-(2**63),), "axes": (2,), "steps": (-1,)}, np.s_[:, :, ::-1]),
        ({"starts": (3,), "ends": (1,)}, np.s_[3:1]),
        ({"starts": (), "ends": ()}, np.s_[:]),
    ],
)
def test_slice(attrs, index):
    x = data(3, 4, 5)
    np.testing.assert_array_equal(run("Slice", [x], **attrs), x[index])


def test_slice_refuses():
    refused("Slice", [(3,)], "step of axis 0 is 0", starts=(0,), ends=(1,), steps=(0,))
    refused("Slice", [(3,)], "differ in length", starts=(0,), ends=(1, 2))
    refused("Slice", [(3,)], "axis 1", starts=(0,), ends=(1,), axes=(1,))


def test_expand_and_tile():
    x = data(3, 1)
    np.testing.assert_array_equal(run("Expand", [x], shape=(2, 1, 4)), np.broadcast_to(x, (2, 3, 4)))
    assert run("Expand", [x], shape=(1,)).shape == (3, 1)
    refused("Expand", [(3, 1)], "does not broadcast", shape=(2, 4))
    np.testing.assert_array_equal(run("Tile", [x], repeats=(2, 3)), np.tile(x, (2, 3)))
    assert run("Tile", [x], repeats=(0, 1)).shape == (0, 1)
    refused("Tile", [(3, 1)], "do not fit", repeats=(2,))
    assert view_offset("Expand", (3, 1), {"shape": (1, 3, 1)}) == 0
    assert view_offset("Expand", (3, 1), {"shape": (3, 2)}) is None


def test_pad():
    x = data(2, 3)
    framed = np.pad(x, [(1, 0), (0, 2)], constant_values=7)
    np.testing.assert_array_equal(run("Pad", [x], pads=(1, 0, 0, 2), value=7.0), framed)
    framed = np.pad(x, [(1, 1), (2, 2)], "reflect")
    np.testing.assert_array_equal(run("Pad", [x], pads=(1, 2, 1, 2), mode="reflect"), framed)
    np.testing.assert_array_equal(run("Pad", [x], pads=(1, 2, 3, 2), mode="edge"), np.pad(x, [(1, 3), (2, 2)], "edge"))
    np.testing.assert_array_equal(run("Pad", [x], pads=(-1, 0, 0, -1)), x[1:, :-1])
    assert run("Pad", [data(2, dtype="int64")], pads=(0, 1), value=-1.0).tolist() == [0, 1, -1]
    refused("Pad", [(2, 3)], "cannot pad", pads=(2, 0, 0, 0), mode="reflect")
    refused("Pad", [(2, 3)], "want 4 numbers", pads=(1, 1))
    refused("Pad", [(2, 3)], "cut more", pads=(-3, 0, 0, 0))
    refused("Pad", [(2, 3)], "mode 'wrap'", pads=(0, 0, 0, 0), mode="wrap")


def test_gather():
    x, i = data(3, 4), np.array([[0, -1], [2, 1]])
    np.testing.assert_array_equal(run("Gather", [x, i], axis=1), np.take(x, i, 1))
    np.testing.assert_array_equal(run("Gather", [x, np.array(1)]), x[1])
    spec = get_op("Gather")
    with pytest.raises(TypeInferenceError, match="int32 or int64"):
        spec.infer([TensorType((3,)), TensorType((1,))], {"axis": 0}, 1)


def test_depth_and_space():
    x = data(1, 8, 2, 3)
    for mode in ("DCR", "CRD"):
        out = run("DepthToSpace", [x], blocksize=2, mode=mode)
        assert out.shape == (1, 2, 4, 6)
        np.testing.assert_array_equal(run("SpaceToDepth", [out], blocksize=2, mode=mode), x)
    refused("DepthToSpace", [(1, 3, 2, 2)], "blocks of 2", blocksize=2)
    refused("SpaceToDepth", [(1, 3, 3, 2)], "blocks of 2", blocksize=2)


def test_data_from_attributes():
    assert run("ConstantOfShape", [], shape=(2, 2), value=1.5).tolist() == [[1.5, 1.5]] * 2
    assert run("ConstantOfShape", [], shape=(), value=3.0, dtype="int64").tolist() == 3
    assert run("Constant", [], value_ints=(1, 2), shape=(2,), dtype="int64").tolist() == [1, 2]
    assert run("Constant", [], value=(0.5,), shape=(2, 1)).tolist() == [[0.5], [0.5]]
    assert run("Constant", [], value_ints=(0, 1), shape=(2,), dtype="bool").tolist() == [False, True]
    refused("Constant", [], "do not fill", value=(1.0, 2.0), shape=(3,))
    refused("Constant", [], "want one of", shape=(3,))
    refused("ConstantOfShape", [], "negative", shape=(-1,))
    refused("ConstantOfShape", [], "dtype 'strange'", shape=(1,), dtype="strange")
    assert run("Shape", [data(2, 3, 4)]).tolist() == [2, 3, 4]
    assert run("Shape", [data(2, 3, 4)], start=-2, end=-1).tolist() == [3]
    assert run("Size", [data(2, 3, 4)]).tolist() == 24
    assert not get_op("Shape").reads_data(0)
