"""Op: `NormConv`, memopt's own: what a convolution makes of a normalised, scaled, shifted and activated input.

Holds true: it means what the separate ops mean, one after the other: BatchNormalization with given statistics, Mul by
`gain` and Add of `offset` (per channel, as of a scale layer), Relu, Conv; of these `gain`, `offset` and the activation
may be absent. The kernel prepares a block of X in scratch, so that the normalised X needs no bytes; X is left as it is.
It takes windows of one tap, stride 1 and no pads, which read each element once, and one group.

It has no gradient. The pass `fuse-norm-conv` makes it of nodes of a graph that is differentiated already.
"""

from __future__ import annotations

from collections.abc import Sequence

from memopt.errors import TypeInferenceError
from memopt.ops.conv_common import CONV_ATTRS, Blocks, cut_blocks, groups, window_over
from memopt.ops.items import along
from memopt.ops.nn_common import EPSILON, Array, Arrays, Window, flat, gemm_routine, kernel_dtype, present, real
from memopt.ops.registry import get_op
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
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

_ACTIVATIONS = ("", "Relu")
#: X, scale, shift, mean and var come first, as in BatchNormalization; then these.
_WEIGHTS, _BIAS, _GAIN, _OFFSET = 5, 6, 7, 8


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    get_op("BatchNormalization").infer(types[:_WEIGHTS], _norm_attrs(attrs), 1)
    if attrs["activation"] not in _ACTIVATIONS:
        raise TypeInferenceError(f"activation = {attrs['activation']!r} is not one of '' and 'Relu'")
    for index, name in ((_GAIN, "gain"), (_OFFSET, "offset")):
        vector = types[index] if index < len(types) else None
        if vector is None:
            continue
        want = (1, data.shape[1], *(1,) * (data.rank - 2))
        if (1,) * (data.rank - vector.rank) + vector.shape != want:
            raise TypeInferenceError(f"{name} is {vector}; want {list(want[1:])}, which is broadcast along channels")
        if vector.dtype != data.dtype:
            raise TypeInferenceError(f"{name} is {vector}, but X is {data}; want one dtype")
    bias = types[_BIAS] if len(types) > _BIAS else None
    return get_op("Conv").infer((data, present(types, _WEIGHTS, "W"), bias), _conv_attrs(attrs), 1)


def _conv_attrs(attrs: Attrs) -> Attrs:
    return {name: attrs[name] for name in CONV_ATTRS if name in attrs}


def _norm_attrs(attrs: Attrs) -> Attrs:
    return {"epsilon": attrs["epsilon"], "momentum": 0.9, "training_mode": 0}


def _reference(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """The references of the separate ops, one after the other, each rounded to the dtype of X."""
    given, data = [*arrays, *[None] * (_OFFSET + 1 - len(arrays))], arrays[0]
    assert data is not None
    inner = [TensorType.of(data.shape, data.dtype)]
    (made,) = get_op("BatchNormalization").reference(given[:_WEIGHTS], _norm_attrs(attrs), inner)
    for op, index in (("Mul", _GAIN), ("Add", _OFFSET)):
        if given[index] is not None:
            (made,) = get_op(op).reference([made, given[index]], {}, inner)
    if attrs["activation"] == "Relu":
        (made,) = get_op("Relu").reference([made], {}, inner)
    return get_op("Conv").reference([made, given[_WEIGHTS], given[_BIAS]], _conv_attrs(attrs), outputs)


def _cut(query: KernelQuery) -> tuple[str, Window, Blocks] | None:
    """The kernel's dtype, the window and the cut of X; None where there is no kernel."""
    data, weights, dtype = query.inputs[0], query.inputs[_WEIGHTS], kernel_dtype(query)
    if dtype is None or data is None or weights is None or query.layout != "NCHW":
        return None
    window = window_over(data.shape[2:], weights.shape[2:], query.attrs)
    if not window.plain or groups(query.attrs) > 1:
        return None
    return dtype, window, cut_blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype))


def _workspace(query: KernelQuery) -> int:
    found = _cut(query)
    return 0 if found is None else found[2].elements * itemsize(found[0])


def _kernel(query: KernelQuery) -> KernelCall | None:
    found, data, weights = _cut(query), query.inputs[0], query.inputs[_WEIGHTS]
    if found is None or data is None or weights is None:
        return None
    dtype, window, blocks = found
    there = [i for i, type in enumerate(query.inputs) if type is not None]
    # An absent operand is never read; the weights stand in for it.
    slots = [i if i in there else _WEIGHTS for i in range(_OFFSET + 1)]
    arrays = (
        flat("out", 0, query.outputs[0]),
        *(flat("in", i, query.inputs[i]) for i in slots),
        ArrayArg("scratch", 0, (blocks.elements,), dtype),
    )
    scalars: tuple[Scalar, ...] = (
        Routine(gemm_routine(dtype)),
        *(data.shape[0], data.shape[1], weights.shape[0], window.num_positions, blocks.channels, blocks.columns),
        real(query.attrs, "epsilon"),
        *(int(i in there) for i in (_BIAS, _GAIN, _OFFSET)),
        int(query.attrs["activation"] == "Relu"),
    )
    return KernelCall("conv_norm.pointwise", arrays, scalars)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="NormConv",
        inputs=(
            *(Input(name) for name in ("X", "scale", "shift", "mean", "var", "W")),
            *(Input(name, optional=True) for name in ("B", "gain", "offset")),
        ),
        outputs=(Output("Y"),),
        infer=_infer,
        reference=_reference,
        attrs={**CONV_ATTRS, "epsilon": Attr("float", EPSILON), "activation": Attr("str", "")},
        workspace=_workspace,
        kernel=_kernel,
        items=along(0),
    ),
)
