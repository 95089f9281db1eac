"""A program: a straight list of instructions over buffers, each on one device. Data only.

Holds true: `buffers[i].id == i`. A buffer in an arena is first touched at `start` and freed before `end` (half-open,
in positions of `instructions`); feeds, parameters and outputs in arrays of the caller's are spaces of their own that
live all the time. Instructions name bytes (buffer and offset), never values: what `Operand.value` says is what the
compiler *meant*, for people; the validator believes none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memopt.devices import Machine, Placement
from memopt.strides import Strides

__all__ = [
    "Call",
    "Free",
    "Instruction",
    "Operand",
    "Program",
    "ProgramBuffer",
    "Rebind",
    "Result",
    "Space",
    "Transfer",
    "TransferPolicy",
]

TransferPolicy = Literal["fluid-1.5", "publish", "outer"]
#: Where a buffer lies: in the device's packed arena, or in an allocation of its own that holds one feed, parameter or
#: output (an array of the caller's).
Space = Literal["arena", "feed", "param", "output"]


@dataclass(frozen=True, slots=True)
class ProgramBuffer:
    """Bytes of one device with one lifetime.

    name   for people: the variable that made it, `node/variable` for a transfer-scope copy
    space  "arena": placed by packing; "feed", "param", "output": an allocation of its own
    transfer   whether it is a transfer-scope copy
    pinned   whether no instruction may write it: an undonated feed, a parameter that nobody updates
    """

    id: int
    name: str
    device: str
    space: Space
    size_bytes: int
    start: int
    end: int
    transfer: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """A range of bytes and how it is read: `buffer` from byte `offset` on, stored as `placement`.

    The range's length is the value's number of elements times the item size of `placement.dtype`; with `strides` (in
    elements, one for each axis), it runs from the first to the last element. A call whose output lies in strides just
    where it is a view of an input writes nothing; any other writes its elements, and not what lies between. `variable`
    and `value` are names.
    """

    buffer: int
    offset: int
    placement: Placement
    variable: str
    value: str
    strides: Strides | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Run `node` on `device`. Inputs that are absent or read for their shape only are None, as are absent outputs.

    `layout` is that of the kernel's rank-4 data. `host_call` says that no kernel exists and the NumPy reference runs
    instead.
    """

    node: str
    op: str
    device: str
    layout: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    scratch_bytes: int = 0
    host_call: bool = False
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy `source` to `target`, changing one of layout, dtype and device. `home` brings a parameter back to where it
    lives.
    """

    node: str
    kind: Literal["layout", "dtype", "device", "home"]
    source: Operand
    target: Operand


@dataclass(frozen=True, slots=True)
class Rebind:
    """From here on, the outer scope's `variable` means `target`'s bytes (no bytes move). `policy` says who asked."""

    node: str
    variable: str
    target: Operand
    policy: TransferPolicy


@dataclass(frozen=True, slots=True)
class Free:
    """The buffer's bytes may be used by others from the next instruction on."""

    buffer: int


Instruction = Call | Transfer | Rebind | Free


@dataclass(frozen=True, slots=True)
class Result:
    """Where a value is found when the program has ended: an output to fetch, or a parameter's last value."""

    name: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions, buffers, and where values enter and leave.

    feeds    (feed's name, buffer)       params   (parameter's name, buffer where it lives)
    results  the graph's outputs         finals   for each parameter: its name, and where its last value must be at
             the end
    """

    machine: Machine
    instructions: tuple[Instruction, ...]
    buffers: tuple[ProgramBuffer, ...]
    feeds: tuple[Result, ...]
    params: tuple[Result, ...]
    results: tuple[Result, ...]
    finals: tuple[Result, ...]
    transfer: TransferPolicy = "publish"
    free: Literal["eager", "never"] = "eager"
    scratch_limit: int = 1 << 20

    def __str__(self) -> str:
        from memopt.lowering.text import print_program

        return print_program(self)
