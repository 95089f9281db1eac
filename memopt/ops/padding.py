"""Which ops can read padding as pads of their own, so that nobody need store it.

Holds true: where `own_pads` gives attributes, the op makes of the plain data, with them, what it makes of the padded
data without them. A convolution, and the gradient of its weights, see 0 in their pads. An average counts its pads if
`count_include_pad` says so, and padding that it was given as data always. A maximum sees nothing in its pads: that is
a padding of -inf, or one of 0 around numbers none of which is below 0, since each window sees one of them at least.
Gradients with respect to the data are made for the data alone, whatever lies in the pads: `own_crop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import make_window
from memopt.ops.registry import get_op
from memopt.ops.spec import Attrs, AttrValue, Types
from memopt.types import TensorType

__all__ = ["Padding", "is_at_least_zero", "own_crop", "own_pads"]

#: op -> the input that it sees through its window.
_DATA = {"Conv": 0, "FusedConv": 0, "ConvGradWeight": 1, "AveragePool": 0, "MaxPool": 0}
_AT_LEAST_ZERO = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")


@dataclass(frozen=True, slots=True)
class Padding:
    """`value` around data of type `data`: `begin` before and `end` after each spatial axis, none of them negative.

    `at_least_zero` says that no element of the data is below 0 (NaN may be there).
    """

    data: TensorType
    begin: tuple[int, ...]
    end: tuple[int, ...]
    value: float
    at_least_zero: bool = False


def own_pads(op: str, index: int, types: Types, attrs: Attrs, num_outputs: int, padding: Padding) -> Attrs | str:
    """The attributes with which `op` reads `padding.data` as it reads the padded data as input `index` now.

    `types` are those of its inputs now. A text says why there are none, such as "it takes no pads for input 1".
    """
    if op not in _DATA:
        return "it has no pads"
    if index != _DATA[op] or num_outputs < 1:
        return f"it takes no pads for input {index}"
    refusal = _value_refusal(op, num_outputs, padding)
    if refusal is not None:
        return refusal
    changed = _with_pads(op, types, attrs, padding)
    if isinstance(changed, str):
        return changed
    return _same_result(op, index, types, (attrs, changed), num_outputs, padding)


def _value_refusal(op: str, num_outputs: int, padding: Padding) -> str | None:
    if op != "MaxPool":
        return None if padding.value == 0 else f"its pads hold 0, not {padding.value}"
    if num_outputs > 1:
        return "its indices count the padding"
    if padding.value == float("-inf") or (padding.value == 0 and padding.at_least_zero):
        return None
    return f"its pads are never the maximum, and {padding.value} may be"


def _with_pads(op: str, types: Types, attrs: Attrs, padding: Padding) -> dict[str, AttrValue] | str:
    """`attrs` with explicit pads, the padding's added to the op's own."""
    padded = types[_DATA[op]]
    assert padded is not None
    return _more_pads(op, padded.shape[2:], _kernel(types, attrs), attrs, padding)


def _kernel(types: Types, attrs: Attrs) -> Sequence[int]:
    """The window's sizes: as the attribute says, or as the weights do, which are input 1."""
    if "kernel_shape" in attrs:
        return cast("Sequence[int]", attrs["kernel_shape"])
    weights = types[1]
    assert weights is not None
    return weights.shape[2:]


def _more_pads(
    op: str, sizes: Sequence[int], kernel: Sequence[int], attrs: Attrs, padding: Padding
) -> dict[str, AttrValue] | str:
    window = make_window(sizes, kernel, attrs)
    changed = dict(attrs)
    if op.startswith("AveragePool") and not attrs["count_include_pad"]:
        if any(window.begin + window.end):
            return "it counts the padding, but not its own pads"
        changed["count_include_pad"] = 1
    before = tuple(own + more for own, more in zip(window.begin, padding.begin, strict=True))
    after = tuple(own + more for own, more in zip(window.end, padding.end, strict=True))
    return {**changed, "auto_pad": "NOTSET", "pads": (*before, *after)}


def _same_result(
    op: str,
    index: int,
    types: Types,
    attrs: tuple[Attrs, Mapping[str, AttrValue]],
    num_outputs: int,
    padding: Padding,
) -> Attrs | str:
    """The new ones of `attrs` = (old, new), if the op takes them and makes outputs of the same types."""
    spec, plain = get_op(op), list(types)
    plain[index] = padding.data
    try:
        made = spec.infer(plain, attrs[1], num_outputs)
    except TypeInferenceError as error:
        return f"it does not take these pads: {error}"
    if list(made) != list(spec.infer(types, attrs[0], num_outputs)):
        return "it would make other positions with these pads"  # a last window with ceil_mode
    return attrs[1]


def own_crop(op: str, types: Types, attrs: Attrs, padding: Padding) -> Attrs | str:
    """The attributes with which `op` makes `padding.data` at once: now it makes more, out of which that is cut.

    `types` are those of its inputs. A text says why there are none.
    """
    if op not in ("ConvGradInput", "AveragePoolGrad"):
        return "it makes no gradient of an image with pads"
    sizes = cast("tuple[int, ...]", attrs["input_shape"])[2:]
    changed = _more_pads(op, sizes, _kernel(types, attrs), attrs, padding)
    if isinstance(changed, str):
        return changed
    changed["input_shape"] = padding.data.shape
    try:
        (made,) = get_op(op).infer(types, changed, 1)
    except TypeInferenceError as error:
        return f"it does not take these pads: {error}"
    return changed if made == padding.data else "it would make other positions with these pads"


def is_at_least_zero(op: str, attrs: Attrs) -> bool:
    """Whether no element that `op` makes is below 0, whatever it reads (NaN may be there)."""
    if op == "Clip":
        return cast(float, attrs.get("min", -1.0)) >= 0 and cast(float, attrs.get("max", 1.0)) >= 0
    return op in _AT_LEAST_ZERO or (op == "FusedConv" and attrs["activation"] == "Relu")
