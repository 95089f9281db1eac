"""The any-order mode against all legal orders of small plans, each run on symbols (`orders.all_alike`)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import Machine, Plan, compile, validate
from memopt.ir import Graph, GraphBuilder
from memopt.lowering import Call
from memopt.validate import accesses, dependencies
from tests.validate.orders import all_alike
from tests.validate.plans import Sketch

MACHINES = [
    Machine.host_only(alignment=4),
    Machine.host_only(alignment=4, dtypes={"float64": "float32"}),
    Machine.host_and("gpu", lacks={"Add", "SGD"}, alignment=4),
    Machine.host_and("gpu", lacks={"Mul"}, dtypes={"float64": "float32"}, alignment=4),
]


def tiny_graph(rng: random.Random) -> Graph:
    """Up to six statements over two numbers each; values that nobody reads; a few control edges."""
    b = GraphBuilder()
    dtype = rng.choice(["float32", "float64"])
    pool = [b.input("x", (2,), dtype, donated=rng.random() < 0.5), b.input("y", (2,), dtype)]
    weight, rate = b.param("w", np.ones(2, dtype)), b.param("r", np.asarray(0.5, dtype))
    for _ in range(rng.randint(2, 6)):
        value, job = rng.choice(pool[-4:]), rng.choice(["unary", "unary", "Add", "Mul", "split", "join", "sgd", "dead"])
        if job == "unary":
            pool.append(b.op(rng.choice(["Neg", "Tanh"]), value))
        elif job in ("Add", "Mul"):
            pool.append(b.op(job, value, rng.choice([v for v in [*pool, weight] if v.shape == value.shape])))
        elif job == "dead":
            b.neg(value)
        elif value.shape == (2,) and job == "split":
            pool += b.op("Split", value, outputs=2, axis=0, split=(1, 1))
        elif value.shape == (2,) and job == "join":
            pool.append(b.concat(value, b.neg(rng.choice(pool[:2])), axis=0))
        elif value.shape == (2,):
            weight = b.op("SGD", weight, value, rate)
    b.output(*[v for v in pool if v.producer is not None and not v.uses and rng.random() < 0.8] or [b.neg(pool[0])])
    graph = b.build()
    for node in graph.nodes[1:]:
        if rng.random() < 0.2:
            node.controls.append(rng.choice(graph.nodes[: graph.nodes.index(node)]))
    return graph


def tiny_plan(seed: int, order: str) -> Plan:
    rng = random.Random(seed)
    strategy, machine = rng.choice(["none", "rename", "share", "best"]), rng.choice(MACHINES)
    options = {
        "transfer": rng.choice(["publish", "outer"]),
        "transfer_lifetime": rng.choice(["last-read", "step"]),
        "share_transfers": rng.random() < 0.3,
    }
    graph = tiny_graph(rng)
    return compile(graph, passes.STRATEGIES[strategy], machine, order=order, validate=False, pack_seconds=0, **options)


def copies_a_view(plan: Plan) -> bool:
    """Whether some call moves bits from one place to another, which the mode takes for bits of its own."""
    found = (call for call in plan.program.instructions if isinstance(call, Call))
    return any(call.op in ("Split", "Concat", "Reshape") for call in found)


def check(seed: int) -> None:
    plan = tiny_plan(seed, "listed")
    findings, alike = validate(plan, findings="return", order="any"), all_alike(plan)
    if not findings:
        assert alike is not False
    elif not copies_a_view(plan):
        assert alike is not True, str(findings[0])
    plan = tiny_plan(seed, "any")
    assert validate(plan, findings="return", order="any") == []
    assert all_alike(plan) is not False


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_accepted_exactly_where_all_orders_are_alike(seed):
    check(seed)


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=600)
def test_accepted_exactly_where_all_orders_are_alike_campaign(seed):
    check(seed)


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=60)
def test_long_rows_are_refused_more_often_and_never_less(seed, row):
    """The limit of rows, so low that it counts."""
    plan = tiny_plan(seed, "listed")
    exact = validate(plan, findings="return", order="any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accesses, "_ROW", row)
        rough = validate(plan, findings="return", order="any")
        ordered = tiny_plan(seed, "any")
        assert validate(ordered, findings="return", order="any") == []
    assert bool(rough) >= bool(exact)
    if not rough:
        assert all_alike(plan) is not False
    assert all_alike(ordered) is not False


# -- one by one -------------------------------------------------------------------------------------------------------


def unordered(plan) -> list[tuple[int, int]]:
    found = validate(plan, findings="return", order="any")
    assert {f.kind for f in found} <= {"unordered"}
    assert bool(found) != all_alike(plan)
    return [(f.instruction, f.culprit) for f in found]


@pytest.mark.parametrize(("at", "found"), [(0, []), (4, [(3, 0), (3, 1)])])
def test_copies_of_the_same_bytes_at_one_place_are_not_at_odds(at, found):
    """But four bytes further they are."""
    b = GraphBuilder()
    x = b.input("x", (2,))
    b.output(b.neg(x, name="p"), b.relu(x, name="q"))
    s = Sketch(b.build(), Machine.host_and("gpu", alignment=4))
    s.buffer("a", 8, device="gpu").buffer("b", 8, device="gpu", at=at)
    s.buffer("p", device="gpu").buffer("q", device="gpu")
    s.transfer("device", "x", "x@a", "p").call("p", ["x@a"], ["p"], device="gpu").free("a")
    s.transfer("device", "x", "x@b", "q").call("q", ["x@b"], ["q"], device="gpu")
    plan = s.plan()
    assert unordered(plan) == found
    assert dependencies(plan) == ((), (0,), (), (), (3,))


def test_a_copy_that_lost_digits_on_its_way_is_another():
    """Both hold %x as float64; one of them was float32 meanwhile."""
    b = GraphBuilder()
    x = b.input("x", (2,), "float64")
    b.output(b.neg(x, name="p"), b.relu(x, name="q"))
    s = Sketch(b.build(), Machine.host_and("gpu", alignment=4, dtypes={"float64": "float32"}))
    s.buffer("half", 8).buffer("a", 16).buffer("b", 16, at=64).buffers_for("p", "q").buffer("g", 16, device="gpu")
    s.transfer("dtype", "x", s.operand("x@half", dtype="float32"), "p")
    s.transfer("dtype", s.operand("x@half", dtype="float32"), "x@a", "p").call("p", ["x@a"], ["p"]).free("a")
    s.transfer("device", "x", "x@g", "q").transfer("device", "x@g", "x@b", "q").call("q", ["x@b"], ["q"])
    for node in s.graph.nodes:
        node.device = "host"
    assert unordered(s.plan()) == [(5, 1), (5, 2)]


def test_copies_of_the_same_bytes_in_another_form_are_others():
    """%x in NHWC, and %x as float32, at one place (the twin knows no layouts)."""
    b = GraphBuilder()
    x, w = b.input("x", (1, 2, 2, 2), "float64"), b.param("w", np.ones((2, 2, 1, 1)))
    b.output(b.op("Conv", x, w, name="c"), b.neg(x, name="n"))
    machine = Machine.host_only(alignment=4, dtypes={"float64": "float32"}, layouts={"Conv": "NHWC"})
    plan = compile(b.build(), (), machine)
    assert [buffer.name for buffer in plan.program.buffers] == ["x", "w", "c/x", "c/x", "c/w", "c", "n/x", "n"]
    offsets = [0, 0, 0, 64, 96, 112, 0, 144]
    slots = tuple(replace(slot, offset=offset) for slot, offset in zip(plan.slots, offsets, strict=True))
    use = replace(plan.devices["host"], height_bytes=176)
    found = validate(replace(plan, slots=slots, devices={"host": use}), findings="return", order="any")
    assert [(f.instruction, f.culprit) for f in found] == [(7, 0), (7, 1)]


def test_whoever_comes_next_waits_for_all_copies_and_their_readers():
    """And each copy waits for whoever read what was there before."""
    b = GraphBuilder()
    x, y = b.input("x", (2,)), b.input("y", (2,))
    b.output(b.neg(y, name="o"), b.neg(x, name="p"), b.relu(x, name="q"), b.tanh(y, name="r"))
    s = Sketch(b.build(), Machine.host_and("gpu", alignment=4))
    for name in "abcd":
        s.buffer(name, 8, device="gpu", at=0)
    for name in "opqr":
        s.buffer(name, device="gpu")
    for node, value, copy in (("o", "y", "a"), ("p", "x", "b"), ("q", "x", "c"), ("r", "y", "d")):
        s.transfer("device", value, f"{value}@{copy}", node)
        s.call(node, [f"{value}@{copy}"], [node], device="gpu").free(copy)
    first, second, third, last = (0, 1), (3, 4), (6, 7), (9, 10)
    wanted = [(b[0], a) for b in (second, third) for a in first] + [(last[0], a) for b in (second, third) for a in b]
    assert unordered(s.plan()) == wanted


def test_a_copy_of_bytes_that_changed_is_another():
    b = GraphBuilder()
    x, y = b.input("x", (2,), donated=True), b.input("y", (2,))
    b.output(b.neg(x, name="p"), b.relu(b.add(x, y, name="z"), name="q"))
    s = Sketch(b.build(), Machine.host_and("gpu", alignment=4, lacks={"Add"}))
    s.graph.node("z").controls.append(s.graph.node("p"))
    s.buffer("a", 8, device="gpu").buffer("b", 8, device="gpu", at=0)
    s.buffer("p", device="gpu").buffer("q", device="gpu")
    s.transfer("device", "x", "x@a", "p").call("p", ["x@a"], ["p"], device="gpu").free("a")
    s.call("z", ["x", "y"], ["z@x"]).transfer("device", "z@x", "z@b", "q").call("q", ["z@b"], ["q"], device="gpu")
    assert unordered(s.plan()) == []
    s.graph.node("z").controls.clear()
    assert unordered(s.plan()) == [(3, 0), (4, 0), (4, 1)]


def chain(*nodes):
    """`nodes` of %x on the host, each into the same bytes; the first and last are outputs by way of a reader."""
    b = GraphBuilder()
    x = b.input("x", (2,))
    made = [b.op(op, x, name=name) for name, op in nodes]
    b.output(*[b.tanh(value, name=f"r{value.name}") for value in (made[0], made[-1])])
    s = Sketch(b.build(), Machine.host_only(alignment=4))
    for name, _ in nodes:
        s.buffer(name, at=0)
    return s.buffers_for(f"r{nodes[0][0]}", f"r{nodes[-1][0]}")


def test_writes_that_nobody_reads():
    """Both come after the reader of what was there and before the writer of what is read next, in any order."""
    s = chain(("a", "Neg"), ("dead", "Relu"), ("gone", "Abs"), ("b", "Sigmoid"))
    s.call("a", ["x"], ["a"]).call("ra", ["a"], ["ra"]).free("a")
    s.call("dead", ["x"], ["dead"]).free("dead").call("gone", ["x"], ["gone"]).free("gone")
    s.call("b", ["x"], ["b"]).call("rb", ["b"], ["rb"])
    plan, node = s.plan(), s.graph.node
    assert unordered(plan) == [(3, 1), (5, 1), (7, 0), (7, 1), (7, 3), (7, 5)]
    for late, early in (("dead", "ra"), ("gone", "ra"), ("b", "dead"), ("b", "gone")):
        node(late).controls.append(node(early))
    assert unordered(plan) == []
