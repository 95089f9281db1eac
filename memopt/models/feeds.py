"""Seeded random feeds that fit a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Value

__all__ = ["random_feeds"]


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """feed name -> an array of its type: normal numbers; integers from 0 up to the shortest axis that they index, else up to 9."""
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
    """One more than the largest integer that every reader can take as an index."""
    limit = 10
    lengths = []
    for node, index in value.uses:
        if node.op.startswith("Gather") and index == 1 and node.inputs[0] is not None:
            axis = node.attrs.get("axis", 0)
            lengths.append(node.inputs[0].shape[axis if isinstance(axis, int) else 0])
    return min(lengths, default=limit)
