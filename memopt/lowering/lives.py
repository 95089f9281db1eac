"""What became of each value's bytes in a program: where they are written, who reads them, and what ends them.

Holds true: a life is one writing of one value into one byte range of one buffer (an arrival of a feed or parameter is a
write at -1). It ends where its buffer is freed, or where another value is written over it and nobody reads it after
that; a view that writes the same bytes once more ends nobody who is read later. Names are those that the compiler meant
(`Operand.value`): this explains plans, and the validator believes none of it. Linear in operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memopt.lowering.program import Call, Free, Operand, Program, Transfer
from memopt.strides import extent
from memopt.types import itemsize

__all__ = ["Life", "find_lives"]


@dataclass(slots=True)
class Life:
    """Value `value` in bytes `[low, high)` of buffer `buffer`.

    start   the instruction that writes it (-1: it arrives)      maker   that instruction's node
    reads   (instruction, node) of each reading                  copy    whether a transfer wrote it
    over    the instruction that writes over it, if nobody reads it after that     freed   where its buffer is freed
    fetched whether it is a result or a parameter's last value at the end
    """

    value: str
    buffer: int
    low: int
    high: int
    start: int
    maker: str
    copy: bool = False
    reads: list[tuple[int, str]] = field(default_factory=list)
    over: int | None = None
    freed: int | None = None
    fetched: bool = False

    @property
    def last(self) -> int:
        """The last instruction that writes or reads it."""
        return self.reads[-1][0] if self.reads else self.start

    def alive_at(self, position: int) -> bool:
        """Whether its bytes are written by then, and needed then or later."""
        return self.start <= position and (self.fetched or self.last >= position)


class _Walk:
    """The lives that are open in each buffer, newest last."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._open: dict[int, list[Life]] = {}
        self.done: list[Life] = []

    def write(self, operand: Operand, position: int, node: str, copy: bool = False) -> None:
        low = operand.offset
        shape, strides = self._shapes.get(operand.value, (0,)), operand.strides
        if strides is not None and len(strides) != len(shape):  # a name of another value: names are for people
            strides = None
        high = low + extent(shape, strides) * itemsize(operand.placement.dtype)
        here = self._open.setdefault(operand.buffer, [])
        for life in here:
            if life.over is None and life.low < high and low < life.high:
                life.over = position
        here.append(Life(operand.value, operand.buffer, low, high, position, node, copy))
        self.done.append(here[-1])

    def find(self, operand: Operand) -> Life | None:
        """The newest life of that value in that buffer."""
        for life in reversed(self._open.get(operand.buffer, ())):
            if life.value == operand.value:
                return life
        return None

    def read(self, operand: Operand, position: int, node: str) -> None:
        life = self.find(operand)
        if life is not None:
            life.reads.append((position, node))
            life.over = None

    def call(self, call: Call, position: int) -> None:
        for operand in call.inputs:
            if operand is not None:
                self.read(operand, position, call.node)
        for operand in call.outputs:
            if operand is not None:
                self.write(operand, position, call.node)

    def free(self, buffer: int, position: int) -> None:
        for life in self._open.pop(buffer, ()):
            life.freed = position


def find_lives(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> list[Life]:
    """Every life in `program`, in the order of writing; `shapes` gives the shape of each value."""
    walk = _Walk(shapes)
    for entry in (*program.feeds, *program.params):
        walk.write(entry.operand, -1, "")
    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Call):
            walk.call(instruction, position)
        elif isinstance(instruction, Transfer):
            walk.read(instruction.source, position, instruction.node)
            walk.write(instruction.target, position, instruction.node, copy=instruction.kind != "home")
        elif isinstance(instruction, Free):
            walk.free(instruction.buffer, position)
    for result in (*program.results, *program.finals):
        life = walk.find(result.operand)
        if life is not None:
            life.fetched, life.over = True, None
    return walk.done
