"""Mutators: strides. They change how operands step through bytes, or drop it, and where views begin."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.mutant_parts import mutator, with_at, with_program
from memopt import Plan
from memopt.lowering.program import Call, Operand, Transfer
from memopt.strides import row_strides

__all__: list[str] = []

Change = Callable[[Operand], Operand]


@mutator("change strides")
def _change(plan: Plan, rng: random.Random) -> Plan | None:
    """Of an operand that has some: permuted, or one of them more or less."""

    def change(operand: Operand) -> Operand:
        steps = list(operand.strides or ())
        if rng.random() < 0.5:
            rng.shuffle(steps)
        else:
            steps[rng.randrange(len(steps))] += rng.choice([-1, 1, 2, -4, 4])
        return replace(operand, strides=tuple(steps))

    return _one(plan, rng, change, lambda operand: bool(operand.strides))


@mutator("drop strides")
def _drop(plan: Plan, rng: random.Random) -> Plan | None:
    """Of one operand: its bytes are taken for a run, and a call with such an output runs its kernel."""
    return _one(plan, rng, lambda operand: replace(operand, strides=None), lambda operand: operand.strides is not None)


@mutator("shift a view in strides")
def _shift(plan: Plan, rng: random.Random) -> Plan | None:
    by = rng.choice([-16, -4, 4, 8, 16])
    return _one(
        plan, rng, lambda operand: replace(operand, offset=operand.offset + by), lambda operand: bool(operand.strides)
    )


@mutator("add strides")
def _add(plan: Plan, rng: random.Random) -> Plan | None:
    """Row strides of an operand that lies in a run, which say the same; or permuted, which do not."""

    def change(operand: Operand) -> Operand:
        steps = list(row_strides(plan.graph.value(operand.value).shape))
        if rng.random() < 0.5:
            rng.shuffle(steps)
        return replace(operand, strides=tuple(steps))

    return _one(plan, rng, change, lambda operand: operand.strides is None)


@mutator("a view elsewhere for all its readers")
def _move(plan: Plan, rng: random.Random) -> Plan | None:
    """Every operand of one view in strides, its call's too, in other strides or from another byte on."""
    found = [o for o in _operands(plan) if o.strides]
    if not found:
        return None
    old = rng.choice(found)
    steps, by = list(old.strides or ()), rng.choice([-4, 4, 8])
    rng.shuffle(steps)
    new = {"strides": tuple(steps)} if rng.random() < 0.5 else {"offset": old.offset + by}
    return _everywhere(plan, lambda o: replace(o, **new) if o == old else o)  # type: ignore[arg-type]


def _operands(plan: Plan) -> list[Operand]:
    found: list[Any] = []
    for instruction in plan.program.instructions:
        if isinstance(instruction, Call):
            found += [*instruction.inputs, *instruction.outputs]
        elif isinstance(instruction, Transfer):
            found += [instruction.source, instruction.target]
    return [operand for operand in found if operand is not None]


def _one(plan: Plan, rng: random.Random, change: Change, which: Callable[[Operand], bool]) -> Plan | None:
    """One operand of an instruction, or a result, changed: one that is like `which`."""
    found = [operand for operand in _operands(plan) if which(operand)]
    results = [result.operand for result in plan.program.results if which(result.operand)]
    if not found and not results:
        return None
    one = rng.choice([*found, *results])
    new = change(one)
    left = [1]

    def first(operand: Operand) -> Operand:
        """Equal operands are one object in a plan or several: only the first that is asked about changes."""
        if operand is one and left:
            left.clear()
            return new
        return operand

    return _everywhere(plan, first)


def _everywhere(plan: Plan, change: Change) -> Plan:
    """`change` of every operand of calls and transfers, and of the results."""
    new = plan
    for at, instruction in enumerate(plan.program.instructions):
        if isinstance(instruction, Call):
            ins, outs = (
                tuple(None if operand is None else change(operand) for operand in operands)
                for operands in (instruction.inputs, instruction.outputs)
            )
            new = with_at(new, at, replace(instruction, inputs=ins, outputs=outs))
        elif isinstance(instruction, Transfer):
            new = with_at(
                new, at, replace(instruction, source=change(instruction.source), target=change(instruction.target))
            )
    results = tuple(replace(result, operand=change(result.operand)) for result in plan.program.results)
    return with_program(new, results=results)
