"""Any-order mode: accepted exactly where every legal order, run on real bytes, reads the same bits everywhere.

The edges that orders obey are worked out here once more, byte by byte, and compared with `dependencies`.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
import passes
from memopt import Machine, Plan, compile, validate
from memopt.errors import InvalidPlanError, OptionError
from memopt.ir import Graph, GraphBuilder
from memopt.lowering.program import Call, Transfer
from memopt.runtime.rows import operand_view
from memopt.types import itemsize
from memopt.validate import dependencies
from tests.strategies import feeds_for
from tests.trace import coincide
from tests.validate.plans import Sketch

MACHINES = [
    Machine.host_only(alignment=4),
    Machine.host_and("gpu", lacks={"Add", "SGD"}, alignment=4),
    Machine.host_and("gpu", lacks={"Mul"}, dtypes={"float64": "float32"}),
]


def random_graph(rng: random.Random, nodes: int = 7) -> Graph:
    """Few kinds of ops, all of [4, 4] or of parts of it; every value is read or an output; a few control edges."""
    b = GraphBuilder()
    pool = [b.input("x", (4, 4), donated=rng.random() < 0.5), b.input("y", (4, 4))]
    data = np.random.default_rng(rng.randrange(99))
    weight, rate = b.param("w", data.uniform(-2, 2, (4, 4)).astype(np.float32)), b.param("r", np.float32(0.5))
    for _ in range(rng.randint(2, nodes)):
        value = rng.choice(pool[-4:])
        job = rng.choice(["unary", "unary", "Add", "Add", "Mul", "flat", *_OF_4_4])
        if job not in _OF_4_4 or value.shape == (4, 4):
            made, weight = statement(b, job, (pool, value, weight, rate), rng)
            pool += made
    b.output(*[v for v in pool if v.producer is not None and not v.uses] or [b.neg(pool[0])])
    graph = b.build()
    for node in graph.nodes[1:]:
        if rng.random() < 0.2:
            node.controls.append(rng.choice(graph.nodes[: graph.nodes.index(node)]))
    return graph


_OF_4_4 = ("split", "join", "sgd", "weigh")


def statement(b: GraphBuilder, job: str, at: tuple, rng: random.Random) -> tuple[list, object]:
    """What one job makes, and the weight after it."""
    pool, value, weight, rate = at
    match job:
        case "unary":
            return [b.op(rng.choice(["Neg", "Tanh", "Sigmoid"]), value)], weight
        case "Add" | "Mul":
            return [b.op(job, value, rng.choice([v for v in pool if v.shape == value.shape]))], weight
        case "flat":
            shape = (value.type.num_elements,) if len(value.shape) == 2 else (2, value.type.num_elements // 2)
            return [b.reshape(value, shape=shape)], weight
        case "split":
            return [b.neg(half) for half in b.op("Split", value, outputs=2, axis=0, split=(2, 2))], weight
        case "join":
            joined = b.concat(value, b.neg(rng.choice(pool[:2])), axis=0)
            return [b.tanh(joined), b.op("Sigmoid", value)], weight
        case "sgd":
            return [], b.op("SGD", weight, value, rate)
    return [b.mul(value, weight)], weight


def random_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    strategy, machine = passes.STRATEGIES[rng.choice(sorted(passes.STRATEGIES))], rng.choice(MACHINES)
    return compile(random_graph(rng), strategy, machine, rng.choice(["publish", "outer"]), pack_seconds=0)


# -- the twin: edges and paths, by the definition ---------------------------------------------------------------------


def touched(plan: Plan, instruction: object) -> tuple[list, list]:
    """The operands that an instruction reads and writes, each with its value's name."""
    if isinstance(instruction, Transfer):
        return [instruction.source], [instruction.target]
    assert isinstance(instruction, Call)
    return [o for o in instruction.inputs if o is not None], [o for o in instruction.outputs if o is not None]


def span(plan: Plan, operand) -> list[tuple[str, str, int]]:
    """Every byte of an operand."""
    slot = plan.slots[operand.buffer]
    start = slot.offset + operand.offset
    size = plan.graph.value(operand.value).type.num_elements * itemsize(operand.placement.dtype)
    return [(slot.device, slot.space, at) for at in range(start, start + size)]


