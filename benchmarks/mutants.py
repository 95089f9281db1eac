"""Plans broken in one way each. `MUTATORS` maps a kind to `(plan, rng) -> plan, or None` where it does not apply.

Each changes one thing in a plan that is right: a slot, an instruction, an operand, a result, or (through the graph's
storage) who shares bytes with whom. What comes out may be right all the same: only a run shows that. Here: slots,
lifetimes, order and calls.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import benchmarks.mutants_of_outputs
import benchmarks.mutants_of_strides
import benchmarks.mutants_of_values  # noqa: F401 # all of them enter their mutators
from benchmarks.mutant_parts import MUTATORS, arena_slots, moved_to, mutator, pick, with_at, with_program, with_slot
from memopt import Plan
from memopt.lowering.program import Call, Free, Operand, Transfer
from memopt.plan import Slot

__all__ = ["MUTATORS"]


# -- slots ------------------------------------------------------------------------------------------------------------


@mutator("swap two offsets")
def _swap_offsets(plan: Plan, rng: random.Random) -> Plan | None:
    device = rng.choice(plan.slots).device if plan.slots else ""
    found = arena_slots(plan, device)
    if len(found) < 2:
        return None
    one, other = rng.sample(found, 2)
    changed = with_slot(plan, one, offset=plan.slots[other].offset)
    return with_slot(changed, other, offset=plan.slots[one].offset)


@mutator("share two buffers' bytes")
def _share_slots(plan: Plan, rng: random.Random) -> Plan | None:
    found = arena_slots(plan)
    if not found:
        return None
    one = rng.choice(found)
    other = rng.choice(arena_slots(plan, plan.slots[one].device))
    return with_slot(plan, one, offset=plan.slots[other].offset + rng.choice([0, 0, 16, 32]))


@mutator("shift a slot")
def _shift_slot(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.slots))
    return with_slot(plan, index, offset=plan.slots[index].offset + rng.choice([-32, -16, -4, 4, 16, 32, 64]))


@mutator("shrink a slot")
def _shrink_slot(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.slots))
    return with_slot(plan, index, size=max(0, plan.slots[index].size - rng.choice([1, 4, 16, 64])))


@mutator("shrink a buffer")
def _shrink_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.slots))
    buffers = list(plan.program.buffers)
    size = max(0, buffers[index].size_bytes - rng.choice([1, 4, 16, 64]))
    buffers[index] = replace(buffers[index], size_bytes=size)
    return with_slot(with_program(plan, buffers=tuple(buffers)), index, size=size)


@mutator("lower an arena")
def _lower_arena(plan: Plan, rng: random.Random) -> Plan | None:
    name = rng.choice(sorted(plan.devices))
    use = plan.devices[name]
    return replace(plan, devices={**plan.devices, name: replace(use, height_bytes=max(0, use.height_bytes - 16))})


@mutator("less scratch")
def _less_scratch(plan: Plan, rng: random.Random) -> Plan | None:
    """In the call and on its device: nobody is told."""
    found = [i for i, c in enumerate(plan.program.instructions) if isinstance(c, Call) and c.scratch_bytes]
    if not found:
        return None
    index = rng.choice(found)
    call: Any = plan.program.instructions[index]
    less = rng.choice([0, call.scratch_bytes // 2, call.scratch_bytes - 4])
    use = replace(plan.devices[call.device], scratch_bytes=less)
    return with_at(replace(plan, devices={**plan.devices, call.device: use}), index, replace(call, scratch_bytes=less))


@mutator("another device's slot")
def _slot_device(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.slots))
    other: Slot = rng.choice(plan.slots)
    return with_slot(plan, index, device=other.device, space=other.space)


# -- lifetimes and order ----------------------------------------------------------------------------------------------


@mutator("move a free")
def _move_free(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Free, rng)
    return None if index is None else moved_to(plan, index, rng.randrange(len(plan.program.instructions)))


@mutator("free too much")
def _add_free(plan: Plan, rng: random.Random) -> Plan | None:
    at, buffer = rng.randrange(len(plan.program.instructions)), rng.randrange(len(plan.slots))
    return with_at(plan, at, plan.program.instructions[at], Free(buffer))


@mutator("drop a free")
def _drop_free(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Free, rng)
    return None if index is None else with_at(plan, index)


@mutator("reorder two instructions")
def _reorder(plan: Plan, rng: random.Random) -> Plan | None:
    count = len(plan.program.instructions)
    one = rng.randrange(count)
    other = rng.choice([rng.randrange(count), min(one + 1, count - 1)])
    order = list(plan.program.instructions)
    order[one], order[other] = order[other], order[one]
    return with_program(plan, instructions=tuple(order))


@mutator("move an instruction")
def _move(plan: Plan, rng: random.Random) -> Plan | None:
    count = len(plan.program.instructions)
    return moved_to(plan, rng.randrange(count), rng.randrange(count))


# -- calls ------------------------------------------------------------------------------------------------------------


@mutator("drop a call")
def _drop_call(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Call, rng)
    return None if index is None else with_at(plan, index)


@mutator("repeat a call")
def _repeat_call(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Call, rng)
    if index is None:
        return None
    at = rng.randrange(index, len(plan.program.instructions))
    return with_at(plan, at, plan.program.instructions[at], plan.program.instructions[index])


@mutator("swap a call's inputs")
def _swap_inputs(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Call, rng)
    if index is None:
        return None
    call: Any = plan.program.instructions[index]
    inputs = list(call.inputs)
    rng.shuffle(inputs)
    return with_at(plan, index, replace(call, inputs=tuple(inputs)))


@mutator("another node in a call")
def _call_node(plan: Plan, rng: random.Random) -> Plan | None:
    index, other = pick(plan, Call, rng), pick(plan, Call, rng)
    if index is None or other is None:
        return None
    one, two = plan.program.instructions[index], plan.program.instructions[other]
    assert isinstance(one, Call)
    assert isinstance(two, Call)
    if rng.random() < 0.5:
        return with_at(plan, index, replace(one, node=two.node, op=two.op))
    return with_at(with_at(plan, index, replace(one, node=two.node)), other, replace(two, node=one.node))


@mutator("another device or layout in a call")
def _call_where(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Call, rng)
    if index is None:
        return None
    call: Any = plan.program.instructions[index]
    if rng.random() < 0.5:
        return with_at(plan, index, replace(call, device=rng.choice([d.name for d in plan.machine.all_devices])))
    return with_at(plan, index, replace(call, layout="NHWC" if call.layout == "NCHW" else "NCHW"))


@mutator("in place by force")
def _in_place(plan: Plan, rng: random.Random) -> Plan | None:
    """An output over an input of the same call; every later reader follows it there, so that only bytes decide."""
    index = pick(plan, Call, rng)
    if index is None:
        return None
    call: Any = plan.program.instructions[index]
    inputs = [o for o in call.inputs if o is not None]
    outputs = [o for o in call.outputs if o is not None]
    if not inputs or not outputs:
        return None
    old = rng.choice(outputs)
    return _redirect(plan, index, old, rng.choice(inputs))


@mutator("write over a feed or parameter")
def _over_pinned(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, (Call, Transfer), rng)  # type: ignore[arg-type]
    homes = [r.operand for r in (*plan.program.feeds, *plan.program.params)]
    if index is None or not homes:
        return None
    instruction: Any = plan.program.instructions[index]
    written = instruction.outputs if isinstance(instruction, Call) else (instruction.target,)
    outputs = [operand for operand in written if operand is not None]
    return _redirect(plan, index, rng.choice(outputs), rng.choice(homes))


def _redirect(plan: Plan, first: int, old: Operand, to: Operand) -> Plan:
    """From instruction `first` on, whatever is `old` is at the bytes of `to` (in its own dtype and layout)."""

    def moved(operand: Operand | None) -> Operand | None:
        same = operand is not None and (operand.buffer, operand.offset) == (old.buffer, old.offset)
        return replace(operand, buffer=to.buffer, offset=to.offset) if same and operand is not None else operand

    new: list[Any] = list(plan.program.instructions)
    for i in range(first, len(new)):
        if isinstance(new[i], Call):
            inputs = new[i].inputs if i == first else tuple(map(moved, new[i].inputs))
            new[i] = replace(new[i], inputs=inputs, outputs=tuple(map(moved, new[i].outputs)))
        elif isinstance(new[i], Transfer):
            source = new[i].source if i == first else moved(new[i].source)
            new[i] = replace(new[i], source=source, target=moved(new[i].target))
    results = tuple(replace(r, operand=moved(r.operand)) for r in plan.program.results)
    return with_program(plan, instructions=tuple(new), results=results)
