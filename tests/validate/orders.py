"""Every legal order of a small plan, run on symbols: does each reading find the same bytes under all of them?

A slow twin of the any-order mode, by the definition: no paths, no pairs. Symbols are those of units of 4 bytes (dtypes
are float32 and float64, layouts NCHW): an arrival's, a call's output's (by node, number and all that the call read), a
cast's. Copies and views pass symbols on. So equal symbols are equal bits, whatever the order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from memopt.lowering import Call, Transfer
from memopt.plan import MemoryPlan
from memopt.types import itemsize
from memopt.validate import dependencies

__all__ = ["all_alike"]

UNIT = 4
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
        slot = self.plan.slots[operand.buffer]
        low = slot.offset + operand.offset
        size = self.plan.graph.value(operand.value).type.num_elements * itemsize(operand.placement.dtype)
        assert low % UNIT == 0
        assert size % UNIT == 0
        keys = [(slot.device, slot.space, at) for at in range(low, low + size, UNIT)]
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
        read = self.symbol("read", self.reads(index, memory))
        made = []
        for number, operand in enumerate(call.outputs):
            if operand is not None:
                symbols = [self.symbol(node.name, number, read, at) for at in range(len(self.units(operand)))]
                for to, source in self._moved(node, call, number):
                    for at, unit in enumerate(self.units(source)):
                        if 0 <= to + at < len(symbols):
                            symbols[to + at] = memory[unit]
                made.append((operand, symbols))
        return made

    def _moved(self, node, call: Call, number: int) -> Iterator[tuple[int, object]]:
        """(first unit of the output, input) of each input that goes into this output unchanged."""
        view, join = node.spec.view_of(number), node.spec.join_of(number)
        types = (node.input_types, node.output_types, node.attrs)
        at = None if view is None else view.byte_offset(*types, number)
        if number in node.spec.updates:
            return
        if view is not None and at is not None:
            starts = {view.input: -at}
        elif join is not None:
            starts = {slot: join.byte_offset(*types, slot) for slot, value in enumerate(node.inputs) if value}
        else:
            return
        for slot, start in starts.items():
            source = call.inputs[slot]
            if source is not None and start is not None:
                size = itemsize(source.placement.dtype)
                yield start // itemsize(node.outputs[number].dtype) * (size // UNIT), source


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
