"""The machine's table and frames for a plan's rows, and which words of them point into arrays of the caller's.

Holds true: a frame begins with its operands' addresses, in the order of the kernel's arrays. Spaces that lie elsewhere
in each run (feeds, outputs) are moved by rewriting just those words; `regions` and the words agree whenever rows run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memopt.lowering import Call, Operand, Transfer
from memopt.plan import MemoryPlan
from memopt.runtime.entry import entry_address, frame_words
from memopt.runtime.memory import Region
from memopt.runtime.rows import Row

__all__ = ["Frames", "load_frames"]

_Key = tuple[str, str]


@dataclass(slots=True)
class _Pointers:
    """The words that point into one space, how far into it each points, and where the space begins now."""

    words: NDArray[np.int64]
    offsets: NDArray[np.int64]
    address: int


@dataclass(slots=True)
class Frames:
    """A loaded plan: its rows, the table of (entry point, frame), the frames' words, and the nodes that run as NumPy.

    `by_instruction` gives the indexes of an instruction's rows: several where a call is done item by item, none for
    what moves no bytes.
    `pointers` are the words of each space that an array of the caller's may take the place of.
    """

    rows: list[Row]
    table: NDArray[np.int64]
    words: NDArray[np.int64] = field(repr=False)
    host_calls: tuple[str, ...]
    pointers: dict[_Key, _Pointers] = field(repr=False)
    by_instruction: dict[int, list[int]] = field(repr=False)

    def move(self, key: _Key, address: int) -> None:
        """From now on, space `key` begins at `address`."""
        found = self.pointers.get(key)
        if found is not None and found.address != address:
            self.words[found.words] = found.offsets + address
            found.address = address


def _by_instruction(rows: Iterable[Row]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.instruction, []).append(index)
    return found


def load_frames(plan: MemoryPlan, rows: Iterable[Row], regions: Mapping[_Key, Region]) -> Frames:
    """The table and the frames of `rows`: one allocation each."""
    rows = list(rows)
    words: list[int] = []
    starts: list[int] = []
    moving: dict[_Key, list[int]] = {}
    for row in rows:
        starts.append(len(words))
        if row.call is not None:
            for number, operand in enumerate(_operands(plan, row)):
                slot = None if operand is None else plan.slots[operand.buffer]
                if slot is not None and str(slot.space).startswith(("feed:", "output:")):
                    moving.setdefault((slot.device, slot.space), []).append(len(words) + number)
            words.extend(frame_words(row.call, row.addresses))
    frames = np.array(words or [0], np.int64)
    table = np.zeros((len(rows), 2), np.int64)
    for index, row in enumerate(rows):
        if row.call is not None:
            table[index] = entry_address(row.call), frames.ctypes.data + 8 * starts[index]
    pointers = {key: _pointers(frames, found, regions[key].address) for key, found in moving.items()}
    host_calls = tuple(row.label for row in rows if row.host is not None)
    return Frames(rows, table, frames, host_calls, pointers, _by_instruction(rows))


def _pointers(frames: NDArray[np.int64], found: list[int], address: int) -> _Pointers:
    words = np.array(found, np.int64)
    return _Pointers(words, frames[words] - address, address)


def _operands(plan: MemoryPlan, row: Row) -> list[Operand | None]:
    """The operand of each of the kernel's arrays, None for scratch."""
    assert row.call is not None, "a host call has no kernel"
    instruction = plan.program.instructions[row.instruction]
    if isinstance(instruction, Call):
        sides = instruction.inputs, instruction.outputs
    else:
        assert isinstance(instruction, Transfer), "only calls and transfers have rows"
        sides = (instruction.source,), (instruction.target,)
    arrays = row.call.arrays
    return [None if arg.role == "scratch" else sides[arg.role == "out"][arg.index] for arg in arrays]
