"""The oracle: a NumPy interpreter of the graph that knows no storage, no plan and no device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import FeedError, VerifyError
from memopt.ir import Graph, Node, Value

__all__ = ["check_feeds", "initial_state", "is_dtype", "run_reference"]

Array = NDArray[Any]


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Array]:
    """`feeds` as arrays of exactly the graph's types, or one `FeedError` that names every fault."""
    faults: list[str] = []
    arrays: dict[str, Array] = {}
    for value in graph.inputs:
        if value.name not in feeds:
            faults.append(f"{value.name!r} is missing: it is {value.type}")
            continue
        array = np.asarray(feeds[value.name])
        if array.shape != value.shape or not is_dtype(array, value.dtype):
            faults.append(f"{value.name!r} is {value.type}, not {array.dtype.name}{list(array.shape)}")
        arrays[value.name] = array
    known = {value.name for value in graph.inputs}
    for name in feeds:
        if name not in known:
            faults.append(f"{name!r} is not a feed; the feeds are {', '.join(sorted(known)) or 'none'}")
    if faults:
        raise FeedError(f"feeds do not fit graph {graph.name!r}: " + "; ".join(faults))
    return arrays


def is_dtype(array: Array, dtype: str) -> bool:
    """Whether the array's items are of `dtype`, in any byte order. (NumPy takes long to name a dtype.)"""
    return array.dtype == dtype or array.dtype.name == dtype


def initial_state(graph: Graph) -> dict[str, Array]:
    """parameter name -> its data (not copied). Raises `FeedError` naming every parameter that has none."""
    state: dict[str, Array] = {}
    missing: list[str] = []
    for value in graph.params:
        data = graph.param_data(value)
        if data is None:
            missing.append(f"{value.name} ({value.type})")
        else:
            state[value.name] = data
    if missing:
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        raise FeedError(
            f"{len(missing)} parameters of graph {graph.name!r} have no data: {shown}; "
            "give it with graph.set_param(name, array), or load with weights='random'"
        )
    return state


def run_reference(
    graph: Graph,
    feeds: Mapping[str, Any],
    state: Mapping[str, Array] | None = None,
    *,
    fetch: Iterable[str] = (),
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Evaluate `graph` node by node. Returns the outputs (and any values named in `fetch`), and the parameters after
    the step.

    `state` holds the parameters before it (default: the graph's data). Nothing given is written to. A value is dropped
    after its last use, so that large models fit.
    """
    arrays: dict[Value, Array] = {}
    given = check_feeds(graph, feeds)
    before = dict(initial_state(graph) if state is None else state)
    for value in graph.inputs:
        arrays[value] = given[value.name]
    for value in graph.params:
        arrays[value] = before[value.name]
    wanted = dict.fromkeys((*graph.outputs, *(graph.value(name) for name in fetch)))
    kept = set(wanted) | set(_last_values(graph).values())
    pending = {value: len(value.uses) for value in graph.values}
    for node in graph.nodes:
        made = evaluate(node, [None if v is None else arrays[v] for v in node.inputs])
        arrays.update(
            {v: array for v, array in zip(node.outputs, made, strict=True) if v is not None and array is not None}
        )
        for source in node.inputs:
            if source is not None:
                pending[source] -= 1
                if pending[source] == 0 and source not in kept:
                    del arrays[source]
    outputs = {value.name: np.array(arrays[value]) for value in wanted}
    after = {param.name: np.array(arrays[last]) for param, last in _last_values(graph).items()}
    return outputs, {**before, **after}


def evaluate(node: Node, inputs: list[Array | None]) -> list[Array | None]:
    """One node by its op's reference; checks that it makes what its type inference says."""
    types = node.spec.infer(node.input_types, node.attrs, len(node.outputs))
    with np.errstate(all="ignore"):  # NaN and infinity go on, as in a kernel
        results = node.spec.reference(inputs, node.attrs, types)
    out: list[Array | None] = []
    for index, value in enumerate(node.outputs):
        if value is None:
            out.append(None)
            continue
        array = np.asarray(results[index])
        if array.shape != value.shape or array.dtype.name != value.dtype:
            raise VerifyError(
                f"the reference of {node.op} (node {node.name}) made {array.dtype.name}{list(array.shape)} "
                f"for %{value.name}: {value.type}"
            )
        out.append(array)
    return out


def _last_values(graph: Graph) -> dict[Value, Value]:
    """updated parameter -> the last value in its chain of updates (by the ops' definition, not by storage)."""
    owner: dict[Value, Value] = {value: value for value in graph.params}
    last: dict[Value, Value] = {}
    for node in graph.nodes:
        for output, source in node.spec.updates.items():
            old = node.inputs[source] if source < len(node.inputs) else None
            new = node.outputs[output] if output < len(node.outputs) else None
            if old in owner and new is not None and old is not None:
                owner[new] = owner[old]
                last[owner[old]] = new
    return last
