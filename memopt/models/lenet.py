"""LeNet-5 (LeCun et al., 1998), with Relu and max pooling."""

from __future__ import annotations

from memopt.errors import OptionError
from memopt.ir import Graph
from memopt.models.net import ModelOptions, Net

__all__ = ["lenet"]


def lenet(options: ModelOptions) -> Graph:
    """Two convolutions, three linear layers; a grey 28 x 28 image."""
    size = options.image or 28
    if size < 4:
        raise OptionError(f"lenet halves its image twice: image={size} is less than 4")
    net = Net("lenet", options)
    x = net.input("x", (options.batch, 1, size, size))
    for layer, channels in enumerate((6, 16), start=1):
        x = net.op("Relu", net.conv_layer(x, f"conv{layer}", channels, (5, 1), bias=True), name=f"relu{layer}")
        x = net.max_pool(x, f"pool{layer}", 2, 2)
    x = net.op("Flatten", x, name="flatten")
    for layer, features in enumerate((120, 84), start=3):
        x = net.op("Relu", net.linear(x, f"fc{layer}", features), name=f"relu{layer}")
    return net.finish(net.linear(x, "logits", options.classes or 10, 1.0))
