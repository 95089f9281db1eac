"""Op: `FusedConv`, memopt's own: convolution, batch normalisation with given statistics, an addend, an activation.

Holds true: it means what the separate ops mean, one after the other; what is absent is skipped. The kernels make a
block of the convolution in scratch, finish it there and store it, so that the result may lie over the addend Z, of
which each element is read just before the element of the result at its place is written. It may not lie over X: a
block reads X around its positions, in all channels, and so bytes that earlier blocks would have overwritten. (That is
why Z must not be X, too, where the result lies over it: the pair does not repeat.)

It has no gradient. The pass `fuse-conv-add` makes it of nodes of a graph that is differentiated already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memopt.errors import TypeInferenceError
from memopt.ops.conv_common import CONV_ATTRS, Blocks, cut_blocks, geometry, groups, is_direct, window_over
from memopt.ops.items import along
from memopt.ops.nn_common import (
    EPSILON,
    Array,
    Arrays,
    Window,
    flat,
    gemm_routine,
    kernel_dtype,
    need_channels,
    need_float,
    real,
)
from memopt.ops.registry import get_op
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
    Routine,
    Scalar,
    Types,
)
from memopt.types import TensorType, itemsize

__all__ = ["OPS"]

_NORM = ("scale", "shift", "mean", "var")
#: The first input of `_NORM`, and the addend.
_SCALE, _ADDEND = 3, 7
_ACTIVATIONS = ("", "Relu")
#: The most elements of one map in a block of a depthwise convolution: they stay in the first cache.
_DIRECT_ELEMENTS = 4096


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    conv = {name: attrs[name] for name in CONV_ATTRS if name in attrs}
    (made,) = get_op("Conv").infer(types[:_SCALE], conv, 1)
    if attrs["activation"] not in _ACTIVATIONS:
        raise TypeInferenceError(f"activation = {attrs['activation']!r} is not one of '' and 'Relu'")
    vectors = [types[i] if i < len(types) else None for i in range(_SCALE, _ADDEND)]
    missing = [name for name, vector in zip(_NORM, vectors, strict=True) if vector is None]
    if 0 < len(missing) < len(_NORM):
        raise TypeInferenceError(f"scale, shift, mean and var come together; missing: {', '.join(missing)}")
    for name, vector in zip(_NORM, vectors, strict=True):
        if vector is not None:
            need_float(name, vector)
            need_channels(name, vector, made.shape[1])
    addend = types[_ADDEND] if len(types) > _ADDEND else None
    if addend is not None and addend != made:
        raise TypeInferenceError(f"Z is {addend}; want {made}, what the convolution makes: Z is not broadcast")
    return [made]


def _reference(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """The references of the separate ops, one after the other, each rounded to the dtype of the result."""
    given = [*arrays, *[None] * (_ADDEND + 1 - len(arrays))]
    conv = {name: attrs[name] for name in CONV_ATTRS if name in attrs}
    (made,) = get_op("Conv").reference(given[:_SCALE], conv, outputs)
    if given[_SCALE] is not None:
        norm = {"epsilon": attrs["epsilon"], "momentum": 0.9, "training_mode": 0}
        (made,) = get_op("BatchNormalization").reference([made, *given[_SCALE:_ADDEND]], norm, outputs)
    if given[_ADDEND] is not None:
        (made,) = get_op("Add").reference([made, given[_ADDEND]], {}, outputs)
    if attrs["activation"] == "Relu":
        (made,) = get_op("Relu").reference([made], {}, outputs)
    return [made]


def _cut(query: KernelQuery) -> tuple[str, Window, Blocks] | None:
    """The kernel's dtype, the window and the cut of the result; None where there is no kernel."""
    data, weights, dtype = query.inputs[0], query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    window = window_over(data.shape[2:], weights.shape[2:], query.attrs)
    maps, group, pixels = weights.shape[0], groups(query.attrs), bool(_suffix(query))
    factors = maps if pixels else 0  # where a row of scratch is a pixel, its maps' factors lie before all rows
    limit = query.scratch_bytes // itemsize(dtype) - factors
    if is_direct(maps, group):
        blocks = Blocks(1, 1, maps) if pixels else _cut_rows(window, limit)
    elif window.plain:
        rows, positions = maps // group, window.num_positions * (data.shape[0] if pixels else 1)
        columns = _even(positions, max(limit // rows, 1))
        blocks = Blocks(weights.shape[1], columns, rows * columns)
    else:
        blocks = cut_blocks(window, weights.shape[1], limit, rows=maps // group)
    return dtype, window, replace(blocks, elements=blocks.elements + factors)


def _cut_rows(window: Window, limit: int) -> Blocks:
    """Whole rows of one map."""
    width = window.out[-1]
    columns = width * _even(window.num_positions // width, max(min(limit, _DIRECT_ELEMENTS) // width, 1))
    return Blocks(1, columns, columns)


def _suffix(query: KernelQuery) -> str:
    data = query.inputs[0]
    return "_nhwc" if query.layout == "NHWC" and data is not None and data.rank == 4 else ""


def _even(total: int, most: int) -> int:
    """The size of as few parts of `total` as there can be, of at most `most` each, all about as large."""
    parts = -(-total // most)
    return -(-total // parts)


def _workspace(query: KernelQuery) -> int:
    found = _cut(query)
    return 0 if found is None else found[2].elements * itemsize(found[0])


def _kernel(query: KernelQuery) -> KernelCall | None:
    found, data, weights = _cut(query), query.inputs[0], query.inputs[1]
    if found is None or data is None or weights is None:
        return None
    dtype, window, blocks = found
    there = [i for i, type in enumerate(query.inputs) if type is not None]
    # An absent operand is never read; the weights stand in for it.
    slots = [i if i in there else 1 for i in range(_ADDEND + 1)]
    arrays = (
        flat("out", 0, query.outputs[0]),
        *(flat("in", i, query.inputs[i]) for i in slots),
        ArrayArg("scratch", 0, (blocks.elements,), dtype),
    )
    group = groups(query.attrs)
    sizes = (data.shape[0], data.shape[1], weights.shape[0], group, int(2 in there))
    norm, addend, relu = _SCALE in there, _ADDEND in there, query.attrs["activation"] == "Relu"
    finish = (real(query.attrs, "epsilon"), int(norm), int(addend), int(relu))
    routine, layout = Routine(gemm_routine(dtype)), _suffix(query)
    scalars: tuple[Scalar, ...]
    if is_direct(weights.shape[0], group):
        scalars = (*sizes, *geometry(window), max(blocks.columns // window.out[-1], 1), *finish)
        return KernelCall(f"conv_fused.direct{layout}", arrays, scalars)
    if window.plain:
        scalars = (routine, *sizes, window.num_positions, blocks.columns, *finish)
        return KernelCall(f"conv_fused.pointwise_blocks{layout}", arrays, scalars)
    scalars = (routine, *sizes, *geometry(window), blocks.channels, blocks.columns, *finish)
    return KernelCall(f"conv_fused.gemm_blocks{layout}", arrays, scalars)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="FusedConv",
        inputs=(
            Input("X"),
            Input("W"),
            *(Input(name, optional=True) for name in ("B", *_NORM, "Z")),
        ),
        outputs=(Output("Y"),),
        infer=_infer,
        reference=_reference,
        attrs={**CONV_ATTRS, "epsilon": Attr("float", EPSILON), "activation": Attr("str", "")},
        inplace=(InplacePair(0, _ADDEND),),
        workspace=_workspace,
        kernel=_kernel,
        items=along(0, _ADDEND),
        layouts=("NHWC",),
        layout_inputs=(0, _ADDEND),
    ),
)
