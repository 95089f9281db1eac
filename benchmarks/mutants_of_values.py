"""Mutators (see `benchmarks.mutants`) of operands, transfers, rebinds, feeds, parameters, results and storage."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchmarks.mutant_parts import change_operand, mutator, pick, with_at, with_program
from memopt import Plan, compile
from memopt.errors import MemoptError
from memopt.lowering.program import Call, Operand, Rebind, Transfer

__all__: list[str] = []


# -- operands ---------------------------------------------------------------------------------------------------------


@mutator("another buffer in an operand")
def _operand_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    return change_operand(plan, rng, lambda o: replace(o, buffer=rng.randrange(len(plan.slots))))


@mutator("another offset in an operand")
def _operand_offset(plan: Plan, rng: random.Random) -> Plan | None:
    return change_operand(plan, rng, lambda o: replace(o, offset=o.offset + rng.choice([-32, -16, -4, 4, 16, 32])))


@mutator("another placement in an operand")
def _operand_placement(plan: Plan, rng: random.Random) -> Plan | None:
    def change(operand: Operand) -> Operand:
        placed = operand.placement
        match rng.choice(["dtype", "layout", "device"]):
            case "dtype":
                placed = replace(placed, dtype="float64" if placed.dtype == "float32" else "float32")
            case "layout":
                placed = replace(placed, layout="NHWC" if placed.layout == "NCHW" else "NCHW")
            case "device":
                placed = replace(placed, device=rng.choice([d.name for d in plan.machine.all_devices]))
        return replace(operand, placement=placed)

    return change_operand(plan, rng, change)


@mutator("another name in an operand")
def _operand_value(plan: Plan, rng: random.Random) -> Plan | None:
    names = [value.name for value in plan.graph.values]
    return change_operand(plan, rng, lambda o: replace(o, value=rng.choice(names)))


@mutator("an operand too few")
def _operand_none(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Call, rng)
    if index is None:
        return None
    call: Any = plan.program.instructions[index]
    field = rng.choice(["inputs", "outputs"])
    operands = list(getattr(call, field))
    operands[rng.randrange(len(operands))] = None
    return with_at(plan, index, replace(call, **{field: tuple(operands)}))


# -- transfers and rebinds --------------------------------------------------------------------------------------------


@mutator("drop a transfer")
def _drop_transfer(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Transfer, rng)
    return None if index is None else with_at(plan, index)


@mutator("repeat a transfer")
def _repeat_transfer(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Transfer, rng)
    if index is None:
        return None
    at = rng.randrange(len(plan.program.instructions))
    return with_at(plan, at, plan.program.instructions[at], plan.program.instructions[index])


@mutator("turn a transfer round")
def _turn_transfer(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Transfer, rng)
    if index is None:
        return None
    move: Any = plan.program.instructions[index]
    return with_at(plan, index, replace(move, source=move.target, target=move.source))


@mutator("another kind of transfer")
def _transfer_kind(plan: Plan, rng: random.Random) -> Plan | None:
    index = pick(plan, Transfer, rng)
    if index is None:
        return None
    move: Any = plan.program.instructions[index]
    return with_at(plan, index, replace(move, kind=rng.choice(["layout", "dtype", "device", "home"])))


@mutator("another target of a rebind")
def _rebind(plan: Plan, rng: random.Random) -> Plan | None:
    """No bytes move by a rebind: by itself this is harmless."""
    index = pick(plan, Rebind, rng)
    if index is None:
        return None
    rebind: Any = plan.program.instructions[index]
    return with_at(plan, index, replace(rebind, target=replace(rebind.target, buffer=rng.randrange(len(plan.slots)))))


@mutator("flip the policy")
def _policy(plan: Plan, rng: random.Random) -> Plan | None:
    """What a flipped rebind does to the rest of the program: the plan as `fluid-1.5` makes it."""
    return compile(plan.graph, (), plan.machine, "fluid-1.5", validate=False, pack_seconds=0)


# -- where values enter and leave -------------------------------------------------------------------------------------


def _change_result(plan: Plan, field: str, rng: random.Random) -> Plan | None:
    results = list(getattr(plan.program, field))
    if not results:
        return None
    which, other = rng.randrange(len(results)), rng.randrange(len(plan.slots))
    old = results[which]
    match rng.choice(["buffer", "buffer", "offset", "drop", "swap", "value"]):
        case "buffer":
            results[which] = replace(old, operand=replace(old.operand, buffer=other))
        case "offset":
            offset = old.operand.offset + rng.choice([-16, 4, 16])
            results[which] = replace(old, operand=replace(old.operand, offset=offset))
        case "drop":
            del results[which]
        case "swap":
            another = rng.choice(results)
            results[which] = replace(old, operand=another.operand)
        case "value":
            name = rng.choice(plan.graph.values).name
            results[which] = replace(old, operand=replace(old.operand, value=name))
    return with_program(plan, **{field: tuple(results)})


@mutator("a result elsewhere")
def _result(plan: Plan, rng: random.Random) -> Plan | None:
    return _change_result(plan, "results", rng)


@mutator("a last value elsewhere")
def _final(plan: Plan, rng: random.Random) -> Plan | None:
    return _change_result(plan, "finals", rng)


@mutator("a feed arrives elsewhere")
def _feed(plan: Plan, rng: random.Random) -> Plan | None:
    return _change_result(plan, "feeds", rng)


@mutator("a parameter arrives elsewhere")
def _param(plan: Plan, rng: random.Random) -> Plan | None:
    return _change_result(plan, "params", rng)


# -- the storage ------------------------------------------------------------------------------------------------------


@mutator("share by force")
def _share(plan: Plan, rng: random.Random) -> Plan | None:
    """Two variables of the graph in one buffer, whatever the passes said."""
    return _recompiled(plan, rng, rename=False)


@mutator("rename by force")
def _rename(plan: Plan, rng: random.Random) -> Plan | None:
    """Two variables of the graph made one."""
    return _recompiled(plan, rng, rename=True)


def _recompiled(plan: Plan, rng: random.Random, *, rename: bool) -> Plan | None:
    graph = plan.graph.copy()
    variables = graph.storage.variables
    one, other = rng.choice(variables), rng.choice(variables)
    outputs = "caller" if any(buffer.space == "output" for buffer in plan.program.buffers) else "arena"
    options: dict[str, Any] = {"outputs": outputs, "validate": False, "pack_seconds": 0}
    try:
        if rename:
            graph.storage.rename(one, other)
        else:
            graph.storage.share(one, other.buffer, rng.choice([other.offset, 0, 16]))
        return compile(graph, (), plan.machine, plan.program.transfer, **options)
    except MemoptError:
        return None
