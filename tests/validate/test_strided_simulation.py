"""Random plans with views in strides, right ones and broken ones: no run on real bytes is wrong without a finding.

The other direction holds for right plans only: between the elements of a view nobody may write, though a run would
not show it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ir import Graph, GraphBuilder, Node, Value
from memopt.lowering.program import Call, Operand, Transfer
from memopt.plan import MemoryPlan
from memopt.strides import canonical, row_strides
from memopt.validate import validate
from tests.validate.plans import Sketch
from tests.validate.simulate import Simulation
from tests.validate.test_simulation import MACHINE, break_it, reuse


def random_graph(rng: random.Random) -> Graph:
    """Views of views of tensors of 16 elements and fewer, read by ops that make new content."""
    b = GraphBuilder()
    pool: list[Value] = [b.input("x", (4, 4)), b.input("y", (4, 4), donated=True)]
    for i in range(rng.randint(4, 10)):
        value = rng.choice(pool[-4:])
        options = {"name": f"n{i}", "device": rng.choice(["host", "gpu", None])}
        axis, rows = rng.randrange(2), value.shape[0]
        match rng.choice(["neg", "add", "matmul", "transpose", "transpose", "split", "slice", "reshape", "expand"]):
            case "neg":
                pool.append(b.neg(value, **options))
            case "add":
                pool.append(b.add(value, rng.choice([v for v in pool if v.shape == value.shape]), **options))
            case "matmul":
                pool.append(b.matmul(value, rng.choice([v for v in pool if v.shape[0] == value.shape[1]] or [value]),
                                     **options) if rows == value.shape[1] else b.neg(value, **options))  # fmt: skip
            case "transpose":
                pool.append(b.op("Transpose", value, **options))
            case "split" if value.shape[axis] > 1:
                sizes = (1, value.shape[axis] - 1)
                pool.extend(b.op("Split", value, outputs=2, axis=axis, split=sizes, **options))
            case "slice" if value.shape[axis] > 2:
                pool.append(b.op("Slice", value, starts=(rng.randint(0, 1),), ends=(9,), axes=(axis,),
                                 steps=(rng.choice([1, 2]),), **options))  # fmt: skip
            case "reshape":
                by = rng.choice([n for n in (1, 2, 3, 4) if value.type.num_elements % n == 0])
                pool.append(b.reshape(value, shape=(by, value.type.num_elements // by), **options))
            case "expand" if 1 in value.shape:
                shape = tuple(4 if dim == 1 else dim for dim in value.shape)
                pool.append(b.op("Expand", value, shape=shape, **options))
    made = [v for v in pool if v.producer is not None] or [b.neg(pool[0], name="last")]
    b.output(*rng.sample(made, min(len(made), 2)))
    return b.build()


class Planner:
    """A planner that is as simple as can be: a place for each value, which views take in what they view."""

    def __init__(self, graph: Graph, rng: random.Random, share: float = 0.8) -> None:
        self.sketch, self.graph, self.rng, self.share = Sketch(graph, MACHINE), graph, rng, share
        self.places: dict[Value, Operand] = {v: self.sketch.operand(v.name) for v in graph.inputs}  # type: ignore[misc]
        self.left = Counter({v: len(v.uses) + (v in graph.outputs) for v in graph.values})

    def plan(self) -> Sketch:
        for step, node in enumerate(self.graph.nodes):
            self._node(step, node)
        return self.sketch.result(*(self.places[value] for value in self.graph.outputs))

    def _node(self, step: int, node: Node) -> None:
        s, device, copies = self.sketch, node.device or "gpu", []
        inputs: list[Operand] = []
        for i, value in enumerate(node.inputs):
            assert value is not None
            operand = self.places[value]
            if operand.placement.device != device:
                copies.append(f"T{step}.{i}")
                s.buffer(copies[-1], value.nbytes, device=device)
                s.transfer("device", operand, f"{value.name}@{copies[-1]}")
                operand = s.operand(f"{value.name}@{copies[-1]}")  # type: ignore[assignment]
            inputs.append(operand)
        outputs = self._outputs(node, inputs, bool(copies))
        self.places.update({value: outputs[i] for i, value in node.real_outputs})  # type: ignore[misc]
        s.call(node.name, inputs, outputs, device=device).free(*copies)
        self.left.subtract(v for v in node.inputs if v is not None)
        self._frees()

    def _outputs(self, node: Node, inputs: list[Operand], copied: bool) -> list[Operand]:
        """Where the outputs lie: where they are if they are views, else in new buffers."""
        views = None if copied or self.rng.random() > self.share else self._views(node, inputs[0])
        if views is not None:
            return views
        names = [value.name for _, value in node.real_outputs]
        self.sketch.buffers_for(*names, device=node.device or "gpu")
        return [self.sketch.operand(name) for name in names]  # type: ignore[misc]

    def _views(self, node: Node, source: Operand) -> list[Operand] | None:
        """All outputs as views of the input, where they are and one of them steps (else the kernel runs)."""
        found = []
        for index, value in node.real_outputs:
            view = node.spec.view_of(index)
            if view is None or view.strides is None:
                return None
            steps = source.strides or row_strides(node.inputs[0].shape)  # type: ignore[union-attr]
            got = view.strides(node.input_types, node.output_types, node.attrs, index, steps)
            if got is None:
                return None
            offset = source.offset + 4 * got.first
            strides = canonical(value.shape, got.strides) if self.rng.random() < 0.7 else got.strides
            found.append(replace(source, offset=offset, value=value.name, variable=value.name, strides=strides))
        return found if any(operand.strides is not None for operand in found) else None

    def _frees(self) -> None:
        s = self.sketch
        used = self._needed()
        freed = {getattr(i, "buffer", None) for i in s.instructions}
        for buffer in s.buffers:
            unused = buffer.space == "arena" and buffer.id not in used | freed
            if unused and not buffer.name.startswith("T") and self.rng.random() < 0.7:
                s.free(buffer.name)


    def _needed(self) -> set[int]:
        """The buffers of values that are still read."""
        return {place.buffer for value, place in self.places.items() if self.left[value]}


def break_strides(s: Sketch, rng: random.Random) -> None:
    """Change strides or an offset, or drop strides, in one operand."""
    found = [(at, i) for at, i in enumerate(s.instructions) if isinstance(i, Call | Transfer)]
    at, instruction = rng.choice(found)
    fields = ("inputs", "outputs") if isinstance(instruction, Call) else ("source",)
    field = rng.choice(fields)
    operands = list(getattr(instruction, field)) if isinstance(instruction, Call) else [instruction.source]
    which = rng.randrange(len(operands))
    operand = operands[which]
    shape = s.graph.value(operand.value).shape
    steps = list(operand.strides or row_strides(shape))
    match rng.choice(["permute", "change", "drop", "shift", "both"]):
        case "permute":
            rng.shuffle(steps)
        case "change":
            steps[rng.randrange(len(steps))] += rng.choice([-1, 1, 2])
        case "drop":
            steps = []
        case "shift":
            operand = replace(operand, offset=operand.offset + rng.choice([-4, 4, 8]))
        case "both":
            operand = replace(operand, offset=operand.offset + rng.choice([-4, 4, 8]))
            rng.shuffle(steps)
    operands[which] = replace(operand, strides=tuple(steps) or None)
    changed = operands[0] if isinstance(instruction, Transfer) else tuple(operands)
    s.instructions[at] = replace(instruction, **{field: changed})


def make(seed: int, *, broken: bool, share: float = 0.8) -> MemoryPlan:
    rng = random.Random(seed)
    s = Planner(random_graph(rng), rng, share).plan()
    reuse(s, rng)
    if broken:
        rng.choice([break_it, break_strides])(s, rng)
    return s.plan()


def run(plan: MemoryPlan, seed: int) -> list[tuple[int | None, str]]:
    """What a run shows to be wrong; an operand outside of memory is."""
    try:
        return Simulation(plan, seed).run()
    except (ValueError, IndexError) as error:
        return [(None, str(error))]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.8, 1.0]))
def test_right_plans_have_no_finding_and_the_right_bytes(seed, share):
    plan = make(seed, broken=False, share=share)
    assert [str(f) for f in validate(plan, findings="return")] == []
    assert run(plan, seed) == []


@settings(deadline=None, max_examples=500)
@given(st.integers(0, 2**32))
def test_no_run_is_wrong_without_a_finding(seed):
    plan = make(seed, broken=True)
    wrong = run(plan, seed)
    assert not wrong or validate(plan, findings="return", order="any"), wrong


def test_not_everything_is_rejected_and_views_in_strides_occur():
    plans = [make(seed, broken=True) for seed in range(200)]
    right = [plan for plan in plans if not validate(plan, findings="return")]
    steps = [plan for plan in right if any("[" in line for line in str(plan.program).splitlines())]
    assert len(right) > 20
    assert len(steps) > 10
