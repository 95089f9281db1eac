"""From a scalar expression to a `KernelCall`: broadcasting, layouts, and as few loop variants as there can be.

Holds true: the output is written in the order of its bytes, each element once. Dimensions of one element are dropped
and neighbours that all operands walk alike are merged; what is one dimension then is the "flat" loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from memopt.ops.spec import DEFAULT_LAYOUT, ArrayArg, KernelCall
from memopt.strides import Strides, extent
from memopt.types import TensorType

__all__ = ["ScalarForm", "compose", "in_steps", "loop_call"]

#: Loops are padded to this many dimensions, so that shapes share compiled variants.
_RANK = 4
_MAX_RANK = 8
#: More operands than this run as a host call.
_MAX_INPUTS = 16


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """What an op does to one element: an expression over x0, x1, … (its inputs in order) and s0, s1, … (`scalars`).

    It may name results on the way: "t0 = exp(x0); mul(t0, t0)".
    """

    text: str
    scalars: tuple[int | float, ...] = ()


def compose(outer: ScalarForm, arguments: Sequence[ScalarForm]) -> ScalarForm:
    """`outer` of `arguments`: each argument, over the x0, x1, … of the whole chain, stands for one operand."""
    scalars = list(outer.scalars)
    texts = []
    for argument in arguments:
        texts.append(_renamed(argument.text, "s", [f"s{len(scalars) + i}" for i in range(len(argument.scalars))]))
        scalars.extend(argument.scalars)
    return ScalarForm(_renamed(outer.text, "x", texts), tuple(scalars))


def in_steps(steps: Sequence[tuple[ScalarForm, Sequence[str], str]]) -> ScalarForm:
    """The form of a chain: step number i is (its form, the names of its operands: x0, x1, … or t<j> for the result of
    an earlier step j, the dtype of its result). A result is converted to its dtype, as storing it would.
    """
    scalars: list[int | float] = []
    texts: list[str] = []
    for form, operands, dtype in steps:
        text = _renamed(form.text, "s", [f"s{len(scalars) + i}" for i in range(len(form.scalars))])
        scalars.extend(form.scalars)
        text = _renamed(text, "x", operands)
        kept = f"{'bool_' if dtype == 'bool' else dtype}({text})"
        texts.append(text if len(texts) == len(steps) - 1 else f"t{len(texts)} = {kept}")
    return ScalarForm("; ".join(texts), tuple(scalars))


def _renamed(text: str, letter: str, names: Sequence[str]) -> str:
    """`text` with `names[i]` for each `<letter><i>`."""
    return re.sub(rf"\b{letter}(\d+)\b", lambda found: names[int(found[1])], text)


def loop_call(
    form: ScalarForm,
    inputs: Sequence[TensorType],
    output: TensorType,
    layout: str = DEFAULT_LAYOUT,
    placed: Sequence[Strides | None] = (),
) -> KernelCall | None:
    """The call that computes `form` from `inputs`, which broadcast to `output`; rank-4 operands lie in `layout`.

    `placed[i]` is how input i steps through its storage (None: it is contiguous; (): all are).

    None where there is no kernel: float16, more than 16 inputs, more than 8 dimensions that do not merge, strides in
    another layout than NCHW.
    """
    if len(inputs) > _MAX_INPUTS or any(t.dtype == "float16" for t in (*inputs, output)):
        return None
    placed = tuple(placed) or (None,) * len(inputs)
    if layout != DEFAULT_LAYOUT and any(steps is not None for steps in placed):
        return None
    arrays = (
        ArrayArg("out", 0, (output.num_elements,), output.dtype),
        *(ArrayArg("in", i, (extent(t.shape, placed[i]),), t.dtype) for i, t in enumerate(inputs)),
    )
    walks = [_strides(t, layout) if steps is None else steps for t, steps in zip(inputs, placed, strict=True)]
    extents, strides = _collapse(inputs, walks, output, layout)
    if not extents or 0 in extents or (len(extents) == 1 and all(s == (1,) for s in strides)):
        return KernelCall("elementwise.flat", arrays, form.scalars, form.text)
    rank = max(_RANK, len(extents))
    if rank > _MAX_RANK:
        return None
    missing = rank - len(extents)
    extents = (1,) * missing + extents
    strides = [(0,) * missing + stride for stride in strides]
    steps = "".join({0: "0", 1: "1"}.get(stride[-1], "s") for stride in strides)
    scalars = (*extents, *(s for stride in strides for s in stride), *form.scalars)
    return KernelCall(f"elementwise.broadcast{rank}_{steps}", arrays, scalars, form.text)


def _strides(type: TensorType, layout: str) -> tuple[int, ...]:
    """The stride of each logical dimension, in elements."""
    order = (0, 2, 3, 1) if layout == "NHWC" and type.rank == 4 else tuple(range(type.rank))
    strides = [0] * type.rank
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= type.shape[dim]
    return tuple(strides)


Walk = tuple[tuple[int, ...], list[tuple[int, ...]]]


def _collapse(inputs: Sequence[TensorType], walks: Sequence[Strides], output: TensorType, layout: str) -> Walk:
    """(extents, strides of each input): the output's dimensions in the order of its bytes, the fewest there can be.

    One dimension of stride 1 for all says that each input is contiguous from its first element on, whatever `walks`.
    """
    operands = []
    for type, walk in zip(inputs, walks, strict=True):
        missing = output.rank - type.rank
        steps = [0 if dim == 1 else step for dim, step in zip(type.shape, walk, strict=True)]
        operands.append([0] * missing + steps)
    order = sorted(range(output.rank), key=_strides(output, layout).__getitem__, reverse=True)
    if 0 in output.shape:
        return (0,), [(1,)] * len(inputs)
    extents: list[int] = []
    strides: list[list[int]] = [[] for _ in inputs]
    for dim in order:
        extent = output.shape[dim]
        if extent == 1:
            continue
        here = [steps[dim] for steps in operands]
        if extents and all(s[-1] == step * extent for s, step in zip(strides, here, strict=True)):
            extents[-1] *= extent
            for s, step in zip(strides, here, strict=True):
                s[-1] = step
        else:
            extents.append(extent)
            for s, step in zip(strides, here, strict=True):
                s.append(step)
    assert math.prod(extents) == output.num_elements
    return tuple(extents), [tuple(s) for s in strides]
