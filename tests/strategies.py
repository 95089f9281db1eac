"""Hypothesis strategies: random graphs, and feeds for them.

`graphs()` draws through `GraphBuilder`: dims of 1 to 4, elementwise ops with broadcasts and repeated operands, views,
several outputs, reductions, small images, unread outputs, shape-only readers, updates, donated feeds, outputs that are
feeds, parameters or intermediates, pinned devices. An op that memopt lacks is left out. Everything random comes from
the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from memopt.errors import TypeInferenceError
from memopt.ir import Graph, GraphBuilder, Value
from memopt.ops import has_op
from memopt.types import TensorType

__all__ = ["feeds_for", "graphs", "random_array"]

_MAX_ELEMENTS = 256
_UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity", "Softmax")
_BINARY = ("Add", "Sub", "Mul", "Max")
_FLOATS = ("float32", "float64")


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    max_nodes: int = 10,
    devices: Sequence[str | None] = (None,),
    updates: bool = True,
    donated: bool = True,
    min_dim: int = 1,
    only: Sequence[str] | None = None,
) -> Graph:
    """A verified graph of at most `max_nodes` statements, of one node mostly.

    `devices` are drawn from for every node; `updates` allows SGD, Momentum and Increment; `donated` donated feeds;
    `min_dim=0` a few zero-size tensors; `only` restricts the nodes to these makers (names of methods of `_Drawn`),
    and "look", which is made only if it is named.
    """
    drawn = _Drawn(draw, devices, min_dim)
    for i in range(draw(st.integers(1, 3))):
        drawn.feed(f"x{i}", donated=donated and draw(st.booleans()))
    table = drawn.makers(updates, asked=only is not None and "look" in only)
    makers = [maker for name, maker in table.items() if only is None or name.split()[0] in only]
    statement = st.tuples(st.sampled_from(makers), st.sampled_from(devices))
    for maker, device in draw(st.lists(statement, min_size=min(2, max_nodes), max_size=max_nodes)):
        drawn.builder.device = device
        maker()
    readable = [value for value in drawn.graph.values if value not in drawn.updated]
    count = draw(st.integers(1, min(3, len(readable))))
    made = [value for value in readable if value.producer is not None] or readable
    outputs = [made[-1], *(draw(st.sampled_from(readable)) for _ in range(count - 1))]
    drawn.builder.output(*dict.fromkeys(outputs))
    return drawn.builder.build()


def random_array(type: TensorType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random data of `type`: floats in [-2, 2), integers in [-9, 9], all with distinct generators' states."""
    if type.dtype == "bool":
        return np.asarray(rng.integers(0, 2, type.shape), bool)
    if type.dtype.startswith("float"):
        return np.asarray(rng.uniform(-2, 2, type.shape)).astype(type.dtype)
    return np.asarray(rng.integers(0 if type.dtype.startswith("u") else -9, 10, type.shape)).astype(type.dtype)