def changed(plan: Plan, instruction: object) -> set[tuple[str, str, int]]:
    """The bytes that an instruction writes, but for those that it only leaves where they are."""
    reads, writes = touched(plan, instruction)
    made = [byte for operand in writes for byte in span(plan, operand)]
    if getattr(instruction, "op", "") in ("Reshape", "Split", "Concat"):  # the outputs' bytes are the inputs', in order
        given = [byte for operand in reads for byte in span(plan, operand)]
        return {new for old, new in zip(given, made, strict=True) if new != old}
    return set(made)


def edges(plan: Plan) -> dict[int, set[int]]:
    """instruction -> the instructions that must come before it."""
    calls = {i.node: at for at, i in enumerate(plan.program.instructions) if isinstance(i, Call)}
    before: dict[int, set[int]] = {}
    wrote: dict[tuple[str, str, int], int] = {}
    for at, instruction in enumerate(plan.program.instructions):
        if not isinstance(instruction, (Call, Transfer)):
            continue
        node = plan.graph.node(instruction.node) if instruction.node else None
        names = [n.name for n in node.controls] if node else []
        if isinstance(instruction, Call):
            names += [v.producer.name for v in node.inputs if v is not None and v.producer is not None]
        before[at] = {calls[name] for name in names if calls[name] < at}
        reads, _ = touched(plan, instruction)
        mine = {byte for operand in reads for byte in span(plan, operand)}
        before[at] |= {wrote[byte] for byte in mine if byte in wrote}
        wrote |= dict.fromkeys(changed(plan, instruction), at)
    return before


def ancestors(before: dict[int, set[int]], *ends: int) -> set[int]:
    found: set[int] = set()
    stack = list(ends)
    while stack:
        for other in before[stack.pop()] - found:
            found.add(other)
            stack.append(other)
    return found


def some_order(before: dict[int, set[int]], rng: random.Random) -> list[int]:
    left, order = dict(before), []
    while left:
        at = rng.choice([a for a, others in left.items() if not others & left.keys()])
        order.append(at)
        del left[at]
    return order


def neighbours(before: dict[int, set[int]], first: int, second: int) -> list[int]:
    """The order in which `second` runs right before `first`, both as early as can be."""
    early = ancestors(before, first, second)
    return [*sorted(early), second, first, *sorted(before.keys() - early - {first, second})]


