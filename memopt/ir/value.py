"""Values, uses and nodes: the SSA part of a graph. All three are equal by identity (`Use` by content).

Holds true: a value is defined once, by the graph (a feed or a parameter) or by one output of one node; `value.uses`
lists every (node, index) that reads it, in the order in which the uses were added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from memopt.ops import Attrs, AttrValue, OpSpec, get_op
from memopt.types import TensorType

__all__ = ["Node", "Use", "Value"]


class Use(NamedTuple):
    """One reading of a value: input number `index` of `node`."""

    node: Node
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody wants here


class Value:
    """A tensor that is defined once. `producer` is None for feeds and parameters."""

    __slots__ = ("index", "name", "producer", "type", "uses")

    def __init__(self, name: str, type: TensorType, producer: Node | None = None, index: int = 0) -> None:
        self.name = name
        self.type = type
        self.producer = producer
        self.index = index
        self.uses: list[Use] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    @property
    def data_uses(self) -> tuple[Use, ...]:
        """The uses that read bytes; a reader of the shape keeps nobody alive."""
        return tuple(use for use in self.uses if use.node.spec.reads_data(use.index))

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    if not TYPE_CHECKING:  # type checkers know that there is nothing else

        def __getattr__(self, name: str) -> Any:
            if name.endswith("_") and not name.startswith("_"):
                raise AttributeError(
                    f"a value is defined once and has no in-place method {name!r}: take a handle on it, "
                    "x = b.tensor(value), or build with memopt.TensorBuilder"
                )
            raise AttributeError(f"a value has no attribute {name!r}")


class Node:
    """One use of an op. Inputs and outputs may be None where an optional slot is absent.

    `device` pins the node to a device by name (None: the machine's default). `controls` are nodes that must run before
    this one though no data says so.
    """

    __slots__ = ("attrs", "controls", "device", "inputs", "name", "op", "outputs", "spec")

    def __init__(self, name: str, op: str, inputs: Sequence[Value | None], attrs: Attrs, device: str | None) -> None:
        self.name = name
        self.op = op
        self.spec: OpSpec = get_op(op)
        self.inputs: tuple[Value | None, ...] = tuple(inputs)
        self.outputs: tuple[Value | None, ...] = ()
        self.attrs: Mapping[str, AttrValue] = MappingProxyType(dict(attrs))
        self.device = device
        self.controls: list[Node] = []

    @property
    def input_types(self) -> tuple[TensorType | None, ...]:
        return tuple(None if value is None else value.type for value in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType | None, ...]:
        return tuple(None if value is None else value.type for value in self.outputs)

    @property
    def data_inputs(self) -> tuple[tuple[int, Value], ...]:
        """(index, value) of each input that is present and read for its bytes."""
        return tuple((i, v) for i, v in enumerate(self.inputs) if v is not None and self.spec.reads_data(i))

    @property
    def real_outputs(self) -> tuple[tuple[int, Value], ...]:
        """(index, value) of each output that is present."""
        return tuple((i, v) for i, v in enumerate(self.outputs) if v is not None)

    def __repr__(self) -> str:
        return f"Node({self.name}: {self.op})"
