"""Seeded random weights for a graph, scaled so that activations stay finite and well conditioned through deep networks.

The rule. A floating-point parameter is replaced if a node reads it

- as the weights or bias of Conv, ConvTranspose or Gemm, or as an operand of MatMul;
- as scale, bias, mean or variance of BatchNormalization, or scale or bias of Instance-, Group- or LayerNormalization;
- as the slope of PRelu;
- as one operand of Add, Sub or Mul, with more than one element, if the other operand comes from one of these (a bias, a scale).

Nothing else is touched: no integers, no scalars, no limits and no constants of the arithmetic between. Reading the graph in order, the
second moment E[x²] of each value is estimated by a rule of thumb for its op; weights are normal with mean 0 and such a deviation that
their output has second moment 1 (He's rule, with the moment that is there in place of an assumed one), and a BatchNormalization's
variance lies around the moment of its input. A parameter depends on the seed, its name, its shape and these estimates alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Node, Value
from memopt.types import TensorType

__all__ = ["randomize"]

Array = NDArray[Any]
_Draw = Callable[[np.random.Generator, TensorType, float], Array]

_NORMS = ("InstanceNormalization", "GroupNormalization", "LayerNormalization")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _normal(deviation: float) -> _Draw:
    def draw(rng: np.random.Generator, type: TensorType, moment: float) -> Array:
        array = rng.standard_normal(type.shape, np.float64 if type.dtype == "float64" else np.float32)
        array *= deviation / math.sqrt(moment)
        return array

    return draw


def _uniform(low: float, high: float, power: int = 0) -> _Draw:
    """Uniform in [low, high), times the moment to the given power."""

    def draw(rng: np.random.Generator, type: TensorType, moment: float) -> Array:
        return rng.uniform(low, high, type.shape) * moment**power

    return draw


_BIAS, _SCALE = _normal(0.1), _uniform(0.8, 1.2)


def _small(rng: np.random.Generator, type: TensorType, moment: float) -> Array:
    """A bias: a tenth of a unit normal, whatever the moment."""
    return _BIAS(rng, type, 1.0)


def _weight(fan_in: float) -> _Draw:
    return _normal(1.0 / math.sqrt(max(fan_in, 1.0)))


def _fan_in(node: Node, index: int) -> float:
    """How many products are summed for one output of a weighted node, whose weights are input `index`."""
    shape = node.inputs[index].shape  # type: ignore[union-attr]  # the input is the weight that is asked for
    if node.op == "Conv":
        return math.prod(shape[1:])
    if node.op == "ConvTranspose":
        strides = node.attrs.get("strides")
        skipped = math.prod(strides) if isinstance(strides, tuple) else 1  # type: ignore[arg-type]  # ints
        return shape[0] * math.prod(shape[2:]) / (int(node.attrs.get("group", 1)) * skipped)  # type: ignore[arg-type]
    if node.op == "Gemm":
        flipped = bool(node.attrs.get("transB" if index == 1 else "transA"))
        return shape[1] if flipped == (index == 1) else shape[0]
    return shape[-2] if index == 1 and len(shape) > 1 else shape[-1] if shape else 1


def _role(node: Node, index: int, affine: set[Node]) -> _Draw | None:
    """What is drawn for a parameter that is input `index` of `node`, or None if it has no role there."""
    if node.op in _WEIGHTED:
        return _weight(_fan_in(node, index)) if index < 2 else _small
    if node.op == "BatchNormalization":
        return (None, _SCALE, _small, _small, _uniform(0.8, 1.25, 1))[index]
    if node.op in _NORMS:
        return (None, _SCALE, _small)[index]
    if node.op == "PRelu" and index == 1:
        return _uniform(0.05, 0.3)
    if node.op in ("Add", "Sub", "Mul") and node in affine:
        return _SCALE if node.op == "Mul" else _small
    return None


def _is_affine(node: Node, affine: set[Node]) -> bool:
    """Whether `node` is a weighted or normalising node, or adds or multiplies a vector to the output of one."""
    if node.op in (*_WEIGHTED, *_NORMS, "BatchNormalization"):
        return True
    if node.op not in ("Add", "Sub", "Mul"):
        return False
    return any(value is not None and value.producer in affine for value in node.inputs)


class _Moments:
    """Estimates of E[x²], value by value."""

    def __init__(self) -> None:
        self.known: dict[Value, float] = {}

    def of(self, value: Value | None) -> float:
        return self.known.get(value, 1.0) if value is not None else 1.0

    def data(self, node: Node) -> float:
        """The moment of what a weighted node multiplies its weights with: its first operand that is no parameter."""
        return next((self.of(v) for v in node.inputs if v is not None and v in self.known), 1.0)

    def add(self, node: Node, affine: set[Node]) -> None:
        moment = min(max(self._estimate(node, affine), 1e-6), 1e6)
        for _, value in node.real_outputs:
            self.known[value] = moment

    def _estimate(self, node: Node, affine: set[Node]) -> float:
        moments = [self.of(value) for value in node.inputs if value is not None and value in self.known]
        first = moments[0] if moments else 1.0
        if node.op in _WEIGHTED and len(moments) > 1:
            return math.prod(moments[:2]) * _fan_in(node, 1)
        if node.op in (*_WEIGHTED, *_NORMS, "BatchNormalization"):
            return 1.0
        if node in affine and len(moments) == 1:
            return first
        rule = _RULES.get(node.op)
        return rule(node, moments) if rule is not None and moments else first


def _concat(node: Node, moments: list[float]) -> float:
    sizes = [value.type.num_elements for value in node.inputs if value is not None]
    total = sum(size * moment for size, moment in zip(sizes, moments, strict=False))
    return total / max(sum(sizes), 1)


def _lrn(node: Node, moments: list[float]) -> float:
    bias, alpha, beta = (float(node.attrs.get(name, 1.0)) for name in ("bias", "alpha", "beta"))  # type: ignore[arg-type]
    return moments[0] / (bias + alpha * moments[0]) ** (2 * beta)


def _mean(node: Node, moments: list[float]) -> float:
    return sum(moments) / len(moments)


_RULES: dict[str, Callable[[Node, list[float]], float]] = {
    "Add": lambda node, moments: sum(moments),
    "Sub": lambda node, moments: sum(moments),
    "Sum": lambda node, moments: sum(moments),
    "Mul": lambda node, moments: math.prod(moments),
    "Concat": _concat,
    "Mean": _mean,
    "Relu": lambda node, moments: moments[0] / 2,
    "LeakyRelu": lambda node, moments: moments[0] / 2,
    "PRelu": lambda node, moments: moments[0] / 2,
    "Clip": lambda node, moments: moments[0] / 2,
    "Sigmoid": lambda node, moments: 0.3,
    "Tanh": lambda node, moments: min(moments[0], 0.5),
    "Softmax": lambda node, moments: 1e-2,
    "MaxPool": lambda node, moments: moments[0] * 2,
    "AveragePool": lambda node, moments: moments[0] * 0.7,
    "GlobalAveragePool": lambda node, moments: moments[0] * 0.7,
    "LRN": _lrn,
}


def randomize(graph: Graph, seed: int) -> set[str]:
    """Replace the weights of `graph` by random ones (see the rule above); returns the names of the parameters that were."""
    moments, affine, done = _Moments(), set[Node](), set[str]()
    params = set(graph.params)
    moments.known.update((value, 1.0) for value in graph.inputs)
    for node in graph.nodes:
        if _is_affine(node, affine):
            affine.add(node)
        for index, value in enumerate(node.inputs):
            if value is None or value not in params or value.name in done or not value.dtype.startswith("float"):
                continue
            draw = _role(node, index, affine)
            if draw is None or (node.op in ("Add", "Sub", "Mul") and value.type.num_elements == 1):
                continue
            rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(value.name.encode())]))
            graph.set_param(value.name, draw(rng, value.type, moments.data(node)).astype(value.dtype, copy=False))
            done.add(value.name)
        moments.add(node, affine)
    return done
