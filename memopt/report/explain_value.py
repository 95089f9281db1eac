"""`plan.explain("name")`: all that is known of one value: where its bytes are, when, and who shares them.

Holds true: steps are positions of nodes, instructions are positions in the program; both ranges are half-open. `places`
has one entry for each byte range that the value is ever written to, transfer copies included.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memopt.analysis import Aliases, Liveness, analyze_aliases, analyze_liveness
from memopt.errors import MemoptError, OptionError
from memopt.ir import Graph, Value, nearest_names
from memopt.lowering.lives import Life
from memopt.pipeline import Decision
from memopt.plan import MemoryPlan
from memopt.report.decisions import decision_dict
from memopt.report.explain import entry_lines, signed_bytes
from memopt.report.explain_live import PlanFacts
from memopt.report.explain_moves import WhatIf, needed_bytes
from memopt.report.table import WIDTH
from memopt.types import format_bytes

__all__ = ["Place", "Tenant", "ValueExplanation", "explain_value", "find_value"]

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes that hold the value during instructions `[start, end)`, and the third arrow: where they lie.

    kind   "home" (where its node writes it, or where it arrives) or "copy" (of a transfer)      for_node  the node that
    writes it, or for which it was copied            ended   what ended it, in words
    """

    kind: str
    for_node: str
    device: str
    space: str
    offset: int
    size: int
    buffer: int
    start: int
    end: int
    ended: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """Another value in the same graph buffer: at which byte of it, how many, in which steps, and whether it is a view
    of the same bytes.
    """

    value: str
    offset: int
    bytes: int
    start: int
    end: int
    same_content: bool


