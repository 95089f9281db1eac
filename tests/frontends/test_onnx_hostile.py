"""Broken and hostile files: a clear `LoadError` each, and never anything else."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from memopt.errors import LoadError, MemoptError
from memopt.frontends import load
from tests.frontends.onnx_models import model, node, small_net


def refused(source, *texts, **options):
    with pytest.raises(LoadError) as caught:
        load(source, **options)
    for text in texts:
        assert text in str(caught.value)


def relu():
    return model([node("Relu", ["x"])], {"x": (2,)})


def with_tensor(**fields):
    """A model that reads an initializer w, with some of the tensor's fields set as said."""
    proto = model([node("ReduceMax", ["w"], ["m"], keepdims=0), node("Add", ["x", "m"])], {"x": (2,)})
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT)
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return proto


# -- the file --------------------------------------------------------------------------------------------------------


def test_not_a_model(tmp_path):
    path = tmp_path / "x.onnx"
    refused(path, "there is no file", str(path))
    refused(tmp_path, "is a folder")
    path.write_bytes(b"")
    refused(path, str(path), "is empty")
    path.write_bytes(b"hello, this is no protobuf at all")
    refused(path, str(path), "not an ONNX model")
    path.write_bytes(small_net().SerializeToString()[:-100])
    refused(path, str(path))
    refused(b"", "is empty")
    refused(ModelProto(), "holds no graph")
    refused(123, "cannot load a int")
    refused("a\0b", "there is no file")
    refused("x" * 5000, "")
    refused("x/" + "y" * 5000, "")


def test_unreadable(tmp_path, monkeypatch):
    path = tmp_path / "x.onnx"
    path.write_bytes(b"1")

    def deny(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", deny)
    refused(path, "cannot read", "Permission denied")


def test_fifo(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(tmp_path / "pipe.onnx", "not a regular file")


def test_opsets():
    for version in (6, 99):
        proto = relu()
        proto.opset_import[0].version = version
        refused(proto, f"opset {version}", "version_converter")
    del proto.opset_import[:]
    refused(proto, "opsets none")


def test_ir_version():
    proto = relu()
    proto.ir_version = 99
    refused(proto, "not a valid ONNX model")


def test_names_that_are_not_text():
    raw = relu().SerializeToString().replace(b"Relu", b"Re\xff\xfe")
    refused(raw, "")


# -- the graph -------------------------------------------------------------------------------------------------------


def test_circle():
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    refused(model(nodes, {"x": (2,)}), "3 nodes wait for each other in a circle, among them a, b")
    refused(model([node("Relu", ["y"])], {"x": (2,)}), "circle")


def test_undefined_and_twice_defined():
    refused(model([node("Relu", ["q"])], {"x": (2,)}), "node y (Relu) reads 'q', which nothing defines")
    refused(model([node("Relu", ["x"])], {"x": (2,)}, ("y", "z")), "output 'z' is defined by nothing")
    refused(model([node("Relu", ["x"]), node("Relu", ["x"])], {"x": (2,)}), "defines 'y' twice")
    refused(model([node("Relu", ["x"], ["x"])], {"x": (2,)}, ("x",)), "defines 'x' twice")
    proto = relu()
    proto.graph.input.append(proto.graph.input[0])
    refused(proto, "lists the input 'x' twice")
    proto = with_tensor(dims=[2], float_data=[1, 2])
    proto.graph.initializer.append(proto.graph.initializer[0])
    refused(proto, "lists the initializer 'w' twice")
    refused(model([node("Relu", ["x"])], {"x": (2,)}, ("y", "")), "")


def test_missing_inputs_and_attributes():
    refused(model([node("Relu", [])], {"x": (2,)}), "")
    refused(model([node("Relu", [""])], {"x": (2,)}), "")
    refused(model([node("Concat", ["x", "x"])], {"x": (2,)}), "axis")
    refused(model([node("Conv", ["x"])], {"x": (1, 1, 2, 2)}), "")
    refused(model([node("Relu", ["x"], strange=1)], {"x": (2,)}), "strange")
    refused(model([node("Flatten", ["x"], axis=1.5)], {"x": (2, 2)}), "axis")


def test_types_that_do_not_fit():
    refused(model([node("Add", ["x", "w"])], {"x": (2,), "w": (3,)}), "")
    refused(model([node("MatMul", ["x", "w"])], {"x": (2, 3), "w": (4, 5)}), "")


# -- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"dims": [2], "raw_data": b"1234567"}, "takes 8 bytes, but the file holds 7"),
        ({"dims": [1 << 40], "raw_data": b"12345678"}, "but the file holds 8"),
        ({"dims": [1 << 62, 1 << 62], "raw_data": b""}, "but the file holds 0"),
        ({"dims": [-2], "raw_data": b"12345678"}, "dims [-2]"),
        ({"dims": [1] * 100, "raw_data": b"1234"}, "at most 32"),
        ({"dims": [2], "float_data": [1.0]}, "2 elements, but the file holds 1"),
        ({"dims": [2]}, "2 elements, but the file holds 0"),
        ({"dims": [2], "int64_data": [1, 2]}, "2 elements, but the file holds 0"),
        ({"dims": [2], "data_type": 999, "raw_data": b"12345678"}, "element type is 999"),
        ({"dims": [2], "data_type": 0, "raw_data": b"12345678"}, "element type is UNDEFINED"),
    ],
)
def test_tensor_that_lies(fields, text):
    refused(with_tensor(**fields), text)
    refused(with_tensor(**fields), text, weights="random")


