"""The readable text of a program: one instruction a line."""

from __future__ import annotations

from memopt.lowering.program import Call, Free, Instruction, Operand, Program, Rebind, Transfer

__all__ = ["print_instruction", "print_program"]


def print_program(program: Program) -> str:
    """The program as text: the machine, where values enter, the instructions, where results lie."""
    lines = [f"program transfer={program.transfer} free={program.free} on {program.machine}"]
    for kind, entries in (("feed", program.feeds), ("param", program.params)):
        for entry in entries:
            lines.append(f"  {kind:<8} {_operand(program, entry.operand)}")
    width = len(str(max(len(program.instructions) - 1, 0)))
    for position, instruction in enumerate(program.instructions):
        lines.append(f"  {position:>{width}}  {print_instruction(program, instruction)}")
    for result in program.results:
        place = " in the caller's array" if program.buffers[result.operand.buffer].space == "output" else ""
        lines.append(f"  result   {_operand(program, result.operand)}{place}")
    return "\n".join(lines) + "\n"


def print_instruction(program: Program, instruction: Instruction) -> str:
    """One instruction as text, such as `call conv1 (Conv) on gpu: #3 %x, #1 %w -> #5 %c`."""
    if isinstance(instruction, Call):
        inputs = ", ".join(_operand(program, o) for o in instruction.inputs)
        outputs = ", ".join(_operand(program, o) for o in instruction.outputs)
        notes = " [host call]" if instruction.host_call else ""
        notes += " [fallback]" if instruction.fallback else ""
        notes += f" [scratch {instruction.scratch_bytes}]" if instruction.scratch_bytes else ""
        notes += f" [{instruction.layout}]" if instruction.layout != "NCHW" else ""
        return f"call {instruction.node} ({instruction.op}) on {instruction.device}: {inputs} -> {outputs}{notes}"
    if isinstance(instruction, Transfer):
        scope = f" in scope {instruction.node}" if instruction.node else ""
        source, target = _operand(program, instruction.source), _operand(program, instruction.target)
        have, want = instruction.source.placement, instruction.target.placement
        return f"transfer {instruction.kind}{scope}: {source} {have} -> {target} {want}"
    if isinstance(instruction, Rebind):
        target = _operand(program, instruction.target)
        return f"rebind {instruction.variable} := {target} ({instruction.policy}, {instruction.node})"
    assert isinstance(instruction, Free)
    buffer = program.buffers[instruction.buffer]
    return f"free #{buffer.id} {buffer.name} on {buffer.device}, {buffer.size_bytes} bytes"


def _operand(program: Program, operand: Operand | None) -> str:
    if operand is None:
        return "-"
    offset = f"+{operand.offset}" if operand.offset else ""
    strides = "" if operand.strides is None else f"[{','.join(map(str, operand.strides))}]"
    return f"#{operand.buffer}{offset}{strides} %{operand.value}"
