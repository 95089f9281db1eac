"""Plans made by hand: a graph, instructions over named buffers, slots. No lowering, no packing, no passes.

An operand is written `value` (in the buffer of that name) or `value@buffer` or `value@buffer+offset`, and any of these
with `:4,1` behind it in strides of 4 and 1; its placement follows from the buffer's device and the value's type, unless
given as `sketch.operand(text, dtype=…, layout=…)`.
"""

from __future__ import annotations

from dataclasses import replace

from memopt.devices import Machine, Placement
from memopt.ir import Graph
from memopt.lowering.program import Call, Free, Instruction, Operand, Program, ProgramBuffer, Rebind, Result, Transfer
from memopt.plan import DeviceUse, MemoryPlan, Slot
from memopt.validate import Finding, validate
from memopt.validate.ends import last_values


class Sketch:
    """A plan in the making. Feeds and parameters have buffers of their own already, called by their names."""

    def __init__(self, graph: Graph, machine: Machine | None = None) -> None:
        self.graph, self.machine = graph, machine or Machine()
        self.instructions: list[Instruction] = []
        self.buffers: list[ProgramBuffer] = []
        self.slots: list[Slot] = []
        self.results: dict[str, Operand] = {}
        self.scratch: dict[str, int] = {}
        self._top: dict[str, int] = {}
        for kind, values, device in (("feed", graph.inputs, "host"), ("param", graph.params, self.machine.default)):
            for value in values:
                self._add(value.name, device, kind, value.nbytes, 0)

    def _add(self, name: str, device: str, space: str, size: int, offset: int) -> None:
        self.buffers.append(ProgramBuffer(len(self.buffers), name, device, space, size, 0, 0))  # type: ignore[arg-type]
        self.slots.append(Slot(device, "arena" if space == "arena" else f"{space}:{name}", offset, size))

    def buffer(self, name: str, size: int | None = None, *, device: str = "host", at: int | None = None) -> Sketch:
        """An arena buffer; by default as large as the value of that name, behind all others."""
        size = self.graph.value(name).nbytes if size is None else size
        at = self._top.get(device, 0) if at is None else at
        self._add(name, device, "arena", size, at)
        self._top[device] = max(self._top.get(device, 0), -(-(at + size) // 64) * 64)
        return self

    def buffers_for(self, *names: str, device: str = "host") -> Sketch:
        for name in names:
            self.buffer(name, device=device)
        return self

    def id(self, name: str) -> int:
        return next(buffer.id for buffer in self.buffers if buffer.name == name)

    def operand(self, text: str | Operand | None, *, dtype: str | None = None, layout: str = "NCHW") -> Operand | None:
        if text is None or isinstance(text, Operand):
            return text
        text, _, steps = text.partition(":")
        name, _, where = text.partition("@")
        where, _, offset = (where or name).partition("+")
        buffer = self.buffers[self.id(where)]
        placed = Placement(buffer.device, dtype or self.graph.value(name).dtype, layout)
        strides = tuple(map(int, steps.split(","))) if steps else None
        return Operand(buffer.id, int(offset or 0), placed, name, name, strides)

    def call(
        self, node: str, inputs: list, outputs: list, *, device: str = "host", layout: str = "NCHW", scratch: int = 0
    ) -> Sketch:
        op = self.graph.node(node).op if self.graph.has_node(node) else "Relu"
        ins, outs = (tuple(self.operand(text) for text in texts) for texts in (inputs, outputs))
        self.instructions.append(Call(node, op, device, layout, ins, outs, scratch))
        return self

    def transfer(self, kind: str, source: str | Operand, target: str | Operand, node: str = "") -> Sketch:
        a, b = self.operand(source), self.operand(target)
        assert a is not None
        assert b is not None
        self.instructions.append(Transfer(node, kind, a, b))  # type: ignore[arg-type]
        return self

    def rebind(self, node: str, variable: str, target: str, policy: str = "fluid-1.5") -> Sketch:
        operand = self.operand(target)
        assert operand is not None
        self.instructions.append(Rebind(node, variable, operand, policy))  # type: ignore[arg-type]
        return self

    def free(self, *names: str) -> Sketch:
        self.instructions.extend(Free(self.id(name)) for name in names)
        return self

    def result(self, *texts: str | Operand) -> Sketch:
        for text in texts:
            operand = self.operand(text)
            assert operand is not None
            self.results[operand.value] = operand
        return self

    def plan(self, **changes: object) -> MemoryPlan:
        """The plan; outputs without a `result` are in the buffers of their names. `changes` are of the program."""
        for value in self.graph.outputs:
            if value.name not in self.results:
                self.result(value.name)
        start = {value.name: self.operand(value.name) for value in (*self.graph.inputs, *self.graph.params)}
        feeds = tuple(Result(value.name, start[value.name]) for value in self.graph.inputs)
        params = tuple(Result(value.name, start[value.name]) for value in self.graph.params)
        results = tuple(Result(name, operand) for name, operand in self.results.items())
        last = last_values(self.graph)
        finals = tuple(Result(v.name, replace(start[v.name], value=last[v].name)) for v in self.graph.params)
        program = Program(self.machine, tuple(self.instructions), tuple(self.buffers), feeds, params, results, finals)
        devices = {
            device.name: DeviceUse(
                height_bytes=max(
                    (s.offset + s.size for s in self.slots if s.space == "arena" and s.device == device.name), default=0
                ),
                scratch_bytes=self.scratch.get(device.name, 0),
            )
            for device in self.machine.all_devices
        }
        return MemoryPlan(self.graph, replace(program, **changes), tuple(self.slots), devices)  # type: ignore[arg-type]

    def findings(self, **changes: object) -> list[Finding]:
        return validate(self.plan(**changes), findings="return")

    def only(self, kind: str, instruction: int | None, *words: str) -> Finding:
        """The one finding: of this kind, at this instruction, with these words in its message."""
        found = self.findings()
        assert [(f.kind, f.instruction) for f in found] == [(kind, instruction)], [str(f) for f in found]
        for word in words:
            assert word in found[0].message, (word, found[0].message)
        if instruction is not None:
            assert f"instruction {instruction} (" in found[0].message
        return found[0]
