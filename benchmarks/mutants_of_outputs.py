"""Mutators: outputs in the caller's arrays. They change which buffer has such a space, and where outputs are found."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchmarks.mutant_parts import arena_slots, mutator, with_program, with_slot
from memopt import Plan
from memopt.lowering.program import Result

__all__: list[str] = []


def _lent(plan: Plan) -> list[int]:
    """The buffers with a space of an output."""
    return [buffer.id for buffer in plan.program.buffers if buffer.space == "output"]


def _with_buffer(plan: Plan, index: int, **changes: Any) -> Plan:
    buffers = list(plan.program.buffers)
    buffers[index] = replace(buffers[index], **changes)
    return with_program(plan, buffers=tuple(buffers))


@mutator("give a buffer an output's space")
def _give(plan: Plan, rng: random.Random) -> Plan | None:
    """That of some output, whether or not another buffer has it."""
    found = arena_slots(plan)
    if not found:
        return None
    index = rng.choice(found)
    name = rng.choice([value.name for value in plan.graph.outputs])
    changed = with_slot(plan, index, space=f"output:{name}", offset=0)
    return _with_buffer(changed, index, space="output")


@mutator("put an output's buffer into the arena")
def _take(plan: Plan, rng: random.Random) -> Plan | None:
    found = _lent(plan)
    if not found:
        return None
    index = rng.choice(found)
    offset = rng.choice([0, *(plan.slots[i].offset for i in arena_slots(plan, plan.slots[index].device))])
    return _with_buffer(with_slot(plan, index, space="arena", offset=offset), index, space="arena")


@mutator("resize an output's space")
def _resize(plan: Plan, rng: random.Random) -> Plan | None:
    """Its slot, its buffer, or both."""
    found = _lent(plan)
    if not found:
        return None
    index, by = rng.choice(found), rng.choice([-16, -4, 4, 16, 64])
    size = max(0, plan.slots[index].size + by)
    what = rng.choice(["slot", "buffer", "both"])
    changed = with_slot(plan, index, size=size) if what != "buffer" else plan
    return _with_buffer(changed, index, size_bytes=size) if what != "slot" else changed


@mutator("find an output in another's place")
def _elsewhere(plan: Plan, rng: random.Random) -> Plan | None:
    results = list(plan.program.results)
    if len(results) < 2:
        return None
    one, other = rng.sample(range(len(results)), 2)
    results[one] = Result(results[one].name, replace(results[other].operand, value=results[one].operand.value))
    return with_program(plan, results=tuple(results))


@mutator("call an output's space by another name")
def _rename(plan: Plan, rng: random.Random) -> Plan | None:
    """That of another value, or of another output with which it is swapped."""
    found = _lent(plan)
    if not found:
        return None
    index = rng.choice(found)
    if len(found) > 1:
        other = rng.choice([i for i in found if i != index])
        first, second = plan.slots[index].space, plan.slots[other].space
        return with_slot(with_slot(plan, index, space=second), other, space=first)
    return with_slot(plan, index, space=f"output:{rng.choice([v.name for v in plan.graph.values])}")
