"""Ops: normalisation and dropout; those of `nn_batch_norm` and `nn_grad` belong to the family.

Holds true: statistics are accumulated in float64 whatever the data are. A normalisation reads all it needs of a channel
(or row) before it writes any of it, and its parameters before it updates them, so it is right in place, and where
parameters share bytes. Dropout draws element i from its seed and i alone: a recomputation draws the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops import nn_batch_norm, nn_grad
from memopt.ops.items import along
from memopt.ops.movement_common import copy_numbers, in_storage
from memopt.ops.nn_common import (
    EPSILON,
    KERNEL_FLOATS,
    Array,
    Arrays,
    along_channels,
    flat,
    kernel_dtype,
    need_channels,
    need_float,
    need_same_dtype,
    present,
    real,
)
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Types,
    View,
)
from memopt.types import TensorType

__all__ = ["OPS"]

# -- LayerNormalization, InstanceNormalization, LRN -------------------------------------------------------------------


def _infer_layer_norm(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, scale = present(types, 0, "X"), present(types, 1, "Scale")
    need_float("X", data)
    need_same_dtype(types, ("X", "Scale", "B"))
    axis = cast(int, attrs["axis"])
    if not -data.rank <= axis < data.rank:
        raise TypeInferenceError(f"axis = {axis} is not an axis of X {data}")
    for name, type in (("Scale", scale), ("B", types[2] if len(types) > 2 else None)):
        if type is not None and not _broadcasts_to(type.shape, data.shape):
            raise TypeInferenceError(f"{name} is {type}, which does not broadcast to X {data}")
    return [data]


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """`x` less its mean over `axes`, by its deviation over them."""
    mean = x.mean(axis=axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + epsilon))


def _reference_layer_norm(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data, scale, bias = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    assert data is not None
    assert scale is not None
    if data.size == 0:
        return [data.copy()]
    axis = cast(int, attrs["axis"]) % data.ndim
    y = _normalised(data.astype(np.float64), tuple(range(axis, data.ndim)), real(attrs, "epsilon")) * scale
    return [(y if bias is None else y + bias).astype(data.dtype)]


def _kernel_layer_norm(query: KernelQuery) -> KernelCall | None:
    data, scale, dtype = query.inputs[0], query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None or scale is None:
        return None
    axis = cast(int, query.attrs["axis"]) % data.rank
    inner = math.prod(data.shape[axis:])
    bias = query.inputs[2] if len(query.inputs) > 2 else None
    if scale.num_elements != inner or (bias is not None and bias.num_elements != inner):
        return None
    shape = (data.num_elements // inner, inner)
    vectors = (ArrayArg("in", 1, (inner,), dtype), ArrayArg("in", 1 if bias is None else 2, (inner,), dtype))
    scalars = (real(query.attrs, "epsilon"), int(bias is not None))
    if query.stride_of(0) is not None:
        walk = copy_numbers(query)
        arrays = (flat("out", 0, data), flat("in", 0, in_storage(query)[0]), *vectors)
        return None if walk is None else KernelCall("nn.layer_norm_strided", arrays, (*scalars, *walk))
    arrays = (ArrayArg("out", 0, shape, dtype), ArrayArg("in", 0, shape, dtype), *vectors)
    return KernelCall("nn.layer_norm", arrays, scalars)


def _infer_instance_norm(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "input")
    need_float("input", data)
    need_same_dtype(types, ("input", "scale", "B"))
    if data.rank < 3 or math.prod(data.shape[2:]) == 0:
        raise TypeInferenceError(f"input is {data}; want (N, C, spatial...) with at least one position")
    need_channels("scale", present(types, 1, "scale"), data.shape[1])
    need_channels("B", present(types, 2, "B"), data.shape[1])
    return [data]


def _reference_instance_norm(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    scale, bias = (along_channels(vector, data.ndim) for vector in arrays[1:3])
    y = _normalised(data.astype(np.float64), tuple(range(2, data.ndim)), real(attrs, "epsilon"))
    return [(y * scale + bias).astype(data.dtype)]


def _kernel_instance_norm(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.inputs[0], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    channels = data.shape[1]
    shape = (data.shape[0] * channels, math.prod(data.shape[2:]))
    vectors = (ArrayArg("in", 1, (channels,), dtype), ArrayArg("in", 2, (channels,), dtype))
    arrays = (ArrayArg("out", 0, shape, dtype), ArrayArg("in", 0, shape, dtype), *vectors)
    return KernelCall("nn.instance_norm", arrays, (real(query.attrs, "epsilon"),))


def _infer_lrn(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    need_float("X", data)
    if data.rank < 2:
        raise TypeInferenceError(f"X is {data}; want (N, C, spatial...)")
    if cast(int, attrs["size"]) < 1:
        raise TypeInferenceError(f"size = {attrs['size']}; want 1 or more channels")
    return [data]


def _reference_lrn(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    x = data.astype(np.float64)
    return [(x * nn_grad.lrn_base(x, attrs) ** -real(attrs, "beta")).astype(data.dtype)]


def _kernel_lrn(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.inputs[0], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    shape = (*data.shape[:2], math.prod(data.shape[2:]))
    arrays = (ArrayArg("out", 0, shape, dtype), ArrayArg("in", 0, shape, dtype))
    size = cast(int, query.attrs["size"])
    scalars = (size, real(query.attrs, "alpha") / size, real(query.attrs, "beta"), real(query.attrs, "bias"))
    return KernelCall("nn.lrn", arrays, scalars)


# -- Dropout ----------------------------------------------------------------------------------------------------------


def _infer_dropout(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "data")
    need_float("data", data)
    if not 0 <= real(attrs, "ratio") < 1:
        raise TypeInferenceError(f"ratio = {attrs['ratio']} is not in [0, 1)")
    return [data, data.with_dtype("bool")][:num_outputs]


def _mix(seed: int, count: int) -> Array:
    """`count` 64-bit numbers, number i a function of `seed` and i (SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    step = np.uint64(0x9E3779B97F4A7C15)
    z = np.uint64(seed % 2**64) + (np.arange(1, count + 1, dtype=np.uint64) * step)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _start(attrs: Attrs) -> int:
    """The state that the draws count on from, as an int64: the seed, mixed, so that near seeds give unrelated draws."""
    mixed = int(_mix(cast(int, attrs["seed"]), 1)[0])
    return mixed - 2**64 if mixed >= 2**63 else mixed


def _dropped(attrs: Attrs) -> tuple[int, float]:
    """Below which of 2**53 equally likely draws an element is dropped, and the factor of those that stay."""
    if not attrs["training"]:
        return 0, 1.0
    return int(real(attrs, "ratio") * 2**53), 1.0 / (1.0 - real(attrs, "ratio"))


def _reference_dropout(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    limit, factor = _dropped(attrs)
    keep = ((_mix(_start(attrs), data.size) >> np.uint64(11)) >= np.uint64(limit)).reshape(data.shape)
    kept = (data.astype(np.float64) * factor).astype(data.dtype)
    y = np.where(keep, kept, data.dtype.type(0))
    return [y, keep][: len(outputs)]


def _kernel_dropout(query: KernelQuery) -> KernelCall | None:
    data, out = query.inputs[0], query.outputs[0]
    if data is None or out is None or out.dtype != data.dtype or data.dtype not in KERNEL_FLOATS:
        return None
    scalars = (_start(query.attrs), *_dropped(query.attrs))
    mask = query.outputs[1] if len(query.outputs) > 1 else None
    if mask is None:
        return KernelCall("nn.dropout", (flat("out", 0, out), flat("in", 0, data)), scalars)
    return KernelCall("nn.dropout_mask", (flat("out", 0, out), flat("out", 1, mask), flat("in", 0, data)), scalars)


def _unless_training(inputs: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    return None if attrs["training"] else 0


def _layer_norm_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Unless it normalises over axis 0 too."""
    rank = present(inputs, 0, "X").rank
    return (True, *(False for _ in inputs[1:])) if rank and int(cast(int, attrs["axis"])) % rank else None


OPS: tuple[OpSpec, ...] = (
    *nn_batch_norm.OPS,
    *nn_grad.OPS,
    OpSpec(
        name="LayerNormalization",
        inputs=(Input("X"), Input("Scale"), Input("B", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_layer_norm,
        reference=_reference_layer_norm,
        attrs={"axis": Attr("int", -1), "epsilon": Attr("float", EPSILON), "stash_type": Attr("int", 1)},
        inplace=(InplacePair(0, 0),),
        kernel=_kernel_layer_norm,
        items=_layer_norm_items,
        strided=(0,),
        gradient=nn_grad.LAYER_NORM_GRADIENT,
    ),
    OpSpec(
        name="InstanceNormalization",
        inputs=(Input("input"), Input("scale"), Input("B")),
        outputs=(Output("output"),),
        infer=_infer_instance_norm,
        reference=_reference_instance_norm,
        attrs={"epsilon": Attr("float", EPSILON)},
        inplace=(InplacePair(0, 0),),
        kernel=_kernel_instance_norm,
        items=along(0),
        gradient=nn_grad.INSTANCE_NORM_GRADIENT,
    ),
    OpSpec(
        name="LRN",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_lrn,
        reference=_reference_lrn,
        attrs=nn_grad.LRN_ATTRS,
        kernel=_kernel_lrn,
        items=along(0),
        gradient=nn_grad.LRN_GRADIENT,
    ),
    OpSpec(
        name="Dropout",
        inputs=(Input("data"),),
        outputs=(Output("output"), Output("mask", optional=True)),
        infer=_infer_dropout,
        reference=_reference_dropout,
        attrs={"ratio": Attr("float", 0.5), "seed": Attr("int", 0), "training": Attr("int", 0)},
        views=(View(0, 0, _unless_training),),
        inplace=(InplacePair(0, 0),),
        random=True,
        kernel=_kernel_dropout,
        gradient=nn_grad.DROPOUT_GRADIENT,
    ),
)
