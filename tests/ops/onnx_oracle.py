"""What the ONNX reference evaluator makes of one node."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator


def onnx_node(op, arrays, opset=20, constants=(), num_outputs=1, **attrs):
    """Evaluate `op(*arrays, *constants)` with ONNX attributes; returns the list of its outputs."""
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate((*arrays, *constants))}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    names = [f"y{i}" for i in range(num_outputs)]
    node = helper.make_node(op, list(feeds), names, **attrs)
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=name) for name in names])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)
