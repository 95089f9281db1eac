"""MobileNetV2 (Sandler et al., 2018): inverted residuals with depthwise convolutions; Relu in place of Relu6."""

from __future__ import annotations

from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["mobilenetv2"]

# expansion, channels, repeats, stride of the first
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenetv2(options: ModelOptions) -> Graph:
    """Seventeen inverted residuals, depthwise; image 224."""
    net = Net("mobilenetv2", options)
    size = options.image or 224
    x = net.input("x", (options.batch, 3, size, size))
    x = _unit(net, x, "stem", 32, (3, 2))
    for stage, (expansion, channels, repeats, stride) in enumerate(_STAGES, start=1):
        for index in range(repeats):
            x = _inverted_residual(net, x, f"block{stage}.{index}", expansion, (channels, 1 if index else stride))
    x = _unit(net, x, "head", 1280)
    return net.finish(net.classifier(x, options.classes or 1000))


def _unit(net: Net, x: Value, name: str, channels: int, window: tuple[int, int] = (1, 1), groups: int = 1) -> Value:
    x = net.conv_layer(x, f"{name}.conv", channels, window, groups=groups)
    x = net.batch_norm(x, f"{name}.bn")
    result: Value = net.op("Relu", x, name=f"{name}.relu")
    return result


def _inverted_residual(net: Net, x: Value, name: str, expansion: int, target: tuple[int, int]) -> Value:
    channels, stride = target
    y, width = x, x.shape[1] * expansion
    if expansion > 1:
        y = _unit(net, y, f"{name}.expand", width)
    y = _unit(net, y, f"{name}.depthwise", width, (3, stride), groups=width)
    y = net.batch_norm(net.conv_layer(y, f"{name}.project.conv", channels), f"{name}.project.bn", 0.5)
    if y.shape != x.shape:
        return y
    result: Value = net.op("Add", x, y, name=f"{name}.add")
    return result