@dataclass(frozen=True, slots=True, repr=False)
class ValueExplanation:
    """All about one value.

    producer   its node ("" for a feed or parameter)      readers    nodes that read it, in order
    start, end its steps                                  variable, buffer, offset   the first two arrows
    same_variable  values that have its variable too      tenants    values that have its buffer too
    aliases    views of the same bytes, itself left out   places     where it lies on devices
    held       why it holds to the end ("" if it does not)
    keep_cost  device -> bytes of live peak and scratch that keeping it costs (None: held anyway, or not measurable)
    """

    value: str
    type: str
    bytes: int
    producer: str
    readers: tuple[str, ...]
    start: int
    end: int
    variable: str
    same_variable: tuple[str, ...]
    buffer: str
    offset: int
    tenants: tuple[Tenant, ...]
    aliases: tuple[str, ...]
    places: tuple[Place, ...]
    decisions: tuple[Decision, ...]
    held: str
    keep_cost: Mapping[str, int] | None

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return f"<ValueExplanation of %{self.value}>"

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain lists, dicts, strings and numbers (docs/json.md)."""
        fields = ("value", "type", "bytes", "producer", "start", "end", "variable", "buffer", "offset", "held")
        return {
            **{name: getattr(self, name) for name in fields},
            "readers": list(self.readers),
            "same_variable": list(self.same_variable),
            "aliases": list(self.aliases),
            "tenants": [_fields(one) for one in self.tenants],
            "places": [_fields(one) for one in self.places],
            "decisions": [decision_dict(one) for one in self.decisions],
            "keep_cost_bytes": None if self.keep_cost is None else dict(self.keep_cost),
        }


def _fields(one: Place | Tenant) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def find_value(graph: Graph, name: str) -> Value:
    """The value of that name, or the only output of the node of that name; else `OptionError` with the nearest ones."""
    plain = name.removeprefix("%")
    if graph.has_value(plain):
        return graph.value(plain)
    if graph.has_node(plain) and len(graph.node(plain).real_outputs) == 1:
        return graph.node(plain).real_outputs[0][1]
    raise OptionError(f"graph {graph.name!r} has no value {name!r}{nearest_names(graph, name)}")


def explain_value(plan: MemoryPlan, name: str, what_if: WhatIf | None) -> ValueExplanation:
    """Explain one value of `plan`. Raises `OptionError` if there is none of that name."""
    graph, storage = plan.graph, plan.graph.storage
    value = find_value(graph, name)
    facts, liveness = PlanFacts(plan), analyze_liveness(graph)
    variable = storage.variable(value)
    span = liveness.intervals[value]
    aliases = analyze_aliases(graph)
    family = aliases.family(value)
    held = _held(plan, liveness, value)
    return ValueExplanation(
        value=value.name,
        type=str(value.type),
        bytes=value.nbytes,
        producer=value.producer.name if value.producer is not None else "",
        readers=tuple(dict.fromkeys(use.node.name for use in value.data_uses)),
        start=span.start,
        end=span.end,
        variable=variable.name,
        same_variable=tuple(v.name for v in storage.values_of(variable) if v is not value),
        buffer=variable.buffer.name,
        offset=variable.offset,
        tenants=_tenants(graph, liveness, value, aliases),
        aliases=tuple(v.name for v in family if v is not value),
        places=tuple(_place(facts, life) for life in facts.lives_of(value.name)),
        decisions=tuple(facts.decisions.get(value.name, ())),
        held=held,
        keep_cost=None if held or what_if is None else _keep_cost(plan, value, what_if),
    )


def _tenants(graph: Graph, liveness: Liveness, value: Value, aliases: Aliases) -> tuple[Tenant, ...]:
    storage, family = graph.storage, set(aliases.family(value))
    low = storage.variable(value).offset
    others = [v for v in storage.tenants(storage.buffer(value)) if v is not value]
    found = []
    for other in others:
        span, at = liveness.intervals[other], storage.variable(other).offset
        meets = at < low + storage.extent_bytes(value) and low < at + storage.extent_bytes(other)
        same = other in family or (meets and aliases.agree(value, other, at - low))  # a view, or joined
        found.append(Tenant(other.name, at, other.nbytes, span.start, span.end, same))
    return tuple(sorted(found, key=lambda one: (one.start, one.end)))


def _held(plan: MemoryPlan, liveness: Liveness, value: Value) -> str:
    kept = plan.options.get("extra_outputs", ())
    if isinstance(kept, (tuple, list)) and value.name in kept:
        return "kept by request"
    reason = liveness.kept.get(value)
    return "" if reason is None else str(reason)


def _keep_cost(plan: MemoryPlan, value: Value, what_if: WhatIf) -> Mapping[str, int] | None:
    keep = (*what_if.options.get("keep", ()), value.name)
    try:
        kept = what_if.plan(None, validate=False, pack_seconds=0.0, keep=keep)
    except MemoptError:
        return None
    now, then = needed_bytes(plan), needed_bytes(kept)
    return {name: then[name] - now[name] for name in now}


def _place(facts: PlanFacts, life: Life) -> Place:
    plan = facts.plan
    buffer, slot = plan.program.buffers[life.buffer], plan.slots[life.buffer]
    count = len(plan.program.instructions)
    if life.fetched:
        end, ended = count, "holds to the end"
    elif life.over is not None:
        end, ended = life.over, f"overwritten by {facts.named(facts.node_at(life.over))}{_by(facts, life)}"
    elif life.freed is not None:
        end, ended = life.freed, f"freed after {facts.named(facts.node_at(life.freed))}"
    elif buffer.space in ("arena", "output"):
        end, ended = count, "never freed"
    else:
        end, ended = count, "stays where it arrived"
    return Place(
        "copy" if life.copy else "home", life.maker, buffer.device, slot.space, slot.offset + life.low,
        life.high - life.low, buffer.id, max(life.start, 0), end, ended,
    )  # fmt: skip


def _by(facts: PlanFacts, life: Life) -> str:
    """`, with %y`: which value was written over it."""
    for other in facts.lives_in.get(life.buffer, ()):
        if other.start == life.over and other.low < life.high and life.low < other.high:
            return f", with %{other.value}"
    return ""


# -- text -------------------------------------------------------------------------------------------------------------


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    deeper = indent + "    " if indent else ""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)


def _list(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"%{name}" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _lines(e: ValueExplanation) -> list[str]:
    lines = textwrap.wrap(f"%{e.value}: {e.type}, {format_bytes(e.bytes)} ({e.bytes} bytes)", WIDTH)
    made = f"made by node {e.producer} at step {e.start}" if e.producer else "arrives before the first step"
    read = f"read by {', '.join(e.readers)}" if e.readers else "read by nobody"
    lines += _wrapped(f"{made}; {read}; live in steps [{e.start}, {e.end})")
    also = f", which {_list(e.same_variable)} {'has' if len(e.same_variable) == 1 else 'have'} too"
    at = f" at byte {e.offset}" if e.offset else ""
    lines += _wrapped(f"variable {e.variable}{also if e.same_variable else ''}; buffer {e.buffer}{at}")
    lines += _wrapped(f"views of the same bytes: {_list(e.aliases)}") if e.aliases else []
    lines += ["", "where it lies (instructions are half-open)"]
    for place in e.places:
        lines += _place_lines(place)
    if not e.places:
        lines += ["  nowhere: the program neither writes nor reads its bytes"]
    if e.tenants:
        lines += ["", *entry_lines("shares its buffer with", "bytes", "when")]
        near = sorted(e.tenants, key=lambda one: abs(one.start - e.start))[:_SHOWN]
        for one in sorted(near, key=lambda one: (one.start, one.end)):
            same = ", a view of the same bytes" if one.same_content else ""
            text = f"steps [{one.start}, {one.end}){f', at byte {one.offset}' if one.offset else ''}{same}"
            lines += entry_lines(f"  %{one.value}", format_bytes(one.bytes), text)
        more = len(e.tenants) - len(near)
        lines += [f"  ... {more} more, further away in time"] if more else []
    lines += _decision_lines(e)
    return [*lines, "", *_end_lines(e)]


def _place_lines(place: Place) -> list[str]:
    span = f"[{place.start}, {place.end})"
    bytes_ = f"[{place.offset}, {place.offset + place.size})"
    what = f"copy for {place.for_node or 'the end of the step'}" if place.kind == "copy" else "home"
    where = f"{place.device} {place.space}, bytes {bytes_}, buffer #{place.buffer}"
    return _wrapped(f"{what}: {where}, instructions {span}, {place.ended}")


def _decision_lines(e: ValueExplanation) -> list[str]:
    lines: list[str] = []
    for d in e.decisions:
        values = " over ".join(f"%{name}" for name in d.subject)
        lines += _wrapped(f"{'+' if d.accepted else '-'} {d.pass_name} at {d.node}: {values}: {d.reason}")
    if not lines:
        return ["", "no pass decided anything about it"]
    return ["", "decided about it (+ taken, - refused)", *lines]


def _end_lines(e: ValueExplanation) -> list[str]:
    if e.held:
        return _wrapped(f"It holds to the end: it is {e.held}.", "")
    homes = [place for place in e.places if place.kind == "home"]
    gone = f" ({homes[-1].ended})" if homes else ""
    text = f"It is gone at the end{gone}. To keep it: compile(..., keep=[{e.value!r}]), or --keep {e.value}"
    if e.keep_cost is None:
        return _wrapped(f"{text}.", "")
    costs = ", ".join(f"{signed_bytes(cost)} on {name}" for name, cost in e.keep_cost.items() if cost) or "nothing"
    return _wrapped(f"{text}; that costs {costs} at the peak (measured).", "")
