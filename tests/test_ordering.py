"""`compile(order="any")`: control edges for whatever a plan shares, packing and transfers included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.errors import InvalidPlanError, OptionError
from memopt.lowering import Call, Transfer
from memopt.validate import dependencies
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import DEVICES, MACHINES, ROUNDS, assert_close

STRATEGIES = ("none", "rename", "share", "best")


@st.composite
def cases(draw, max_nodes=12):
    """(machine's name, graph, strategy, other options)"""
    name = draw(st.sampled_from(sorted(MACHINES)))
    graph = draw(graphs(max_nodes=max_nodes, min_dim=0, devices=DEVICES[name]))
    options = {
        "transfer": draw(st.sampled_from(["publish", "outer"])),
        "free": draw(st.sampled_from(["eager", "eager", "never"])),
        "transfer_lifetime": draw(st.sampled_from(["last-read", "step"])),
        "share_transfers": draw(st.booleans()),
    }
    return name, graph, draw(st.sampled_from(STRATEGIES)), options


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_plans_hold_under_random_orders(case, random):
    """The same bits under each order, in outputs and in what parameters hold for the next run."""
    name, graph, strategy, options = case
    plan = compile(graph, strategy, MACHINES[name], order="any", **options)
    assert validate(plan, findings="return", order="any") == []
    feeds = feeds_for(graph, 1)
    want, _ = run_reference(graph, feeds)
    assert_close(plan.run(feeds, copy_feeds=True), want, ROUNDS.get(name, 1e-3))
    listed = run_in(plan, feeds, None)
    for _ in range(3):
        got = run_in(plan, feeds, random)
        for key, array in listed.items():
            np.testing.assert_array_equal(got[key], array, err_msg=key)


def fresh(feeds):
    """Copies: a run may write over donated feeds."""
    return {name: array.copy() for name, array in feeds.items()}


def run_in(plan, feeds, random):
    """Run the plan's calls and transfers in a random order (None: the listed one) that respects `dependencies`."""
    from memopt.runtime.rows import operand_view

    executor, before = plan.executor(), dependencies(plan)
    regions = executor.regions
    executor.run(feeds, copy_feeds=True)  # compiles; what it leaves behind is written again below
    plan.reset()
    for (_, space), region in regions.items():
        if space == "arena":
            region.data[...] = 0xFF

    def view(result):
        return operand_view(plan, regions, result.operand, plan.graph.value(result.name).shape)

    for result in plan.program.feeds:
        view(result)[...] = feeds[result.name]
    left = [i for i, one in enumerate(plan.program.instructions) if isinstance(one, (Call, Transfer))]
    done: set[int] = set()
    while left:
        position = random.choice([i for i in left if done.issuperset(before[i])]) if random else left[0]
        executor.step(position)
        left.remove(position)
        done.add(position)
    return {result.name: np.array(view(result)) for result in (*plan.program.finals, *plan.program.results)}


@given(cases(max_nodes=14), st.sampled_from(["arena", "caller"]))
@settings(max_examples=60)
def test_no_graph_is_refused(case, outputs):
    name, graph, strategy, options = case
    check_any(name, graph, strategy, {**options, "outputs": outputs})


@pytest.mark.slow
@given(cases(max_nodes=30), st.sampled_from(["publish", "outer", "fluid-1.5"]))
@settings(max_examples=150)
def test_no_graph_is_refused_campaign(case, transfer):
    name, graph, _, options = case
    for strategy in STRATEGIES:
        check_any(name, graph, strategy, {**options, "transfer": transfer})


def check_any(name, graph, strategy, options):
    """A plan that is right as listed is one that holds under every order, and says what that costs."""
    plan = compile(graph, strategy, MACHINES[name], order="any", validate=False, pack_seconds=0, **options)
    listed = compile(graph, strategy, MACHINES[name], validate=False, pack_seconds=0, **options)
    found = validate(listed, findings="return")
    assert [f.kind for f in validate(plan, findings="return", order="any")] == [f.kind for f in found]
    paid = sum(d.bytes for d in plan.decisions if d.rule == "kept-apart")
    grown = [plan.devices[n].height_bytes - use.height_bytes for n, use in listed.devices.items()]
    assert sum(grown) <= paid
    if all(d.rule != "kept-apart" for d in plan.decisions):
        assert plan.slots == listed.slots


def ladder():
    b = GraphBuilder("ladder")
    x = b.input("x", (4, 4))
    left = b.matmul(b.relu(x), x)
    right = b.matmul(b.op("Neg", x), x)
    b.output(b.add(left, right))
    return b.build()


def test_edges_are_decisions():
    plan = compile(ladder(), "best", order="any")
    edges = [d for d in plan.decisions if d.rule == "control-edge"]
    assert edges
    assert all(d.pass_name == "order" and d.accepted for d in edges)
    assert sum(len(node.controls) for node in plan.graph.nodes) == len(edges)
    listed = compile(ladder(), "best")
    assert all(not node.controls for node in listed.graph.nodes)
    with pytest.raises(InvalidPlanError):
        validate(listed, order="any")


HALF = Machine.host_and("gpu", dtypes={"float64": "float32"}, alignment=4)


def sum_on_gpu():
    """Both inputs are halved on the host first: two transfers of one node, each into bytes of its own."""
    b = GraphBuilder("sum")
    b.output(b.add(b.input("x", (4,), "float64"), b.input("y", (4,), "float64")))
    return b.build()


def test_two_transfers_of_one_node_are_kept_apart():
    listed = compile(sum_on_gpu(), (), HALF)
    assert listed.devices["host"].height_bytes == 16
    found = validate(listed, findings="return", order="any")
    assert [(f.instruction, f.culprit) for f in found] == [(3, 0), (3, 1)]
    plan = compile(sum_on_gpu(), (), HALF, order="any")
    assert plan.devices["host"].height_bytes == plan.devices["host"].lower_bound_bytes == 64 + 16
    assert [node.controls for node in plan.graph.nodes] == [[]]
    (decision,) = (d for d in plan.decisions if d.pass_name == "order")
    assert (decision.accepted, decision.rule, decision.subject, decision.bytes) == (False, "kept-apart", ("y", "x"), 64)
    assert decision.reason == (
        "kept apart: no edge can order the transfer of %x for add before the transfer of %y for add; 64 B more on host"
    )


def test_a_transfer_home_waits_through_the_update():
    """Another node reads the parameter where it lives; only the update can be told to wait."""
    b = GraphBuilder("step")
    x, w = b.input("x", (4,)), b.param("w", np.ones(4, np.float32))
    b.output(b.relu(w, name="read"))
    b.op("SGD", w, x, b.param("rate", np.float32(0.5)), name="update")
    machine = Machine.host_and("gpu", lacks={"SGD"}, alignment=4)
    with pytest.raises(InvalidPlanError, match="home transfer"):
        validate(compile(b.build(), (), machine), order="any")
    plan = compile(b.build(), (), machine, order="any")
    assert [node.name for node in plan.graph.node("update").controls] == ["read"]
    assert [d.rule for d in plan.decisions if d.pass_name == "order"] == ["control-edge"]


def test_transfers_home_are_kept_apart():
    """What two of them convert on the way shares no bytes."""
    b = GraphBuilder("steps")
    x, rate = b.input("x", (4,), "float64"), b.param("rate", np.float64(0.5), device="host")
    for name in ("v", "w"):
        b.op("SGD", b.param(name, np.ones(4), device="host"), x, rate, name=f"update_{name}")
    b.output(b.neg(x))
    plan = compile(b.build(), (), HALF, order="any", pack_seconds=0)
    homes = [i for i in plan.program.instructions if isinstance(i, Transfer) and not i.node]
    assert [one.kind for one in homes] == ["dtype", "home"] * 2
    assert validate(plan, order="any") == []


def test_there_are_two_kinds_of_orders():
    with pytest.raises(OptionError, match="order='random' is not one of 'listed', 'any'"):
        compile(ladder(), order="random")
