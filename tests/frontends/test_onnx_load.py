"""Names, outputs, dims, order, folding limits: what becomes of a sound model."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from memopt.errors import LoadError, OptionError
from memopt.frontends import load
from memopt.runtime import run_reference
from tests.frontends.onnx_models import info, model, node, ours, small_net


def names(values):
    return [v.name for v in values]


def test_feeds_params_outputs():
    proto = small_net()
    graph = load(proto, dims={"batch": 2})
    assert names(graph.inputs) == ["x"]
    assert graph.inputs[0].shape == (2, 2, 4, 4)
    assert names(graph.outputs) == ["y"]
    assert names(graph.params) == ["w1", "b1", "scale", "shift", "mean", "var", "w2", "w3", "b3"]
    assert graph.name == "test"


def test_sources(tmp_path):
    proto = small_net()
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    twin = tmp_path / "net.bin"
    twin.write_bytes(proto.SerializeToString())
    graphs = [load(s, dims={"batch": 1}) for s in (proto, proto.SerializeToString(), path, str(path), twin)]
    assert {len(g.nodes) for g in graphs} == {len(graphs[0].nodes)}


def test_old_ir_initialisers_are_also_inputs():
    proto = model(
        [node("Add", ["x", "w"])], {"x": (2,), "w": (2,)}, weights={"w": np.ones(2, np.float32)}, opset=8, ir_version=3
    )
    graph = load(proto)
    assert names(graph.inputs) == ["x"]
    assert names(graph.params) == ["w"]


def test_names_are_kept_or_cleaned():
    nodes = [
        helper.make_node("Relu", ["in put"], ["a/b:0"], name="the relu"),
        helper.make_node("Relu", ["a/b:0"], ["a(1)"], name="the relu"),
        helper.make_node("Relu", ["a(1)"], ["a_1_"]),
        helper.make_node("Add", ["a_1_", "a(1)"], ["out,put"]),
    ]
    graph = load(model(nodes, {"in put": (2,)}, ("out,put",)))
    assert names(graph.inputs) == ["in_put"]
    assert names(graph.outputs) == ["out_put"]
    assert [v.name for n in graph.nodes for v in n.outputs] == ["a/b:0", "a_1_.2", "a_1_", "out_put"]
    assert names(graph.nodes) == ["the_relu", "the_relu.2", "a_1_", "out_put"]


def test_outputs_that_are_weights_or_feeds_or_folded():
    nodes = [node("Constant", [], ["c"], value_floats=[1.0, 2.0]), node("Relu", ["x"])]
    proto = model(nodes, {"x": (2,)}, ("y", "w", "c", "x"), {"w": np.ones(3, np.float32)})
    graph = load(proto)
    assert names(graph.outputs) == ["y", "w", "c", "x"]
    assert names(graph.params) == ["w", "c"]
    results = run_reference(graph, {"x": np.zeros(2, np.float32)})[0]
    assert results["c"].tolist() == [1, 2]


def test_weights_that_nobody_reads_are_no_params():
    graph = load(model([node("Relu", ["x"])], {"x": (2,)}, weights={"w": np.ones(3, np.float32)}))
    assert graph.params == []


def test_nodes_in_any_order():
    proto = small_net()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    x = np.ones((1, 2, 4, 4), np.float32)
    found = ours(proto, {"x": x}, dims={"batch": 1})["y"]
    np.testing.assert_array_equal(found, ours(small_net(), {"x": x}, dims={"batch": 1})["y"])


def test_model_is_not_changed():
    proto = small_net()
    before = proto.SerializeToString()
    load(proto, dims={"batch": 1}, weights="random")
    assert proto.SerializeToString() == before


def test_what_is_too_big_stays_a_node():
    weights = {"s": np.array([1 << 15, 1 << 14], np.int64)}
    nodes = [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["c", "x"])]
    assert [n.op for n in load(model(nodes, {"x": ()}, weights=weights)).nodes] == ["ConstantOfShape", "Add"]


def test_long_chains_of_constants():
    nodes, last = [node("Constant", [], ["c0"], value_floats=[0.0])], "c0"
    for i in range(1, 2001):
        nodes.append(node("Add", [last, last], [f"c{i}"]))
        last = f"c{i}"
    big = np.zeros(1 << 15, np.float32)
    nodes.append(node("Add", [last, "w"], ["d0"]))
    for i in range(1, 200):
        nodes.append(node("Add", [f"d{i - 1}", f"d{i - 1}"], [f"d{i}"]))
    graph = load(model([*nodes, node("Add", ["x", "d199"])], {"x": (1 << 15,)}, weights={"w": big}))
    assert [n.op for n in graph.nodes] == ["Add"]


# -- dims ------------------------------------------------------------------------------------------------------------


def open_model():
    nodes = [node("Add", ["a", "b"], ["s"]), node("Relu", ["c"], ["r"])]
    return model(nodes, {"a": ["batch", "n"], "b": ["batch", None], "c": None}, ("s", "r"))


@pytest.mark.parametrize(
    "dims",
    [
        {"batch": 2, "n": 3, "b.1": 3, "c": (5,)},
        {"a": (2, 3), "b": [2, 3], "c": [5]},
        {"a": (2, 3), "b.1": 3, "c": (np.int64(5),)},
        {"a.0": 2, "n": np.int32(3), "b": (2, 3), "c": (5,), "batch": 2},
    ],
)
def test_dims(dims):
    graph = load(open_model(), dims=dims)
    assert [v.shape for v in graph.inputs] == [(2, 3), (2, 3), (5,)]


def test_open_dims_are_named_at_once():
    with pytest.raises(LoadError) as caught:
        load(open_model(), dims={"n": 3})
    text = str(caught.value)
    assert "a [batch, n]" in text
    assert "b [batch, ?]" in text
    assert "c [rank unknown]" in text
    assert 'dims={"batch": 1, "b.1": 1, "c": (1, …)}' in text


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ({"bacth": 2}, r"'?bacth.*open names: batch, n; inputs: a \[batch, n\], b \[batch, \?\], c"),
        ({"d": (2, 3)}, "does not know"),
        ({"a.7": 2}, "does not know"),
        ({"a": (2,)}, "has 2 dimensions"),
        ({"a": (2, 3), "b": (4, 3)}, "binds 'batch' to 2 and to 4"),
        ({"batch": -1}, "want a size"),
        ({"batch": "2"}, "want a size"),
        ({"batch": 1.5}, "want a size"),
        ({"batch": True}, "want a size"),
    ],
)
def test_wrong_dims(dims, match):
    with pytest.raises(OptionError, match=match):
        load(open_model(), dims=dims)


def test_dims_must_fit_the_file():
    with pytest.raises(OptionError, match="axis 0 of input 'x' 3, but the file says 2"):
        load(model([node("Relu", ["x"])], {"x": (2, "n")}), dims={"x": (3, 4)})


def test_negative_dim_is_open():
    proto = model([node("Relu", ["x"])], {"x": (2, 3)})
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    with pytest.raises(LoadError, match=r"x \[2, \?\]"):
        load(proto)
    assert load(proto, dims={"x.1": 4}).inputs[0].shape == (2, 4)


def test_zero_size_and_scalar_feeds():
    graph = load(model([node("Relu", ["x"]), node("Relu", ["s"], ["z"])], {"x": (0, 4), "s": ()}, ("y", "z")))
    assert [v.shape for v in graph.outputs] == [(0, 4), ()]


# -- the door --------------------------------------------------------------------------------------------------------


def test_options():
    with pytest.raises(OptionError, match="weights='best'"):
        load(small_net(), weights="best")
    with pytest.raises(OptionError, match="seed=-1"):
        load(small_net(), seed=-1)


def test_built_in_models():
    graph = load("mlp", seed=1)
    assert graph.nodes
    with pytest.raises(OptionError, match="colour=3"):
        load("mlp", dims={"colour": 3})
    with pytest.raises(LoadError, match="did you mean mlp"):
        load("mlpp")
    with pytest.raises(LoadError, match=r"there is no file \./mlp"):
        load("./mlp")


def test_text_graphs(tmp_path):
    path = tmp_path / "net.memopt"
    text = str(load(model([node("Relu", ["x"])], {"x": (2, 3)})))
    path.write_text(text)
    assert str(load(path)) == text
    with pytest.raises(OptionError, match="has sizes"):
        load(path, dims={"x": (1,)})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LoadError, match="cannot read"):
        load(path)


def test_import_is_lazy():
    import subprocess

    code = "import sys, memopt.frontends; sys.exit(any(m in sys.modules for m in ('onnx', 'numba', 'google.protobuf')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_float16_and_narrow_types_in_typed_fields():
    half = helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.5, -2.0])
    bits = helper.make_tensor("b", TensorProto.BOOL, [2], [True, False])
    small = helper.make_tensor("i", TensorProto.INT8, [2], [-3, 4])
    wide = helper.make_tensor("u", TensorProto.UINT64, [1], [2**64 - 1])
    proto = model([node("Relu", ["x"])], {"x": (1,)}, ("y", "h", "b", "i", "u"))
    proto.graph.initializer.extend([half, bits, small, wide])
    for output, dtype in zip(proto.graph.output[1:], ("float16", "bool", "int8", "uint64"), strict=True):
        output.CopyFrom(info(output.name, None, dtype))
    graph = load(proto)
    assert graph.param_data("h").tolist() == [1.5, -2.0]
    assert graph.param_data("b").tolist() == [True, False]
    assert graph.param_data("i").tolist() == [-3, 4]
    assert graph.param_data("u").tolist() == [2**64 - 1]


def test_declared_output_type_must_fit():
    with pytest.raises(LoadError, match=r"declared int64|not a valid ONNX model"):
        load(model([node("Relu", ["x"])], {"x": (1,)}, out_dtype="int64"))


def test_weights_are_read_without_a_needless_copy():
    raw = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    proto = model([node("MatMul", ["x", "w"])], {"x": (1, 64)})
    proto.graph.initializer.append(raw)
    data = load(proto).param_data("w")
    assert isinstance(data.base.base if isinstance(data.base, np.ndarray) else data.base, bytes)
