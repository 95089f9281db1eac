"""`compile(order="any")`: control edges for whatever a plan shares, packing and transfers included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt import GraphBuilder, compile, run_reference, validate
from memopt.errors import InvalidPlanError, OptionError
from memopt.lowering import Call, Transfer
from memopt.validate import dependencies
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import DEVICES, MACHINES, assert_close

STRATEGIES = ("none", "rename", "share", "best")


@given(graphs(max_nodes=14, min_dim=0), st.sampled_from(STRATEGIES), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_plans_hold_under_random_orders(graph, strategy, random):
    plan = compile(graph, strategy, order="any")
    assert validate(plan, findings="return", order="any") == []
    feeds = feeds_for(graph, 1)
    want, _ = run_reference(graph, feeds)
    listed = plan.run(feeds)
    assert_close(listed, want, 1e-5)
    plan.reset()
    got = run_in(plan, feeds, random)
    for name in want:
        np.testing.assert_array_equal(got[name], listed[name], err_msg=name)


def run_in(plan, feeds, random):
    """Run the plan's calls and transfers in a random order that respects `dependencies`; no instruction twice."""
    from memopt.runtime.rows import operand_view

    executor, before = plan.executor(), dependencies(plan)
    regions = executor.regions
    executor.run(feeds)  # compiles; what it leaves behind is written again below
    plan.reset()
    for (_, space), region in regions.items():
        if space == "arena":
            region.data[...] = 0xFF
    for result in plan.program.feeds:
        operand_view(plan, regions, result.operand, plan.graph.value(result.name).shape)[...] = feeds[result.name]
    rows = {row.instruction: index for index, row in enumerate(executor._loaded.rows)}
    moving = [i for i, one in enumerate(plan.program.instructions) if isinstance(one, (Call, Transfer))]
    done: set[int] = set()
    while len(done) < len(moving):
        ready = [i for i in moving if i not in done and all(b in done for b in before[i])]
        position = random.choice(ready)
        executor._step(rows[position])
        done.add(position)
    return {
        result.name: np.array(operand_view(plan, regions, result.operand, plan.graph.value(result.name).shape))
        for result in plan.program.results
    }


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(MACHINES)))
    return name, draw(graphs(max_nodes=12, devices=DEVICES[name])), draw(st.sampled_from(STRATEGIES))


@given(cases(), st.sampled_from(["publish", "outer"]))
@settings(max_examples=200)
def test_devices_too_or_it_says_why_not(case, transfer):
    """Only transfers of one node, which no control edge can order, may remain."""
    name, graph, strategy = case
    plan = compile(graph, strategy, MACHINES[name], transfer, order="any", validate=False)
    for finding in validate(plan, findings="return", order="any"):
        first = plan.program.instructions[finding.culprit]
        second = plan.program.instructions[finding.instruction]
        assert getattr(first, "node", "") == getattr(second, "node", "") or not getattr(second, "node", "")


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


def test_there_are_two_kinds_of_orders():
    with pytest.raises(OptionError, match="order='random' is not one of 'listed', 'any'"):
        compile(ladder(), order="random")
