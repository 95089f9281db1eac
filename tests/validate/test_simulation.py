"""Random plans, right ones and ones broken in one way: the validator says what a run on real bytes shows.

Every plan is straight-line, made by a planner that is as simple as can be; then one thing is changed. Wherever the
simulation sees wrong bytes, there must be a finding; where it sees none, no finding about bytes.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.devices import Device, Machine
from memopt.ir import Graph, GraphBuilder
from memopt.lowering.program import Call, Free, Transfer
from memopt.plan import MemoryPlan
from memopt.validate import validate
from tests.validate.plans import Sketch
from tests.validate.simulate import Simulation

#: What the bytes can show. All else is a rule of the op or of the plan's form, which a run need not violate.
ABOUT_BYTES = {
    "stale-read", "lost-update", "clobbered", "partial-overwrite", "read-before-write", "wrong-form", "lost-output",
    "lost-parameter", "lost-feed",
}  # fmt: skip
FORM = {"illegal-inplace", "overlap", "pinned-write", "malformed", "misaligned", "out-of-bounds", "wrong-device"}
MACHINE = Machine(Device("host", alignment=4), (Device("gpu", alignment=4),), "gpu")


def random_graph(rng: random.Random) -> Graph:
    """Chains, joins, views, splits and updates of tensors of 24 elements and of 12."""
    b = GraphBuilder()
    pool = [b.input("x", (2, 3, 2, 2)), b.input("y", (2, 3, 2, 2), donated=True)]
    params = [b.param(name, shape=(2, 3, 2, 2)) for name in ("w", "v")]
    lr = b.param("lr", shape=())
    for i in range(rng.randint(3, 9)):
        name, device, value = f"n{i}", rng.choice(["host", "gpu", None]), rng.choice(pool)
        options = {"name": name, "device": device}
        match rng.choice(["neg", "add", "reshape", "split", "sgd", "neg", "add"]):
            case "neg":
                pool.append(b.neg(value, **options))
            case "add":
                other = rng.choice([v for v in (*pool, *params) if v.shape == value.shape])
                pool.append(b.add(value, other, **options))
            case "reshape":
                shape = (
                    (2, value.type.num_elements // 2)
                    if len(value.shape) == 4
                    else (2, value.type.num_elements // 8, 2, 2)
                )
                if value.type.num_elements % 8 == 0:
                    pool.append(b.reshape(value, shape=shape, **options))
            case "split" if value.shape[0] == 2:
                pool.extend(b.op("Split", value, outputs=(f"{name}.p", f"{name}.q"), axis=0, split=(1, 1), **options))
            case "sgd" if value.shape == params[0].shape and value not in params:
                which = rng.randrange(2)
                params[which] = b.op("SGD", params[which], value, lr, **options)
    made = [v for v in pool if v.producer is not None] or [b.neg(pool[0], name="last")]
    b.output(*rng.sample(made, min(len(made), 2)))
    return b.build()


def simple_plan(graph: Graph, rng: random.Random) -> Sketch:
    """Each value in a buffer of its own, copied to where it is read; updates come home at the end; frees then frees."""
    s = Sketch(graph, MACHINE)
    home: dict[str, str] = {value.name: value.name for value in (*graph.inputs, *graph.params)}
    last = {value.name: value.name for value in graph.params}
    owner = dict(last)
    keep = {value.name for value in graph.outputs}
    uses = {value.name: len(value.uses) for value in graph.values}
    for step, node in enumerate(graph.nodes):
        device = node.device or "gpu"
        inputs, copies = [], []
        for i, value in enumerate(node.inputs):
            where = home[value.name]
            if s.buffers[s.id(where)].device != device:
                copy = f"T{step}.{i}"
                s.buffer(copy, value.nbytes, device=device).transfer(
                    "device", f"{value.name}@{where}", f"{value.name}@{copy}"
                )
                copies.append(copy)
                where = copy
            inputs.append(f"{value.name}@{where}")
        outputs = []
        for i, value in enumerate(node.outputs):
            source = node.spec.updates.get(i)
            if source is not None:
                owner[value.name] = owner[node.inputs[source].name]
                last[owner[value.name]] = value.name
            s.buffer(value.name, device=device)
            home[value.name] = value.name
            outputs.append(value.name)
        s.call(node.name, inputs, outputs, device=device)
        s.free(*copies)
        for value in node.inputs:
            uses[value.name] -= 1
            dead = not uses[value.name] and value.name not in (*keep, *last.values()) and value.producer is not None
            if dead and rng.random() < 0.7:
                s.free(home[value.name])
    for param, value in last.items():
        if value != param:
            s.transfer("home", f"{value}@{home[value]}", f"{value}@{param}")
    return s


def reuse(s: Sketch, rng: random.Random) -> None:
    """Let a later buffer have the bytes of an earlier one that has been freed by then."""
    freed: dict[int, int] = {i.buffer: at for at, i in enumerate(s.instructions) if isinstance(i, Free)}
    for buffer in s.buffers:
        if buffer.space != "arena":
            continue
        first = next((at for at, i in enumerate(s.instructions) if buffer.id in _touched(i)), 0)
        for old, at in sorted(freed.items()):
            slot = s.slots[old]
            if at < first and slot.device == buffer.device and slot.size >= buffer.size_bytes and rng.random() < 0.8:
                s.slots[buffer.id] = replace(s.slots[buffer.id], offset=slot.offset)
                del freed[old]
                break


def _touched(instruction: object) -> set[int]:
    if isinstance(instruction, Call):
        return {o.buffer for o in (*instruction.inputs, *instruction.outputs) if o is not None}
    return {instruction.source.buffer, instruction.target.buffer} if isinstance(instruction, Transfer) else set()


def break_it(s: Sketch, rng: random.Random) -> None:
    """Change one thing."""
    at = rng.randrange(len(s.instructions))
    instruction = s.instructions[at]
    arena = [buffer.id for buffer in s.buffers if buffer.space == "arena"]
    match rng.choice(["move", "swap", "drop", "operand", "operand", "offset", "free", "source"]):
        case "move":
            one, other = rng.choice(arena), rng.choice(arena)
            shift = 4 * rng.randint(0, 8)
            s.slots[one] = replace(s.slots[one], offset=s.slots[other].offset + shift)
        case "swap":
            other = rng.randrange(len(s.instructions))
            s.instructions[at], s.instructions[other] = s.instructions[other], s.instructions[at]
        case "drop" if isinstance(instruction, Transfer):
            del s.instructions[at]
        case "free":
            s.instructions.insert(at, Free(rng.choice(arena)))
        case "operand" | "offset" if isinstance(instruction, Call):
            which = rng.randrange(len(instruction.inputs))
            operand = instruction.inputs[which]
            same = [
                b.id
                for b in s.buffers
                if b.device == instruction.device and b.size_bytes >= s.buffers[operand.buffer].size_bytes
            ]
            changed = replace(operand, buffer=rng.choice(same))
            inputs = (*instruction.inputs[:which], changed, *instruction.inputs[which + 1 :])
            s.instructions[at] = replace(instruction, inputs=inputs)
        case "source" if isinstance(instruction, Transfer):
            source = instruction.source
            same = [
                b.id
                for b in s.buffers
                if b.device == source.placement.device and b.size_bytes >= s.buffers[source.buffer].size_bytes
            ]
            s.instructions[at] = replace(instruction, source=replace(source, buffer=rng.choice(same)))


def make(seed: int, *, broken: bool) -> MemoryPlan:
    rng = random.Random(seed)
    s = simple_plan(random_graph(rng), rng)
    reuse(s, rng)
    if broken:
        break_it(s, rng)
    return s.plan()


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32))
def test_right_plans_have_no_finding_and_the_right_bytes(seed):
    plan = make(seed, broken=False)
    assert [str(f) for f in validate(plan, findings="return")] == []
    assert Simulation(plan, seed).run() == []


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32))
def test_the_verdict_on_a_broken_plan_is_that_of_a_run(seed):
    plan = make(seed, broken=True)
    findings = validate(plan, findings="return")
    simulation = Simulation(plan, seed)
    wrong = simulation.run()
    if wrong:
        assert findings, wrong
    if simulation.coincide():
        return
    if any(finding.kind in ABOUT_BYTES for finding in findings) and not any(
        finding.kind in FORM for finding in findings
    ):
        assert wrong, [str(f) for f in findings]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32))
def test_the_first_wrong_read_is_found_where_it_happens(seed):
    plan = make(seed, broken=True)
    findings = [f for f in validate(plan, findings="return") if f.kind in ABOUT_BYTES | {"malformed"}]
    wrong = Simulation(plan, seed).run()
    first = [index for index, _ in wrong if index is not None]
    if first:
        assert first[0] in [f.instruction for f in findings]