def feeds_for(graph: Graph, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random feeds for `graph`; another seed gives others."""
    rng = np.random.default_rng([seed, 7])
    return {value.name: random_array(value.type, rng) for value in graph.inputs}


class _Drawn:
    """A graph in the making. Each maker adds one statement, or nothing where the draw does not fit."""

    def __init__(self, draw: st.DrawFn, devices: Sequence[str | None], min_dim: int) -> None:
        self.draw = draw
        self.builder = GraphBuilder("drawn")
        self.graph = self.builder.graph
        self.updated: set[Value] = set()  # old values: nobody may read them any more
        self._dim = st.sampled_from([2, 1, 3, 4, 2, 3, 4, 2, 3, *([0] if min_dim == 0 else [])])
        self._rng = np.random.default_rng(draw(st.integers(0, 255)))

    def makers(self, updates: bool, *, asked: bool = False) -> dict[str, Callable[[], None]]:
        """The makers whose ops exist, by name; `look` too if it is asked for."""
        table: dict[str, tuple[str, Callable[[], None]]] = {
            "unary": ("Relu", self.unary),
            "binary": ("Add", self.binary),
            "reshape": ("Reshape", self.reshape),
            "flatten": ("Flatten", self.flatten),
            "transpose": ("Transpose", self.transpose),
            "concat": ("Concat", self.concat),
            "split": ("Split", self.split),
            "expand": ("Expand", self.expand),
            "slice": ("Slice", self.slice),
            "slice_assign": ("SliceAssign", self.slice_assign),
            "matmul": ("MatMul", self.matmul),
            "gemm": ("Gemm", self.gemm),
            "reduce": ("ReduceSum", self.reduce),
            "cast": ("Cast", self.cast),
            "compare": ("Less", self.compare),
            "shape": ("Shape", self.shape_of),
            "sum": ("Sum", self.sum),
            "batch_norm": ("BatchNormalization", self.batch_norm),
            "max_pool": ("MaxPool", self.max_pool),
            "conv": ("Conv", self.conv),
            "dropout": ("Dropout", self.dropout),
            "resize": ("Resize", self.resize),
        }
        if asked:
            table["look"] = ("Transpose", self.look)
        if updates:
            table |= {
                "sgd": ("SGD", self.sgd),
                "momentum": ("Momentum", self.momentum),
                "increment": ("Increment", self.increment),
                "assign": ("Assign", self.assign),
            }
        often = {f"{name} {i}": table[name] for name in ("unary", "binary", "reshape") for i in (2, 3)}
        return {name: maker for name, (op, maker) in (table | often).items() if has_op(op)}

    # -- parts ------------------------------------------------------------------------------------------------------

    def feed(self, name: str, *, donated: bool) -> Value:
        rank = self.draw(st.sampled_from([2, 2, 4, 1, 3, 4, 0]))
        dtype = self.draw(st.sampled_from(["float32", "float32", "float32", "float64"]))
        shape = tuple(self.draw(self._dim) for _ in range(rank))
        return self.builder.input(name, shape, dtype, donated=donated)

    def param(self, shape: Sequence[int], dtype: str = "float32") -> Value:
        type = TensorType.of(shape, dtype)
        name = self.graph.fresh_name("w")
        device = "host" if len(self.graph.params) % 5 == 4 else None  # whatever the default is
        return self.builder.param(name, random_array(type, self._rng), device=device)

    def pick(self, fits: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value that may still be read, the newest first; None if none fits."""
        found = [value for value in reversed(self.graph.values) if value not in self.updated and fits(value)]
        return self.draw(st.sampled_from(found)) if found else None

    def add(self, op: str, *inputs: Value | None, **options: Any) -> Any:
        """Add the node, unless the op does not take these types."""
        try:
            return self.builder.op(op, *inputs, **options)
        except TypeInferenceError:
            return None

    def _float(self, value: Value) -> bool:
        return value.dtype in _FLOATS

    def _image(self, value: Value) -> bool:
        return len(value.shape) == 4 and value.dtype in _FLOATS

    # -- makers -----------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        value = self.pick(self._float)
        op = self.draw(st.sampled_from([op for op in _UNARY if has_op(op)]))
        if value is not None:
            self.add(op, value)

    def binary(self) -> None:
        left = self.pick(self._float)
        if left is None:
            return
        kind = self.draw(st.sampled_from(["other", "same", "param", "equal"]))
        right: Value | None = left
        if kind == "other":
            right = self.pick(lambda value: value.dtype == left.dtype and _broadcasts(value.shape, left.shape))
        elif kind == "equal":
            right = self.pick(lambda value: value.type == left.type)
        elif kind == "param":
            keep = [self.draw(st.booleans()) for _ in left.shape]
            right = self.param([dim if k else 1 for dim, k in zip(left.shape, keep, strict=True)], left.dtype)
        pair = [left, right]
        if self.draw(st.booleans()):
            pair.reverse()
        self.add(self.draw(st.sampled_from(_BINARY)), *pair)

    def sum(self) -> None:
        first = self.pick(self._float)
        if first is not None:
            more = [self.pick(lambda value: value.type == first.type) for _ in range(self.draw(st.integers(0, 2)))]
            self.add("Sum", first, *more)

    def reshape(self) -> None:
        value = self.pick()
        if value is None:
            return
        n = value.type.num_elements
        shapes = [(n,), (1, n), (n, 1), (1, *value.shape), *((d, n // d) for d in (2, 3, 4) if n and n % d == 0)]
        self.add("Reshape", value, shape=self.draw(st.sampled_from(shapes)), allowzero=1)

    def flatten(self) -> None:
        value = self.pick()
        if value is not None:
            self.add("Flatten", value, axis=self.draw(st.integers(0, len(value.shape))))

    def transpose(self) -> None:
        value = self.pick()
        if value is not None:
            self.add("Transpose", value, perm=tuple(self.draw(st.permutations(range(len(value.shape))))))

    def concat(self) -> None:
        first = self.pick(lambda value: bool(value.shape))
        if first is None:
            return
        axis = self.draw(st.integers(0, len(first.shape) - 1))
        rest = first.shape[:axis] + first.shape[axis + 1 :]

        def fits(value: Value) -> bool:
            same_rank = len(value.shape) == len(first.shape) and value.dtype == first.dtype
            return same_rank and value.shape[:axis] + value.shape[axis + 1 :] == rest

        parts = [first, *(self.pick(fits) for _ in range(self.draw(st.integers(0, 2))))]
        if sum(part.type.num_elements for part in parts if part is not None) <= _MAX_ELEMENTS:
            self.add("Concat", *parts, axis=axis)

    def split(self) -> None:
        value = self.pick(lambda value: any(dim >= 2 for dim in value.shape))
        if value is None:
            return
        axis = self.draw(st.sampled_from([i for i, dim in enumerate(value.shape) if dim >= 2]))
        first = self.draw(st.integers(1, value.shape[axis] - 1))
        self.add("Split", value, axis=axis, split=(first, value.shape[axis] - first), outputs=2)

    def expand(self) -> None:
        value = self.pick()
        if value is None:
            return
        shape = [self.draw(self._dim) if dim == 1 else dim for dim in value.shape]
        shape = [*([self.draw(self._dim)] if self.draw(st.booleans()) else []), *shape]
        if int(np.prod(shape)) <= _MAX_ELEMENTS:
            self.add("Expand", value, shape=tuple(shape))

    def look(self) -> None:
        """A view of a value that is read once more, and two readers of the view, one later."""
        before = len(self.graph.nodes)
        makers = [self.transpose, self.transpose, self.split, self.slice, self.expand, self.reshape]
        self.draw(st.sampled_from(makers))()
        if len(self.graph.nodes) == before:
            return
        node = self.graph.nodes[-1]
        for value in (node.inputs[0], node.outputs[-1]):
            if value is not None and self._float(value) and self.draw(st.booleans()):
                self.add(self.draw(st.sampled_from(["Relu", "Neg", "Softmax"])), value)
        out = node.outputs[0]
        if out is not None and self._float(out) and len(out.shape) >= 2:
            self.add("MatMul", out, self.param((out.shape[-1], self.draw(self._dim)), out.dtype))

    def slice(self) -> None:
        value = self.pick(lambda value: any(dim >= 2 for dim in value.shape))
        if value is None:
            return
        axis = self.draw(st.sampled_from([i for i, dim in enumerate(value.shape) if dim >= 2]))
        start = self.draw(st.integers(0, value.shape[axis] - 1))
        end = self.draw(st.integers(start + 1, value.shape[axis]))
        self.add("Slice", value, starts=(start,), ends=(end,), axes=(axis,))

    def slice_assign(self) -> None:
        """A block of one value over part of another: one of its own slices, another value, or a parameter."""
        data = self.pick(lambda value: self._float(value) and any(dim >= 2 for dim in value.shape))
        if data is None:
            return
        axis = self.draw(st.sampled_from([i for i, dim in enumerate(data.shape) if dim >= 2]))
        size = self.draw(st.integers(1, data.shape[axis] - 1))
        type = data.type.with_shape([size if i == axis else dim for i, dim in enumerate(data.shape)])
        value = self.pick(lambda other: other.type == type) or self.param(type.shape, type.dtype)
        if self.draw(st.booleans()):
            value = self.add("Slice", data, starts=(0,), ends=(size,), axes=(axis,))
        start = self.draw(st.integers(0, data.shape[axis] - size))
        self.add("SliceAssign", data, value, starts=(start,), ends=(start + size,), axes=(axis,))

    def matmul(self) -> None:
        value = self.pick(lambda value: self._float(value) and len(value.shape) >= 2)
        if value is not None:
            self.add("MatMul", value, self.param((value.shape[-1], self.draw(self._dim)), value.dtype))

    def gemm(self) -> None:
        value = self.pick(lambda value: self._float(value) and len(value.shape) == 2)
        if value is None:
            return
        columns = self.draw(self._dim)
        shape = (value.shape[0], columns)
        bias = self.pick(lambda other: other.dtype == value.dtype and other.shape in (shape, (columns,)))
        weight = self.param((value.shape[1], columns), value.dtype)
        if bias is None or self.draw(st.booleans()):
            self.add("Gemm", value, weight)
        else:
            self.add("Gemm", value, weight, bias)

    def reduce(self) -> None:
        value = self.pick(lambda value: self._float(value) and bool(value.shape))
        if value is not None:
            axis = self.draw(st.integers(0, len(value.shape) - 1))
            self.add("ReduceSum", value, axes=(axis,), keepdims=int(self.draw(st.booleans())))

    def cast(self) -> None:
        value = self.pick(self._float)
        if value is not None:
            self.add("Cast", value, to=self.draw(st.sampled_from(["float32", "float64", "int32"])))

    def compare(self) -> None:
        left = self.pick(self._float)
        if left is not None:
            self.add("Less", left, self.pick(lambda value: value.type == left.type))

    def shape_of(self) -> None:
        value = self.pick()
        if value is not None:
            self.add("Shape", value)

    def batch_norm(self) -> None:
        value = self.pick(lambda value: self._float(value) and len(value.shape) >= 2)
        if value is None:
            return
        channels = (value.shape[1],)
        scale, bias, mean = (self.param(channels, value.dtype) for _ in range(3))
        name = self.graph.fresh_name("w")
        variance = self.builder.param(name, self._rng.uniform(0.5, 2, channels).astype(value.dtype))
        self.add("BatchNormalization", value, scale, bias, mean, variance)

    def max_pool(self) -> None:
        value = self.pick(self._image)
        if value is not None:
            side = self.draw(st.integers(1, 2))
            self.add("MaxPool", value, kernel_shape=(side, side), strides=(1, 1))

    def conv(self) -> None:
        value = self.pick(self._image)
        if value is not None:
            side = self.draw(st.integers(1, 2))
            out = self.draw(st.integers(1, 3))
            self.add("Conv", value, self.param((out, value.shape[1], side, side), value.dtype))

    def resize(self) -> None:
        value = self.pick(lambda value: self._float(value) and 0 < 2 * value.type.num_elements <= _MAX_ELEMENTS)
        if value is not None and value.shape:
            axis = self.draw(st.integers(0, len(value.shape) - 1))
            mode = self.draw(st.sampled_from(["nearest", "linear"]))
            size = self.draw(st.integers(1, 2 * value.shape[axis]))
            self.add("Resize", value, sizes=(*value.shape[:axis], size, *value.shape[axis + 1 :]), mode=mode)

    def dropout(self) -> None:
        value = self.pick(self._float)
        if value is not None:
            self.add("Dropout", value, outputs=self.draw(st.integers(1, 2)))

    def sgd(self) -> None:
        grad = self.pick(lambda value: self._float(value) and value.type.num_elements > 0)
        if grad is not None:
            param = self._own_param(grad)
            self._update(param, self.add("SGD", param, grad, self.param((), grad.dtype)))

    def momentum(self) -> None:
        grad = self.pick(lambda value: self._float(value) and value.type.num_elements > 0)
        if grad is None:
            return
        param, velocity = self._own_param(grad), self.param(grad.shape, grad.dtype)
        new = self.add("Momentum", param, grad, velocity, self.param((), grad.dtype), outputs=2)
        self._update(param, new)
        self._update(velocity, new)

    def increment(self) -> None:
        value = self.pick(lambda value: self._float(value) and value.producer is not None)
        if value is not None:
            self._update(value, self.add("Increment", value))

    def assign(self) -> None:
        value = self.pick(self._float)
        if value is not None:
            param = self._own_param(value)
            self._update(param, self.add("Assign", param, value))

    def _own_param(self, grad: Value) -> Value:
        """A parameter of the gradient's type, one that is read elsewhere too if there is one."""
        params = set(self.graph.params) - self.updated - {grad}
        old = self.pick(lambda value: value in params and value.type == grad.type)
        return old or self.param(grad.shape, grad.dtype)

    def _update(self, old: Value, new: Any) -> None:
        if new is not None:
            self.updated.add(old)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b))) <= _MAX_ELEMENTS
    except ValueError:
        return False
