"""Each form of each op, from opset 7 on, against onnxruntime; and the forms that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from memopt.errors import LoadError, UnsupportedOpError
from memopt.frontends import load
from tests.frontends.onnx_models import agree, info, model, node, ours, small_net

RNG = np.random.default_rng(3)


def data(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def ints(*values):
    return np.array(values, np.int64)


def f32(value):
    return np.array(value, np.float32)


def ops_of(proto, **options):
    return [n.op for n in load(proto, **options).nodes]


# (nodes, opsets, weights): one input x of (2, 3, 4), one output y
FORMS = {
    "reshape": ([node("Reshape", ["x", "s"])], (7, 13, 14, 21), {"s": ints(0, -1)}),
    "reshape-scalar-minus": ([node("Reshape", ["x", "s"])], (9,), {"s": ints(-1)}),
    "flatten": ([node("Flatten", ["x"], axis=2)], (7, 9, 13), {}),
    "flatten-negative": ([node("Flatten", ["x"], axis=-1)], (11, 13), {}),
    "unsqueeze-attr": ([node("Unsqueeze", ["x"], axes=[0, 2])], (7, 11), {}),
    "unsqueeze-input": ([node("Unsqueeze", ["x", "a"])], (13, 21), {"a": ints(0, -1)}),
    "squeeze-attr": ([node("Unsqueeze", ["x"], ["u"], axes=[0, 2]), node("Squeeze", ["u"], axes=[2])], (7, 11), {}),
    "squeeze-input": ([node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "a"])], (13, 21), {"a": ints(1)}),
    "squeeze-all": ([node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u"])], (13, 21), {"a": ints(0, 3)}),
    "transpose": ([node("Transpose", ["x"], perm=[2, 0, 1])], (7, 13), {}),
    "transpose-default": ([node("Transpose", ["x"])], (7, 13), {}),
    "concat": ([node("Concat", ["x", "x", "w"], axis=1)], (7, 11, 13), {"w": data(2, 1, 4)}),
    "concat-negative": ([node("Concat", ["x", "x"], axis=-1)], (11, 13), {}),
    "slice-attr": ([node("Slice", ["x"], starts=[1, 0], ends=[3, 99], axes=[1, 2])], (7, 9), {}),
    "slice-attr-default": ([node("Slice", ["x"], starts=[1], ends=[2])], (7, 9), {}),
    "slice-input": (
        [node("Slice", ["x", "s", "e", "a", "t"])],
        (10, 11, 13),
        {"s": ints(-1, 0), "e": ints(-9, 4), "a": ints(1, 2), "t": ints(-1, 2)},
    ),
    "slice-hole": ([node("Slice", ["x", "s", "e", "", "t"])], (11, 13), {"s": ints(0), "e": ints(2), "t": ints(2)}),
    "pad-attr": ([node("Pad", ["x"], pads=[0, 1, 0, 1, 0, 2], value=1.5)], (7, 10), {}),
    "pad-reflect": ([node("Pad", ["x"], pads=[0, 1, 1, 0, 2, 0], mode="reflect")], (7, 10), {}),
    "pad-input": ([node("Pad", ["x", "p", "v"])], (11, 13), {"p": ints(0, 1, 0, 1, 0, 2), "v": f32(2.5)}),
    "pad-edge": ([node("Pad", ["x", "p"], mode="edge")], (11, 13), {"p": ints(0, 1, 0, 1, 0, 2)}),
    "pad-axes": ([node("Pad", ["x", "p", "", "a"])], (18, 21), {"p": ints(1, 0, 2, 1), "a": ints(-1, 0)}),
    "expand": ([node("Expand", ["x", "s"])], (8, 13), {"s": ints(5, 1, 3, 1)}),
    "tile": ([node("Tile", ["x", "s"])], (7, 13), {"s": ints(1, 2, 3)}),
    "gather": ([node("Gather", ["x", "i"], axis=1)], (7, 11, 13), {"i": ints(2, 0, 2)}),
    "dropout": ([node("Dropout", ["x"], ratio=0.5)], (7, 10), {}),
    "dropout-input": ([node("Dropout", ["x", "r", "t"])], (12, 13), {"r": f32(0.5), "t": np.array(False)}),
    "dropout-hole": ([node("Dropout", ["x", "", "t"])], (12, 13), {"t": np.array(False)}),
    "clip-attr": ([node("Clip", ["x"], min=-0.5, max=0.5)], (7, 10), {}),
    "clip-one-attr": ([node("Clip", ["x"], max=0.5)], (7, 10), {}),
    "clip-input": ([node("Clip", ["x", "l", "h"])], (11, 12, 13), {"l": f32(-0.5), "h": f32(0.25)}),
    "clip-hole": ([node("Clip", ["x", "", "h"])], (11, 13), {"h": f32(0.25)}),
    "clip-none": ([node("Clip", ["x"])], (11, 13), {}),
    "softmax-old": ([node("Softmax", ["x"])], (7, 11), {}),
    "softmax-old-last": ([node("Softmax", ["x"], axis=2)], (7, 11), {}),
    "softmax-old-negative": ([node("Softmax", ["x"], axis=-2)], (11,), {}),
    "softmax-new": ([node("Softmax", ["x"], axis=1)], (13, 17), {}),
    "softmax-new-default": ([node("Softmax", ["x"])], (13, 17), {}),
    "logsoftmax-old": ([node("LogSoftmax", ["x"], axis=1)], (7, 11), {}),
    "reduce-attr": ([node("ReduceSum", ["x"], axes=[1], keepdims=0)], (7, 11), {}),
    "reduce-input": ([node("ReduceSum", ["x", "a"], keepdims=0)], (13, 18), {"a": ints(-1, 0)}),
    "reduce-all": ([node("ReduceSum", ["x"])], (7, 13), {}),
    "reduce-noop": ([node("ReduceSum", ["x"], noop_with_empty_axes=1)], (13,), {}),
    "reduce-mean": ([node("ReduceMean", ["x"], axes=[2])], (7, 13), {}),
    "reduce-mean-18": ([node("ReduceMean", ["x", "a"])], (18,), {"a": ints(2)}),
    "sum-of-one": ([node("Sum", ["x"])], (8, 13), {}),
    "sum-mean-min-max": (
        [
            node("Sum", ["x", "w", "x"], ["s"]),
            node("Mean", ["s", "x"], ["m"]),
            node("Min", ["m", "w", "x"], ["n"]),
            node("Max", ["n", "w"]),
        ],
        (8, 13),
        {"w": data(2, 3, 4)},
    ),
    "constant-of-shape": ([node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"])], (9, 20), {"s": ints(3, 1)}),
    "identity": ([node("Identity", ["x"], ["i"]), node("Neg", ["i"])], (7, 13, 19), {}),
    "matmul": ([node("MatMul", ["x", "w"])], (7, 13), {"w": data(4, 5)}),
    "prelu": ([node("PRelu", ["x", "w"])], (7, 9, 16), {"w": data(3, 1)}),
    "cast": ([node("Cast", ["x"], ["i"], to=TensorProto.INT32), node("Cast", ["i"], to=1)], (7, 9, 13, 19), {}),
    "cast-like": (
        [node("CastLike", ["w", "x"], ["c"]), node("Add", ["x", "c"])],
        (15,),
        {"w": data(4, dtype="float64")},
    ),
    "cumsum": ([node("CumSum", ["x", "a"])], (11, 14), {"a": np.array(-1, np.int32)}),
    "where": ([node("Greater", ["x", "w"], ["c"]), node("Where", ["c", "x", "w"])], (9, 16), {"w": data(3, 4)}),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name):
    nodes, opsets, weights = FORMS[name]
    for opset in opsets:
        ir = 3 if opset < 9 else 8
        proto = model(nodes, {"x": (2, 3, 4)}, weights=weights, opset=opset, ir_version=max(ir, 4))
        agree(proto, {"x": data(2, 3, 4)})


@pytest.mark.parametrize(
    ("opset", "attrs", "weights"),
    [
        (7, {"axis": 1}, {}),
        (11, {"axis": 1, "split": [1, 2, 3]}, {}),
        (13, {"axis": -2}, {"s": ints(3, 1, 2)}),
        (18, {"axis": 1, "num_outputs": 3}, {}),
    ],
)
def test_split(opset, attrs, weights):
    proto = model(
        [node("Split", ["x", *weights], ["a", "b", "c"], **attrs)], {"x": (2, 6, 3)}, ("a", "c"), weights, opset
    )
    agree(proto, {"x": data(2, 6, 3)})


def test_split_without_reader():
    proto = model([node("Split", ["x"], ["", "b"], axis=1)], {"x": (2, 6)}, ("b",), opset=11)
    x = data(2, 6)
    np.testing.assert_array_equal(ours(proto, {"x": x})["b"], x[:, 3:])


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(opset):
    weights = {name: np.abs(data(3)) + 0.5 for name in ("s", "b", "m", "v")}
    attrs = {"epsilon": 1e-3, "momentum": 0.7}
    proto = model(
        [node("BatchNormalization", ["x", *weights], **attrs)], {"x": (2, 3, 4)}, weights=weights, opset=opset
    )
    agree(proto, {"x": data(2, 3, 4)})


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm(opset):
    weights = {"w": data(5, 3), "c": data(5)}
    proto = model([node("Gemm", ["x", "w", "c"], transB=1, alpha=0.5)], {"x": (2, 3)}, weights=weights, opset=opset)
    agree(proto, {"x": data(2, 3)})
    if opset >= 11:
        agree(
            model([node("Gemm", ["x", "w"], transB=1)], {"x": (2, 3)}, weights={"w": data(5, 3)}, opset=opset),
            {"x": data(2, 3)},
        )


def test_dropout_mask():
    for opset, dtype in ((7, "float32"), (10, "bool"), (13, "bool")):
        graph = load(model([node("Dropout", ["x"], ["y", "m"])], {"x": (2, 3)}, ("y",), opset=opset))
        assert graph.nodes[0].outputs[1].shape == (2, 3), dtype


@pytest.mark.parametrize(
    "attrs",
    [
        {"value": numpy_helper.from_array(f32([1.0, 2.0]))},
        {"value_float": 1.5},
        {"value_floats": [1.0, 2.0]},
    ],
)
def test_constant(attrs):
    agree(model([node("Constant", [], ["c"], **attrs), node("Add", ["x", "c"])], {"x": (3, 2)}), {"x": data(3, 2)})


def test_constant_ints():
    for attrs in ({"value_int": 2}, {"value_ints": [2]}):
        nodes = [
            node("Constant", [], ["c"], **attrs),
            node("Constant", [], ["s"], value_ints=[1]),
            node("Reshape", ["c", "s"], ["r"]),
        ]
        agree(model([*nodes, node("Tile", ["x", "r"])], {"x": (3,)}), {"x": data(3)})


def test_clip_with_computed_limits():
    for inputs in (["x", "l", "h"], ["x", "", "h"], ["x", "l"]):
        feeds = {"x": data(4, 5), "l": f32(-0.25), "h": f32(0.5)}
        proto = model([node("Clip", inputs)], {"x": (4, 5), **{k: () for k in feeds if k in inputs and k != "x"}})
        agree(proto, {k: v for k, v in feeds.items() if k in inputs})


def test_pooling_and_lrn():
    nodes = [
        node("LRN", ["x"], ["l"], size=3, alpha=1e-2, beta=0.6, bias=1.5),
        node("AveragePool", ["l"], ["a"], kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        node("MaxPool", ["a"], ["m"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("GlobalAveragePool", ["m"]),
    ]
    for opset in (7, 10, 12):
        agree(model(nodes, {"x": (1, 4, 5, 5)}, opset=opset), {"x": data(1, 4, 5, 5)})


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 15, 17, 18, 21])
def test_small_net(opset):
    proto = small_net(opset)
    agree(proto, {"x": data(3, 2, 4, 4)}, dims={"batch": 3})
    ops = ops_of(proto, dims={"batch": 3})
    assert not {"Shape", "Gather", "Unsqueeze", "Concat"} & set(ops)


def test_shapes_are_folded_with_ops_that_only_exist_for_that():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["p"], keepdims=0),
        node("Constant", [], ["zero"], value_int=0),
        node("Constant", [], ["one"], value_int=1),
        node("Range", ["zero", "p", "one"], ["r"]),
        node("Constant", [], ["four"], value_int=4),
        node("Mod", ["r", "four"], ["m"]),
        node("NonZero", ["m"], ["z"]),
        node("Gather", ["x", "i"], ["g"], axis=0),
        node("Size", ["z"], ["n"]),
        node("Constant", [], ["ones"], value_ints=[1]),
        node("Reshape", ["n", "ones"], ["n1"]),
        node("Expand", ["w", "n1"], ["e"]),
        node("ReduceSum", ["e"], ["t"]),
        node("Add", ["g", "t"]),
    ]
    proto = model(nodes, {"x": (2, 3)}, weights={"i": ints(1), "w": f32([0.5])})
    agree(proto, {"x": data(2, 3)})
    assert ops_of(proto) == ["Gather", "Add"]


def test_folded_results_own_their_bytes():
    nodes = [
        node("Cast", ["d"], ["c"], to=1),
        node("Slice", ["w", "s", "e"], ["part"]),
        node("Identity", ["w"], ["twin"]),
        node("Sum", ["x", "c", "w", "part", "twin"]),
    ]
    weights = {"d": data(2, dtype="float64"), "w": data(2), "s": ints(0), "e": ints(2)}
    graph = load(model(nodes, {"x": (2,)}, weights=weights))
    assert [p.name for p in graph.params] == ["c", "w", "part", "twin"]
    arrays = [graph.param_data(p) for p in graph.params]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(nodes, match, inputs=None, weights=None, opset=17, error=UnsupportedOpError, **options):
    with pytest.raises(error, match=match):
        load(model(nodes, inputs or {"x": (2, 3, 4)}, weights=weights, opset=opset, **options))


def test_training_forms():
    four = {name: np.ones(3, np.float32) for name in ("s", "b", "m", "v")}
    refused(
        [node("BatchNormalization", ["x", *four], ["y", "m2", "v2"], training_mode=1)], "training mode", weights=four
    )
    refused(
        [node("BatchNormalization", ["x", *four], ["y", "m2", "v2", "a", "c"])], "training mode", weights=four, opset=9
    )
    refused([node("BatchNormalization", ["x", *four], spatial=0)], "spatial = 0", weights=four, opset=7)
    refused([node("Dropout", ["x", "", "t"])], "training mode", weights={"t": np.array(True)})


def test_computed_shapes():
    nodes = [node("Cast", ["x"], ["s"], to=7), node("Reshape", ["x", "s"], ["y"])]
    refused(nodes, "shape is computed from the feeds", {"x": (1,)})


def test_types_that_memopt_lacks():
    refused([node("Cast", ["x"], to=TensorProto.BFLOAT16)], "casts to BFLOAT16", out_dtype="float32", error=LoadError)
    tensor = helper.make_tensor("v", TensorProto.STRING, [1], [b"a"])
    refused([node("Constant", [], ["s"], value=tensor), node("Identity", ["x"])], "element type is STRING")


def test_all_at_once():
    branch = helper.make_graph([node("Identity", ["x"], ["b"])], "branch", [], [info("b", None)])
    nodes = [
        node("Erf", ["x"], ["e"]),
        node("Tri", ["e"], ["t"], domain="com.example"),
        node("Det", ["x"], ["d"]),
        node("Det", ["x"], ["d2"]),
        node("Cast", ["x"], ["k"], to=7),
        node("Gather", ["k", "k"], ["c"]),
        node("ConstantOfShape", ["k"], ["z"]),
        node("If", ["c0"], ["f"], then_branch=branch, else_branch=branch),
        node("Add", ["t", "f"]),
    ]
    proto = model(nodes, {"x": (2,), "c0": np.array(True)})
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOpError) as caught:
        load(proto)
    text = str(caught.value)
    assert "Tri (once: t): its domain is com.example" in text
    assert "Det (2 times: d, d2): memopt has no such op" in text
    assert "If (once: f): it holds a subgraph" in text
    assert "ConstantOfShape (once: z): its shape is computed from the feeds" in text
    assert "Add" not in text


def test_functions_and_sparse_and_sequences():
    proto = model([node("Twice", ["x"], domain="local")], {"x": (2,)})
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(
        helper.make_function(
            "local", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
        )
    )
    with pytest.raises(UnsupportedOpError, match=r"Twice .* function of the model; inline it"):
        load(proto)
    proto = model([node("Identity", ["x"])], {"x": (2,)})
    proto.graph.input.append(helper.make_tensor_sequence_value_info("q", 1, [2]))
    proto.graph.input.append(info("h", (2,)))
    proto.graph.input[-1].type.tensor_type.elem_type = TensorProto.STRING
    values = helper.make_tensor("sparse", 1, [1], [1.0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, helper.make_tensor("i", 7, [1], [0]), [4]))
    with pytest.raises(UnsupportedOpError) as caught:
        load(proto)
    assert "q): its type is sequence" in str(caught.value)
    assert "h): its element type is STRING" in str(caught.value)
    assert "sparse): it is sparse" in str(caught.value)


def test_misfit_is_named():
    refused([node("Gather", ["x", "i"], axis=5)], "Gather", weights={"i": ints(0)}, error=LoadError)
    nodes = [node("Split", ["x"], ["y", "z"], axis=0, num_outputs=2), node("Concat", ["w", "x"], ["q"], axis=0)]
    refused(nodes, "not a valid ONNX model", weights={"w": data(3)}, opset=18, error=LoadError)
