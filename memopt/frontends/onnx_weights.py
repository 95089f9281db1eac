"""The way back: an ONNX model with the data of a graph that was loaded from it, to be run by another engine.

Holds true: the result computes what the graph computes; the model that was given is not changed.
"""

from __future__ import annotations

from onnx import ModelProto, numpy_helper

from memopt.errors import LoadError
from memopt.frontends.onnx_structure import value_names
from memopt.ir import Graph

__all__ = ["with_weights"]


def with_weights(model: ModelProto, graph: Graph) -> ModelProto:
    """`model` with each value that is a parameter of `graph` made an initializer that holds the graph's data.

    `graph` must have been loaded from this model. Nodes whose results all became initializers are dropped (Constant,
    ConstantOfShape, and what was folded), and initializers are no inputs any more.
    """
    originals = {name: original for original, name in value_names(model.graph).items()}
    data = {}
    for value in graph.params:
        array = graph.param_data(value)
        if value.name not in originals or array is None:
            raise LoadError(
                f"parameter %{value.name} is not of this model, or has no data; give the model of the graph"
            )
        data[originals[value.name]] = array
    result = ModelProto()
    result.ir_version = max(model.ir_version, 4)  # from 4 on, initializers need not be inputs
    result.opset_import.extend(model.opset_import)
    result.graph.name = model.graph.name or "graph"
    result.graph.output.extend(model.graph.output)
    weights = {tensor.name for tensor in model.graph.initializer} | set(data)
    result.graph.input.extend(value for value in model.graph.input if value.name not in weights)
    for node in model.graph.node:
        made = [name for name in node.output if name]
        if made and all(name in data for name in made):
            continue
        kept = result.graph.node.add()
        kept.CopyFrom(node)
        kept.output[:] = [f"{name}/replaced" if name in data else name for name in node.output]
    result.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name not in data)
    for name, array in data.items():
        result.graph.initializer.append(numpy_helper.from_array(array, name))
    return result
