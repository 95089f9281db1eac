"""A multilayer perceptron."""

from __future__ import annotations

from memopt.ir import Graph
from memopt.models.net import ModelOptions, Net

__all__ = ["mlp"]


def mlp(options: ModelOptions) -> Graph:
    """Three hidden layers (or any number) of 256, on 784 features."""
    net = Net("mlp", options)
    x = net.input("x", (options.batch, 784))
    for layer in range(1, (options.layers or 3) + 1):
        x = net.op("Relu", net.linear(x, f"fc{layer}", 256), name=f"relu{layer}")
    return net.finish(net.linear(x, "logits", options.classes or 10, 1.0))
