"""One line of the table of elementwise ops, and the parts that such lines are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memopt.ops.elementwise_loops import ScalarForm
from memopt.ops.elementwise_math import real
from memopt.ops.spec import Attr, Attrs, Infer
from memopt.types import TensorType

__all__ = ["Entry", "FormRule", "calls", "float_attr"]

#: The form of an op for these input and output types, or None where it has no kernel.
FormRule = Callable[[Sequence[TensorType], TensorType, Attrs], ScalarForm | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One elementwise op: inputs by name ("*" before a variadic one), type rule, form, attributes."""

    name: str
    inputs: tuple[str, ...]
    infer: Infer
    form: FormRule
    attrs: dict[str, Attr] = field(default_factory=dict)


def calls(function: str, *params: str) -> FormRule:
    """`function(x0, x1, …, s0, …)` with the named float attributes as s0, s1, …"""

    def form(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm:
        operands = [f"x{i}" for i in range(len(inputs))] + [f"s{i}" for i in range(len(params))]
        return ScalarForm(f"{function}({', '.join(operands)})", tuple(real(attrs, name) for name in params))

    return form


def float_attr(default: float) -> Attr:
    """A float attribute with a default."""
    return Attr("float", default)
