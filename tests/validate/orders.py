"""Every legal order of a small plan, run on symbols: does each reading find the same bytes under all of them?

A slow twin of the any-order mode, by the definition: no paths, no pairs. Symbols are those of units of 4 bytes (dtypes
are float32 and float64, layouts NCHW): an arrival's, a call's output's (by node, number and all that the call read), a
cast's. Copies, views and joins pass symbols on, in strides too. So equal symbols are equal bits, whatever the order.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from memopt.lowering import Call, Transfer
from memopt.plan import MemoryPlan
from memopt.runtime.rows import makes_views
from memopt.strides import row_strides
from memopt.types import itemsize
from memopt.validate import dependencies

__all__ = ["all_alike"]

UNIT = 4
#: Ops whose outputs hold elements of their inputs and nothing else.
MOVING = ("Concat", "Expand", "Reshape", "Slice", "Split", "Transpose")
Memory = tuple[int, ...]


class Symbols:
    """Runs instructions on symbols. A memory is a tuple: one symbol for each unit that is ever touched."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self._known: dict[Hashable, int] = {}
        self._units: dict[tuple[str, str, int], int] = {}
        self.moving = [i for i, one in enumerate(plan.program.instructions) if isinstance(one, (Call, Transfer))]
        for index in self.moving:
            for operand in (operand for side in self.operands(index) for operand in side):
                self.units(operand)
        for result in (*plan.program.results, *plan.program.finals, *plan.program.feeds):
            self.units(result.operand)

    def operands(self, index: int) -> tuple[list, list]:
        """Those that an instruction reads, and those that it writes."""
        one = self.plan.program.instructions[index]
        if isinstance(one, Transfer):
            return [one.source], [one.target]
        return [o for o in one.inputs if o is not None], [o for o in one.outputs if o is not None]

    def units(self, operand) -> list[int]:
        """Those of the operand's elements, in their order."""
        slot, shape = self.plan.slots[operand.buffer], self.plan.graph.value(operand.value).shape
        low, size = slot.offset + operand.offset, itemsize(operand.placement.dtype)
        assert low % UNIT == 0
        assert size % UNIT == 0
        steps = row_strides(shape) if operand.strides is None else operand.strides
        starts = [low + size * sum(np.multiply(index, steps)) for index in np.ndindex(shape)]
        keys = [(slot.device, slot.space, int(at)) for start in starts for at in range(start, start + size, UNIT)]
        return [self._units.setdefault(key, len(self._units)) for key in keys]

    def symbol(self, *what: Hashable) -> int:
        return self._known.setdefault(what, len(self._known))

    def start(self) -> Memory:
        memory = [self.symbol("garbage", unit) for unit in range(len(self._units))]
        for arrival in (*self.plan.program.feeds, *self.plan.program.params):
            for at, unit in enumerate(self.units(arrival.operand)):
                memory[unit] = self.symbol("arrival", arrival.name, at)
        return tuple(memory)

    def reads(self, index: int, memory: Memory) -> Memory:
        return tuple(memory[unit] for operand in self.operands(index)[0] for unit in self.units(operand))

    def ends(self, memory: Memory) -> Memory:
        """What is fetched in the end, and what must be there for the next run."""
        program, kept = self.plan.program, self.plan.graph.donated
        ends = (*program.results, *program.finals, *(feed for feed in program.feeds if feed.name not in kept))
        return tuple(memory[unit] for end in ends for unit in self.units(end.operand))

    def step(self, index: int, memory: Memory) -> Memory:
        one = self.plan.program.instructions[index]
        made = self._copied(one, memory) if isinstance(one, Transfer) else self._called(one, index, memory)
        after = list(memory)
        for operand, symbols in made:
            for unit, symbol in zip(self.units(operand), symbols, strict=True):
                after[unit] = symbol
        return tuple(after)

    def _copied(self, one: Transfer, memory: Memory) -> list[tuple]:
        old = [memory[unit] for unit in self.units(one.source)]
        have, want = one.source.placement.dtype, one.target.placement.dtype
        if have == want:
            return [(one.target, old)]
        a, b = itemsize(have) // UNIT, itemsize(want) // UNIT
        elements = [tuple(old[at : at + a]) for at in range(0, len(old), a)]
        return [(one.target, [self.symbol("cast", have, want, e, k) for e in elements for k in range(b)])]

    def _called(self, call: Call, index: int, memory: Memory) -> list[tuple]:
        node = self.plan.graph.node(call.node)
        if makes_views(self.plan, call):
            return []
        moved = self._moved(node, call, memory) if call.op in MOVING else None
        read = self.symbol("read", self.reads(index, memory))
        made = []
        for number, operand in enumerate(call.outputs):
            if operand is not None:
                count = len(self.units(operand))
                fresh = [self.symbol(node.name, number, read, at) for at in range(count)]
                made.append((operand, fresh if moved is None else moved[number]))
        return made

    def _moved(self, node, call: Call, memory: Memory) -> list[list[int]]:
        """The symbols of each output: the op done on those of the inputs, for each unit of an element."""
        read = [[memory[unit] for unit in self.units(operand)] for operand in call.inputs]
        width = itemsize(call.outputs[0].placement.dtype) // UNIT
        types, parts = [value.type for value in node.outputs], []
        for k in range(width):
            arrays = [np.array(one[k::width]).reshape(v.shape) for one, v in zip(read, node.inputs, strict=True)]
            parts.append(node.spec.reference(arrays, node.attrs, types))
        outputs = [np.stack([array.ravel() for array in one], axis=1).ravel() for one in zip(*parts, strict=True)]
        return [array.tolist() for array in outputs]


def all_alike(plan: MemoryPlan, limit: int = 5_000) -> bool | None:
    """Whether every instruction, and the end, finds the same symbols under each legal order; None: too many to tell."""
    symbols, before = Symbols(plan), dependencies(plan)
    memory, want = symbols.start(), {}
    for index in symbols.moving:
        want[index] = symbols.reads(index, memory)
        memory = symbols.step(index, memory)
    end = symbols.ends(memory)
    seen = {(frozenset[int](), symbols.start())}
    stack = list(seen)
    while stack:
        done, memory = stack.pop()
        ready = [i for i in symbols.moving if i not in done and all(b in done for b in before[i])]
        if any(symbols.reads(i, memory) != want[i] for i in ready) or (not ready and symbols.ends(memory) != end):
            return False
        then = {(done | {index}, symbols.step(index, memory)) for index in ready} - seen
        seen |= then
        stack += then
        if len(seen) > limit:
            return None
    return True
