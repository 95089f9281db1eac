"""`bisect`: which decisions of a plan change its result? The smallest set of them that still does.

Holds true: a trial plan has the nodes of the plan that is asked about, and the merges that some of its decisions made
(`memopt.replay`). A set that is reported changes the result by itself, and no single decision of it can be left out
(it is 1-minimal). A result is changed if it differs from the NumPy reference by more than `tolerance`, relative to the
output's largest element; parameters that the graph updates are results too. The plan itself is run afresh, not touched.

Delta debugging: A. Zeller, R. Hildebrandt, "Simplifying and isolating failure-inducing input", 2002. At best about
2 log2 n plans for one decision of n, at worst n^2.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memopt.analysis import updated_value
from memopt.compare import TOLERANCE, max_rel_error
from memopt.compile import Plan
from memopt.compile import compile as compile_graph
from memopt.ir import Graph
from memopt.models import random_feeds
from memopt.pipeline import Decision, find_passes, pass_names
from memopt.replay import merges_of, replayed
from memopt.report import WIDTH, decision_dict
from memopt.runtime import run_reference
from memopt.validate import validate

__all__ = ["Bisection", "Culprit", "bisect", "minimal_set"]

Arrays = Mapping[str, NDArray[Any]]
Cause = Literal["nothing", "decisions", "passes", "transfer", "plan", "elsewhere"]
_MOST_CULPRITS = 32


@dataclass(frozen=True, slots=True)
class Culprit:
    """A set of decisions that changes the result by itself, and what the validator says of the plan with only those.

    error            largest relative difference from the reference
    right_elsewhere  another transfer policy under which the same decisions are right ("" if there is none)
    """

    decisions: tuple[Decision, ...]
    error: float
    finding: str
    right_elsewhere: str


@dataclass(frozen=True, slots=True, repr=False)
class Bisection:
    """What changes the result of a plan.

    cause     "nothing": the result is right            "decisions": `culprits` change it
              "passes": `passes` do, by how they edit the graph       "transfer": the policy does, without any decision
              "plan": its slots or instructions do, as the same decisions compiled anew are right
              "elsewhere": the plan without any decision is wrong too
    error     of the plan itself                       outputs   names of the results that differ
    rest_is_right   whether the plan without the culprits' decisions is right
    """

    plan: str
    cause: Cause
    error: float
    outputs: tuple[str, ...]
    num_decisions: int
    num_plans: int
    transfer: str
    culprits: tuple[Culprit, ...] = ()
    passes: tuple[str, ...] = ()
    finding: str = ""
    rest_is_right: bool = True

    @property
    def changed(self) -> bool:
        """Whether the plan's result differs from the reference."""
        return self.cause != "nothing"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return f"<Bisection: {self.cause}, {len(self.culprits)} culprits>"

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain lists, dicts, strings and numbers (docs/json.md)."""
        names = ("cause", "error", "num_decisions", "num_plans", "transfer", "finding", "rest_is_right")
        return {
            **{name: getattr(self, name) for name in names},
            "outputs": list(self.outputs),
            "passes": list(self.passes),
            "culprits": [
                {
                    "decisions": [decision_dict(decision) for decision in culprit.decisions],
                    "error": culprit.error,
                    "finding": culprit.finding,
                    "right_elsewhere": culprit.right_elsewhere,
                }
                for culprit in self.culprits
            ],
        }


def bisect(
    plan: Plan,
    feeds: Arrays | None = None,
    *,
    every: bool = False,
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] | None = None,
) -> Bisection:
    """Find the smallest set of decisions that changes the result of `plan`, which may be wrong (`validate=False`).

    feeds      default: seeded random numbers       every      look for more sets after the first (at most 32)
    tolerance  how far a result may be from the reference     progress   called with a line before each trial
    """
    search = _Search(plan, random_feeds(plan.graph) if feeds is None else feeds, tolerance, progress)
    errors = search.errors(replace(plan))
    error, outputs = max(errors.values(), default=0.0), tuple(n for n, e in errors.items() if not e <= tolerance)
    if not outputs:
        return search.report("nothing", error, outputs)
    if search.changed(()):
        return search.without_decisions(error, outputs)
    if not search.changed(search.units):
        return search.report("plan", error, outputs, finding=_finding(plan))
    return search.decisions(error, outputs, every)


def minimal_set(units: Sequence[Decision], fails: Callable[[Sequence[Decision]], bool]) -> list[Decision]:
    """A subset of `units` that fails, of which no element can be left out. Needs `fails(units)` and not `fails(())`."""
    rest, parts = list(units), 2
    while len(rest) > 1:
        chunks = [rest[len(rest) * i // parts : len(rest) * (i + 1) // parts] for i in range(parts)]
        small = next((chunk for chunk in chunks if chunk and fails(chunk)), None)
        if small is not None:
            rest, parts = small, 2
            continue
        others = ([unit for unit in rest if unit not in chunk] for chunk in chunks) if parts > 2 else iter(())
        less = next((other for other in others if fails(other)), None)
        if less is not None:
            rest, parts = less, max(parts - 1, 2)
        elif parts >= len(rest):
            break
        else:
            parts = min(2 * parts, len(rest))
    return rest


class _Search:
    """Trial plans, and what has been learned from them."""

    def __init__(self, plan: Plan, feeds: Arrays, tolerance: float, progress: Callable[[str], None] | None) -> None:
        self.plan, self._feeds, self._tolerance = plan, feeds, tolerance
        self._say = progress or (lambda line: None)
        self.num_plans = 0
        self.units = merges_of(plan)
        self._tried: dict[tuple[Decision, ...], float] = {}
        recipe = plan.recipe if plan.recipe is not None and plan.recipe.is_current() else None
        source = plan.graph if recipe is None else recipe.graph
        settled = {"passes", "machine", "transfer", "donate", "keep", "without", "validate", "pack_seconds"}
        settled.add("strict_donation")  # a plan with fewer merges may have no use for a feed
        given: Mapping[str, Any] = {} if recipe is None else recipe.options
        self._options: dict[str, Any] = {name: value for name, value in given.items() if name not in settled}
        self._options.setdefault("free", plan.program.free)
        self._graph_passes = () if recipe is None else _names(given["passes"])
        extra = plan.options.get("extra_outputs", ())
        fetch = [name for name in extra if source.has_value(name)] if isinstance(extra, tuple) else []
        outputs, state = run_reference(source, feeds, fetch=fetch)
        self._expected = {**outputs, **_updated(source, state)}

    def errors(self, plan: Plan) -> dict[str, float]:
        """result -> relative difference from the reference, of a run from the first state on."""
        self.num_plans += 1
        results = plan.run(self._feeds, copy_feeds=True)
        have = {**_updated(plan.graph, plan.state()), **results.kept, **results}
        return {name: max_rel_error(have, {name: want}) for name, want in self._expected.items() if name in have}

    def trial(self, units: Sequence[Decision], transfer: str = "") -> Plan:
        """The plan with only these decisions."""
        graph = replayed(self.plan, units)
        program = self.plan.program
        options: dict[str, Any] = {**self._options, "transfer": transfer or program.transfer}
        return compile_graph(graph, (), self.plan.machine, validate=False, pack_seconds=0.0, **options)

    def error(self, units: Sequence[Decision]) -> float:
        key = tuple(units)
        if key not in self._tried:
            self._say(f"a plan with {len(key)} of {len(self.units)} decisions")
            self._tried[key] = max(self.errors(self.trial(key)).values(), default=0.0)
        return self._tried[key]

    def changed(self, units: Sequence[Decision]) -> bool:
        return not self.error(units) <= self._tolerance

    def decisions(self, error: float, outputs: tuple[str, ...], every: bool) -> Bisection:
        """The sets of decisions to blame."""
        left = list(self.units)
        culprits: list[Culprit] = []
        while len(culprits) < (_MOST_CULPRITS if every else 1) and self.changed(left):
            found = minimal_set(left, self.changed)
            culprits.append(self._culprit(found))
            left = [unit for unit in left if unit not in found]
        return self.report(
            "decisions", error, outputs, culprits=tuple(culprits), rest_is_right=not self.changed(left)
        )  # fmt: skip

    def without_decisions(self, error: float, outputs: tuple[str, ...]) -> Bisection:
        """The plan is wrong without any decision: who else is to blame?"""
        plain = self.trial(())
        if self.plan.program.transfer != "publish" and self._right(self.trial((), "publish")):
            return self.report("transfer", error, outputs, finding=_finding(plain))
        if self._graph_passes and self._right(self.plan.replan(passes=(), validate=False)):
            blamed = self._blamed_passes()
            return self.report("passes", error, outputs, passes=blamed)
        return self.report("elsewhere", error, outputs, finding=_finding(plain))

    def report(self, cause: Cause, error: float, outputs: tuple[str, ...], **more: Any) -> Bisection:
        text = f"{self.plan.graph.name}: strategy {self.plan.strategy}, transfer {self.plan.program.transfer}"
        count, transfer = len(self.units), self.plan.program.transfer
        return Bisection(text, cause, error, outputs, count, self.num_plans, transfer, **more)

    def _culprit(self, found: Sequence[Decision]) -> Culprit:
        transfer = self.plan.program.transfer
        others = [name for name in ("publish", "outer") if name != transfer]
        right = next((name for name in others if self._right(self.trial(found, name))), "")
        return Culprit(tuple(found), self.error(found), _finding(self.trial(found)), right)

    def _right(self, plan: Plan) -> bool:
        return max(self.errors(plan).values(), default=0.0) <= self._tolerance

    def _blamed_passes(self) -> tuple[str, ...]:
        """Passes that cannot be left out if the result is to be wrong."""
        names = list(self._graph_passes)
        for name in list(names):
            rest = [other for other in names if other != name]
            without = [other for other in self._graph_passes if other not in rest]
            if not self._right(self.plan.replan(without=without, validate=False)):
                names = rest
        return tuple(names)


def _names(passes: Any) -> tuple[str, ...]:
    return pass_names(find_passes(passes))


def _updated(graph: Graph, state: Arrays) -> dict[str, NDArray[Any]]:
    """The parameters that the graph updates, under names that no output has."""
    firsts = []
    for value in graph.values:
        first, old = value, updated_value(value)
        while old is not None:
            first, old = old, updated_value(old)
        firsts += [first] if first is not value else []
    return {f"param:{first.name}": np.asarray(state[first.name]) for first in firsts if first.name in state}


def _finding(plan: Plan) -> str:
    findings = validate(plan, findings="return")
    return str(findings[0].message) if findings else ""


# -- text -------------------------------------------------------------------------------------------------------------

_CAUSES: Mapping[str, str] = {
    "transfer": "No decision is to blame: the transfer policy changes the result by itself, even without any pass",
    "passes": "No sharing is to blame: it is how these passes edit the graph",
    "plan": "No decision is to blame: compiled anew with the same ones, the result is right. It is this plan's own "
    "slots or instructions",
    "elsewhere": "No decision and no policy is to blame: the plain plan is as far from the reference, so look at "
    "kernels and at the dtypes that devices want",
}


def _lines(b: Bisection) -> list[str]:
    lines = _wrap(b.plan)
    if b.cause == "nothing":
        within = f"with all {b.num_decisions} decisions it is within {b.error:.0e} of the reference"
        return [*lines, *_wrap(f"Nothing changes the result: {within}.")]
    shown = ", ".join(b.outputs[:4]) + (f" and {len(b.outputs) - 4} more" if len(b.outputs) > 4 else "")
    lines += ["", *_wrap(f"The result is wrong: {shown} off by {b.error:.2g} of the largest element.")]
    if b.cause != "decisions":
        lines += _wrap(f"{_CAUSES[b.cause]}{': ' + ', '.join(b.passes) if b.passes else ''}.")
        lines += _wrap(f"The validator says: {b.finding}") if b.finding else []
    for culprit in b.culprits:
        lines += ["", *_culprit_lines(b, culprit)]
    if b.culprits:
        rest = "the result is right" if b.rest_is_right else "it is still wrong: there are more (--every, every=True)"
        lines += ["", *_wrap(f"Without {'them' if len(b.culprits) > 1 else 'that'}, {rest}.")]
    return [*lines, *_wrap(f"({b.num_plans} plans were run.)")]


def _culprit_lines(b: Bisection, culprit: Culprit) -> list[str]:
    count = len(culprit.decisions)
    what = "One decision" if count == 1 else f"{count} decisions together"
    lines = _wrap(f"{what} of {b.num_decisions} under transfer policy {b.transfer}, off by {culprit.error:.2g}:")
    for d in culprit.decisions:
        values = " over ".join(f"%{name}" for name in d.subject)
        lines += _wrap(f"+ {d.pass_name} at step {d.step}, node {d.node}: {values}: {d.reason}", "  ")
    if culprit.right_elsewhere:
        lines += _wrap(f"With the policy {culprit.right_elsewhere} the same is right.", "  ")
    if culprit.finding:
        lines += _wrap(f"The validator says: {culprit.finding}", "  ")
    return lines


def _wrap(text: str, indent: str = "") -> list[str]:
    deeper = indent + "    " if indent else ""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)
