"""How long does the validator take? A synthetic plan of elementwise instructions over a few reused slots.

    python benchmarks/validate.py [--instructions 100000] [--slots 64]

Three plans: every slot is reused at the same range; slots of many sizes, so that ranges are cut again and again; and no
slot is ever reused, so that the map of bytes only grows.
"""

from __future__ import annotations

import argparse
import random
import time

from memopt.devices import HOST, Machine, Placement
from memopt.ir import Graph, GraphBuilder
from memopt.lowering.program import Call, Free, Instruction, Operand, Program, ProgramBuffer, Result
from memopt.plan import DeviceUse, MemoryPlan, Slot
from memopt.validate import validate

PLACED = Placement(HOST, "float32", "NCHW")


def chain(num_nodes: int) -> Graph:
    b = GraphBuilder("chain")
    value = b.input("x", (16,))
    for i in range(num_nodes):
        value = b.relu(value, name=f"v{i}")
    b.output(value)
    return b.graph


def plan(num_instructions: int, num_slots: int, kind: str) -> MemoryPlan:
    """A chain of calls, each followed by a free of what it read (unless nothing is ever freed)."""
    rng = random.Random(0)
    graph = chain(num_instructions if kind == "grow" else num_instructions // 2)
    buffers = [ProgramBuffer(0, "x", HOST, "feed", 64, 0, 0)]
    slots = [Slot(HOST, "feed:x", 0, 64)]
    instructions: list[Instruction] = []
    last = Operand(0, 0, PLACED, "x", "x")
    for i, node in enumerate(graph.nodes):
        size = 64 * rng.choice((1, 2, 3)) if kind == "cut" else 64
        offset = {
            "same": 64 * (i % num_slots),
            "cut": 64
            * (i % 2 * num_slots + rng.randrange(num_slots - 2)),  # two halves by turns: never over what is read
            "grow": 64 * i,
        }[kind]
        buffers.append(ProgramBuffer(i + 1, node.name, HOST, "arena", size, 0, 0))
        slots.append(Slot(HOST, "arena", offset, size))
        made = Operand(i + 1, 0, PLACED, node.name, node.name)
        instructions.append(Call(node.name, "Relu", HOST, "NCHW", (last,), (made,)))
        if kind != "grow" and last.buffer:
            instructions.append(Free(last.buffer))
        last = made
    feeds = (Result("x", Operand(0, 0, PLACED, "x", "x")),)
    results = (Result(graph.outputs[0].name, last),)
    program = Program(Machine(), tuple(instructions), tuple(buffers), feeds, (), results, ())
    height = max(slot.offset + slot.size for slot in slots)
    return MemoryPlan(graph, program, tuple(slots), {HOST: DeviceUse(height_bytes=height)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=64)
    options = parser.parse_args()
    for kind in ("same", "cut", "grow"):
        one = plan(options.instructions, options.slots, kind)
        start = time.process_time()
        findings = validate(one, findings="return")
        seconds = time.process_time() - start
        each = 1e6 * seconds / len(one.program.instructions)
        print(
            f"{kind:>5}: {len(one.program.instructions)} instructions, {seconds:.2f} s of CPU time, {each:.1f} us each"
        )
        assert not findings, findings[0]


if __name__ == "__main__":
    main()
