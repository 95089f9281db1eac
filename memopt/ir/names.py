"""Names near a name that is not there, for messages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memopt.ir.graph import Graph

__all__ = ["nearest_names"]

_SHOWN = 4


def nearest_names(graph: Graph, name: str) -> str:
    """`; did you mean %a or %b?`, or how many values there are; for the end of a message."""
    name = name.removeprefix("%")
    if graph.has_node(name):
        made = [f"%{value.name}" for _, value in graph.node(name).real_outputs]
        return f"; it is a node, which makes {', '.join(made)}"
    names = [value.name for value in graph.values]
    part = [other for other in names if name and name.lower() in other.lower()]
    close = list(dict.fromkeys([*difflib.get_close_matches(name, names, _SHOWN, 0.6), *part]))[:_SHOWN]
    if close:
        return f"; did you mean {' or '.join(f'%{other}' for other in close)}?"
    return f"; it has {len(names)} values, such as {', '.join(f'%{other}' for other in names[:_SHOWN])}"
