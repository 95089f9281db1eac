"""Donations that were of no use: feeds that are donated, but whose bytes no value of the plan takes, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memopt.analysis import analyze_aliases
from memopt.errors import DonationError
from memopt.ir import Value
from memopt.pipeline import Decision
from memopt.plan import MemoryPlan
from memopt.runtime.uses import feed_uses

__all__ = ["UNUSED", "check_donations", "unused_donations"]

#: The rule of the decision about a donation that earns nothing.
UNUSED = "donation-unused"
_SHOWN = 2


def unused_donations(plan: MemoryPlan) -> list[Decision]:
    """A refusal for each donated feed whose bytes no value ever takes, with the reason."""
    if not plan.graph.donated:
        return []
    uses, steps, decisions = feed_uses(plan), plan.graph.steps(), []
    for feed in plan.graph.inputs:
        if feed.name in plan.graph.donated and not uses[feed.name].taken_by:
            reader = next((use.node for use in feed.data_uses), None)
            node, step = ("", 0) if reader is None else (reader.name, steps[reader])
            reason = f"donation unused: {_obstacle(plan, feed)}"
            decisions.append(Decision("donate", node, (feed.name,), False, reason, feed.nbytes, step, UNUSED))
    return decisions


def check_donations(decisions: Sequence[Decision]) -> None:
    """Raise `DonationError` if any of `decisions` says that a donation is unused."""
    unused = [decision for decision in decisions if decision.rule == UNUSED]
    if unused:
        feeds = "; ".join(f"%{d.subject[0]}: {d.reason.removeprefix('donation unused: ')}" for d in unused)
        raise DonationError(f"feeds are donated, but no value takes their bytes: {feeds}")


def _obstacle(plan: MemoryPlan, feed: Value) -> str:
    """Why nothing is written over the feed."""
    if feed in plan.graph.outputs:
        return "it is an output itself"
    if not feed.nbytes:
        return "it has no bytes"
    refused = list(_refusals(plan, feed))
    if refused:
        return "; ".join(refused[:_SHOWN])
    readers = list(dict.fromkeys(use.node for use in feed.data_uses))
    for node in readers:
        for _, output in node.real_outputs:
            if output.nbytes != feed.nbytes:
                return f"%{output.name}, made of it, has {output.nbytes} bytes, it has {feed.nbytes}"
    if not readers:
        return "no node reads it"
    devices = [node.device for node in readers if node.device not in (None, plan.machine.host.name)]
    if devices:
        return f"it lies on {plan.machine.host.name}, but {readers[0].name} ({readers[0].op}) runs on {devices[0]}"
    return f"strategy {plan.strategy!r} puts no value there"


def _refusals(plan: MemoryPlan, feed: Value) -> Iterator[str]:
    """What passes, and lowering, said of values over this feed, or over views of it."""
    graph = plan.graph
    family = {value.name for value in analyze_aliases(graph).family(feed)}
    over = {d.subject[0]: d for d in plan.decisions if len(d.subject) == 2 and d.subject[1] in family}
    moved = {d.subject[0]: d for d in plan.decisions if d.rule in ("dissolved", "moved")}
    for name, decision in over.items():
        if not graph.has_value(name) or name in family:
            continue
        later = moved.get(name) if decision.accepted else decision
        if later is not None:
            size = graph.value(name).nbytes
            sizes = "" if size == feed.nbytes else f" ({size} bytes over {feed.nbytes})"
            yield f"%{name} over it{sizes}: {later.reason}"
