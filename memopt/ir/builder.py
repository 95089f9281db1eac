"""`GraphBuilder`: write a graph in Python, one call an op.

    b = GraphBuilder("tiny")
    x = b.input("x", (1, 8))
    w = b.param("w", np.ones((8, 4), np.float32))
    b.output(b.relu(b.matmul(x, w)))
    graph = b.build()

Every op of the registry is a method: by its ONNX name (`b.MatMul`) and in lower case (`b.matmul`,
`b.global_average_pool`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memopt.errors import OptionError, TypeInferenceError
from memopt.ir.graph import Graph
from memopt.ir.value import Value
from memopt.ir.verify import verify
from memopt.ops import all_ops, get_op, has_op
from memopt.types import TensorType

__all__ = ["GraphBuilder"]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class GraphBuilder:
    """Builds a `Graph` node by node. `device` is the device of the nodes that follow (None: the machine's default)."""

    def __init__(self, name: str = "graph", *, device: str | None = None) -> None:
        self.graph = Graph(name)
        self.device = device

    def input(self, name: str, shape: Sequence[int], dtype: Any = "float32", *, donated: bool = False) -> Value:
        """Add a feed."""
        return self.graph.add_input(name, TensorType.of(shape, dtype), donated=donated)

    def param(
        self,
        name: str,
        data: Any = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        device: str | None = None,
    ) -> Value:
        """Add a parameter, from its data or (data to follow) from its shape and dtype.

        `device` is where it lives (None: on the machine's default device).
        """
        if data is None:
            if shape is None:
                raise OptionError(f"parameter %{name} needs data, or a shape")
            return self.graph.add_param(name, TensorType.of(shape, dtype), device=device)
        array = np.asarray(data)
        return self.graph.add_param(name, TensorType.of(array.shape, array.dtype), array, device=device)

    def op(
        self,
        op: str,
        *inputs: Value | None,
        outputs: int | Sequence[str | None] | None = None,
        name: str | None = None,
        device: str | None = None,
        **attrs: Any,
    ) -> Any:
        """Append one node; returns its output value, or a tuple where it has several.

        `outputs` is their number or their names (None: absent). `name` names the node and, unless `outputs` does, its
        results.
        """
        spec = get_op(op)
        if not isinstance(outputs, Sequence):
            count = max(spec.min_outputs, 1) if outputs is None else outputs
            stem = name or _snake(op)
            outputs = self._names(stem, count)
        for value in inputs:
            if value is not None and not isinstance(value, Value):
                raise TypeInferenceError(
                    f"{op}: an input is {value!r}, not a value of the graph; make it one with b.param()"
                )
        node = self.graph.add_node(op, inputs, outputs, attrs, name=name, device=device or self.device)
        results = node.outputs
        return results[0] if len(results) == 1 else results

    def output(self, *values: Value) -> None:
        """Add to what a run returns."""
        self.graph.set_outputs([*self.graph.outputs, *values])

    def build(self) -> Graph:
        """The verified graph."""
        verify(self.graph)
        return self.graph

    def _names(self, stem: str, count: int) -> list[str]:
        if count == 1:
            return [self.graph.fresh_name(stem)]
        names: list[str] = []
        for i in range(count):
            name, n = f"{stem}.{i}", 1
            while self.graph.has_value(name) or name in names:
                n += 1
                name = f"{stem}.{i}.{n}"
            names.append(name)
        return names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = (
            name
            if has_op(name)
            else next((s.name for s in all_ops() if name in (_snake(s.name), s.name.lower())), None)
        )
        if op is None:
            raise AttributeError(f"GraphBuilder has no method and no op {name!r}")

        def call(*inputs: Value | None, **options: Any) -> Any:
            return self.op(op, *inputs, **options)

        return call