def test_huge_shapes_take_no_memory():
    nodes = [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["c", "x"])]
    graph = load(model(nodes, {"x": ()}, weights={"s": np.array([1 << 40, 1 << 40], np.int64)}))
    assert graph.outputs[0].type.nbytes == 4 << 80
    nodes = [node("Tile", ["w", "s"], ["c"]), node("Add", ["c", "x"])]
    graph = load(model(nodes, {"x": ()}, weights={"w": np.ones(1, np.float32), "s": np.array([1 << 50], np.int64)}))
    assert [n.op for n in graph.nodes] == ["Tile", "Add"]
    deep = {"s": np.ones(70, np.int64)}
    refused(
        model([node("ConstantOfShape", ["s"], ["c"]), node("Add", ["c", "x"])], {"x": ()}, weights=deep),
        "70 dimensions",
    )


def test_constant_arithmetic_that_fails():
    nodes = [node("Gather", ["w", "i"], ["g"]), node("Add", ["x", "g"])]
    weights = {"w": np.ones(3, np.float32), "i": np.array(7, np.int64)}
    refused(model(nodes, {"x": (1,)}, weights=weights), "node g (Gather) works on constants and cannot be computed")
    nodes = [node("Range", ["a", "b", "c"], ["r"]), node("Add", ["x", "r"])]
    weights = {"a": np.float32(0), "b": np.float32(1e30), "c": np.float32(1)}
    refused(model(nodes, {"x": (1,)}, weights=weights), "Range", "at most")


# -- external data ---------------------------------------------------------------------------------------------------


def external(folder, **entries):
    """A model file in `folder` whose weight of two float32 lies elsewhere."""
    proto = with_tensor(dims=[2])
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path):
    folder = tmp_path / "model"
    path = external(folder, location="sub/w.bin", offset=4, length=8)
    (folder / "sub").mkdir()
    (folder / "sub" / "w.bin").write_bytes(np.array([9, 1, 2], np.float32).tobytes())
    assert load(path).param_data("m") == 2
    (folder / "link.bin").symlink_to(folder / "sub" / "w.bin")
    assert load(external(folder, location="link.bin")).param_data("m") == 9
    refused(path.read_bytes(), "not loaded from a file")


def test_external_data_outside(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(8))
    folder = tmp_path / "model"
    for location in (str(secret), "../secret.bin", "a/../../secret.bin", "..\\secret.bin"):
        refused(external(folder, location=location), "'w'", "outside", "must lie in the folder of the model")
    (folder / "link.bin").symlink_to(secret)
    refused(external(folder, location="link.bin"), "is a link that leaves")
    (folder / "up").symlink_to(tmp_path)
    refused(external(folder, location="up/secret.bin"), "is a link that leaves")


def test_external_data_that_lies(tmp_path):
    folder = tmp_path / "model"
    (folder).mkdir()
    (folder / "w.bin").write_bytes(bytes(8))
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    refused(external(folder, location="none.bin"), "'none.bin'", "No such file")
    refused(external(folder, location="loop"), "cannot be reached")
    refused(external(folder, location="pipe"), "not a regular file")
    refused(external(folder, location="dir"), "not a regular file")
    refused(external(folder, location=""), "location of its external data is ''")
    refused(external(folder), "location of its external data is ''")
    refused(external(folder, location="a\0b"), "location")
    refused(external(folder, location="w.bin", offset=4), "bytes [4, 12) of w.bin, which has only 8")
    refused(external(folder, location="w.bin", offset=1 << 60), "which has only 8")
    refused(external(folder, location="w.bin", length=4), "takes 8 bytes, but the file holds 4")
    for bad in ("-1", "1e3", "x", "9" * 30):
        refused(external(folder, location="w.bin", offset=bad), f"offset of its external data is {bad!r}")


