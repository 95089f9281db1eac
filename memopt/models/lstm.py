"""An unrolled LSTM (Hochreiter & Schmidhuber, 1997): nodes for each time step, which all read the same weights."""

from __future__ import annotations

from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["lstm"]

_FEATURES, _HIDDEN = 64, 128


def lstm(options: ModelOptions) -> Graph:
    """One layer of 128 over 64 features, unrolled; sequence 16."""
    net = Net("lstm", options)
    steps = options.sequence or 16
    x = net.input("x", (steps, options.batch, _FEATURES))
    weights = (
        net.weight("w_input", (_FEATURES, 4 * _HIDDEN), _FEATURES, 1.0),
        net.weight("w_hidden", (_HIDDEN, 4 * _HIDDEN), _HIDDEN, 1.0),
        net.uniform("bias", (4 * _HIDDEN,), -0.2, 0.2),
    )
    hidden = net.input("h0", (options.batch, _HIDDEN))
    cell = net.input("c0", (options.batch, _HIDDEN))
    for step in range(steps):
        now = net.op("Slice", x, name=f"t{step}.slice", starts=(step,), ends=(step + 1,), axes=(0,))
        now = net.op("Squeeze", now, name=f"t{step}.x", axes=(0,))
        hidden, cell = _cell(net, f"t{step}", now, (hidden, cell), weights)
    return net.finish(net.linear(hidden, "logits", options.classes or 10, 1.0), cell)


def _cell(
    net: Net, name: str, x: Value, state: tuple[Value, Value], weights: tuple[Value, Value, Value]
) -> tuple[Value, Value]:
    """One step: the next (hidden, cell)."""
    hidden, cell = state
    w_input, w_hidden, bias = weights
    gates = net.op("Gemm", hidden, w_hidden, net.op("Gemm", x, w_input, bias, name=f"{name}.gx"), name=f"{name}.gates")
    names = ("input", "forget", "output", "update")
    parts = net.op("Split", gates, outputs=[f"{name}.{gate}" for gate in names], name=f"{name}.split", axis=1)
    opened = [net.op("Sigmoid", part, name=f"{part.name}.gate") for part in parts[:3]]
    update = net.op("Tanh", parts[3], name=f"{name}.update.tanh")
    kept = net.op("Mul", opened[1], cell, name=f"{name}.kept")
    cell = net.op("Add", kept, net.op("Mul", opened[0], update, name=f"{name}.added"), name=f"{name}.cell")
    hidden = net.op("Mul", opened[2], net.op("Tanh", cell, name=f"{name}.cell.tanh"), name=f"{name}.hidden")
    return hidden, cell
