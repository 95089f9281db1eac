"""`training_step`: from a forward graph and its loss to a graph that trains its parameters in place.

Holds true: 1. The given graph is not changed.   2. Each trained parameter is updated once, by one node, and so is its
state.   3. An update stands right after the last node that reads the old parameter (or a view of it) or makes its
gradient: as early as it is legal, so that gradients die early.   4. What the forward graph updates itself (running
statistics) is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from memopt.autodiff import grad
from memopt.errors import GradientError, OptionError
from memopt.ir import Graph, Node, Value, verify
from memopt.types import TensorType

__all__ = ["SGD", "Adam", "AdamW", "Momentum", "Optimizer", "trainable_params", "training_step"]


@dataclass(frozen=True, slots=True)
class SGD:
    """Plain gradient descent: p - lr g."""

    lr: float = 0.01


@dataclass(frozen=True, slots=True)
class Momentum:
    """Gradient descent with momentum (PyTorch's SGD with `momentum=mu`); state: a velocity for each parameter."""

    lr: float = 0.01
    mu: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma & Ba, 2015), weight decay added to the gradient; state: two moments and a step a parameter."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019)."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01


Optimizer = SGD | Momentum | Adam | AdamW

#: op -> its state for each parameter, in the order of its inputs after param and grad (and of its outputs after param).
_STATE: Mapping[str, tuple[str, ...]] = {
    "SGD": (),
    "Momentum": ("velocity",),
    "Adam": ("m", "v", "step"),
    "AdamW": ("m", "v", "step"),
}
#: Fields whose attribute has another name.
_ATTRS = {"nesterov": "use_nesterov"}


def trainable_params(graph: Graph, loss: Value | str) -> list[Value]:
    """The parameters that `training_step` trains by default, in the order of `graph.params`.

    Those of float dtypes that the loss reads, but for running statistics and other state (a parameter that stands where
    its op updates a variable), for single numbers of shape [] (a rate, a factor), and for those at which gradients stop
    (`GraphBuilder.param(requires_grad=False)`, `stop_gradient`).
    """
    target = graph.value(loss) if isinstance(loss, str) else loss
    needed = _ancestors(graph, target)
    return [
        value
        for value in graph.params
        if value in needed and value.dtype.startswith("float") and value.shape and not _is_state(value)
        if value.name not in graph.inplace.stopped
    ]


def training_step(
    graph: Graph,
    loss: Value | str,
    optimizer: Optimizer,
    *,
    params: Iterable[Value | str] | None = None,
    freeze: Iterable[Value | str] = (),
) -> Graph:
    """One step of training: a copy of `graph` that also computes gradients of `loss` and updates parameters in place.

    loss     a value of `graph`, or its name, of one element      optimizer   `SGD`, `Momentum`, `Adam` or `AdamW`
    params   what to train; default: `trainable_params`           freeze      parameters to leave out (a mask, a table)

    The rate is the parameter `lr`; a parameter p's state is `p.velocity`, or `p.m`, `p.v` and `p.step`, all zeros at
    first; its new value is `p.new`. The outputs are those of `graph`, and the loss. Raises `OptionError` and
    `GradientError`, see `memopt.grad`.
    """
    if not isinstance(optimizer, SGD | Momentum | Adam | AdamW):
        raise OptionError(f"optimizer {optimizer!r} is not one of SGD, Momentum, Adam, AdamW")
    step = graph.copy()
    target = step.value(loss if isinstance(loss, str) else loss.name)
    chosen = _chosen(step, target, params, freeze)
    _check_updatable(step, chosen)
    grads = grad(step, target, chosen)
    step.set_outputs([*step.outputs, target])
    rate = _add_rate(step, chosen, optimizer.lr)
    num_nodes = len(step.nodes)
    for value, slope in zip(chosen, grads, strict=True):
        _add_update(step, (value, slope, rate), optimizer)
    _place(step, num_nodes)
    verify(step)
    return step


# -- what is trained --------------------------------------------------------------------------------------------------


