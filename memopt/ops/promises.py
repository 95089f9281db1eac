"""What an op promises about bytes: views, joins, in-place pairs, and calls item by item. Parts of an `OpSpec`.

Holds true: data and pure functions of types and attributes; they say what may lie where, and never where it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memopt.strides import Strided, Strides
from memopt.types import TensorType

__all__ = [
    "AttrValue",
    "Attrs",
    "InplaceCondition",
    "InplacePair",
    "ItemRule",
    "Join",
    "JoinStrides",
    "Types",
    "View",
    "ViewStrides",
]

AttrValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Attrs = Mapping[str, AttrValue]
Types = Sequence[TensorType | None]


def _no_offset(inputs: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    return 0


#: (input types, output types, attributes, output, the input's strides) -> how the output steps through that storage.
ViewStrides = Callable[[Types, Types, Attrs, int, Strides], "Strided | None"]


@dataclass(frozen=True, slots=True)
class View:
    """Output `output` holds elements of input `input`, unchanged.

    `byte_offset(input_types, output_types, attrs, output)` says where in the input's bytes the output starts, or None
    if for these types the output is not one contiguous run of the input's bytes. `strides(…, input_strides)` says more:
    how the output's elements step through the storage of an input that lies in `input_strides`; None where no strides
    say that (or the op has no such rule). Output -1 stands for every output.
    """

    output: int
    input: int
    byte_offset: Callable[[Types, Types, Attrs, int], int | None] = _no_offset
    strides: ViewStrides | None = None


#: (input types, output types, attributes, input, the output's strides) -> how that input steps through its storage.
JoinStrides = Callable[[Types, Types, Attrs, int, Strides], "Strided | None"]


@dataclass(frozen=True, slots=True)
class Join:
    """Output `output` holds the elements of inputs, unchanged: the inverse of a view.

    `byte_offset(input_types, output_types, attrs, input)` says where in the output's bytes input number `input` starts,
    or None if for these types it is not one contiguous run there. `strides(…, output_strides)` says more: how the
    input's elements step through the storage of an output that lies in `output_strides`. The kernel leaves an input
    that lies there already as it is. Bytes of the output that no input covers are its own.
    """

    output: int
    byte_offset: Callable[[Types, Types, Attrs, int], int | None]
    strides: JoinStrides | None = None


#: Why this pair must not be computed in place for these types, or None where it may.
InplaceCondition = Callable[[Types, Types, Attrs], "str | None"]


@dataclass(frozen=True, slots=True)
class InplacePair:
    """Output `output` may be computed over the bytes of input `input`, if that input dies here.

    The general rules (the input dies, is not pinned, both have equal bytes) are the pass's and the validator's. This
    entry adds what only the op knows: `condition(input_types, output_types, attrs)` returns a refusal reason or None.
    `repeats` says whether the same value may be *another* input of the node too (fine for elementwise reads at the
    same index, wrong for matmul). `equal_bytes=False` allows an output that is smaller than the input.
    """

    output: int
    input: int
    condition: InplaceCondition | None = None
    repeats: bool = False
    equal_bytes: bool = True


#: (input types, output types, attributes) -> for each input, whether item i of axis 0 of every output needs only item i
#: of it (True) or the whole of it (False); None where items depend on each other.
ItemRule = Callable[[Types, Types, Attrs], "tuple[bool, ...] | None"]
