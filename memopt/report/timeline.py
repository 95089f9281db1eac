"""How many bytes are live when, from a plan's buffers; what lies there at the peak.

Holds true: a buffer of the arena counts with its size from the instruction that first touches it up to the one that
frees it (half-open), on its own device only. Feeds, parameters and scratch are counted apart, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memopt.lowering.program import Call, Operand, Program, ProgramBuffer, Transfer
from memopt.plan import MemoryPlan

__all__ = ["LiveBuffer", "at_peak", "instruction_steps", "live_bytes", "step_bytes"]

Series = NDArray[np.int64]


def live_bytes(plan: MemoryPlan) -> dict[str, Series]:
    """device -> bytes live in its arena at each instruction."""
    count = len(plan.program.instructions)
    changes = {device.name: np.zeros(count + 1, np.int64) for device in plan.machine.all_devices}
    for buffer in plan.program.buffers:
        if buffer.space == "arena" and buffer.start < buffer.end:
            changes[buffer.device][min(buffer.start, count)] += buffer.size_bytes
            changes[buffer.device][min(buffer.end, count)] -= buffer.size_bytes
    return {name: np.cumsum(change)[:-1] for name, change in changes.items()}


def instruction_steps(program: Program) -> Series:
    """For each instruction the step of the node that it serves; frees count to the node before them."""
    steps = np.zeros(len(program.instructions), np.int64)
    numbers: dict[str, int] = {}
    step = 0
    for i, instruction in enumerate(program.instructions):
        node = getattr(instruction, "node", None)
        if node is not None:
            step = numbers.setdefault(node, len(numbers))
        steps[i] = step
    return steps


def step_bytes(plan: MemoryPlan) -> dict[str, Series]:
    """device -> the most bytes that are live during each step: comparable between plans of one graph."""
    steps = instruction_steps(plan.program)
    series: dict[str, Series] = {}
    for name, live in live_bytes(plan).items():
        most = np.zeros(int(steps[-1]) + 1 if len(steps) else 0, np.int64)
        np.maximum.at(most, steps, live)
        series[name] = most
    return series


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is live at the peak.

    value        what it holds there                  producer      the node that wrote that
    last_reader  the last node that reads the value   freed_after   the last node that reads or writes the buffer
    """

    buffer: ProgramBuffer
    value: str
    producer: str
    last_reader: str = "-"
    freed_after: str = "-"


def at_peak(plan: MemoryPlan, device: str) -> tuple[int, tuple[LiveBuffer, ...]]:
    """(instruction at which `device` first reaches its peak, buffers live there, largest first)."""
    live = live_bytes(plan)[device]
    if not len(live) or not live.max():
        return 0, ()
    peak = int(live.argmax())
    held = {
        b.id: LiveBuffer(b, b.name, "-")
        for b in plan.program.buffers
        if b.space == "arena" and b.device == device and b.start <= peak < b.end and b.size_bytes
    }
    for position, instruction in enumerate(plan.program.instructions):
        if isinstance(instruction, (Call, Transfer)):
            _follow(held, instruction, position <= peak)
    for result in plan.program.results:
        if result.operand.buffer in held:
            one = held[result.operand.buffer]
            reader = "(fetched)" if result.operand.value == one.value else one.last_reader
            held[one.buffer.id] = replace(one, last_reader=reader, freed_after="(fetched)")
    return peak, tuple(sorted(held.values(), key=lambda one: (-one.buffer.size_bytes, one.buffer.id)))


def _follow(held: dict[int, LiveBuffer], instruction: Call | Transfer, before: bool) -> None:
    """Update `held` by what `instruction` reads and writes; `before`: it runs before the peak, or at it."""
    inputs, outputs = _operands(instruction)
    for operand in inputs:
        if operand is not None and operand.buffer in held:
            one = held[operand.buffer]
            reader = instruction.node if operand.value == one.value else one.last_reader
            held[operand.buffer] = replace(one, last_reader=reader, freed_after=instruction.node)
    for operand in outputs:
        if operand is not None and operand.buffer in held:
            one = replace(held[operand.buffer], freed_after=instruction.node)
            if before:
                copied = isinstance(instruction, Transfer)
                maker = f"copy for {instruction.node}" if copied else instruction.node
                one = replace(one, value=operand.value, producer=maker, last_reader="-")
            held[operand.buffer] = one


def _operands(instruction: Call | Transfer) -> tuple[tuple[Operand | None, ...], tuple[Operand | None, ...]]:
    if isinstance(instruction, Transfer):
        return (instruction.source,), (instruction.target,)
    return instruction.inputs, instruction.outputs
