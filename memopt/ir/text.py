"""The canonical text of a graph: `print_graph`; its inverse, `parse`, is in `text_parse`.

    graph "tiny" {
      input %x: f32[1,8] donated
      param %w: f32[8,2]
      param %lr: f32[] @host = [0.1]
      %y = MatMul(%x, %w) : f32[1,2]
      %p, _ = Split(%y) {axis=1} @gpu after(y) "split it" : f32[1,1], f32[1,1]
      output %p
      storage {
        variable y: %y, %z
        buffer y: y, p+4
      }
    }

Holds true: the text is ASCII, one statement a line, the same for the same graph, and `print_graph(parse(text))` gives
`text` back. Printed are only attributes that differ from the op's defaults, a node's name only where it is not that of
its first output, parameters' data only up to `MAX_INLINE_ELEMENTS`, and of the storage only what differs from "each
value its own variable, each variable its own buffer". `_` stands for an absent optional operand. A name that is not
made of letters, digits and `_ . / ~ $ -` is written as a JSON string (`%"a:b"`). `#` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.ir.graph import Graph
from memopt.ir.storage import Variable
from memopt.ir.text_parse import parse
from memopt.ir.value import Node, Value
from memopt.ops import Attrs, OpSpec

__all__ = ["MAX_INLINE_ELEMENTS", "parse", "print_graph"]

#: Parameters with at most this many elements carry their data in the text.
MAX_INLINE_ELEMENTS = 16

_BARE_VALUE = re.compile(r"[A-Za-z0-9_./~$-]+")
_BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./~$-]*")


def print_graph(graph: Graph) -> str:
    """The canonical text of `graph`."""
    lines = [f"graph {_quoted(graph.name)} {{"]
    for value in graph.inputs:
        donated = " donated" if value.name in graph.donated else ""
        lines.append(f"  input {_value(value)}: {value.type}{donated}")
    for value in graph.params:
        lives = f" @{_word(graph.param_devices[value.name])}" if value.name in graph.param_devices else ""
        lines.append(f"  param {_value(value)}: {value.type}{lives}{_data(graph.param_data(value))}")
    lines += [f"  {_node(node)}" for node in graph.nodes]
    lines += [f"  output {_value(value)}" for value in graph.outputs]
    storage = _storage(graph)
    if storage:
        lines += ["  storage {", *(f"    {line}" for line in storage), "  }"]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    text = f"{node.op}({_list(node.inputs)})"
    if node.outputs:
        text = f"{_list(node.outputs)} = {text}"
    attrs = _attrs(node.spec, node.attrs)
    if attrs:
        text += f" {{{attrs}}}"
    if node.device is not None:
        text += f" @{_word(node.device)}"
    if node.controls:
        text += f" after({', '.join(_word(before.name) for before in node.controls)})"
    first = next((value.name for value in node.outputs if value is not None), None)
    if node.name != first:
        text += f" {_quoted(node.name)}"
    if node.outputs:
        text += " : " + ", ".join("_" if value is None else str(value.type) for value in node.outputs)
    return text


def _list(values: Iterable[Value | None]) -> str:
    return ", ".join("_" if value is None else _value(value) for value in values)


def _attrs(spec: OpSpec, attrs: Attrs) -> str:
    shown = []
    for name, value in attrs.items():
        default = spec.attrs[name].default if name in spec.attrs else None
        if default is None or _attr(value) != _attr(type(value)(default)):  # type: ignore[arg-type]
            shown.append(f"{name}={_attr(value)}")
    return ", ".join(shown)


def _attr(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_attr(item) for item in value)}]"
    if isinstance(value, str):
        return _quoted(value)
    return _number(value)


def _number(value: Any) -> str:
    """A number that reads back as the same number: `true`, `-3`, `0.1`, `1e-05`, `inf`, `nan`."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    return str(value)


def _data(data: NDArray[Any] | None) -> str:
    if data is None or data.size > MAX_INLINE_ELEMENTS:
        return ""
    return f" = [{', '.join(_number(item) for item in data.reshape(-1))}]"


def _storage(graph: Graph) -> list[str]:
    """The storage lines, in the order in which values are defined."""
    order = {value: i for i, value in enumerate(graph.values)}
    storage = graph.storage
    bound = {v: sorted(storage.values_of(v), key=order.__getitem__) for v in storage.variables}
    rank = {variable: order[values[0]] for variable, values in bound.items()}
    variables = sorted(bound, key=rank.__getitem__)
    groups = default_groups(graph)
    lines = []
    for variable in variables:
        first = bound[variable][0]
        if variable.name != first.name or bound[variable] != groups.get(first):
            lines.append(f"variable {_word(variable.name)}: {_list(bound[variable])}")
    members = {b: sorted(storage.variables_of(b), key=rank.__getitem__) for b in storage.buffers}
    for buffer in sorted(members, key=lambda b: rank[members[b][0]]):
        held = members[buffer]
        if len(held) > 1 or held[0].name != buffer.name or held[0].offset:
            lines.append(f"buffer {_word(buffer.name)}: {', '.join(_placed(variable) for variable in held)}")
    return lines


def default_groups(graph: Graph) -> dict[Value, list[Value]]:
    """Which values share a variable with no pass: each its own, but an update joins the variable that it writes.

    Maps the first value of each variable to all of them.
    """
    head: dict[Value, Value] = {}
    groups: dict[Value, list[Value]] = {}
    for value in graph.values:
        source = None
        if value.producer is not None:
            index = value.producer.spec.updates.get(value.index)
            source = None if index is None else value.producer.inputs[index]
        first = value if source is None else head[source]
        head[value] = first
        groups.setdefault(first, []).append(value)
    return groups


def _placed(variable: Variable) -> str:
    """`name+offset[strides]`, the offset in bytes, the strides in elements."""
    strides = "" if variable.strides is None else f"[{','.join(map(str, variable.strides))}]"
    return _word(variable.name) + (f"+{variable.offset}" if variable.offset else "") + strides


def _value(value: Value) -> str:
    return "%" + (value.name if _BARE_VALUE.fullmatch(value.name) else _quoted(value.name))


def _word(name: str) -> str:
    return name if _BARE_WORD.fullmatch(name) and name not in ("inf", "nan") else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
