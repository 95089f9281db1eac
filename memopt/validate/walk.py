"""`validate`: walk the program once and collect what is wrong."""

from __future__ import annotations

from typing import Literal

from memopt.errors import InvalidPlanError, OptionError
from memopt.lowering.program import Call, Free, Rebind, Transfer
from memopt.plan import MemoryPlan
from memopt.validate.any_order import check_any_order
from memopt.validate.calls import run_call
from memopt.validate.ends import begin, finish
from memopt.validate.findings import Finding
from memopt.validate.slots import check_sizes
from memopt.validate.state import State
from memopt.validate.transfers import run_free, run_rebind, run_transfer

__all__ = ["validate"]

#: How many findings the error's message shows.
_SHOWN = 5


def validate(
    plan: MemoryPlan, findings: Literal["raise", "return"] = "raise", *, order: Literal["listed", "any"] = "listed"
) -> list[Finding]:
    """Everything that is wrong with `plan`, in the order of its instructions; empty if it computes what its graph says.

    `order="any"` asks for more: that it does under every order of its calls and transfers that respects data and
    control edges (see `memopt.validate.any_order`; `dependencies(plan)` lists the edges). That is asked only of a plan
    that is right as listed. Raises `InvalidPlanError` (with `.findings`) if there is anything, unless
    `findings="return"`. O(n log n) in the number n of instructions; with `order="any"` n² / 4096 steps more at worst.
    """
    if findings not in ("raise", "return"):
        raise OptionError(f"findings {findings!r} is not one of 'raise', 'return'")
    if order not in ("listed", "any"):
        raise OptionError(f"order {order!r} is not one of 'listed', 'any'")
    state = State(plan)
    check_sizes(plan, state.report)
    begin(state)
    for index, instruction in enumerate(plan.program.instructions):
        state.index = index
        if isinstance(instruction, Call):
            run_call(state, index, instruction)
        elif isinstance(instruction, Transfer):
            run_transfer(state, instruction)
        elif isinstance(instruction, Free):
            run_free(state, index, instruction)
        elif isinstance(instruction, Rebind):
            run_rebind(state, index, instruction)
        else:
            state.say("malformed", "", f"{instruction!r} is no call, transfer, rebind or free")
    state.index = None
    finish(state)
    found = state.report.findings()
    if not found and order == "any":
        check_any_order(state)
        found = state.report.findings()
    if found and findings == "raise":
        raise InvalidPlanError(_summary(plan, found), found)
    return found


def _summary(plan: MemoryPlan, found: list[Finding]) -> str:
    """How many findings, and the first few."""
    number = "1 finding" if len(found) == 1 else f"{len(found)} findings"
    lines = [f"the plan of graph {plan.graph.name!r} does not compute what the graph says: {number}"]
    lines += [f"  {finding}" for finding in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    return "\n".join(lines)
