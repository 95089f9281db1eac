"""What the passes decided, for people: a summary by reason, and a list of single decisions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from memopt.pipeline import Decision
from memopt.report.table import WIDTH, Table, row_dict
from memopt.types import format_bytes

__all__ = ["decision_dict", "decisions_list", "decisions_table", "filter_decisions"]


def decision_dict(decision: Decision) -> dict[str, Any]:
    """One decision, for JSON."""
    fields = row_dict(("pass_name", "step", "node", "accepted", "rule", "reason", "bytes"), decision)
    return {**fields, "subject": list(decision.subject)}


def filter_decisions(
    decisions: Sequence[Decision], text: str | None = None, *, accepted: bool | None = None
) -> list[Decision]:
    """Those that are accepted (or refused), and whose node, values, pass or rule contain `text`."""
    found = [d for d in decisions if accepted is None or d.accepted is accepted]
    if text:
        found = [d for d in found if any(text in word for word in (d.node, d.pass_name, d.rule, *d.subject))]
    return found


def decisions_table(decisions: Sequence[Decision]) -> Table:
    """How often, and for how many bytes, each pass accepted, and refused for which reason."""
    groups: dict[tuple[str, bool, str], list[int]] = {}
    for decision in decisions:
        rule = decision.rule or decision.reason
        groups.setdefault((decision.pass_name, not decision.accepted, "" if decision.accepted else rule), []).append(
            decision.bytes
        )
    order = {name: i for i, name in enumerate(dict.fromkeys(d.pass_name for d in decisions))}
    rows = []
    for (name, refused, rule), sizes in sorted(
        groups.items(), key=lambda item: (order[item[0][0]], item[0][1], -sum(item[1]))
    ):
        verdict = "refused" if refused else "accepted"
        rows.append((name, verdict, rule, str(len(sizes)), format_bytes(sum(sizes))))
    title = "What the passes decided" if rows else "No pass ran: every value has a buffer of its own."
    columns = ("pass", "verdict", "reason", ">pairs", ">bytes") if rows else ()
    return Table(title, columns, tuple(rows))


def decisions_list(decisions: Sequence[Decision], limit: int | None = None) -> str:
    """The decisions, in the order in which they were taken."""
    shown = decisions if limit is None else decisions[:limit]
    lines = []
    for d in shown:
        mark = "+" if d.accepted else "-"
        values = " over ".join(f"%{name}" for name in d.subject)
        line = f"{mark} {d.step:>4} {d.node} [{d.pass_name}] {values}, {format_bytes(d.bytes)}: {d.reason}"
        lines.append(textwrap.fill(line, WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False))
    if len(shown) < len(decisions):
        lines.append(f"... {len(decisions) - len(shown)} more (--all shows them)")
    return "\n".join(lines)
