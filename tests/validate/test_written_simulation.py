"""Random plans with outputs in strides, right ones and broken ones: no run on real bytes is wrong without a finding.

Parts of a Concat lie in its rows, in joins of joins too; other outputs lie apart for no reason; some are computed in
place over rows; views are taken of all of them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ir import Graph, GraphBuilder, Node, Value
from memopt.lowering.program import Call, Operand
from memopt.plan import MemoryPlan
from memopt.strides import canonical, row_runs, row_strides
from memopt.validate import validate
from tests.validate.orders import all_alike
from tests.validate.test_simulation import break_it, reuse
from tests.validate.test_strided_simulation import Planner, break_strides, run


def random_graph(rng: random.Random, count: int) -> Graph:
    """Joins, views and new content of tensors of 48 elements and fewer."""
    b = GraphBuilder()
    pool: list[Value] = [b.input("x", (2, 4)), b.input("y", (2, 3)), b.input("z", (2, 1, 2), donated=True)]
    for i in range(count):
        value = rng.choice(pool[-5:])
        options = {"name": f"n{i}", "device": rng.choice(["gpu", "gpu", "gpu", None, "host"])}
        axis = rng.randrange(len(value.shape))
        match rng.choice(["neg", "neg", "neg", "add", "concat", "concat", "concat", "transpose", "split", "reshape"]):
            case "neg":
                pool.append(b.neg(value, **options))
            case "add":
                pool.append(b.add(value, rng.choice([v for v in pool if v.shape == value.shape]), **options))
            case "concat":
                fit = [v for v in pool if _but(v, axis) == _but(value, axis) and v is not value]
                others = rng.sample(fit, min(len(fit), rng.randint(0, 2)))
                parts = rng.sample([value, *others], len(others) + 1)
                if sum(part.type.num_elements for part in parts) <= 48:
                    pool.append(b.concat(*parts, axis=axis, **options))
            case "transpose":
                perm = tuple(rng.sample(range(len(value.shape)), len(value.shape)))
                pool.append(b.op("Transpose", value, perm=perm, **options))
            case "split" if value.shape[axis] > 1:
                sizes = (1, value.shape[axis] - 1)
                pool.extend(b.op("Split", value, outputs=2, axis=axis, split=sizes, **options))
            case "reshape":
                by = rng.choice([n for n in (1, 2, 3, 4) if value.type.num_elements % n == 0])
                pool.append(b.reshape(value, shape=(by, value.type.num_elements // by), **options))
    made = [v for v in pool if v.producer is not None] or [b.neg(pool[0], name="last")]
    b.output(*rng.sample(made, min(len(made), 2)))
    return b.build()


def _but(value: Value, axis: int) -> tuple[int, ...]:
    """The shape without this axis, and its rank."""
    return (*value.shape[:axis], *value.shape[axis + 1 :], len(value.shape))


class Writer(Planner):
    """Puts parts into the rows of what they are joined to, before it is there, and other outputs anywhere."""

    def __init__(self, graph: Graph, rng: random.Random, share: float) -> None:
        super().__init__(graph, rng, share)
        self.done: set[Value] = set(graph.inputs)
        self.reserved: dict[Value, Operand] = {}
        self.viewed: set[Value] = set()
        self.strided = self.in_place = 0

    def _outputs(self, node: Node, inputs: list[Operand], copied: bool) -> list[Operand]:
        views = None if copied or self.rng.random() > self.share else self._views(node, inputs[0])
        values = [value for _, value in node.real_outputs]
        self.done.update(values)
        if views is not None:
            self.viewed.update(values)
            return views
        if node.op == "Neg" and not copied and self._may_overwrite(node, inputs[0]):
            self.in_place += inputs[0].strides is not None
            self.reserved[values[0]] = replace(inputs[0], value=values[0].name, variable=values[0].name)
        return [self._reserve(value) for value in values]

    def _may_overwrite(self, node: Node, source: Operand) -> bool:
        """Whether the input dies here, and nobody else who is needed lies in its bytes."""
        (value,) = node.inputs
        assert value is not None
        if value not in self.done or value.producer is None or self.left[value] > 1 or node.outputs[0] in self.reserved:
            return False
        mine = _elements(source, value)
        others = [(v, place) for v, place in self.places.items() if self.left[v] > 0 and v is not value]
        near = [(v, place) for v, place in others if place.buffer == source.buffer]
        free = not any(v in self.viewed or mine & _elements(place, v) for v, place in near)
        return free and value not in self.viewed and self.rng.random() < 0.8

    def _reserve(self, value: Value) -> Operand:
        if value not in self.reserved:
            self.reserved[value] = self._joined(value) or self._apart(value)
            self.strided += self.reserved[value].strides is not None
        return self.reserved[value]

    def _joined(self, value: Value) -> Operand | None:
        """A place within what the value is joined to."""
        for use in value.uses:
            node, device = use.node, value.producer.device or "gpu"  # type: ignore[union-attr]
            once = list(node.inputs).count(value) == 1 and len(node.inputs) > 1
            if node.op != "Concat" or not once or (node.device or "gpu") != device or self.rng.random() > self.share:
                continue
            outer, result, join = self._reserve(node.outputs[0]), node.outputs[0], node.spec.joins[0]
            assert join.strides is not None
            steps = outer.strides or row_strides(result.shape)
            types = (node.input_types, node.output_types, node.attrs)
            found = join.strides(*types, use.index, steps)
            assert found is not None
            strides = canonical(value.shape, found.strides)
            return replace(
                outer, offset=outer.offset + 4 * found.first, value=value.name, variable=value.name, strides=strides
            )
        return None

    def _apart(self, value: Value) -> Operand:
        """A buffer of its own, in which the axes may be in any order and apart."""
        device, steps, step = value.producer.device or "gpu", [0] * len(value.shape), 1  # type: ignore[union-attr]
        loose = self.rng.random() < 0.3
        axes = list(range(len(value.shape)))[::-1]
        if loose:
            self.rng.shuffle(axes)
        for axis in axes:
            steps[axis] = step
            step = step * value.shape[axis] + (self.rng.choice([0, 0, 1]) if loose else 0)
        self.sketch.buffer(value.name, 4 * step, device=device)
        strides = canonical(value.shape, tuple(steps))
        operand = self.sketch.operand(value.name)
        assert operand is not None
        return replace(operand, strides=strides)

    def _needed(self) -> set[int]:
        later = {place.buffer for value, place in self.reserved.items() if value not in self.done}
        return later | super()._needed()


def _elements(operand: Operand, value: Value) -> set[int]:
    """Where the elements lie in the buffer, in elements."""
    runs = row_runs(value.shape, operand.strides)
    assert runs is not None
    return {operand.offset // 4 + at + i for at, _, count in runs for i in range(count)}


def make(seed: int, *, broken: bool, share: float = 0.8, count: int = 12) -> MemoryPlan:
    rng = random.Random(seed)
    s = Writer(random_graph(rng, rng.randint(3, count)), rng, share).plan()
    reuse(s, rng)
    if broken:
        rng.choice([break_it, break_strides, break_strides])(s, rng)
    return s.plan()


def test_the_plans_have_what_they_are_for():
    strided = in_place = nested = 0
    for seed in range(300):
        rng = random.Random(seed)
        writer = Writer(random_graph(rng, 12), rng, 0.9)
        s = writer.plan()
        strided, in_place = strided + writer.strided, in_place + writer.in_place
        for call in s.instructions:
            if isinstance(call, Call) and call.op == "Concat":
                nested += call.outputs[0].strides is not None  # type: ignore[union-attr]
    assert min(strided, in_place, nested) > 20, (strided, in_place, nested)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.8, 1.0]))
def test_right_plans_have_no_finding_and_the_right_bytes(seed, share):
    plan = make(seed, broken=False, share=share)
    assert run(plan, seed) == []
    assert [str(f) for f in validate(plan, findings="return")] == []


@settings(deadline=None, max_examples=500)
@given(st.integers(0, 2**32))
def test_no_run_is_wrong_without_a_finding(seed):
    plan = make(seed, broken=True)
    wrong = run(plan, seed)
    assert not wrong or validate(plan, findings="return", order="any"), wrong


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32))
def test_what_is_accepted_in_any_order_is_right_in_all(seed):
    plan = make(seed, broken=False, share=1.0, count=6)
    if not validate(plan, findings="return", order="any"):
        assert all_alike(plan, limit=500) is not False
