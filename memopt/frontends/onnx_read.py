"""Bytes, paths and messages to a checked `ModelProto`.

Holds true of what `read_model` returns: it is protobuf with a graph, every string in it that memopt reads is text,
its opset is one that memopt knows, and the file it came from (if any) is named in `Model.source` for errors. What ops
it uses is not looked at here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
from onnx import GraphProto, ModelProto, NodeProto, checker, helper, shape_inference

from memopt.errors import LoadError
from memopt.frontends.problems import shown
from memopt.types import TensorType

__all__ = ["DEFAULT_DOMAINS", "MAX_OPSET", "MIN_OPSET", "Model", "check_model", "read_model", "walk_nodes"]

MIN_OPSET = 7
#: 24 to 28 only add element types to the ops that memopt has.
MAX_OPSET = 28
#: The names of ONNX's own domain.
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Model:
    """A model and where it came from. `folder` is that of its file (None: it came from memory)."""

    proto: ModelProto
    source: str
    folder: Path | None
    opset: int


def read_model(source: str | os.PathLike[str] | bytes | ModelProto) -> Model:
    """Read `source`; raises `LoadError` naming it and what is wrong."""
    if isinstance(source, ModelProto):
        return _examined(source, "the model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _examined(_parsed(bytes(source), "the model"), "the model", None)
    if not isinstance(source, (str, os.PathLike)):
        raise LoadError(f"cannot load a {type(source).__name__}; give a path, bytes or an onnx.ModelProto")
    path = Path(source)
    if not path.is_file():
        raise LoadError(f"{path} is not a regular file; give the path of an ONNX model")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    return _examined(_parsed(content, str(path)), str(path), path.parent)


def _parsed(content: bytes, source: str) -> ModelProto:
    if not content:
        raise LoadError(f"{source} is empty; an ONNX model was expected")
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, ValueError):
        raise LoadError(
            f"{source} is not an ONNX model: its {len(content)} bytes are not such a protobuf message "
            "(truncated, or another format); text graphs end in .txt or .memopt"
        ) from None
    return model


def _examined(model: ModelProto, source: str, folder: Path | None) -> Model:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise LoadError(f"{source} holds no graph; is it an ONNX model?")
    _check_strings(model, source)
    return Model(model, source, folder, _opset(model, source))


def _opset(model: ModelProto, source: str) -> int:
    versions = {entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS}
    if not versions and all(node.domain not in DEFAULT_DOMAINS for node in walk_nodes(model.graph)):
        return MAX_OPSET  # nothing depends on it
    if len(versions) != 1:
        found = ", ".join(map(str, sorted(versions))) or "none"
        raise LoadError(f"{source} imports the opsets {found} of the ONNX domain; want exactly one")
    version = int(versions.pop())
    if not MIN_OPSET <= version <= MAX_OPSET:
        raise LoadError(
            f"{source} uses opset {version}; memopt reads {MIN_OPSET} to {MAX_OPSET}. "
            "Convert it with onnx.version_converter.convert_version"
        )
    return version


def walk_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of `graph` and of the graphs within it."""
    stack = [graph]
    while stack:
        for node in stack.pop().node:
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def _check_strings(model: ModelProto, source: str) -> None:
    """protobuf gives bytes for strings that are not UTF-8; and a reader of names must not meet them."""
    graph = model.graph
    names: list[object] = [graph.name, *(entry.domain for entry in model.opset_import)]
    for value in (*graph.input, *graph.output):
        names.append(value.name)
        names += [dim.dim_param for dim in value.type.tensor_type.shape.dim]
    for tensor in graph.initializer:
        names += [tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))]
    for node in walk_nodes(graph):
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
    for name in names:
        if not isinstance(name, str):
            raise LoadError(f"{source} is broken: the name {name!r} in it is not UTF-8 text")


def check_model(model: Model, nodes: Sequence[NodeProto], feeds: Mapping[str, TensorType]) -> None:
    """Run onnx's checker, with type inference, on a copy with `nodes` in this order, `feeds` as inputs and no weights.

    The copy needs no second set of weights and opens no external file; the sizes of weights are checked where they are
    read. Outputs without a shape, which the checker takes for an error, are left out of it.
    """
    proto, bare = model.proto, ModelProto()
    bare.ir_version = proto.ir_version
    bare.opset_import.extend(proto.opset_import)
    bare.graph.name = proto.graph.name or "graph"
    bare.graph.node.extend(nodes)
    bare.graph.output.extend(value for value in proto.graph.output if value.type.tensor_type.HasField("shape"))
    for name, found in feeds.items():
        number = helper.np_dtype_to_tensor_dtype(np.dtype(found.dtype))
        bare.graph.input.append(helper.make_tensor_value_info(name, number, found.shape))
    for tensor in proto.graph.initializer:
        bare.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    try:
        checker.check_model(bare, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise LoadError(f"{model.source} is not a valid ONNX model: {shown(error, 500)}") from None
