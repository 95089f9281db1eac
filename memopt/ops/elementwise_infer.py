"""Types of elementwise ops: NumPy's broadcasting, dtype rules, and when an output may lie over an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from memopt.errors import TypeInferenceError
from memopt.ops.spec import Attrs, InplaceCondition, Types
from memopt.types import DTYPES, TensorType, as_dtype, itemsize

__all__ = [
    "ANY",
    "BOOL",
    "FLOAT",
    "NUMBER",
    "broadcast_shapes",
    "infer_cast",
    "infer_clip",
    "infer_gelu",
    "infer_pow",
    "infer_prelu",
    "infer_where",
    "inplace_over",
    "present",
    "same_dtype",
]

FLOAT = ("float16", "float32", "float64")
BOOL = ("bool",)
ANY = tuple(DTYPES)
NUMBER = tuple(dtype for dtype in DTYPES if dtype != "bool")

Infer = Callable[[Types, Attrs, int], Sequence[TensorType]]


def present(types: Types) -> list[TensorType]:
    """The input types, none of which may be absent."""
    found = [t for t in types if t is not None]
    if len(found) != len(types) or not found:
        raise TypeInferenceError(f"an elementwise op needs all of its inputs, got {_shown(types)}")
    return found


def broadcast_shapes(types: Sequence[TensorType]) -> tuple[int, ...]:
    """The shape to which all `types` broadcast by NumPy's rules; raises `TypeInferenceError`."""
    rank = max(t.rank for t in types)
    shape: list[int] = []
    for dim in range(rank):
        sizes = {t.shape[dim - rank] for t in types if rank - dim <= t.rank} - {1}
        if len(sizes) > 1:
            raise TypeInferenceError(f"shapes do not broadcast: {_shown(types)} differ in dimension {dim - rank}")
        shape.append(sizes.pop() if sizes else 1)
    return tuple(shape)


def same_dtype(dtypes: Sequence[str], result: str | None = None) -> Infer:
    """All inputs have one dtype out of `dtypes`; so has the output, or `result`."""

    def infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
        inputs = present(types)
        dtype = inputs[0].dtype
        if any(t.dtype != dtype for t in inputs):
            raise TypeInferenceError(f"inputs must have one dtype, got {_shown(inputs)}")
        if dtype not in dtypes:
            _refuse(dtype, dtypes)
        return [TensorType(broadcast_shapes(inputs), result or dtype)]

    return infer


def infer_clip(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`Clip`: limits are attributes, of any order (max wins where min > max)."""
    return same_dtype(NUMBER)(types, attrs, num_outputs)


def infer_cast(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`Cast`: `to` names a dtype."""
    try:
        return [present(types)[0].with_dtype(as_dtype(str(attrs["to"])))]
    except ValueError as error:
        raise TypeInferenceError(f"Cast: to = {attrs['to']!r}: {error}") from None


def infer_gelu(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`Gelu`: `approximate` is none or tanh."""
    if attrs["approximate"] not in ("none", "tanh"):
        raise TypeInferenceError(f"Gelu: approximate = {attrs['approximate']!r}; want 'none' or 'tanh'")
    return same_dtype(FLOAT)(types, attrs, num_outputs)


def infer_pow(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`Pow`: base and exponent may differ in dtype; the result has the base's."""
    base, exponent = present(types)
    for type in (base, exponent):
        if type.dtype not in NUMBER:
            _refuse(type.dtype, NUMBER)
    return [TensorType(broadcast_shapes([base, exponent]), base.dtype)]


def infer_prelu(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`PRelu`: the slope broadcasts to X, never X to the slope."""
    (output,) = same_dtype(NUMBER)(types, attrs, num_outputs)
    data, slope = present(types)
    if output.shape != data.shape:
        raise TypeInferenceError(f"PRelu: the slope {slope} does not broadcast to X {data}")
    return [output]


def infer_where(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    """`Where`: a bool condition and two operands of one dtype."""
    condition, *operands = present(types)
    if condition.dtype != "bool":
        raise TypeInferenceError(f"Where: the condition must be bool, got {condition}")
    (chosen,) = same_dtype(ANY)(operands, attrs, num_outputs)
    return [TensorType(broadcast_shapes([condition, chosen]), chosen.dtype)]


def inplace_over(index: int) -> InplaceCondition:
    """The condition for an output over input `index`: for each element of the one, one of the other, in the same place.

    The dtypes may differ if the widths do not: the loops read an element of every operand before they write it.
    """

    def condition(inputs: Types, outputs: Types, attrs: Attrs) -> str | None:
        source = inputs[index] if index < len(inputs) else None
        target = outputs[0]
        if source is None or target is None:
            return "operand absent"
        if source.shape != target.shape:
            return f"input {index} is broadcast from {source} to {target}"
        if itemsize(source.dtype) != itemsize(target.dtype):
            return f"elements of {source} and {target} differ in width"
        return None

    return condition


def _refuse(dtype: str, dtypes: Sequence[str]) -> NoReturn:
    raise TypeInferenceError(f"dtype {dtype} is not one of {', '.join(dtypes)}")


def _shown(types: Types) -> str:
    return ", ".join("none" if t is None else str(t) for t in types)