class Bits:
    """Runs a plan in a given order on bytes that are garbage at first, and notes what is read and what comes out."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.executor = plan.executor()
        self.altered: set[tuple[int, int]] = set()  # (instruction, byte) where it wrote what was not there

    def look(self, operand) -> bytes:
        shape = self.plan.graph.value(operand.value).shape
        return operand_view(self.plan, self.executor.regions, operand, shape).tobytes()

    def byte(self, byte: tuple[str, str, int]) -> int:
        device, space, at = byte
        return int(self.executor.regions[device, space].data[at])

    def run(self, order: list[int]) -> dict[tuple[int, int], bytes]:
        plan, executor = self.plan, self.executor
        executor.reset()
        garbage = np.random.default_rng(self.seed)
        for (_, space), region in executor.regions.items():
            if space == "arena":
                region.data[...] = garbage.integers(0, 256, region.data.size, np.uint8)
        for result in plan.program.feeds:
            array = feeds_for(plan.graph, self.seed)[result.name]
            operand_view(plan, executor.regions, result.operand, array.shape)[...] = array
        seen = {}
        for at in order:
            reads, writes = touched(plan, plan.program.instructions[at])
            seen |= {(at, i): self.look(operand) for i, operand in enumerate(reads)}
            old = {byte: self.byte(byte) for operand in writes for byte in span(plan, operand)}
            executor.step(at)
            self.altered |= {(at, byte[2]) for byte, was in old.items() if self.byte(byte) != was}
        ends = (*plan.program.results, *plan.program.finals)
        return seen | {(-1, i): self.look(result.operand) for i, result in enumerate(ends)}


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_accepted_if_and_only_if_every_order_gives_the_same_bits(seed):
    plan = random_plan(seed)
    before, bits = edges(plan), Bits(plan, seed)
    want = bits.run(sorted(before))
    altered = frozenset(bits.altered)
    findings = validate(plan, findings="return", order="any")
    assert {f.kind for f in findings} <= {"unordered"}
    same = coincide(plan.graph, feeds_for(plan.graph, seed), rtol=1e-6)
    for finding in findings:
        if not same and any((finding.instruction, at) in altered for at in range(finding.lower, finding.upper)):
            assert bits.run(neighbours(before, finding.culprit, finding.instruction)) != want, str(finding)
    if not findings:
        rng = random.Random(seed)
        for _ in range(5):
            assert bits.run(some_order(before, rng)) == want


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_the_edges_are_those_of_the_definition_and_no_plan_is_refused_without_a_pair(seed):
    """All pairs, all bytes: where a path joins any two accesses of which one writes, there is nothing to object to."""
    plan = random_plan(seed)
    before = edges(plan)
    found = dependencies(plan)
    assert {at: set(found[at]) for at in before} == before
    assert all(not found[at] for at in range(len(found)) if at not in before)
    uses: list[tuple[int, set, set]] = []
    clash = False
    for at in sorted(before):
        reads, _ = touched(plan, plan.program.instructions[at])
        mine = {b for operand in reads for b in span(plan, operand)}
        wrote = changed(plan, plan.program.instructions[at])
        early = ancestors(before, at)
        clash |= any((wrote & (w | r) or mine & w) and other not in early for other, r, w in uses)
        uses.append((at, mine, wrote))
    assert clash or validate(plan, order="any") == []


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_control_edges_mend_what_calls_do_to_each_other(seed):
    plan = random_plan(seed)
    instructions = plan.program.instructions
    for finding in validate(plan, findings="return", order="any"):
        first, second = instructions[finding.culprit], instructions[finding.instruction]
        if isinstance(first, Call) and second.node:
            plan.graph.node(second.node).controls.append(plan.graph.node(first.node))
    for finding in validate(plan, findings="return", order="any"):
        first, second = instructions[finding.culprit], instructions[finding.instruction]
        assert isinstance(first, Transfer) or not second.node, str(finding)


# -- single cases -----------------------------------------------------------------------------------------------------


def s01(*, control: bool = False) -> Sketch:
    """d = a * b, e = b' + c over the bytes of b' (S01); b' is an intermediate."""
    b = GraphBuilder()
    x, y, z = (b.input(name, (2,)) for name in "xyz")
    n = b.neg(y, name="n")
    d, e = b.mul(x, n, name="d"), b.add(n, z, name="e")
    b.output(d, e)
    graph = b.build()
    if control:
        graph.node("e").controls.append(graph.node("d"))
    s = Sketch(graph).buffers_for("n", "d").call("n", ["y"], ["n"])
    return s.call("d", ["x", "n"], ["d"]).call("e", ["n", "z"], ["e@n"]).result("e@n")


def test_s01_in_place_needs_a_path_from_every_other_reader():
    plan = s01().plan()
    assert validate(plan) == []
    (finding,) = validate(plan, findings="return", order="any")
    assert (finding.kind, finding.instruction, finding.culprit, finding.value) == ("unordered", 2, 1, "e")
    for words in ("instruction 2 (call e on host) writes %e", "instruction 1 (call d on host) reads", "[0, 8) of"):
        assert words in finding.message
    with pytest.raises(InvalidPlanError, match="unordered"):
        validate(plan, order="any")


def test_s01_with_a_control_edge():
    plan = s01(control=True).plan()
    assert validate(plan, order="any") == []
    assert dependencies(plan) == ((), (0,), (0, 1))


def test_s57_over_the_reader_that_is_ordered():
    b = GraphBuilder()
    n = b.neg(b.input("y", (2,)), name="n")
    d = b.relu(n, name="d")
    b.output(b.add(n, d, name="e"))
    s = Sketch(b.build()).buffers_for("n", "d").call("n", ["y"], ["n"]).call("d", ["n"], ["d"])
    assert validate(s.call("e", ["n", "d"], ["e@n"]).result("e@n").plan(), order="any") == []


