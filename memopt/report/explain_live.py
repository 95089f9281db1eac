"""Who is live when a device's arena is fullest, and why each of them is still alive.

Holds true: the bytes listed for a device are exactly its peak: one entry for each arena buffer that is live there, at
its full size. An entry speaks of the values that the buffer holds then; `why` names the next need for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from memopt.ir import Graph, Node
from memopt.lowering import print_instruction
from memopt.lowering.lives import Life, find_lives
from memopt.lowering.program import ProgramBuffer
from memopt.pipeline import Decision
from memopt.plan import MemoryPlan
from memopt.report.timeline import live_bytes
from memopt.types import format_bytes

__all__ = ["LiveValue", "Peak", "PlanFacts", "find_peak"]


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A buffer that is live at the peak, by the value that it holds there.

    value      that value (of several, the one that is needed longest)     shares   the others that it holds then
    bytes      of the buffer       buffer   its number in the program       start, end   its instructions, half-open
    producer   the node that wrote the value, or `copy for NODE`            last_reader   the last node that reads it
    freed_after    the last node that reads or writes the buffer
    why        why it is still alive, in words                             decisions   what was decided about it
    waits_for  the later value for which the buffer is held, or is larger ("" if none)
    """

    value: str
    bytes: int
    buffer: int
    start: int
    end: int
    producer: str
    last_reader: str
    freed_after: str
    why: str
    shares: tuple[str, ...] = ()
    waits_for: str = ""
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one device's arena.

    instruction, node, text   the first instruction at which it is reached          num_places   how many stretches of
    the program reach it: a move that helps at one of several earns nothing         live   largest first
    """

    device: str
    peak_bytes: int
    height_bytes: int
    instruction: int
    node: str
    text: str
    num_places: int
    live: tuple[LiveValue, ...]


@dataclass(frozen=True)
class PlanFacts:
    """What several explanations of one plan look up: its lives, its nodes, its decisions by value."""

    plan: MemoryPlan
    lives_in: dict[int, list[Life]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = {value.name: value.shape for value in self.plan.graph.values}
        for life in find_lives(self.plan.program, shapes):
            self.lives_in.setdefault(life.buffer, []).append(life)

    @cached_property
    def steps(self) -> dict[str, int]:
        return {node.name: step for step, node in enumerate(self.plan.graph.nodes)}

    @cached_property
    def decisions(self) -> dict[str, list[Decision]]:
        """value -> the decisions that concern it, in the order in which they were taken."""
        found: dict[str, list[Decision]] = {}
        for decision in self.plan.decisions:
            for name in dict.fromkeys(decision.subject):
                found.setdefault(name, []).append(decision)
        return found

    @cached_property
    def _nodes(self) -> list[str]:
        nodes: list[str] = []
        for instruction in self.plan.program.instructions:
            nodes.append(getattr(instruction, "node", "") or (nodes[-1] if nodes else ""))
        return nodes

    def lives_of(self, value: str) -> list[Life]:
        """The lives of one value, in the order of writing."""
        return sorted((x for found in self.lives_in.values() for x in found if x.value == value), key=lambda x: x.start)

    def node_at(self, position: int) -> str:
        """The node that instruction `position` serves; for a free, the one before it."""
        return self._nodes[position]

    def named(self, node: str) -> str:
        """`conv1 (Conv)`."""
        graph: Graph = self.plan.graph
        return f"{node} ({graph.node(node).op})" if graph.has_node(node) else node or "the end of the step"

    def node(self, name: str) -> Node | None:
        """The node of that name, if there is one."""
        return self.plan.graph.node(name) if self.plan.graph.has_node(name) else None


def find_peak(facts: PlanFacts, device: str) -> Peak | None:
    """The peak of `device`, or None where its arena is empty."""
    plan = facts.plan
    series = live_bytes(plan)[device]
    if not len(series) or not series.max():
        return None
    at = int(series.argmax())
    top = series == series.max()
    num_places = int(top[0]) + int((top[1:] & ~top[:-1]).sum())
    buffers = [b for b in plan.program.buffers if b.space == "arena" and b.device == device and b.size_bytes]
    live = [_live(facts, buffer, at) for buffer in buffers if buffer.start <= at < buffer.end]
    use = plan.devices[device]
    return Peak(
        device,
        int(series.max()),
        use.height_bytes,
        at,
        facts.node_at(at),
        print_instruction(plan.program, plan.program.instructions[at]),
        num_places,
        tuple(sorted(live, key=lambda one: (-one.bytes, one.buffer))),
    )


def _live(facts: PlanFacts, buffer: ProgramBuffer, at: int) -> LiveValue:
    lives = facts.lives_in.get(buffer.id, [])
    here = [life for life in lives if life.alive_at(at)]
    if not here:
        return _idle(facts, buffer, lives, at)
    main = max(here, key=lambda life: (life.fetched, life.last, -life.start))
    others = tuple(dict.fromkeys(life.value for life in here if life.value != main.value))
    maker = f"copy for {main.maker or 'the end'}" if main.copy else main.maker
    reader = "(fetched)" if main.fetched else main.reads[-1][1] if main.reads else "-"
    held = _held(here)
    waits = next((x.value for x in lives if x.start > at and x.high - x.low > held), "")
    larger = _larger(buffer.size_bytes - held, waits)
    why = "; ".join(filter(None, (_need(facts, main, at), _share(others), larger)))
    decisions = tuple(d for d in facts.decisions.get(main.value, ()) if d.pass_name != "lowering" or not main.copy)
    last = _last_node(facts, lives)
    return LiveValue(
        main.value, buffer.size_bytes, buffer.id, buffer.start, buffer.end, maker, reader, last, why, others,
        waits if larger else "", decisions,
    )  # fmt: skip


def _idle(facts: PlanFacts, buffer: ProgramBuffer, lives: Sequence[Life], at: int) -> LiveValue:
    """A buffer that nobody needs there: it waits for its next tenant, or for its free."""
    before = [life for life in lives if life.start <= at]
    after = [life for life in lives if life.start > at]
    last = before[-1] if before else None
    if after:
        why = f"dead; its buffer waits for %{after[0].value}, made by {facts.named(after[0].maker)}"
    elif buffer.end >= len(facts.plan.program.instructions):
        why = "dead; its buffer is held to the end of the step (free='never', or transfer_lifetime='step')"
    else:
        why = "dead; its buffer is freed next"
    name = last.value if last else buffer.name
    maker = last.maker if last else "-"
    return LiveValue(
        name, buffer.size_bytes, buffer.id, buffer.start, buffer.end, maker, "-", _last_node(facts, lives), why, (),
        after[0].value if after else "", tuple(facts.decisions.get(name, ())),
    )  # fmt: skip


def _last_node(facts: PlanFacts, lives: Sequence[Life]) -> str:
    """The last node that reads or writes any of `lives`."""
    if any(life.fetched for life in lives):
        return "(fetched)"
    last = max((life.last for life in lives), default=-1)
    return facts.node_at(last) if last >= 0 else "-"


def _need(facts: PlanFacts, life: Life, at: int) -> str:
    """Why the bytes of `life` are needed at instruction `at` or later."""
    parts = []
    if life.copy:
        parts.append(f"a copy for {facts.named(life.maker)}")
    if life.start == at:
        parts.append("being written here")
    if any(position == at for position, _ in life.reads):
        parts.append("read here")
    later = list(dict.fromkeys(node for position, node in life.reads if position > at and node))
    if later and later != [facts.node_at(at)]:
        last = later[-1]
        more = f", the last of {len(later)} readers" if len(later) > 1 else ""
        parts.append(f"read later by {facts.named(last)}{_steps_on(facts, last, at)}{more}")
    elif later:
        parts.append("read next")
    if life.fetched:
        parts.append(_fetched(facts, life))
    return ", ".join(parts) or "dead, freed next"


def _fetched(facts: PlanFacts, life: Life) -> str:
    plan = facts.plan
    kept = plan.options.get("extra_outputs", ())
    if isinstance(kept, (tuple, list)) and life.value in kept:
        return "kept by request"
    if any(value.name == life.value for value in plan.graph.outputs):
        return "an output of the graph"
    return "the last value of a parameter"


def _steps_on(facts: PlanFacts, node: str, at: int) -> str:
    here, there = facts.steps.get(facts.node_at(at)), facts.steps.get(node)
    if here is None or there is None or there <= here:
        return ""
    return f", {there - here} node{'s' if there - here > 1 else ''} on"


def _share(others: Sequence[str]) -> str:
    if not others:
        return ""
    shown = ", ".join(f"%{name}" for name in others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"its buffer holds {shown} too"


def _held(lives: Sequence[Life]) -> int:
    """The bytes that `lives` cover together."""
    total = end = 0
    for life in sorted(lives, key=lambda life: life.low):
        total += max(0, life.high - max(life.low, end))
        end = max(end, life.high)
    return total


def _larger(num_bytes: int, waits_for: str) -> str:
    """Whom the bytes of the buffer that no live value has are for."""
    if num_bytes <= 0:
        return ""
    return f"its buffer is {format_bytes(num_bytes)} larger" + (f", for %{waits_for} later" if waits_for else "")