# -- fuzz ------------------------------------------------------------------------------------------------------------


def fuzzed(rng, content):
    """`content` truncated, with bytes flipped, or with a piece moved."""
    broken = bytearray(content)
    kind = rng.integers(4)
    if kind == 0:
        return bytes(broken[: rng.integers(len(broken))])
    if kind == 1:
        at, to = sorted(rng.integers(0, len(broken), 2))
        return bytes(broken[:at] + broken[to:])
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(len(broken))
        broken[at] = rng.integers(256) if kind == 2 else broken[at] ^ (1 << rng.integers(8))
    return bytes(broken)


def structure_only():
    """The small network with its weights left out, so that most bytes mean something."""
    proto = small_net()
    nodes = [*proto.graph.node]
    shapes = {tensor.name: tensor for tensor in proto.graph.initializer}
    big = [name for name, tensor in shapes.items() if tensor.data_type == TensorProto.FLOAT]
    kept = [tensor for name, tensor in shapes.items() if name not in big]
    for name in big:
        dims = list(shapes[name].dims)
        kept.append(helper.make_tensor(f"{name}s", TensorProto.INT64, [len(dims)], dims))
        nodes.insert(0, node("ConstantOfShape", [f"{name}s"], [name]))
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(kept)
    return proto.SerializeToString()


@pytest.mark.parametrize("make", [structure_only, lambda: small_net().SerializeToString()])
def test_fuzz(make):
    content = make()
    load(content, dims={"batch": 1})
    rng = np.random.default_rng(5)
    refusals = 0
    for _ in range(300):
        broken = fuzzed(rng, content)
        try:
            load(broken, dims={"batch": 1}, weights="random" if rng.integers(2) else "file")
        except MemoptError:
            refusals += 1
    assert refusals > 100


NUMBERS = [0, 1, -1, 2, 3, -2, 100, 2**31, -(2**31), 2**63 - 1, -(2**63), 1 << 20, 1 << 33]


def pick(rng, items):
    return items[rng.integers(len(items))]


def change_node(rng, graph):
    """Another op, another attribute, or another input."""
    place, kind = pick(rng, graph.node), rng.integers(3)
    if kind == 0:
        place.op_type = pick(rng, [n.op_type for n in graph.node] + ["Tile", "Expand", "Range", "If", "Split", "Slice"])
    elif kind == 1 and place.attribute:
        attribute = pick(rng, place.attribute)
        if attribute.ints:
            attribute.ints[rng.integers(len(attribute.ints))] = pick(rng, NUMBERS)
        else:
            attribute.i = pick(rng, NUMBERS)
    elif place.input:
        names = [name for n in graph.node for name in n.output] + [t.name for t in graph.initializer]
        place.input[rng.integers(len(place.input))] = pick(rng, ["", "x", *names])


def change_tensor(rng, graph):
    """Another shape constant, other dims, or another type."""
    tensor = pick(rng, graph.initializer)
    if rng.integers(3) == 0:
        tensor.data_type = int(rng.integers(1, 14))
    elif tensor.data_type == TensorProto.INT64:
        tensor.raw_data = np.int64(pick(rng, NUMBERS)).tobytes() * (len(tensor.raw_data) // 8)
    elif tensor.dims:
        tensor.dims[rng.integers(len(tensor.dims))] = pick(rng, NUMBERS)


def changed(rng, proto):
    """A copy of `proto` that is still protobuf, with one to three of its fields changed."""
    proto = ModelProto.FromString(proto.SerializeToString())
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(8)
        if kind < 4:
            change_node(rng, proto.graph)
        elif kind < 6:
            change_tensor(rng, proto.graph)
        elif kind == 6:
            proto.opset_import[0].version = int(rng.integers(6, 25))
        else:
            proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = pick(rng, NUMBERS)
    return proto


def test_fuzz_of_fields():
    rng = np.random.default_rng(11)
    refusals = 0
    for number in range(400):
        broken = changed(rng, small_net(13 if number % 2 else 11))
        try:
            load(broken, dims={"batch": 1}, weights="random" if number % 3 else "file")
        except MemoptError:
            refusals += 1
    assert 100 < refusals < 390


def test_only_foreign_domains():
    proto = model([node("Scaler", ["x"], domain="ai.onnx.ml")], {"x": (2,)})
    proto.opset_import[0].domain = "ai.onnx.ml"
    proto.opset_import[0].version = 3
    refused(proto, "Scaler (once: y): its domain is ai.onnx.ml")
