"""Eager freeing between tenants: a buffer whose bytes nobody needs for a while is several buffers, one after the other.

Reuse by renaming or sharing lets a dead buffer wait for its next tenant. Fluid held it all that time; an
ahead-of-time plan need not. Holds true: what is split is never needed across the cut, by the classic backwards
liveness over the byte ranges of one buffer, in which a write of a range ends the need for its old bytes. O(touches x
ranges), and a buffer has few ranges.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from memopt.lowering.program import Call, Free, Instruction, Operand, Rebind, Result, Transfer
from memopt.lowering.scope import Draft
from memopt.strides import extent, row_runs
from memopt.types import itemsize

__all__ = ["split_at_gaps"]


class _Touch(NamedTuple):
    """Instruction `position` reads or writes bytes [low, high) of a buffer."""

    position: int
    writes: bool
    low: int
    high: int


def split_at_gaps(
    instructions: Sequence[Instruction],
    drafts: list[Draft],
    results: Iterable[Result],
    shapes: Mapping[str, tuple[int, ...]],
    keep: frozenset[int] = frozenset(),
) -> tuple[list[Instruction], list[Result]]:
    """The instructions with each arena buffer split where nobody needs it; `drafts` grows by the new buffers.

    `shapes` gives the shape of each value, `keep` the buffers that must stay whole. Returns the results with their
    operands moved along.
    """
    results = list(results)
    touches = _collect(instructions, results, shapes)
    moves: dict[int, list[tuple[int, int]]] = {}
    for buffer, found in touches.items():
        if drafts[buffer].space != "arena" or buffer in keep:
            continue
        cuts = _cuts(found)
        if cuts:
            moves[buffer] = _split(drafts, buffer, found, cuts)
    if not moves:
        return list(instructions), results

    def at(operand: Operand, position: int) -> Operand:
        if operand.buffer not in moves:
            return operand
        buffer = next(new for start, new in reversed(moves[operand.buffer]) if position >= start)
        return replace(operand, buffer=buffer)

    moved = [_moved(instruction, position, at) for position, instruction in enumerate(instructions)]
    end = len(instructions)
    return moved, [replace(result, operand=at(result.operand, end)) for result in results]


def _collect(
    instructions: Sequence[Instruction], results: Iterable[Result], shapes: Mapping[str, tuple[int, ...]]
) -> dict[int, list[_Touch]]:
    """buffer -> its touches in the order in which they happen; an instruction reads before it writes."""
    touches: dict[int, list[_Touch]] = {}

    def add(operand: Operand | None, position: int, writes: bool) -> None:
        if operand is not None:
            found = touches.setdefault(operand.buffer, [])
            for low, high in _ranges(operand, shapes[operand.value], writes):
                found.append(_Touch(position, writes, low, high))

    for position, instruction in enumerate(instructions):
        if isinstance(instruction, Call):
            for operand in instruction.inputs:
                add(operand, position, False)
            for operand in instruction.outputs:
                add(operand, position, True)
        elif isinstance(instruction, Transfer):
            add(instruction.source, position, False)
            add(instruction.target, position, True)
    for result in results:
        add(result.operand, len(instructions), False)
    return touches


def _ranges(operand: Operand, shape: tuple[int, ...], writes: bool) -> list[tuple[int, int]]:
    """The bytes of an operand: run by run, or for a read of very many runs from the first to the last."""
    size = itemsize(operand.placement.dtype)
    runs = row_runs(shape, operand.strides)
    if runs is None:
        runs = [] if writes else [(0, 0, extent(shape, operand.strides))]
    return [(operand.offset + at * size, operand.offset + (at + count) * size) for at, _, count in runs]


def _cuts(touches: Sequence[_Touch]) -> list[int]:
    """Indexes of touches before which nobody needs any byte of the buffer, the first touch left out."""
    needed: list[tuple[int, int]] = []
    cuts = []
    for index in range(len(touches) - 1, 0, -1):
        touch = touches[index]
        needed = _without(needed, touch.low, touch.high)
        if not touch.writes and touch.low < touch.high:
            needed.append((touch.low, touch.high))
        if not needed and touch.writes and touches[index - 1].position < touch.position:
            cuts.append(index)
    return cuts[::-1]


def _without(ranges: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    left = []
    for a, b in ranges:
        if a < min(b, low):
            left.append((a, min(b, low)))
        if max(a, high) < b:
            left.append((max(a, high), b))
    return left


def _split(drafts: list[Draft], buffer: int, touches: Sequence[_Touch], cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Make the new buffers; returns (first position, buffer) for each part."""
    bounds = [0, *cuts, len(touches)]
    whole = drafts[buffer]
    parts = [(0, buffer)]
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        size = max(touch.high for touch in touches[start:end])
        if number == 0:
            whole.size = size
        else:
            drafts.append(replace(whole, size=size))
            parts.append((touches[start].position, len(drafts) - 1))
    return parts


def _moved(instruction: Instruction, position: int, at: Callable[[Operand, int], Operand]) -> Instruction:
    """The instruction with each operand where `at` says it is at `position`."""
    if isinstance(instruction, Call):
        inputs = tuple(None if o is None else at(o, position) for o in instruction.inputs)
        outputs = tuple(None if o is None else at(o, position) for o in instruction.outputs)
        return replace(instruction, inputs=inputs, outputs=outputs)
    if isinstance(instruction, Transfer):
        return replace(instruction, source=at(instruction.source, position), target=at(instruction.target, position))
    if isinstance(instruction, Rebind):
        return replace(instruction, target=at(instruction.target, position))
    assert not isinstance(instruction, Free), "frees come after the cuts"
    return instruction
