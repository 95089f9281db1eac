"""`plan.explain()`: who is live at the peak and why, what was decided about them, and the next best moves.

Holds true: no line of `str(explanation)` is over 80 columns; `to_dict()` holds all of it (docs/json.md).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memopt.plan import MemoryPlan
from memopt.report.decisions import decision_dict
from memopt.report.explain_live import LiveValue, Peak, PlanFacts, find_peak
from memopt.report.explain_moves import Move, Moves, WhatIf, find_moves
from memopt.report.table import WIDTH
from memopt.report.tables import describe_plan
from memopt.types import format_bytes

__all__ = ["Explanation", "entry_lines", "explain_plan", "move_lines", "signed_bytes"]

_NAME, _BYTES = 26, 10
_SHOWN = 10
_DECISIONS = 4
_MEASURED = (
    "A gain is of live peak and scratch. measured: this plan against one compiled with the change; upper bound: the "
    "bytes are taken away where they lie."
)


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A plan explained: its peak on each device whose arena is not empty, and the moves that would lower it."""

    plan: str
    peaks: tuple[Peak, ...]
    moves: Moves

    def peak(self, device: str) -> Peak | None:
        """The peak of that device, if its arena is not empty."""
        return next((peak for peak in self.peaks if peak.device == device), None)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Explanation: {len(self.peaks)} peaks, {len(self.moves.found)} moves>"

    def text(self, limit: int | None = _SHOWN) -> str:
        """As `str`, with at most `limit` lines in each list (None: all)."""
        lines = textwrap.wrap(self.plan, WIDTH)
        for peak in self.peaks:
            lines += ["", *_peak_lines(peak, limit)]
        if not self.peaks:
            lines += ["", "No arena holds any byte: there is nothing to explain."]
        lines += ["", *move_lines(self.moves, limit)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain lists, dicts, strings and numbers."""
        return {
            "peaks": {peak.device: _peak_dict(peak) for peak in self.peaks},
            "moves": [_move_dict(move) for move in self.moves.found],
            "num_useless_moves": self.moves.num_useless,
            "num_untried_moves": self.moves.num_untried,
        }


def explain_plan(plan: MemoryPlan, what_if: WhatIf | None, seconds: float) -> Explanation:
    """Explain `plan`; moves are measured through `what_if` for at most about `seconds` (without it, only bounded)."""
    facts = PlanFacts(plan)
    found = (find_peak(facts, device.name) for device in plan.machine.all_devices)
    peaks = tuple(peak for peak in found if peak is not None)
    return Explanation(describe_plan(plan), peaks, find_moves(facts, peaks, what_if, seconds))


def signed_bytes(num_bytes: int) -> str:
    """`-3.06 MiB`, `+512 B`."""
    return f"{'-' if num_bytes < 0 else '+'}{format_bytes(abs(num_bytes))}"


def entry_lines(name: str, size: str, text: str) -> list[str]:
    """A name, a size, and a text that is wrapped beside them."""
    if len(name) > _NAME:
        name = name[: _NAME // 2 - 1] + "..." + name[len(name) - (_NAME // 2 - 2) :]
    head = f"{name:<{_NAME}} {size:>{_BYTES}}  "
    wrapped = textwrap.wrap(text, WIDTH - len(head), break_on_hyphens=False, break_long_words=True) or [""]
    return [(head + wrapped[0]).rstrip(), *(" " * len(head) + line for line in wrapped[1:])]


def _peak_lines(peak: Peak, limit: int | None) -> list[str]:
    title = (
        f"{peak.device}: peak {format_bytes(peak.peak_bytes)} (arena {format_bytes(peak.height_bytes)}), first at "
        f"instruction {peak.instruction}: {peak.text}"
    )
    lines = textwrap.wrap(title, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if peak.num_places > 1:
        text = f"{peak.num_places} stretches of the program reach this peak: all of them must fall for it to fall."
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", *entry_lines("live value", "bytes", "why it is alive")]
    lines += entry_lines("-" * _NAME, "-" * _BYTES, "-" * 40)
    shown = peak.live[:limit]
    for one in shown:
        lines += entry_lines(f"%{one.value}", format_bytes(one.bytes), _maker(one) + one.why)
    if len(shown) < len(peak.live):
        rest = sum(one.bytes for one in peak.live[len(shown) :])
        lines += entry_lines(f"... {len(peak.live) - len(shown)} more", format_bytes(rest), "")
    return lines + _decision_lines(shown)


def _maker(one: LiveValue) -> str:
    if one.producer.startswith("copy for ") or one.producer in ("-", "", one.value) or one.why.startswith("being"):
        return ""
    return f"of {one.producer}; "


def _decision_lines(live: Sequence[LiveValue]) -> list[str]:
    """What was decided about the values' own places: the accepted one, or why each was refused."""
    lines: list[str] = []
    for one in live:
        mine = [d for d in one.decisions if d.subject[0] == one.value]
        accepted = [d for d in mine if d.accepted]
        for d in (accepted or mine)[:_DECISIONS]:
            over = f" over %{d.subject[1]}" if len(d.subject) > 1 else ""
            text = f"{'+' if d.accepted else '-'} {d.pass_name}: %{one.value}{over}: {d.reason}"
            lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return ["", "decided about them (+ taken, - refused):", *dict.fromkeys(lines)] if lines else []


def move_lines(moves: Moves, limit: int | None) -> list[str]:
    """The moves as text."""
    lines = ["next best moves"]
    for move in moves.found[:limit]:
        gains = ", ".join(f"{device} {signed_bytes(-size)}" for device, size in move.saved.items())
        how = f" [{move.how}]" if move.how else ""
        text = f"{gains}: {move.text}{how} ({move.method})"
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    more = len(moves.found) - len(moves.found[:limit])
    useless = moves.num_useless
    notes = [f"{more} more" if more else "", f"{useless} earn{'' if useless > 1 else 's'} nothing" if useless else ""]
    notes.append(f"{moves.num_untried} not tried for lack of time" if moves.num_untried else "")
    told = ", ".join(filter(None, notes))
    if not moves.found:
        lines.append("  none that is known here earns a byte")
    if told:
        lines.append(f"  ({told})")
    if not moves.can_replan:
        lines += textwrap.wrap("This plan was loaded, or its graph was changed: nothing could be measured.", WIDTH)
    return [*lines, "", *textwrap.wrap(_MEASURED, WIDTH)] if moves.found else lines


def _peak_dict(peak: Peak) -> dict[str, Any]:
    return {
        "instruction": peak.instruction,
        "node": peak.node,
        "peak_bytes": peak.peak_bytes,
        "height_bytes": peak.height_bytes,
        "num_places": peak.num_places,
        "live": [_live_dict(one) for one in peak.live],
    }


def _live_dict(one: LiveValue) -> dict[str, Any]:
    return {
        "value": one.value,
        "bytes": one.bytes,
        "producer": one.producer,
        "last_reader": one.last_reader,
        "freed_after": one.freed_after,
        "why": one.why,
        "shares_with": list(one.shares),
        "waits_for": one.waits_for,
        "buffer": one.buffer,
        "start": one.start,
        "end": one.end,
        "decisions": _dicts(one.decisions),
    }


def _dicts(decisions: Iterable[Any]) -> list[dict[str, Any]]:
    return [decision_dict(decision) for decision in decisions]


def _move_dict(move: Move) -> dict[str, Any]:
    return {
        "kind": move.kind,
        "text": move.text,
        "how": move.how,
        "saved_bytes": dict(move.saved),
        "total_bytes": move.total,
        "method": move.method,
    }