def _ancestors(graph: Graph, target: Value) -> set[Value]:
    """Every value whose data `target` is computed from, and itself."""
    found = {target}
    for node in reversed(graph.nodes):
        if any(value in found for _, value in node.real_outputs):
            found.update(value for _, value in node.data_inputs)
    return found


def _is_state(value: Value) -> bool:
    """Whether `value` stands where an op updates a variable."""
    return any(use.index in use.node.spec.updates.values() for use in value.uses)


def _chosen(
    graph: Graph, target: Value, params: Iterable[Value | str] | None, freeze: Iterable[Value | str]
) -> list[Value]:
    frozen = {value.name for value in _named(graph, freeze, "freeze")}
    base = trainable_params(graph, target) if params is None else _named(graph, params, "params")
    chosen = [value for value in dict.fromkeys(base) if value.name not in frozen]
    if not chosen:
        raise OptionError(f"there is nothing to train: no float parameter of graph {graph.name!r} is left")
    return chosen


def _named(graph: Graph, values: Iterable[Value | str], what: str) -> list[Value]:
    found = [graph.value(value if isinstance(value, str) else value.name) for value in values]
    for value in found:
        if value not in graph.params:
            raise OptionError(f"{what}: %{value.name} is not a parameter of graph {graph.name!r}")
    return found


def _check_updatable(graph: Graph, params: Sequence[Value]) -> None:
    for value in params:
        if _is_state(value):
            raise GradientError(f"%{value.name} is state that the graph updates itself; take it out of params")
        if value in graph.outputs:
            raise GradientError(f"%{value.name} is an output and would be overwritten; fetch a copy of it, by Identity")


# -- the updates ------------------------------------------------------------------------------------------------------


def _add_rate(graph: Graph, params: Sequence[Value], lr: float) -> Value:
    """The rate: one number, of float64 if a parameter is."""
    dtype = "float64" if any(value.dtype == "float64" for value in params) else "float32"
    return graph.add_param(graph.fresh_name("lr"), TensorType((), dtype), np.asarray(lr, dtype))


def _add_update(graph: Graph, operands: tuple[Value, Value, Value], optimizer: Optimizer) -> Node:
    """Append the update of a parameter, given with its gradient and the rate."""
    param, slope, rate = operands
    op = type(optimizer).__name__
    attrs = {_ATTRS.get(name, name): value for name, value in asdict(optimizer).items() if name != "lr"}
    state = []
    for name in _STATE[op]:
        type_ = TensorType((), "int64") if name == "step" else param.type
        fresh = graph.fresh_name(f"{param.name}.{name}")
        state.append(graph.add_param(fresh, type_, np.zeros(type_.shape, type_.dtype)))
    names = [graph.fresh_value_name(f"{value.name}.new") for value in (param, *state)]
    name = graph.fresh_name(f"{param.name}.update")
    return graph.add_node(op, [param, slope, *state, rate], names, attrs, name=name)


def _place(graph: Graph, first: int) -> None:
    """Move each update (the nodes from number `first` on) to right after the last node that it has to wait for."""
    steps = graph.steps()
    after: dict[int, list[Node]] = {}
    for node in graph.nodes[first:]:
        param, slope = node.inputs[0], node.inputs[1]
        assert param is not None
        assert slope is not None
        waits = [steps[reader] for reader in _readers(param) if reader is not node]
        if slope.producer is not None:
            waits.append(steps[slope.producer])
        after.setdefault(max(waits, default=-1), []).append(node)
    order = list(after.get(-1, ()))
    for position, node in enumerate(graph.nodes[:first]):
        order += [node, *after.get(position, ())]
    graph.reorder(order)


def _readers(value: Value) -> list[Node]:
    """The nodes that read the bytes of `value`, by itself or through a view."""
    found: list[Node] = []
    pending = [value]
    while pending:
        for use in pending.pop().data_uses:
            found.append(use.node)
            for index, result in use.node.real_outputs:
                view = use.node.spec.view_of(index)
                if view is not None and view.input == use.index:
                    pending.append(result)
    return found
