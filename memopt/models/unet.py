"""U-Net (Ronneberger et al., 2015) with 16 to 128 channels; upsampling is sub-pixel convolution (Shi et al., 2016).

Its skips keep large tensors alive from the first half to the last: long and short lifetimes side by side.
"""

from __future__ import annotations

from memopt.errors import OptionError
from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["unet"]

_WIDTHS = (16, 32, 64, 128)


def unet(options: ModelOptions) -> Graph:
    """Three levels down and up, with skips; image 128 (multiple of 8)."""
    size = options.image or 128
    if size % 8 or size < 8:
        raise OptionError(f"unet halves its image three times: image={size} is not a multiple of 8")
    net = Net("unet", options)
    x = net.input("x", (options.batch, 3, size, size))
    skips: list[Value] = []
    for level, width in enumerate(_WIDTHS):
        if level:
            x = net.max_pool(x, f"down{level}.pool", 2, 2)
        x = _double(net, x, f"down{level}", width)
        skips.append(x)
    skips.pop()
    for level in range(len(skips) - 1, -1, -1):
        x = _upsample(net, x, f"up{level}.up", _WIDTHS[level])
        x = net.op("Concat", skips[level], x, name=f"up{level}.concat", axis=1)
        x = _double(net, x, f"up{level}", _WIDTHS[level])
    return net.finish(net.conv_layer(x, "mask", options.classes or 2, bias=True))


def _double(net: Net, x: Value, name: str, width: int) -> Value:
    for index in (1, 2):
        x = net.batch_norm(net.conv_layer(x, f"{name}.conv{index}", width, (3, 1)), f"{name}.bn{index}")
        x = net.op("Relu", x, name=f"{name}.relu{index}")
    return x


def _upsample(net: Net, x: Value, name: str, width: int) -> Value:
    """Twice the height and width: a 1x1 convolution to 4 * width channels, then depth to space."""
    x = net.conv_layer(x, f"{name}.conv", 4 * width)
    result: Value = net.op("DepthToSpace", x, name=f"{name}.shuffle", blocksize=2, mode="CRD")
    return result
