"""Outputs in arrays of the caller's: which buffers become allocations of their own, and why others do not.

Holds true: a buffer of space "output" lies on the host, holds one result from its first byte on, as the graph types
it, and is exactly as large. What lies in it before is the chain of values whose bytes the output takes over: that may
live in the caller's array too, since nobody looks there before the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from memopt.ir import Graph, Value
from memopt.lowering.program import Operand, Result
from memopt.lowering.scope import Draft
from memopt.ops import DEFAULT_LAYOUT
from memopt.pipeline import Decision

__all__ = ["COPIED_OUT", "give_to_caller"]

#: The rule of a decision that says why an output is copied out at the end.
COPIED_OUT = "copied-out"


def give_to_caller(graph: Graph, host: str, drafts: Sequence[Draft], results: Sequence[Result]) -> list[Decision]:
    """Give each result that can be written where the caller wants it a space of its own; a decision for each result.

    `results` are where outputs lie at the end, when all buffers are known (gaps are split).
    """
    tenants: dict[int, list[str]] = {}
    for result in results:
        tenants.setdefault(result.operand.buffer, []).append(result.name)
    steps, decisions = graph.steps(), []
    for result in results:
        value, draft = graph.value(result.name), drafts[result.operand.buffer]
        others = [name for name in tenants[result.operand.buffer] if name != result.name]
        reason = _why_copied(value, draft, result.operand, others)
        if draft.device != host and reason is None:
            reason = f"it ends on {draft.device}"
        node = value.producer
        accepted = reason is None
        text = f"%{value.name} is copied out: {reason}" if reason else f"%{value.name} is made in the caller's array"
        rule = "in-caller" if accepted else COPIED_OUT
        where = ("", 0) if node is None else (node.name, steps[node])
        decisions.append(
            Decision("lowering", where[0], (value.name,), accepted, text, value.nbytes, where[1], rule)
        )
        if accepted:
            draft.space, draft.name = "output", value.name
    return decisions


def _why_copied(value: Value, draft: Draft, operand: Operand, others: Sequence[str]) -> str | None:
    """Why the result cannot be all that its buffer is for; None if it can."""
    if draft.space != "arena":
        kind = "feed" if draft.space == "feed" else "parameter"
        return f"it lies in the bytes of {kind} %{draft.name}"
    placed = operand.placement
    if placed.dtype != value.dtype or placed.layout != DEFAULT_LAYOUT:
        return f"it ends as {placed}"
    if operand.strides is not None:
        return f"it ends in strides {list(operand.strides)}"
    if others:
        return f"output %{others[0]} lies in the same buffer"
    if operand.offset:
        return f"it starts at byte {operand.offset} of its buffer"
    if draft.size != value.nbytes:
        return f"its buffer has {draft.size} bytes, it has {value.nbytes}"
    return None