def test_reuse_of_dead_bytes_in_another_branch():
    b = GraphBuilder()
    x = b.input("x", (2,))
    a = b.neg(b.relu(x, name="a"), name="n")
    c = b.neg(b.relu(x, name="c"), name="m")
    b.output(a, c)
    s = Sketch(b.build()).buffers_for("a", "n", "m").buffer("c", at=0)
    s.call("a", ["x"], ["a"]).call("n", ["a"], ["n"]).free("a").call("c", ["x"], ["c"]).call("m", ["c"], ["m"])
    found = validate(s.plan(), findings="return", order="any")
    assert [(f.kind, f.instruction, f.culprit) for f in found] == [("unordered", 3, 0), ("unordered", 3, 1)]


def test_an_update_does_not_wait_for_readers_of_the_old_value():
    b = GraphBuilder()
    w, g, r = b.param("w", shape=(2,)), b.input("g", (2,)), b.param("r", shape=())
    y = b.relu(w, name="y")
    b.op("SGD", w, g, r, name="u")
    b.output(y)
    s = Sketch(b.build()).buffers_for("y").call("y", ["w"], ["y"]).call("u", ["w", "g", "r"], ["u@w"])
    assert [(f.instruction, f.culprit) for f in validate(s.plan(), findings="return", order="any")] == [(1, 0)]
    s.graph.node("u").controls.append(s.graph.node("y"))
    assert validate(s.plan(), order="any") == []


def test_views_onto_themselves_are_readings():
    b = GraphBuilder()
    a = b.neg(b.input("x", (4,)), name="a")
    v = b.reshape(a, shape=(2, 2), name="v")
    b.output(b.relu(v, name="y"), b.relu(a, name="z"))
    s = Sketch(b.build()).buffers_for("a", "y", "z").call("a", ["x"], ["a"]).call("v", ["a"], ["v@a"])
    s.call("y", ["v@a"], ["y"]).call("z", ["a"], ["z"])
    assert validate(s.plan(), order="any") == []


def test_the_halves_of_a_split_do_not_meet():
    b = GraphBuilder()
    p, q = b.op("Split", b.neg(b.input("x", (4,)), name="a"), outputs=("p", "q"), axis=0, split=(2, 2), name="s")
    b.output(b.relu(p, name="y"), b.relu(q, name="z"))
    s = Sketch(b.build()).buffers_for("a").call("a", ["x"], ["a"]).call("s", ["a"], ["p@a", "q@a+8"])
    s.call("y", ["p@a"], ["y@a"]).call("z", ["q@a+8"], ["z@a+8"]).result("y@a", "z@a+8")
    assert validate(s.plan(), order="any") == []


def test_a_wrong_plan_is_not_asked_for_other_orders():
    s = Sketch(s01().graph).buffers_for("n", "d").call("n", ["y"], ["n"])
    plan = s.call("e", ["n", "z"], ["e@n"]).call("d", ["x", "n"], ["d"]).result("e@n").plan()
    assert [f.kind for f in validate(plan, findings="return", order="any")] == ["clobbered"]


def test_options():
    with pytest.raises(OptionError, match="'listed', 'any'"):
        validate(s01().plan(), order="some")


def test_a_long_chain_in_two_buffers():
    b = GraphBuilder()
    value = b.input("x", (4,))
    for _ in range(3000):
        value = b.neg(value)
    b.output(value)
    plan = compile(b.build(), "none", pack_seconds=0, validate=False)
    assert plan.devices["host"].height_bytes == 64 + 16
    assert memopt.validate(plan, order="any") == []


def test_a_wide_graph():
    """Thousands of branches through the same bytes: each is told of its neighbours, not of all before them."""
    b = GraphBuilder()
    x = b.input("x", (4,))
    b.output(*[b.neg(b.relu(x)) for _ in range(2000)])
    found = validate(compile(b.build(), "none", pack_seconds=0), findings="return", order="any")
    assert {f.kind for f in found} == {"unordered"}
    assert len(found) <= 2 * 4000
