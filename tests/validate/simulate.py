"""A slow twin of the validator: run the plan on bytes, with NumPy, and compare every operand with what the graph says.

It knows no contents and no roots: memory is garbage at first and after a free, feeds and parameters are random and all
different, so that two values coincide only if they are the same. Which calls make views, so that nothing runs, is the
runtime's rule.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from memopt.lowering.program import Call, Free, Operand, Transfer
from memopt.plan import MemoryPlan
from memopt.runtime.rows import makes_views


def _stored(array: np.ndarray, operand: Operand) -> bytes:
    if operand.placement.layout == "NHWC" and array.ndim == 4:
        array = array.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(array).astype(operand.placement.dtype).tobytes()


class Simulation:
    """Memory of a plan; `wrong` lists what differs from the graph: (instruction or None, name)."""

    def __init__(self, plan: MemoryPlan, seed: int = 0) -> None:
        self.plan, self.rng = plan, np.random.default_rng(seed)
        self.memory: dict[tuple[str, str], np.ndarray] = {}
        for slot in plan.slots:
            key = (slot.device, slot.space)
            size = max(slot.offset + slot.size, len(self.memory.get(key, ())))
            self.memory[key] = self.rng.integers(0, 256, size, np.uint8)
        graph = plan.graph
        self.values = {value.name: self._random(value) for value in (*graph.inputs, *graph.params)}
        for node in graph.nodes:
            arrays = [None if value is None else self.values[value.name] for value in node.inputs]
            types = [value.type for value in node.outputs]
            for value, array in zip(node.outputs, node.spec.reference(arrays, node.attrs, types), strict=True):
                self.values[value.name] = array
        self.wrong: list[tuple[int | None, str]] = []

    def coincide(self) -> bool:
        """Whether two computed values have a common element (`x + y`, `y + x`): bytes cannot tell them apart."""
        views = {value.name for node in self.plan.graph.nodes if node.spec.views for value in node.outputs}
        elements = np.concatenate([array.ravel() for name, array in self.values.items() if name not in views])
        return len(np.unique(elements)) < len(elements)

    def _random(self, value) -> np.ndarray:
        return self.rng.standard_normal(value.shape).astype(value.dtype)

    def bytes(self, operand: Operand) -> np.ndarray:
        slot = self.plan.slots[operand.buffer]
        array, item = self.values[operand.value], np.dtype(operand.placement.dtype).itemsize
        size = array.size * item
        if operand.strides is not None and size:
            size = (1 + sum((dim - 1) * step for dim, step in zip(array.shape, operand.strides, strict=True))) * item
        start, memory = slot.offset + operand.offset, self.memory[slot.device, slot.space]
        if not 0 <= start <= start + size <= len(memory) or min(operand.strides or (0,)) < 0:
            raise IndexError(f"{operand} is outside of memory")
        return memory[start : start + size]

    def array(self, operand: Operand) -> np.ndarray:
        shape = self.values[operand.value].shape
        nhwc = operand.placement.layout == "NHWC" and len(shape) == 4
        stored = tuple(shape[i] for i in (0, 2, 3, 1)) if nhwc else shape
        array = np.frombuffer(self.bytes(operand).tobytes(), operand.placement.dtype)
        if operand.strides is not None:
            return as_strided(array, shape, [step * array.itemsize for step in operand.strides])
        array = array.reshape(stored)
        return array.transpose(0, 3, 1, 2) if nhwc else array

    def put(self, operand: Operand, array: np.ndarray) -> None:
        if operand.strides is None:
            self.bytes(operand)[:] = np.frombuffer(_stored(array, operand), np.uint8)
            return
        there = self.bytes(operand).view(operand.placement.dtype)
        as_strided(there, array.shape, [step * there.itemsize for step in operand.strides])[...] = array

    def check(self, index: int | None, name: str, operand: Operand) -> None:
        """The bytes must be those of value `name` (by the graph), whatever the operand says."""
        if _stored(self.array(operand), operand) != _stored(self.values[name], operand):
            self.wrong.append((index, name))

    def run(self) -> list[tuple[int | None, str]]:
        program = self.plan.program
        for result in (*program.feeds, *program.params):
            self.put(result.operand, self.values[result.name])
        for index, instruction in enumerate(program.instructions):
            if isinstance(instruction, Call):
                self._call(index, instruction)
            elif isinstance(instruction, Transfer):
                self.put(instruction.target, self.array(instruction.source))
            elif isinstance(instruction, Free):
                slot = self.plan.slots[instruction.buffer]
                freed = self.memory[slot.device, slot.space][slot.offset : slot.offset + slot.size]
                freed[:] = self.rng.integers(0, 256, slot.size, np.uint8)
        for result in program.results:
            self.check(None, result.name, result.operand)
        last = self._last_values()
        for result in (*program.feeds, *program.params):
            if result.name not in self.plan.graph.donated:
                self.check(None, last[result.name], result.operand)
        return self.wrong

    def _call(self, index: int, call: Call) -> None:
        node = self.plan.graph.node(call.node)
        for value, operand in zip(node.inputs, call.inputs, strict=True):
            if operand is not None:
                self.check(index, value.name, operand)
        nothing_runs = makes_views(self.plan, call)
        for value, operand in zip(node.outputs, call.outputs, strict=True):
            if nothing_runs:
                self.check(index, value.name, operand)
            else:
                self.put(operand, self.values[value.name])  # as if the inputs had been right

    def _last_values(self) -> dict[str, str]:
        graph = self.plan.graph
        last = {value.name: value.name for value in (*graph.params, *graph.inputs)}
        owner = dict(last)
        for node in graph.nodes:
            for output, source in node.spec.updates.items():
                owner[node.outputs[output].name] = owner[node.inputs[source].name]
                last[owner[node.inputs[source].name]] = node.outputs[output].name
        return last
