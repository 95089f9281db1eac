"""Gradient rules of data movement: all read nothing of the forward but the indices of Gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memopt.ops.gradients import only_first, reshape_to, sum_axes, sum_to, zeros
from memopt.ops.spec import GradientRule

__all__ = ["GRADIENTS"]


def _same_elements(builder: Any, node: Any, grad: Any) -> Any:
    return reshape_to(builder, grad, node.inputs[0].shape)


def _transpose(builder: Any, node: Any, grad: Any) -> Any:
    rank = len(node.inputs[0].shape)
    perm = node.attrs.get("perm") or tuple(reversed(range(rank)))
    perm = [axis % rank for axis in perm]
    return builder.op("Transpose", grad, perm=tuple(perm.index(axis) for axis in range(rank))) if rank else grad


def _concat(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """One Split if all parts are wanted, else a Slice for each that is."""
    grad, parts = grads[0], node.inputs
    axis = node.attrs["axis"] % len(grad.shape)
    if len(parts) == 1:
        return [grad]
    sizes = [part.shape[axis] for part in parts]
    if all(builder.wants(i) for i in range(len(parts))):
        return list(builder.op("Split", grad, outputs=len(parts), axis=axis, split=tuple(sizes)))
    found: list[Any] = [None] * len(parts)
    for i, size in enumerate(sizes):
        if builder.wants(i):
            start = sum(sizes[:i])
            found[i] = builder.op("Slice", grad, starts=(start,), ends=(start + size,), axes=(axis,))
    return found


def _split(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    source = node.inputs[0]
    types = node.spec.infer([source.type], node.attrs, len(node.outputs))
    parts = [zeros(builder, type) if grad is None else grad for grad, type in zip(grads, types, strict=True)]
    return [parts[0] if len(parts) == 1 else builder.op("Concat", *parts, axis=node.attrs["axis"])]


def _slice(builder: Any, node: Any, grad: Any) -> Any:
    """A frame of zeros; where steps leave gaps, `SliceGrad`."""
    shape = node.inputs[0].shape
    options = {name: node.attrs[name] for name in ("starts", "ends", "axes", "steps") if name in node.attrs}
    starts = options["starts"]
    steps = options.get("steps", (1,) * len(starts))
    if any(step != 1 for step in steps):
        return builder.op("SliceGrad", grad, shape=shape, **options)
    before = [0] * len(shape)
    for axis, start in zip(options.get("axes", range(len(starts))), starts, strict=True):
        before[axis] = range(shape[axis])[start:].start
    after = [dim - first - n for dim, first, n in zip(shape, before, grad.shape, strict=True)]
    return _pad_by(builder, grad, before, after)


def _pad_by(builder: Any, grad: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    if not any(before) and not any(after):
        return grad
    return builder.op("Pad", grad, pads=(*before, *after))


def _pad(builder: Any, node: Any, grad: Any) -> Any:
    """The frame cut off again, and what was cropped filled with zeros; folded back where it held copies."""
    pads = node.attrs["pads"]
    rank = len(node.inputs[0].shape)
    if node.attrs["mode"] == "constant":
        return _pad_by(builder, grad, [-n for n in pads[:rank]], [-n for n in pads[rank:]])
    return builder.op("PadGrad", grad, shape=node.inputs[0].shape, pads=pads, mode=node.attrs["mode"])


def _expand(builder: Any, node: Any, grad: Any) -> Any:
    return sum_to(builder, grad, node.inputs[0].shape)


def _tile(builder: Any, node: Any, grad: Any) -> Any:
    shape, repeats = node.inputs[0].shape, node.attrs["repeats"]
    split = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    axes = [2 * i for i, count in enumerate(repeats) if count != 1]
    if not axes:
        return grad
    return reshape_to(builder, sum_axes(builder, reshape_to(builder, grad, split), axes, keepdims=False), shape)


def _gather(builder: Any, node: Any, grad: Any) -> Any:
    data, indices = node.inputs
    return builder.op("GatherGrad", grad, indices, shape=data.shape, axis=node.attrs["axis"] % len(data.shape))


def _depth_to_space(builder: Any, node: Any, grad: Any) -> Any:
    block = node.attrs["blocksize"]
    if node.attrs["mode"] == "DCR":
        return builder.op("SpaceToDepth", grad, blocksize=block)
    n, c, h, w = node.inputs[0].shape
    split = reshape_to(builder, grad, (n, c // block**2, h, block, w, block))
    return reshape_to(builder, builder.op("Transpose", split, perm=(0, 1, 3, 5, 2, 4)), (n, c, h, w))


def _first(gradient: Callable[[Any, Any, Any], Any], *needs_inputs: int) -> GradientRule:
    return GradientRule(only_first(gradient), needs_inputs)


GRADIENTS: dict[str, GradientRule] = {
    "Identity": _first(lambda b, n, d: d),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _first(_same_elements)),
    "Transpose": _first(_transpose),
    "Concat": GradientRule(_concat),
    "Split": GradientRule(_split),
    "Slice": _first(_slice),
    "Pad": _first(_pad),
    "Expand": _first(_expand),
    "Tile": _first(_tile),
    "Gather": _first(_gather, 1),
    "DepthToSpace": _first(_depth_to_space),
    "SpaceToDepth": _first(lambda b, n, d: b.op("DepthToSpace", d, blocksize=n.attrs["blocksize"])),
}
