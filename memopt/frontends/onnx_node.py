"""What a normaliser sees of one ONNX node, and what it makes of it.

Holds true: a normaliser reads a node and returns steps; it changes nothing. What it cannot express it refuses
(`RefusedError`), in words that say what about this node is the trouble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto

from memopt.frontends.onnx_fold import Array, Constant
from memopt.frontends.problems import RefusedError, shown
from memopt.types import TensorType

__all__ = ["NodeView", "Step", "read_attributes"]

_SCALARS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
}
_LISTS = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings"}


@dataclass(slots=True)
class Step:
    """One node of our graph to be: inputs and outputs by ONNX value name ("" for absent). Names that start with
    `outputs[0] + "/"` are free for values between the steps of one node."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attrs: dict[str, Any] = field(default_factory=dict)


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of `node` as Python values; tensors stay `TensorProto`."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in _SCALARS:
            value = getattr(attribute, _SCALARS[attribute.type])
        elif attribute.type in _LISTS:
            value = list(getattr(attribute, _LISTS[attribute.type]))
        else:
            kind = dict(zip(AttributeProto.AttributeType.values(), AttributeProto.AttributeType.keys(), strict=True))
            raise RefusedError(
                f"its attribute {shown(attribute.name)} is of kind {kind.get(attribute.type, attribute.type)}"
            )
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, list):
            value = tuple(item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in value)
        found[attribute.name] = value
    return found


@dataclass(slots=True)
class NodeView:
    """One ONNX node as a normaliser sees it.

    inputs, outputs   ONNX value names, "" where absent        attrs    the attributes, a copy that may be changed
    constants         the inputs that are constants             types    the types of the inputs that are known
    """

    op: str
    opset: int
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    constants: Mapping[str, Constant]
    types: Mapping[str, TensorType]

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def wants(self, index: int) -> bool:
        """Whether output `index` is asked for."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def type(self, index: int = 0) -> TensorType:
        """The type of input `index`."""
        if not self.has(index):
            raise RefusedError(f"its input {index} is absent")
        return self.types[self.inputs[index]]

    def is_constant(self, index: int) -> bool:
        return self.has(index) and self.inputs[index] in self.constants

    def constant(self, index: int, what: str) -> Array | None:
        """The data of input `index`, None if absent; refuses what is computed from feeds."""
        if not self.has(index):
            return None
        found = self.constants.get(self.inputs[index])
        if found is None:
            raise RefusedError(
                f"its {what} is computed from the feeds; memopt plans static shapes and needs a constant"
            )
        if found.type.num_elements > 1 << 20:
            raise RefusedError(f"its {what} has {found.type.num_elements} elements")
        return found.data

    def ints(self, index: int, what: str) -> tuple[int, ...] | None:
        """The integers of input `index`, None if absent."""
        data = self.constant(index, what)
        if data is None:
            return None
        if data.dtype.kind not in "iu":
            raise RefusedError(f"its {what} is {data.dtype.name}, not integer")
        return tuple(int(number) for number in data.reshape(-1))

    def number(self, index: int, what: str) -> float | None:
        """The one number of input `index`, None if absent."""
        data = self.constant(index, what)
        if data is None:
            return None
        if data.size != 1:
            raise RefusedError(f"its {what} has {data.size} elements; want one number")
        return float(data.reshape(-1)[0])

    def step(self, op: str | None = None, num_inputs: int | None = None, **attrs: Any) -> list[Step]:
        """This node as one step: its first `num_inputs` inputs, and these attributes (None: left out)."""
        kept = {name: value for name, value in attrs.items() if value is not None}
        return [Step(op or self.op, self.inputs[:num_inputs], self.outputs, kept)]

    def plain(self) -> list[Step]:
        """This node as it is."""
        return [Step(self.op, self.inputs, self.outputs, self.attrs)]


def tensor_attribute(view: NodeView, name: str) -> onnx.TensorProto | None:
    """The tensor attribute `name`, None if absent."""
    value = view.attrs.get(name)
    if value is not None and not isinstance(value, onnx.TensorProto):
        raise RefusedError(f"its attribute {name} is no tensor")
    return value
