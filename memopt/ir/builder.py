"""`GraphBuilder`: write a graph in Python, one call an op.

    b = GraphBuilder("tiny")
    x = b.input("x", (1, 8))
    w = b.param("w", np.ones((8, 4), np.float32))
    b.output(b.relu(b.matmul(x, w)))
    graph = b.build()

Every op of the registry is a method: by its ONNX name (`b.MatMul`) and in lower case (`b.matmul`,
`b.global_average_pool`).

`TensorBuilder` is the same with handles in the place of values, on which in-place methods may be written: `x.sin_()`,
`x += y`, `x[1:] = y` (see `memopt.ir.handle`). `b.tensor(value)` makes a handle in any builder, and an op that is given
a handle returns one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from memopt.errors import OptionError, TypeInferenceError
from memopt.ir.graph import Graph
from memopt.ir.handle import Cell, Tensor
from memopt.ir.inplace import InplaceRequest
from memopt.ir.value import Node, Value
from memopt.ir.verify import verify
from memopt.ir.views import VIEW_OPS, ViewStep, split_steps
from memopt.ir.writes import assign, operand, write_op
from memopt.ops import all_ops, get_op, has_op
from memopt.types import TensorType

__all__ = ["GraphBuilder", "TensorBuilder", "as_value"]

_METHODS: dict[str, str] = {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _find_op(name: str) -> str | None:
    """The op that a method of that name stands for."""
    if has_op(name):
        return name
    if name not in _METHODS:  # the table is made when it is first needed, and again after an op was registered
        for spec in all_ops():
            _METHODS.setdefault(_snake(spec.name), spec.name)
            _METHODS.setdefault(spec.name.lower(), spec.name)
            _METHODS.setdefault(_snake(re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", spec.name)), spec.name)  # mse_loss
    return _METHODS.get(name)


def as_value(value: Any) -> Any:
    """The value that a handle means now; anything else as it is."""
    return value.value if isinstance(value, Tensor) else value


class GraphBuilder:
    """Builds a `Graph` node by node. `device` is the device of the nodes that follow (None: the machine's default).

    `strict` lets `memopt.grad` raise where an in-place method overwrites bytes that the backward reads (by default the
    old value is kept, and the plan's decisions say what that costs).
    """

    def __init__(self, name: str = "graph", *, device: str | None = None, strict: bool = False) -> None:
        self.graph = Graph(name)
        self.graph.inplace.strict = strict
        self.device = device
        self._records_grad = True
        self._tracked: set[Value] = set()
        self._cells: dict[Value, Cell] = {}
        self._constants: dict[tuple[float, TensorType], Value] = {}

    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any = "float32",
        *,
        donated: bool = False,
        requires_grad: bool = False,
    ) -> Value:
        """Add a feed. One that `requires_grad` must not be written in place where gradients are recorded."""
        value = self.graph.add_input(name, TensorType.of(shape, dtype), donated=donated)
        if requires_grad:
            self.track_grad(value)
        return value

    def param(
        self,
        name: str,
        data: Any = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Value:
        """Add a parameter, from its data or (data to follow) from its shape and dtype.

        `device` is where it lives (None: on the machine's default device). One that `requires_grad` (default: those of
        float dtypes) must not be written in place where gradients are recorded; one that does not is not trained.
        """
        if data is None:
            if shape is None:
                raise OptionError(f"parameter %{name} needs data, or a shape")
            value = self.graph.add_param(name, TensorType.of(shape, dtype), device=device)
        else:
            array = np.array(data)  # a copy: what the caller does to the array later is not the graph's concern
            value = self.graph.add_param(name, TensorType.of(array.shape, array.dtype), array, device=device)
        if value.dtype.startswith("float") if requires_grad is None else requires_grad:
            self.track_grad(value)
        elif requires_grad is False:
            self.graph.inplace.stopped[name] = None
        return value

    def op(
        self,
        op: str,
        *inputs: Any,
        outputs: int | Sequence[str | None] | None = None,
        name: str | None = None,
        device: str | None = None,
        **attrs: Any,
    ) -> Any:
        """Append one node; returns its output value, or a tuple where it has several.

        `inputs` are values, or None where an optional one is absent; if one is a handle, numbers may stand beside it,
        and handles are returned. `outputs` is their number or their names (None: absent). `name` names the node and,
        unless `outputs` does, its results.
        """
        spec = get_op(op)
        if not isinstance(outputs, Sequence):
            count = max(spec.min_outputs, 1) if outputs is None else outputs
            outputs = self._names(name or _snake(op), count)
        handle = next((value for value in inputs if isinstance(value, Tensor)), None)
        values = [operand(self, value, handle) for value in inputs] if handle is not None else inputs
        for value in values:
            if value is not None and not isinstance(value, Value):
                raise TypeInferenceError(
                    f"{op}: an input is {value!r}, not a value of the graph; make it one with b.param()"
                )
        node = self.graph.add_node(op, values, outputs, attrs, name=name, device=device or self.device)
        self._track_node(node)
        results: tuple[Any, ...] = node.outputs
        if handle is not None:
            results = self._handles(node, inputs[0])
            _follow_updates(node, inputs)
        return results[0] if len(results) == 1 else results

    def append(self, op: str, *inputs: Value | None, **attrs: Any) -> Any:
        """Append a node of plain values, and return plain values."""
        return GraphBuilder.op(self, op, *inputs, **attrs)

    def output(self, *values: Value | Tensor) -> None:
        """Add to what a run returns; of a handle, the value that it means now."""
        self.graph.set_outputs([*self.graph.outputs, *map(as_value, values)])

    def build(self) -> Graph:
        """The verified graph. What was written to parameters in place is stored in them, as early as that is legal."""
        self._store_params()
        verify(self.graph)
        return self.graph

    # -- in place -----------------------------------------------------------------------------------------------

    def tensor(self, value: Value | Tensor) -> Tensor:
        """A handle on `value`. All handles on one feed or parameter alias; any other's is a copy in meaning."""
        if isinstance(value, Tensor):
            return value
        cell = self._cells.get(value) or Cell(value)
        if cell.leaf is not None:
            self._cells[value] = cell
        return Tensor(self, cell)

    def assign(self, target: Tensor, index: Any, value: Any) -> None:
        """`target[index] = value`; the value is broadcast to the slice."""
        assign(self, target, index, value)

    def write_op(self, target: Tensor, op: str, *others: Any, **attrs: Any) -> None:
        """`target.op_(*others)`: the op's result takes the place of `target`."""
        write_op(self, target, op, others, attrs)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """What is built inside counts as constant for `memopt.grad`, and leaves may be written in place."""
        before, self._records_grad = self._records_grad, False
        try:
            yield
        finally:
            self._records_grad = before

    def stop_gradient(self, value: Any) -> Any:
        """`value` (or what a handle means) counts as constant for `memopt.grad`, and may be written in place."""
        plain = as_value(value)
        self._tracked.discard(plain)
        if isinstance(value, Tensor) and value.cell.leaf is not None:
            self._tracked.discard(value.cell.leaf)
        self.graph.inplace.stopped[plain.name] = None
        return value

    @property
    def records_grad(self) -> bool:
        """Whether gradients are recorded here (not under `no_grad`)."""
        return self._records_grad

    def requires_grad(self, value: Value | Tensor) -> bool:
        """Whether a gradient would be recorded for `value`: it depends on a feed or parameter that requires one."""
        return as_value(value) in self._tracked

    def track_grad(self, value: Value) -> None:
        """Let a gradient be recorded for `value`."""
        if not value.dtype.startswith("float"):
            raise OptionError(f"%{value.name} is {value.type}; only values of float dtypes have gradients")
        self._tracked.add(value)

    @property
    def inplace_requests(self) -> tuple[InplaceRequest, ...]:
        """The in-place methods written so far; `memopt.report.inplace_table(plan)` says how each was met."""
        return tuple(self.graph.inplace.requests)

    def make_constant(self, number: Any, type: TensorType) -> Value:
        """A constant of `type`: a parameter that nobody trains. Equal numbers share one."""
        data = np.asarray(number).astype(type.dtype)
        key = (float(data), type) if not type.shape else None
        found = self._constants.get(key) if key is not None else None
        if found is None:
            found = GraphBuilder.param(self, self.graph.fresh_name("constant"), data, requires_grad=False)
            if key is not None:
                self._constants[key] = found
        return found

    def find_op(self, name: str) -> str | None:
        """The op that a method of that name stands for: its ONNX name, or that in lower or snake case."""
        return _find_op(name)

    def _track_node(self, node: Node) -> None:
        results = [value for _, value in node.real_outputs if value.dtype.startswith("float")]
        if not self._records_grad:
            self.graph.inplace.stopped.update((value.name, None) for value in results)
        elif any(value in self._tracked for _, value in node.data_inputs):
            self._tracked.update(results)

    def _handles(self, node: Node, first: Any) -> tuple[Tensor | None, ...]:
        """Handles on the node's results: views of `first` where the op makes views and that is a handle."""
        if isinstance(first, Tensor) and node.op in VIEW_OPS:
            return (first.view(ViewStep(node.op, dict(node.attrs)), node.outputs[0]),)
        if isinstance(first, Tensor) and node.op == "Split":
            axis = int(node.attrs["axis"]) % len(first.shape)  # type: ignore[arg-type] # an int attribute
            parts = [t.shape[axis] for t in node.spec.infer(node.input_types, node.attrs, len(node.outputs))]
            views = zip(split_steps(parts, axis), node.outputs, strict=True)
            return tuple(None if value is None else first.view(step, value) for step, value in views)
        return tuple(None if value is None else Tensor(self, Cell(value)) for value in node.outputs)

    def _store_params(self) -> None:
        """An `Assign` for each parameter that was written in place, right after the last reader of what it held."""
        params = set(self.graph.params)
        written = [c for c in self._cells.values() if c.leaf in params and c.value is not c.stored]
        if not written:
            return
        place = {node: (step, 0) for node, step in self.graph.steps().items()}
        for count, cell in enumerate(written, start=1):
            producer = cell.value.producer
            before = _readers(cell.held) if producer is None else [producer, *_readers(cell.held)]
            step = max((place[node][0] for node in before), default=-1)
            cell.held = self.append("Assign", cell.held, cell.value)
            cell.stored = cell.value
            place[self.graph.nodes[-1]] = (step, count)
        self.graph.reorder(sorted(self.graph.nodes, key=lambda node: place[node]))

    def _names(self, stem: str, count: int) -> list[str]:
        if count == 1:
            return [self.graph.fresh_name(stem)]
        return [self.graph.fresh_value_name(f"{stem}.{i}") for i in range(count)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = None if name.startswith("_") else _find_op(name)
        if op is None:
            raise AttributeError(f"GraphBuilder has no method and no op {name!r}")

        def call(*inputs: Any, **options: Any) -> Any:
            return self.op(op, *inputs, **options)

        return call


class TensorBuilder(GraphBuilder):
    """A `GraphBuilder` whose feeds, parameters and results are handles, which have in-place methods."""

    def input(self, *args: Any, **options: Any) -> Tensor:  # type: ignore[override] # a handle for a value
        """As `GraphBuilder.input`; returns a handle."""
        return self.tensor(super().input(*args, **options))

    def param(self, *args: Any, **options: Any) -> Tensor:  # type: ignore[override] # a handle for a value
        """As `GraphBuilder.param`; returns a handle."""
        return self.tensor(super().param(*args, **options))

    def op(self, op: str, *inputs: Any, **options: Any) -> Any:
        """As `GraphBuilder.op`; returns handles. Numbers may stand beside a value, too."""
        if not any(isinstance(value, Tensor) for value in inputs):
            plain = next((value for value in inputs if isinstance(value, Value)), None)
            inputs = tuple(Tensor(self, Cell(v)) if v is plain and isinstance(v, Value) else v for v in inputs)
        found = super().op(op, *inputs, **options)
        if isinstance(found, tuple):
            return tuple(self.tensor(value) if isinstance(value, Value) else value for value in found)
        return self.tensor(found)


def _follow_updates(node: Node, inputs: Sequence[Any]) -> None:
    """Handles whose variable the node updates (`b.sgd(w, ...)`) mean the new value from here on."""
    for output, index in node.spec.updates.items():
        target = inputs[index] if index < len(inputs) else None
        new = node.outputs[output] if output < len(node.outputs) else None
        if isinstance(target, Tensor) and new is not None and not target.path():
            cell = target.cell
            if cell.held is cell.value:
                cell.held = cell.stored = new
            cell.value = new
            cell.version += 1


def _readers(value: Value) -> list[Node]:
    """The nodes that read the bytes of `value`, or of views of it."""
    found: list[Node] = []
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            found.append(use.node)
            views = {view.output for view in use.node.spec.views if view.input == use.index}
            waiting += [v for i, v in use.node.real_outputs if i in views or -1 in views]
    return found
