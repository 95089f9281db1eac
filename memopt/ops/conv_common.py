"""What convolution and its gradients share: how im2col is cut, and the window as kernels see it.

Holds true: the blocks of an im2col matrix fit in the scratch limit, or hold one position of one channel where not even
that would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import WINDOW_ATTRS, Window, image_sizes, make_window
from memopt.ops.spec import Attr, Attrs

__all__ = ["CONV_ATTRS", "Blocks", "bias_gradient", "cut_blocks", "geometry", "groups", "is_direct", "window_over"]

CONV_ATTRS = {**WINDOW_ATTRS, "group": Attr("int", 1), "kernel_shape": Attr("ints")}

#: Output channels in a group below which a matrix product has too few rows to pay for im2col.
_FEW_CHANNELS = 4


def window_over(sizes: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> Window:
    """The window of a kernel over an image; `kernel_shape`, where given, must say the same."""
    if attrs.get("kernel_shape", tuple(kernel)) != tuple(kernel):
        raise TypeInferenceError(f"kernel_shape = {attrs['kernel_shape']} but the weights' is {tuple(kernel)}")
    return make_window(sizes, kernel, attrs)


def groups(attrs: Attrs) -> int:
    """The attribute `group`."""
    return cast(int, attrs["group"])


@dataclass(frozen=True, slots=True)
class Blocks:
    """How im2col is cut: `channels` input channels and `columns` output positions at a time; `elements` of scratch."""

    channels: int
    columns: int
    elements: int


def cut_blocks(
    window: Window, channels: int, limit: int, costs: tuple[int, int] = (1, 2), *, rows: int = 0
) -> Blocks:
    """The cut that moves the fewest elements in at most `limit` elements of scratch (or the least that works).

    Scratch holds `rows` more rows of a block's positions, besides those of im2col.

    Each block of positions moves the weights (per map: channels * taps) `costs[0]` times more; each block of channels
    moves the outputs (per map: positions) `costs[1]` times more: 1 for what is read, 2 for what is read and written.
    """
    num_taps, positions = window.num_taps, window.num_positions
    width = window.out[-1]
    best, best_cost = Blocks(1, 1, num_taps + rows), None
    for parts in range(1, min(channels, 64) + 1):
        size = -(-channels // parts)
        most = min(limit // (size * num_taps + rows), positions)
        if most < 1:
            continue
        columns = most if most == positions or most < width else most // width * width
        cost = costs[0] * channels * num_taps * -(-positions // columns) + costs[1] * positions * -(-channels // size)
        if best_cost is None or cost < best_cost:
            best, best_cost = Blocks(size, columns, (size * num_taps + rows) * columns), cost
    if best_cost is None:
        size = max((limit - rows) // num_taps, 1)
        best = Blocks(size, 1, size * num_taps + rows)
    return best


def is_direct(maps: int, group: int) -> bool:
    """Whether the groups are too small for matrix products: depthwise convolution and the like."""
    return group > 1 and maps // group < _FEW_CHANNELS


def geometry(window: Window) -> tuple[int, ...]:
    """h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow."""
    return tuple(size for pair in image_sizes(window) for size in pair)


def bias_gradient(builder: Any, grad: Any) -> Any:
    """The gradient of one number a channel that was added: the sum over all other axes of (N, C, spatial...)."""
    return builder.op("ReduceSum", grad, axes=(0, *range(2, len(grad.shape))), keepdims=0)
