"""What became of each value by the end of a run, for messages about those that are gone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from memopt.lowering.lives import Life, find_lives
from memopt.plan import MemoryPlan

__all__ = ["missing_message", "option_names", "value_fates"]


def value_fates(plan: MemoryPlan) -> dict[str, str]:
    """value -> what ended it, such as `it was freed after node add (Add)`."""
    graph, program = plan.graph, plan.program
    nodes = []
    node = ""
    for instruction in program.instructions:
        node = getattr(instruction, "node", "") or node
        nodes.append(node)

    def at(position: int) -> str:
        name = nodes[position]
        return f"node {name} ({graph.node(name).op})" if graph.has_node(name) else name or "the last node"

    def fate(life: Life) -> str:
        if life.over is not None:
            return f"its bytes were overwritten by {at(life.over)}"
        if life.freed is not None:
            return f"its bytes were freed after {at(life.freed)}"
        return "it is no output"

    fates = {value.name: "it is no output" for value in graph.values}
    for life in find_lives(program, {value.name: value.shape for value in graph.values}):
        if not life.copy:
            fates[life.value] = fate(life)
    return fates


def option_names(options: Mapping[str, object], key: str) -> tuple[str, ...]:
    """The names that a plan's option lists."""
    names = options.get(key, ())
    return tuple(str(name) for name in names) if isinstance(names, (tuple, list)) else ()


def missing_message(name: str, there: Sequence[str], fates: Mapping[str, str]) -> str:
    """Why a result has no value `name`, and how to get it."""
    plain = str(name).removeprefix("%")
    have = ", ".join(dict.fromkeys(there)) or "none"
    if plain in fates:
        return (
            f"%{plain} is not in the result: {fates[plain]}; to keep it, compile with keep=[{plain!r}] "
            f"(the outputs are {have})"
        )
    close = difflib.get_close_matches(plain, list(fates), 3, 0.6)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"the graph has no value {plain!r}{hint} (the outputs are {have})"
