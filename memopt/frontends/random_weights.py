"""Seeded random weights for a graph, scaled so that activations stay finite and well conditioned through deep networks.

The rule. A floating-point parameter is replaced if a node reads it

- as the weights or bias of Conv, ConvTranspose or Gemm, or as an operand of MatMul;
- as scale, bias, mean or variance of BatchNormalization, or scale or bias of Instance-, Group- or LayerNormalization;
- as the slope of PRelu;
- as one operand of Add, Sub or Mul, with more than one element, if the other comes from one of these (a bias, a scale).

Nothing else is touched: no integers, no scalars, no limits and no constants of the arithmetic between. Reading the
graph in order, mean and variance over all elements of each value are estimated by a rule of thumb for its op. Weights
are normal with mean 0 and such a deviation that their outputs have variance 1 (He's rule, with the second moment that
is there in place of an assumed one); the mean and variance of a BatchNormalization lie around those of its input. A
parameter depends on the seed, its name, its shape and these estimates alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Node, Value
from memopt.types import TensorType

__all__ = ["randomize"]

Array = NDArray[Any]

_NORMS = ("InstanceNormalization", "GroupNormalization", "LayerNormalization")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_ARITHMETIC = ("Add", "Sub", "Mul")


@dataclass(frozen=True, slots=True)
class _Spread:
    """Mean and variance of a value's elements."""

    mean: float = 0.0
    variance: float = 1.0

    @property
    def moment(self) -> float:
        return self.mean**2 + self.variance

    @property
    def deviation(self) -> float:
        return math.sqrt(self.variance)


_UNIT = _Spread()
_Draw = Callable[[np.random.Generator, TensorType, _Spread], Array]


# -- what is drawn --------------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, type: TensorType) -> Array:
    return rng.standard_normal(type.shape, np.float64 if type.dtype == "float64" else np.float32)


