"""ONNX models to graphs: the reader's main line.

Holds true of the graph: shapes are static; what could be computed while loading was; a constant is a parameter only
if a node reads its data; feeds and outputs have the names of the file (but for characters that memopt refuses). All
that is wrong with a model is named in one error. The line: read, dims, order, check, then node by node: normalise,
fold or append.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from memopt.errors import LoadError, MemoptError
from memopt.frontends.onnx_dims import feed_types
from memopt.frontends.onnx_fold import FOLD_ONLY, Constant, Folder, fold_only
from memopt.frontends.onnx_node import NodeView, Step, read_attributes
from memopt.frontends.onnx_ops import NORMALISERS
from memopt.frontends.onnx_read import DEFAULT_DOMAINS, Model, check_model, read_model, walk_nodes
from memopt.frontends.onnx_structure import clean, label, ordered_nodes, value_names
from memopt.frontends.onnx_tensor import MAX_RANK, check_tensor, dtype_name, element_dtype, read_tensor, tensor_type
from memopt.frontends.problems import Problems, RefusedError, shown
from memopt.frontends.random_weights import randomize
from memopt.ir import Graph, Value, verify
from memopt.ops import get_op, has_op
from memopt.types import TensorType

__all__ = ["load_onnx"]

#: Ops that vanish while loading, or become others.
_LOAD_TIME = {"Constant", "CastLike", "Upsample", *FOLD_ONLY}
#: What type inference may raise on data that a hostile file chose.
_INFER_ERRORS = (MemoptError, ValueError, ArithmeticError, IndexError, MemoryError)


def load_onnx(
    source: str | os.PathLike[str] | bytes | ModelProto,
    dims: Mapping[str, int | Sequence[int]],
    weights: str = "file",
    seed: int = 0,
) -> Graph:
    """The graph of an ONNX model; see `memopt.load`."""
    model = read_model(source)
    problems = Problems()
    _scan(model, problems)
    feeds = feed_types(model.proto.graph, dims, model.source, problems)
    nodes = ordered_nodes(model.proto.graph, model.source)
    importer = _Importer(model, problems)
    importer.start(feeds)
    if not problems.unsupported:
        check_model(model, nodes, feeds)
    for index, node in enumerate(nodes):
        importer.add(node, label(node, index))
    importer.finish()
    problems.raise_any(model.source)
    importer.fill(weights, seed)
    verify(importer.graph)
    return importer.graph


def _scan(model: Model, problems: Problems) -> None:
    """Note what memopt has no word for: ops, domains, subgraphs, kinds of values."""
    graph = model.proto.graph
    functions = {(function.domain, function.name) for function in model.proto.functions}
    for index, node in enumerate(walk_nodes(graph)):
        name = label(node, index)
        if (node.domain, node.op_type) in functions:
            problems.unsupported_op(node.op_type, name, "it is a function of the model; inline it with onnx.inliner")
        elif node.domain not in DEFAULT_DOMAINS:
            problems.unsupported_op(node.op_type, name, f"its domain is {node.domain}, not ONNX's own")
        elif any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            problems.unsupported_op(node.op_type, name, "it holds a subgraph; memopt plans straight graphs")
        elif not has_op(node.op_type) and node.op_type not in _LOAD_TIME:
            problems.unsupported_op(node.op_type, name, "memopt has no such op")
    for tensor in graph.sparse_initializer:
        problems.unsupported_op("initializer", tensor.values.name, "it is sparse")
    for tensor in graph.initializer:
        if element_dtype(tensor.data_type) is None:
            problems.unsupported_op("initializer", tensor.name, f"its element type is {dtype_name(tensor.data_type)}")


class _Importer:
    """Builds the graph. `values`, `constants`, `types` are by ONNX name; `lost` are what refused nodes would define."""

    def __init__(self, model: Model, problems: Problems) -> None:
        self.model = model
        self.problems = problems
        self.names = value_names(model.proto.graph)
        self.graph = Graph(clean(model.proto.graph.name) or "onnx")
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Constant] = {}
        self.types: dict[str, TensorType] = {}
        self.lost: set[str] = set()
        self.folder = Folder()
        self.sources: dict[str, Constant] = {}

    def start(self, feeds: Mapping[str, TensorType]) -> None:
        """Add the feeds, and note the initialisers."""
        proto = self.model.proto.graph
        for tensor in proto.initializer:
            where = f"{self.model.source}: initializer {shown(tensor.name)!r}"
            if element_dtype(tensor.data_type) is None:
                self.lost.add(tensor.name)
                continue
            check_tensor(tensor, where, self.model.folder)
            make = partial(read_tensor, tensor, where, self.model.folder)
            self.define(tensor.name, Constant(tensor_type(tensor, where), make))
        for value in proto.input:
            if value.name in feeds:
                self.values[value.name] = self.graph.add_input(self.names[value.name], feeds[value.name])
                self.types[value.name] = feeds[value.name]
            elif value.name not in self.constants:
                self.lost.add(value.name)

    def define(self, name: str, constant: Constant) -> None:
        self.constants[name] = constant
        self.types[name] = constant.type

    def add(self, node: NodeProto, name: str) -> None:
        """Add one ONNX node, or note why not."""
        known = node.domain in DEFAULT_DOMAINS and (has_op(node.op_type) or node.op_type in _LOAD_TIME)
        if not known or any(source in self.lost for source in node.input if source):
            self.lost.update(node.output)
            return
        try:
            view = NodeView(
                node.op_type,
                self.model.opset,
                list(node.input),
                list(node.output),
                read_attributes(node),
                self.constants,
                self.types,
            )
            self._append(view, name)
        except RefusedError as reason:
            self.problems.unsupported_op(node.op_type, name, str(reason))
            self.lost.update(node.output)
        except LoadError:
            raise  # of data that cannot be read or computed: it says what and where
        except _INFER_ERRORS as error:
            self.problems.fault(node.op_type, name, str(error))
            self.lost.update(node.output)

    def _append(self, view: NodeView, name: str) -> None:
        where = f"{self.model.source}: node {shown(name)} ({view.op})"
        if view.op == "Constant":
            self.define(view.outputs[0], _constant(view, where, self.model.folder))
            return
        if view.op in FOLD_ONLY and not has_op(view.op):
            if not all(view.is_constant(i) for i in range(len(view.inputs))):
                raise RefusedError("memopt has this op only for constants, while loading")
            inputs = [self.constants[source] for source in view.inputs]
            self.define(view.outputs[0], fold_only(view.op, inputs, view.attrs, where))
            return
        steps = NORMALISERS.get(view.op, NodeView.plain)(view)
        for number, step in enumerate(steps):
            self._take(step, name if number == len(steps) - 1 else f"{name}/{step.op.lower()}", where)

    def _take(self, step: Step, name: str, where: str) -> None:
        """Fold one step, or append it to the graph."""
        spec = get_op(step.op)
        inputs = _trimmed(step.inputs)
        outputs = _trimmed(step.outputs)
        if spec.max_outputs is not None and len(outputs) > spec.max_outputs:
            raise RefusedError(f"it makes {len(outputs)} outputs; memopt has {spec.max_outputs} of them")
        if spec.max_inputs is not None and len(inputs) > spec.max_inputs:
            raise RefusedError(f"it takes {len(inputs)} inputs; memopt has {spec.max_inputs} of them")
        by_shape = all(not spec.reads_data(i) for i in range(len(inputs)))
        if by_shape or all(not source or source in self.constants for source in inputs):
            attrs = spec.complete_attrs(step.attrs)
            types = [self.types[source] if source else None for source in inputs]
            results = spec.infer(types, attrs, len(outputs))
            if self.folder.accepts(spec, results):
                constants = [self._operand(source) if source else None for source in inputs]
                for output, constant in zip(
                    outputs, self.folder.fold(spec, constants, attrs, results, where), strict=False
                ):
                    if output:
                        self.define(output, constant)
                return
        node = self.graph.add_node(
            step.op,
            [self.value(source) if source else None for source in inputs],
            [
                self._name(output) if output or not spec.outputs[-1].variadic else self._spare(name)
                for output in outputs
            ],
            step.attrs,
            name=self._node_name(name),
        )
        for output, value in zip(outputs, node.outputs, strict=True):
            if value is not None and output:
                self.values[output] = value
                self.types[output] = value.type
                if value.type.rank > MAX_RANK:
                    raise RefusedError(f"its output has {value.type.rank} dimensions; at most {MAX_RANK} are sensible")

    def _operand(self, source: str) -> Constant:
        """A constant to fold with; for an op that reads shapes only, any data of the type will do."""
        found = self.constants.get(source)
        return found or Constant(self.types[source], lambda: _hollow(self.types[source]))

    def _name(self, output: str) -> str | None:
        return (self.names.get(output) or self.graph.fresh_name(clean(output))) if output else None

    def _spare(self, stem: str) -> str:
        taken = set(self.names.values())
        count = 0
        while f"{clean(stem)}.unused{count}" in taken or self.graph.has_value(f"{clean(stem)}.unused{count}"):
            count += 1
        return f"{clean(stem)}.unused{count}"

    def _node_name(self, name: str) -> str:
        stem, count = clean(name), 1
        fresh = stem
        while self.graph.has_node(fresh):
            count += 1
            fresh = f"{stem}.{count}"
        return fresh

    def value(self, source: str) -> Value:
        """The value of that ONNX name; a constant becomes a parameter, whose data follows in `fill`."""
        found = self.values.get(source)
        if found is None:
            constant = self.constants[source]
            name = self.names.get(source) or self.graph.fresh_name(clean(source))
            found = self.values[source] = self.graph.add_param(name, constant.type)
            self.sources[name] = constant
        return found

    def finish(self) -> None:
        """Set the outputs."""
        outputs = []
        for output in self.model.proto.graph.output:
            if output.name in self.lost:
                continue
            value = self.value(output.name)
            declared = element_dtype(output.type.tensor_type.elem_type)
            if output.type.WhichOneof("value") == "tensor_type" and declared not in (value.dtype, None):
                self.problems.fault(
                    "output", output.name, f"it is declared {declared}, but the graph makes {value.type}"
                )
            outputs.append(value)
        self.graph.set_outputs(outputs)

    def fill(self, weights: str, seed: int) -> None:
        """Give the parameters their data."""
        done = randomize(self.graph, seed) if weights == "random" else set()
        for name, constant in self.sources.items():
            if name not in done:
                self.graph.set_param(name, constant.data, copy=False)


def _trimmed(names: Sequence[str]) -> list[str]:
    """`names` without the absent ones at the end; those between keep their slots."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _hollow(type: TensorType) -> NDArray[Any]:
    """Data of that type that takes no memory, for ops that read its shape only."""
    return np.broadcast_to(np.zeros((), type.dtype), type.shape)


def _constant(view: NodeView, where: str, folder: Path | None) -> Constant:
    """The data of a Constant node, from whichever attribute holds it."""
    name, value = next(iter(view.attrs.items()), ("value", None))
    if isinstance(value, TensorProto) and name == "value":
        if element_dtype(value.data_type) is None:
            raise RefusedError(f"its element type is {dtype_name(value.data_type)}")
        return Constant(tensor_type(value, where), partial(read_tensor, value, where, folder))
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name not in kinds or len(view.attrs) != 1:
        raise RefusedError(f"its value is in the attribute {name}; memopt reads value, {', '.join(kinds)}")
    try:
        return Constant.of(np.array(value, kinds[name]))
    except (TypeError, ValueError, OverflowError) as error:
        raise LoadError(f"{where}: its {name} is {shown(value)}: {error}") from None
