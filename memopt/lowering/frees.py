"""Lifetimes: where each buffer is first touched and last needed, and the `free` instructions that say so.

`eager` frees a buffer right after the last instruction that touches it; `never` keeps all of them to the end of the
step. A buffer that holds a result or a parameter's last value is never freed. With `copies_to_end`, transfer-scope
copies live until the end, as in Fluid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from memopt.lowering.program import Call, Free, Instruction, Operand, ProgramBuffer, Rebind, Result, Transfer
from memopt.lowering.scope import Draft

__all__ = ["finish_buffers", "insert_frees", "touched"]


def touched(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands whose bytes an instruction reads or writes (a rebind touches none)."""
    if isinstance(instruction, Call):
        return tuple(o for o in (*instruction.inputs, *instruction.outputs) if o is not None)
    if isinstance(instruction, Transfer):
        return (instruction.source, instruction.target)
    return ()


def insert_frees(
    instructions: Sequence[Instruction],
    drafts: Sequence[Draft],
    results: Iterable[Result],
    free: Literal["eager", "never"],
    copies_to_end: bool,
) -> list[Instruction]:
    """The instructions with a `Free` after the last use of each arena buffer that is not needed at the end."""
    if free == "never":
        return list(instructions)
    kept = {result.operand.buffer for result in results}
    last: dict[int, int] = {}
    for position, instruction in enumerate(instructions):
        for operand in touched(instruction):
            last[operand.buffer] = position
    due: dict[int, list[int]] = {}
    for buffer, position in last.items():
        draft = drafts[buffer]
        if draft.space == "arena" and buffer not in kept and not (copies_to_end and draft.transfer):
            due.setdefault(_after_rebinds(instructions, position), []).append(buffer)
    out: list[Instruction] = []
    for position, instruction in enumerate(instructions):
        out.append(instruction)
        out.extend(Free(buffer) for buffer in sorted(due.get(position, ())))
    return out


def _after_rebinds(instructions: Sequence[Instruction], position: int) -> int:
    """A call's rebinds belong to it: free after them, so that the listing reads call, rebind, free."""
    while position + 1 < len(instructions) and isinstance(instructions[position + 1], Rebind):
        position += 1
    return position


def finish_buffers(instructions: Sequence[Instruction], drafts: Sequence[Draft]) -> tuple[ProgramBuffer, ...]:
    """The drafts as program buffers, with their intervals in positions of `instructions`."""
    end = len(instructions)
    first: dict[int, int] = {}
    freed: dict[int, int] = {}
    for position, instruction in enumerate(instructions):
        if isinstance(instruction, Free):
            freed[instruction.buffer] = position
        for operand in touched(instruction):
            first.setdefault(operand.buffer, position)
    buffers = []
    for id, draft in enumerate(drafts):
        start, stop = (first.get(id, 0), freed.get(id, end)) if draft.space == "arena" else (0, end)
        buffers.append(
            ProgramBuffer(
                id, draft.name, draft.device, draft.space, draft.size, start, stop, draft.transfer, draft.pinned
            )
        )
    return tuple(buffers)