def _weight(fan_in: float) -> _Draw:
    def draw(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
        array = _normal(rng, type)
        array *= 1.0 / math.sqrt(max(fan_in, 1.0) * data.moment)
        return array

    return draw


def _bias(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
    return 0.1 * _normal(rng, type)


def _mean(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
    return data.mean + 0.1 * data.deviation * _normal(rng, type)


def _variance(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
    return rng.uniform(0.8, 1.25, type.shape) * data.variance


def _scale(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
    return rng.uniform(0.8, 1.2, type.shape)


def _slope(rng: np.random.Generator, type: TensorType, data: _Spread) -> Array:
    return rng.uniform(0.05, 0.3, type.shape)


def _size(attr: object) -> int:
    """The product of an integer attribute, or of a list of them; 1 where it is absent."""
    return math.prod(attr) if isinstance(attr, tuple) else attr if isinstance(attr, int) else 1


def _fan_in(node: Node, index: int) -> float:
    """How many products are summed for one output of a weighted node, whose weights are input `index`."""
    weights = node.inputs[index]
    shape = weights.shape if weights is not None else ()
    if not shape:
        return 1.0
    if node.op == "Conv":
        return math.prod(shape[1:])
    if node.op == "ConvTranspose":
        skipped = _size(node.attrs.get("strides")) * _size(node.attrs.get("group"))
        return shape[0] * math.prod(shape[2:]) / skipped
    if node.op == "Gemm":
        flipped = bool(node.attrs.get("transB" if index == 1 else "transA"))
        return shape[1] if flipped == (index == 1) else shape[0]
    return shape[-2] if index == 1 and len(shape) > 1 else shape[-1]


def _role(node: Node, index: int, affine: set[Node]) -> _Draw | None:
    """What is drawn for a parameter that is input `index` of `node`, or None if it has no role there."""
    if node.op in _WEIGHTED:
        return _weight(_fan_in(node, index)) if index < 2 else _bias
    if node.op == "BatchNormalization":
        return (None, _scale, _bias, _mean, _variance)[index]
    if node.op in _NORMS:
        return (None, _scale, _bias)[index]
    if node.op == "PRelu":
        return _slope if index == 1 else None
    value = node.inputs[index]
    if node in affine and value is not None and value.type.num_elements > 1:
        return _scale if node.op == "Mul" else _bias
    return None


def _is_affine(node: Node, affine: set[Node]) -> bool:
    """Whether `node` is a weighted or normalising node, or adds or multiplies a vector to the output of one."""
    if node.op in (*_WEIGHTED, *_NORMS, "BatchNormalization"):
        return True
    return node.op in _ARITHMETIC and any(value is not None and value.producer in affine for value in node.inputs)


# -- how mean and variance go through a node ------------------------------------------------------------------


def _rectified(x: _Spread) -> _Spread:
    """max(x, 0) of a normal x."""
    deviation = max(x.deviation, 1e-6)
    ratio = x.mean / deviation
    below = 0.5 * math.erfc(-ratio / math.sqrt(2))
    density = math.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    mean = x.mean * below + deviation * density
    moment = x.moment * below + x.mean * deviation * density
    return _Spread(mean, max(moment - mean**2, 0.0))


def _relu(node: Node, inputs: list[_Spread]) -> _Spread:
    return _rectified(inputs[0])


def _sum(node: Node, inputs: list[_Spread]) -> _Spread:
    return _Spread(sum(x.mean for x in inputs), sum(x.variance for x in inputs))


def _difference(node: Node, inputs: list[_Spread]) -> _Spread:
    return _Spread(inputs[0].mean - sum(x.mean for x in inputs[1:]), sum(x.variance for x in inputs))


def _product(node: Node, inputs: list[_Spread]) -> _Spread:
    mean = math.prod(x.mean for x in inputs)
    return _Spread(mean, math.prod(x.moment for x in inputs) - mean**2)


def _concat(node: Node, inputs: list[_Spread]) -> _Spread:
    sizes = [value.type.num_elements for value in node.inputs if value is not None]
    pairs = list(zip(sizes, inputs, strict=False))
    total = max(sum(size for size, _ in pairs), 1)
    mean = sum(size * x.mean for size, x in pairs) / total
    return _Spread(mean, max(sum(size * x.moment for size, x in pairs) / total - mean**2, 0.0))


def _max_pool(node: Node, inputs: list[_Spread]) -> _Spread:
    """Somewhat less than the largest of independent normals."""
    taps = max(_size(node.attrs.get("kernel_shape")), 1)
    return _Spread(inputs[0].mean + 0.6 * math.sqrt(2 * math.log(taps)) * inputs[0].deviation, 0.6 * inputs[0].variance)


def _average(node: Node, inputs: list[_Spread]) -> _Spread:
    return _Spread(inputs[0].mean, 0.5 * inputs[0].variance)


def _lrn(node: Node, inputs: list[_Spread]) -> _Spread:
    bias, alpha, beta = (float(str(node.attrs.get(name, 1.0))) for name in ("bias", "alpha", "beta"))
    factor = (bias + alpha * inputs[0].moment) ** -beta
    return _Spread(inputs[0].mean * factor, inputs[0].variance * factor**2)


def _sigmoid(node: Node, inputs: list[_Spread]) -> _Spread:
    return _Spread(0.5, 0.05)


def _softmax(node: Node, inputs: list[_Spread]) -> _Spread:
    return _Spread(0.0, 0.01)


_RULES: dict[str, Callable[[Node, list[_Spread]], _Spread]] = {
    "Add": _sum,
    "AveragePool": _average,
    "Clip": _relu,
    "Concat": _concat,
    "GlobalAveragePool": _average,
    "LRN": _lrn,
    "LeakyRelu": _relu,
    "MaxPool": _max_pool,
    "Mul": _product,
    "PRelu": _relu,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Sub": _difference,
    "Sum": _sum,
}


class _Spreads:
    """The estimates, value by value; parameters have none."""

    def __init__(self, graph: Graph) -> None:
        self.known: dict[Value, _Spread] = dict.fromkeys(graph.inputs, _UNIT)

    def data(self, node: Node) -> _Spread:
        """The spread of the first operand that is no parameter: what weights are multiplied with."""
        return next((self.known[v] for v in node.inputs if v is not None and v in self.known), _UNIT)

    def add(self, node: Node, affine: set[Node]) -> None:
        spread = self._estimate(node, affine)
        mean, variance = min(max(spread.mean, -1e3), 1e3), min(max(spread.variance, 1e-6), 1e6)
        self.known.update((value, _Spread(mean, variance)) for _, value in node.real_outputs)

    def _estimate(self, node: Node, affine: set[Node]) -> _Spread:
        inputs = [self.known[value] for value in node.inputs if value is not None and value in self.known]
        if node.op in _WEIGHTED and len(inputs) > 1:
            return _Spread(0.0, inputs[0].moment * inputs[1].moment * _fan_in(node, 1))
        if node.op in (*_WEIGHTED, *_NORMS, "BatchNormalization"):
            return _UNIT
        if not inputs:
            return _UNIT
        rule = None if node in affine and len(inputs) == 1 else _RULES.get(node.op)
        return inputs[0] if rule is None else rule(node, inputs)


def randomize(graph: Graph, seed: int) -> set[str]:
    """Replace the weights of `graph` by random ones (see the rule above); returns the names of those parameters."""
    spreads, affine, done = _Spreads(graph), set[Node](), set[str]()
    params = set(graph.params)
    for node in graph.nodes:
        if _is_affine(node, affine):
            affine.add(node)
        for index, value in enumerate(node.inputs):
            if value is None or value not in params or value.name in done or not value.dtype.startswith("float"):
                continue
            draw = _role(node, index, affine)
            if draw is None:
                continue
            rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(value.name.encode())]))
            drawn = draw(rng, value.type, spreads.data(node)).astype(value.dtype, copy=False)
            graph.set_param(value.name, drawn, copy=False)
            done.add(value.name)
        spreads.add(node, affine)
    return done
