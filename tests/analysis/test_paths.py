"""Control edges for shared bytes: the plan is right under every order, and nothing is ordered that need not be."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import compile, validate
from memopt.analysis import order_tenants
from memopt.errors import OptionError
from memopt.ir import parse, print_graph
from memopt.pipeline import run_pipeline
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import three_runs

CHAINS = {
    "inplace-rename": (passes.InplaceRename(),),
    "rename": passes.RENAME,
    "share": passes.SHARE,
    "best": passes.BEST,
    "fluid": (passes.InplaceShare(fluid_rules=True), passes.ReuseShare(fluid_rules=True)),
}


def in_any_order(chain):
    return tuple(dataclasses.replace(one, order="any") for one in chain)


@given(graphs(max_nodes=14, min_dim=0), st.sampled_from(sorted(CHAINS)))
@settings(max_examples=150)
def test_shares_hold_under_any_order(graph, chain):
    """Each program buffer in bytes of its own, so that only storage shares."""
    plan = compile(graph, in_any_order(CHAINS[chain]), free="never", validate=False)
    if validate(plan, findings="return"):
        assert chain == "fluid"  # whose own rules know no fetches
        return
    assert validate(plan, findings="return", order="any") == []


@given(graphs(max_nodes=14), st.sampled_from(sorted(CHAINS)), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_random_orders_give_the_same_bits(graph, chain, random):
    if chain == "fluid":
        return
    plan = compile(graph, in_any_order(CHAINS[chain]), free="never")
    twin = plan.graph.copy()
    twin.reorder([twin.node(node.name) for node in random_order(plan.graph, random)])
    other = compile(twin, (), free="never")  # the same storage, another order
    feeds = feeds_for(graph, 3)
    want, got = (one.run(feeds, copy_feeds=True) for one in (plan, other))
    for key in want:
        np.testing.assert_array_equal(got[key], want[key])
    three_runs(other, 5, 1e-5)


def random_order(graph, random):
    """A random order that respects data and control edges."""
    left, done = list(graph.nodes), []
    while left:
        ready = [
            node
            for node in left
            if all(v is None or v.producer is None or v.producer in done for v in node.inputs)
            and all(before in done for before in node.controls)
        ]
        done.append(random.choice(ready))
        left.remove(done[-1])
    return done


@given(graphs(max_nodes=14), st.sampled_from(sorted(CHAINS)))
@settings(max_examples=60)
def test_edges_are_few_and_final(graph, chain):
    run_pipeline(graph, CHAINS[chain])
    edges = order_tenants(graph)
    assert order_tenants(graph) == []
    if chain == "fluid":
        return
    for edge in edges:  # each is needed: without it, it is found missing again
        edge.node.controls.remove(edge.before)
        again = order_tenants(graph)
        if again:
            assert [(one.before, one.node) for one in again] == [(edge.before, edge.node)]
        else:
            edge.node.controls.append(edge.before)


@given(graphs(max_nodes=12))
def test_a_listed_pass_adds_no_edges(graph):
    run_pipeline(graph, passes.BEST)
    assert all(not node.controls for node in graph.nodes)


def test_the_edge_is_a_decision():
    graph = parse("""graph "g" {
      input %x: f32[4]
      %a = Relu(%x)
      %b = Neg(%a)
      %c = Abs(%a)
      %d = Add(%b, %c)
      output %d
    }""")
    (result,) = run_pipeline(graph, [passes.InplaceShare(order="any")])
    edges = [d for d in result.decisions if d.rule == "control-edge"]
    assert [str(d) for d in edges] == [
        "inplace-share: step 2 c: %c over %a accepted (0 B): control edge b -> c: b reads %a, whose bytes %c takes"
    ]
    assert "after(b)" in print_graph(graph)
    (again,) = run_pipeline(graph, [passes.InplaceShare(order="any")])
    assert not again.modified


def test_there_are_two_kinds_of_orders():
    with pytest.raises(OptionError, match="order='all' is not one of 'listed', 'any'"):
        passes.ShareConcat(order="all")
