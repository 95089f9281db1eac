"""What mutators are made of: the register, and changes of one thing in a plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memopt import Plan
from memopt.lowering.program import Call, Operand, Transfer

__all__ = [
    "MUTATORS",
    "arena_slots",
    "change_operand",
    "moved_to",
    "mutator",
    "pick",
    "with_at",
    "with_program",
    "with_slot",
]

Mutator = Callable[[Plan, random.Random], "Plan | None"]
MUTATORS: dict[str, Mutator] = {}


def mutator(kind: str) -> Callable[[Mutator], Mutator]:
    """Enter a mutator under `kind`."""

    def enter(function: Mutator) -> Mutator:
        MUTATORS[kind] = function
        return function

    return enter


def with_program(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, program=replace(plan.program, **changes))


def with_slot(plan: Plan, index: int, **changes: Any) -> Plan:
    slots = list(plan.slots)
    slots[index] = replace(slots[index], **changes)
    return replace(plan, slots=tuple(slots))


def with_at(plan: Plan, index: int, *new: Any) -> Plan:
    """The instruction at `index` replaced by `new` ones."""
    old = plan.program.instructions
    return with_program(plan, instructions=(*old[:index], *new, *old[index + 1 :]))


def pick(plan: Plan, kind: type, rng: random.Random) -> int | None:
    found = [i for i, instruction in enumerate(plan.program.instructions) if isinstance(instruction, kind)]
    return rng.choice(found) if found else None


def arena_slots(plan: Plan, device: str | None = None) -> list[int]:
    return [i for i, s in enumerate(plan.slots) if s.space == "arena" and s.size and device in (None, s.device)]


def moved_to(plan: Plan, index: int, to: int) -> Plan:
    """The instruction at `index` at position `to` instead."""
    order = list(plan.program.instructions)
    order.insert(to, order.pop(index))
    return with_program(plan, instructions=tuple(order))


def change_operand(plan: Plan, rng: random.Random, change: Callable[[Operand], Operand | None]) -> Plan | None:
    """One operand of one call or transfer, changed."""
    index = pick(plan, (Call, Transfer), rng)  # type: ignore[arg-type]
    if index is None:
        return None
    instruction: Any = plan.program.instructions[index]
    if isinstance(instruction, Transfer):
        field = rng.choice(["source", "target"])
        new = change(getattr(instruction, field))
        return None if new is None else with_at(plan, index, replace(instruction, **{field: new}))
    field = rng.choice(["inputs", "outputs"])
    operands = list(getattr(instruction, field))
    present = [i for i, operand in enumerate(operands) if operand is not None]
    if not present:
        return None
    which = rng.choice(present)
    operands[which] = change(operands[which])
    return with_at(plan, index, replace(instruction, **{field: tuple(operands)}))
