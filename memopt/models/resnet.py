"""ResNet-18 and ResNet-50 (He et al., 2015), with the stride in the 3x3 convolution."""

from __future__ import annotations

from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["resnet18", "resnet50"]


def resnet18(options: ModelOptions) -> Graph:
    """Eight blocks of two convolutions; image 224."""
    return _resnet("resnet18", (2, 2, 2, 2), options, bottleneck=False)


def resnet50(options: ModelOptions) -> Graph:
    """Sixteen bottleneck blocks, 25.6 million parameters; image 224."""
    return _resnet("resnet50", (3, 4, 6, 3), options, bottleneck=True)


def _resnet(name: str, depths: tuple[int, ...], options: ModelOptions, *, bottleneck: bool) -> Graph:
    net = Net(name, options)
    size = options.image or 224
    x = net.input("x", (options.batch, 3, size, size))
    x = _normalized(net, x, "", 1, 64, (7, 2))
    x = net.max_pool(net.op("Relu", x, name="relu"), "maxpool", 3, 2, 1)
    block = _bottleneck if bottleneck else _basic
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            x = block(net, x, f"layer{stage + 1}.{index}.", 64 << stage, stride)
    return net.finish(net.classifier(x, options.classes or 1000))


def _normalized(net: Net, x: Value, prefix: str, index: int, channels: int, window: tuple[int, int]) -> Value:
    x = net.conv_layer(x, f"{prefix}conv{index}", channels, window)
    return net.batch_norm(x, f"{prefix}bn{index}")


def _bottleneck(net: Net, x: Value, prefix: str, width: int, stride: int) -> Value:
    y = net.op("Relu", _normalized(net, x, prefix, 1, width, (1, 1)), name=f"{prefix}relu1")
    y = net.op("Relu", _normalized(net, y, prefix, 2, width, (3, stride)), name=f"{prefix}relu2")
    y = net.conv_layer(y, f"{prefix}conv3", 4 * width)
    return _joined(net, x, net.batch_norm(y, f"{prefix}bn3", 0.5), prefix, stride)


def _basic(net: Net, x: Value, prefix: str, width: int, stride: int) -> Value:
    y = net.op("Relu", _normalized(net, x, prefix, 1, width, (3, stride)), name=f"{prefix}relu1")
    y = net.conv_layer(y, f"{prefix}conv2", width, (3, 1))
    return _joined(net, x, net.batch_norm(y, f"{prefix}bn2", 0.5), prefix, stride)


def _joined(net: Net, x: Value, y: Value, prefix: str, stride: int) -> Value:
    """Relu of the branch plus the shortcut, which is projected where shapes differ."""
    if x.shape != y.shape:
        x = net.conv_layer(x, f"{prefix}downsample.conv", y.shape[1], (1, stride))
        x = net.batch_norm(x, f"{prefix}downsample.bn", 0.7)
    total = net.op("Add", y, x, name=f"{prefix}add")
    result: Value = net.op("Relu", total, name=f"{prefix}relu")
    return result
