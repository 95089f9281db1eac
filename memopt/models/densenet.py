"""DenseNet-121 (Huang et al., 2016): every layer reads all before it, through concatenation."""

from __future__ import annotations

from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["densenet121"]

_GROWTH = 32


def densenet121(options: ModelOptions) -> Graph:
    """Dense blocks of 6, 12, 24 and 16 layers, growth 32; image 224."""
    net = Net("densenet121", options)
    size = options.image or 224
    x = net.input("x", (options.batch, 3, size, size))
    x = _activated(net, net.conv_layer(x, "stem.conv", 64, (7, 2)), "stem")
    x = net.max_pool(x, "stem.pool", 3, 2, 1)
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        for layer in range(layers):
            x = _dense_layer(net, x, f"block{block}.{layer}")
        if block < 4:
            x = _transition(net, x, f"transition{block}")
    return net.finish(net.classifier(_activated(net, x, "head"), options.classes or 1000))


def _activated(net: Net, x: Value, name: str) -> Value:
    result: Value = net.op("Relu", net.batch_norm(x, f"{name}.bn"), name=f"{name}.relu")
    return result


def _dense_layer(net: Net, x: Value, name: str) -> Value:
    y = net.conv_layer(_activated(net, x, f"{name}.1"), f"{name}.conv1", 4 * _GROWTH)
    y = net.conv_layer(_activated(net, y, f"{name}.2"), f"{name}.conv2", _GROWTH, (3, 1))
    result: Value = net.op("Concat", x, y, name=f"{name}.concat", axis=1)
    return result


def _transition(net: Net, x: Value, name: str) -> Value:
    y = net.conv_layer(_activated(net, x, name), f"{name}.conv", x.shape[1] // 2)
    result: Value = net.op("AveragePool", y, name=f"{name}.pool", kernel_shape=(2, 2), strides=(2, 2))
    return result
