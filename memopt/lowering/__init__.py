"""Lowering: from a graph and a machine to a straight-line program."""

from memopt.lowering.lower import TRANSFER_POLICIES, LoweringOptions, lower
from memopt.lowering.placement import kernel_query, resolve_devices
from memopt.lowering.program import (
    Call,
    Free,
    Instruction,
    Operand,
    Program,
    ProgramBuffer,
    Rebind,
    Result,
    Transfer,
    TransferPolicy,
)
from memopt.lowering.text import print_instruction, print_program

__all__ = [
    "TRANSFER_POLICIES",
    "Call",
    "Free",
    "Instruction",
    "LoweringOptions",
    "Operand",
    "Program",
    "ProgramBuffer",
    "Rebind",
    "Result",
    "Transfer",
    "TransferPolicy",
    "kernel_query",
    "lower",
    "print_instruction",
    "print_program",
    "resolve_devices",
]
