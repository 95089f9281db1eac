"""How many bytes are live when, from a plan's buffers; what lies there at the peak.

Holds true: a buffer of the arena counts with its size from the instruction that first touches it up to the one that
frees it (half-open), on its own device only. Feeds, parameters and scratch are counted apart, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """A buffer that is live at the peak: what it holds there, who wrote that, and who reads the buffer last."""

    buffer: ProgramBuffer
    value: str
    producer: str
    last_reader: str


def at_peak(plan: MemoryPlan, device: str) -> tuple[int, tuple[LiveBuffer, ...]]:
    """(instruction at which `device` first reaches its peak, buffers live there, largest first)."""
    live = live_bytes(plan)[device]
    if not len(live) or not live.max():
        return 0, ()
    peak = int(live.argmax())
    here = {
        b.id: b
        for b in plan.program.buffers
        if b.space == "arena" and b.device == device and b.start <= peak < b.end and b.size_bytes
    }
    written, read = _writers_and_readers(plan.program, here, peak)
    held = [
        LiveBuffer(b, *written.get(b.id, (b.name, "-")), _last_reader(plan.program, b, read.get(b.id, "-")))
        for b in here.values()
    ]
    return peak, tuple(sorted(held, key=lambda item: (-item.buffer.size_bytes, item.buffer.id)))


def _last_reader(program: Program, buffer: ProgramBuffer, reader: str) -> str:
    fetched = any(result.operand.buffer == buffer.id for result in program.results)
    return "fetched" if fetched else reader


def _writers_and_readers(
    program: Program, buffers: Mapping[int, ProgramBuffer], peak: int
) -> tuple[dict[int, tuple[str, str]], dict[int, str]]:
    """buffer id -> (value, node that wrote it) at `peak`, and -> the node that reads it last."""
    written: dict[int, tuple[str, str]] = {}
    read: dict[int, str] = {}
    for i, instruction in enumerate(program.instructions):
        if not isinstance(instruction, (Call, Transfer)):
            continue
        inputs, outputs = _operands(instruction)
        for operand in inputs:
            if operand is not None and operand.buffer in buffers and i < buffers[operand.buffer].end:
                read[operand.buffer] = instruction.node
        for operand in outputs:
            if operand is not None and operand.buffer in buffers and i <= peak:
                verb = f"copy for {instruction.node}" if isinstance(instruction, Transfer) else instruction.node
                written[operand.buffer] = (operand.value, verb)
    return written, read


def _operands(instruction: Call | Transfer) -> tuple[tuple[Operand | None, ...], tuple[Operand | None, ...]]:
    if isinstance(instruction, Transfer):
        return (instruction.source,), (instruction.target,)
    return instruction.inputs, instruction.outputs
