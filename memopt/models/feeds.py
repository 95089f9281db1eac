"""Seeded random feeds, and parameters, that fit a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Value

__all__ = ["fill_params", "random_feeds"]


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """feed name -> an array of its type: normal numbers; integers that fit the axes they index, else 0 to 9."""
    random = np.random.default_rng(seed)
    return {value.name: _random_array(random, value) for value in graph.inputs}


def _random_array(random: np.random.Generator, value: Value) -> NDArray[Any]:
    dtype = np.dtype(value.dtype)
    if dtype.kind == "f":
        return random.standard_normal(value.shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, value.shape).astype(dtype)
    return random.integers(0, _index_limit(value), value.shape).astype(dtype)


def _index_limit(value: Value) -> int:
    """One more than the largest integer that every reader can take as an index or as a label."""
    return min(_lengths(value), default=10)


def _lengths(value: Value) -> list[int]:
    """The lengths of the axes that `value` indexes, by itself or through a view."""
    lengths = []
    for node, index in value.uses:
        data = node.inputs[0]
        if node.op in ("Gather", "GatherElements", "GatherND") and index == 1 and data is not None:
            axis = node.attrs.get("axis", 0)
            lengths.append(data.shape[axis if isinstance(axis, int) else 0])
        elif node.op == "SoftmaxCrossEntropyLoss" and index == 1 and data is not None:
            lengths.append(data.shape[1])
        elif index == 0 and node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
            lengths += [length for _, result in node.real_outputs for length in _lengths(result)]
    return lengths


def fill_params(graph: Graph, seed: int = 0) -> None:
    """Give every parameter that has no data seeded random numbers: weights scaled by their fan-in, vectors near one."""
    random = np.random.default_rng(seed)
    for value in graph.params:
        if graph.param_data(value) is None:
            graph.set_param(value.name, _random_param(random, value), copy=False)


def _random_param(random: np.random.Generator, value: Value) -> NDArray[Any]:
    dtype = np.dtype(value.dtype)
    if dtype.kind != "f":
        return np.zeros(value.shape, dtype)
    if len(value.shape) < 2:
        return random.uniform(0.5, 1.5, value.shape).astype(dtype)
    fan_in = max(value.type.num_elements // max(max(value.shape[0], value.shape[-1]), 1), 1)
    data: NDArray[Any] = random.standard_normal(value.shape) * np.sqrt(2 / fan_in)
    return data.astype(dtype)
