"""What a plan does to the bytes of its feeds.

Holds true: a feed is *written* if an instruction writes to its space, if only what is there already (a view onto
itself); it is *taken* if a value with other content is written there. Asked of the plan, not of the passes. Linear in
operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memopt.analysis import analyze_aliases
from memopt.lowering import Call, Operand, Transfer
from memopt.ops import DEFAULT_LAYOUT
from memopt.plan import MemoryPlan
from memopt.runtime.rows import makes_views

__all__ = ["FeedUse", "feed_uses"]


@dataclass(frozen=True, slots=True)
class FeedUse:
    """What a plan does to the bytes of one feed: `taken_by` is the first value that is written over it ("": none)."""

    written: bool = False
    taken_by: str = ""


def feed_uses(plan: MemoryPlan) -> dict[str, FeedUse]:
    """feed -> what the plan does to its bytes."""
    graph, aliases = plan.graph, analyze_aliases(plan.graph)
    found = {result.name: FeedUse() for result in plan.program.feeds}
    spaces = {}
    for result in plan.program.feeds:
        slot = plan.slots[result.operand.buffer]
        spaces[slot.device, slot.space] = result
    for operand in _written(plan):
        slot = plan.slots[operand.buffer]
        entry = spaces.get((slot.device, slot.space))
        if entry is None or found[entry.name].taken_by:
            continue
        feed, value, placed = graph.value(entry.name), graph.value(operand.value), operand.placement
        shift = slot.offset + operand.offset - entry.operand.offset
        plain = placed.layout == DEFAULT_LAYOUT and placed.dtype == value.dtype and operand.strides is None
        same = plain and aliases.agree(feed, value, shift)
        found[entry.name] = FeedUse(True, "" if same else value.name)
    return found


def _written(plan: MemoryPlan) -> Iterator[Operand]:
    """The operands that instructions write."""
    for instruction in plan.program.instructions:
        if isinstance(instruction, Call) and not makes_views(plan, instruction):
            yield from (operand for operand in instruction.outputs if operand is not None)
        elif isinstance(instruction, Transfer):
            yield instruction.target
