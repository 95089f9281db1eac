"""Fused elementwise chains: the same bits, no peak that rises, one node where there were several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import GraphBuilder, compile, run_reference, validate
from memopt.analysis import Occupancy, needed_bytes, peak_bytes
from memopt.errors import TypeInferenceError
from memopt.ir import parse, print_graph
from memopt.pipeline import run_pipeline
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import DEVICES, MACHINES, ROUNDS, three_runs
from tests.twins import storage_faults

FUSE = passes.FuseElementwise()
FUSED_BEST = (FUSE, *passes.BEST)
FLOATS, INTEGERS = ("float32", "float64"), ("int8", "uint8", "int32", "int64")
UNARY = {
    "float": ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Sqrt", "Floor", "LeakyRelu", "Gelu", "Exp", "Clip", "Scale"),
    "int": ("Relu", "Neg", "Abs", "Clip"),
    "bool": ("Not",),
}
BINARY = {
    "float": ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Equal", "Less", "ReluGrad", "TanhGrad"),
    "int": ("Add", "Sub", "Mul", "Div", "Max", "Equal", "Less"),
    "bool": ("And", "Or", "Equal"),
}
SHAPE = (2, 3, 4)


@st.composite
def chains(draw, max_nodes=12):
    """A graph of elementwise ops over mixed dtypes, with broadcasting."""
    b = GraphBuilder("chain")
    values = []
    for i in range(draw(st.integers(2, 4))):
        shape = tuple(dim if draw(st.booleans()) else 1 for dim in SHAPE)[draw(st.integers(0, 2)) :]
        dtype = draw(st.sampled_from((*FLOATS, "int8", "int32", "bool")))
        values.append(b.input(f"x{i}", shape if i else SHAPE, dtype))
    given_values = set(values)
    for _ in range(draw(st.integers(2, max_nodes))):
        add(draw, b, values, given_values)
    b.output(values[-1], *draw(st.lists(st.sampled_from(values), max_size=1)))
    return b.build()


def add(draw, b, values, given_values):
    """One more node, which reads recent values oftener than others."""
    value = draw(st.sampled_from(values[-3:] + values))
    kind = value.dtype.rstrip("0123456789").removeprefix("u")
    same = [other for other in values if other.dtype == value.dtype]
    what = draw(st.sampled_from(["unary", "binary", "binary", "binary", "cast", "where"]))
    try:
        if what == "unary":
            op = draw(st.sampled_from(UNARY[kind]))
            attrs = {"Clip": {"min": -1.0, "max": 2.5}, "Scale": {"factor": 0.1}}.get(op, {})
            values.append(b.op(op, value, **attrs))
        elif what == "binary":
            values.append(b.op(draw(st.sampled_from(BINARY[kind])), value, draw(st.sampled_from(same))))
        elif what == "cast":
            # A float that does not fit an integer gives any value, so only small ones are cast.
            to = (*FLOATS, *(INTEGERS if kind != "float" or value in given_values else ()), "bool")
            values.append(b.op("Cast", value, to=draw(st.sampled_from(to))))
        elif any(other.dtype == "bool" for other in values):
            mask = draw(st.sampled_from([other for other in values if other.dtype == "bool"]))
            values.append(b.op("Where", mask, value, draw(st.sampled_from(same))))
    except TypeInferenceError:  # a gradient that would be broadcast, and the like
        pass


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array, err_msg=name)  # NaN equals NaN
        if array.dtype.kind == "f":
            there = ~np.isnan(array)
            np.testing.assert_array_equal(np.signbit(got[name][there]), np.signbit(array[there]), err_msg=name)


def fused(graph):
    twin = graph.copy()
    (result,) = run_pipeline(twin, [FUSE])
    return twin, result


@given(chains(), st.integers(0, 99))
@settings(max_examples=100)
def test_the_reference_gives_the_same_bits(graph, seed):
    twin, _ = fused(graph)
    feeds = feeds_for(graph, seed)
    want, got = run_reference(graph, feeds)[0], run_reference(twin, feeds)[0]
    assert_same_bits(got, want)
    again = parse(print_graph(twin))
    assert print_graph(again) == print_graph(twin)


def check_the_executor(graph, seed):
    feeds = feeds_for(graph, seed)
    plan = compile(graph, FUSED_BEST)
    results = plan.run(feeds, copy_feeds=True, sanitize=True)
    assert_same_bits(results, compile(graph, "none").run(feeds))
    assert results.host_calls == ()


@given(chains(max_nodes=5), st.integers(0, 99))
@settings(max_examples=3)
def test_the_executor_gives_the_same_bits(graph, seed):
    check_the_executor(graph, seed)


@pytest.mark.slow
@given(chains(), st.integers(0, 99))
@settings(max_examples=50)
def test_the_executor_gives_the_same_bits_on_many_more(graph, seed):
    check_the_executor(graph, seed)


ANY_GRAPH = graphs(max_nodes=14, devices=(None, None, "gpu", "host"), min_dim=0)
MAKERS = ("unary", "binary", "compare", "cast", "sum", "concat", "reshape", "split", "increment", "sgd", "reduce")
ELEMENTWISE = graphs(max_nodes=14, devices=(None, None, None, "gpu"), only=MAKERS, min_dim=0)


@pytest.mark.parametrize("drawn", [ANY_GRAPH, ELEMENTWISE, chains()], ids=["any", "elementwise", "chains"])
def test_modified_is_exact_and_decisions_are_about_what_is_there(drawn):
    @given(drawn)
    def check(graph):
        before, names = print_graph(graph), {value.name for value in graph.values}
        (first,) = run_pipeline(graph, [FUSE])
        after = print_graph(graph)
        assert first.modified == (before != after) == any(d.accepted for d in first.decisions)
        assert storage_faults(graph) == []
        gone = names - {value.name for value in graph.values}
        assert gone == {d.subject[0] for d in first.decisions if d.accepted}
        for decision in first.decisions:
            assert graph.nodes[decision.step].name == decision.node
            assert f"%{decision.subject[0]}" in decision.reason
            assert decision.reason.isascii()
        (second,) = run_pipeline(graph, [FUSE])
        assert not second.modified
        assert print_graph(graph) == after

    check()


@pytest.mark.parametrize("drawn", [ANY_GRAPH, ELEMENTWISE, chains()], ids=["any", "elementwise", "chains"])
def test_no_peak_rises(drawn):
    @given(drawn)
    def check(graph):
        twin, _ = fused(graph)
        assert needed_bytes(twin).max() <= needed_bytes(graph).max()
        assert peak_bytes(twin) <= peak_bytes(graph)
        before, after = Occupancy(graph), Occupancy(twin)
        assert all(after.peak(home) <= before.peak(home) for home in after.homes)

    check()


SHARING = [FUSE, passes.InplaceShare(), passes.InplaceRename(), passes.ShareConcat(), passes.ReuseShare()]


@given(graphs(max_nodes=12, only=MAKERS, min_dim=0), st.lists(st.sampled_from(SHARING), max_size=4))
@settings(max_examples=50)
def test_fusing_composes_with_passes_that_share(graph, chain):
    for one in (*chain, FUSE):
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
    twin = graph.copy()
    for one in ("any", "listed"):
        run_pipeline(twin, [passes.InplaceShare(order=one), FUSE])
        assert storage_faults(twin) == []


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(MACHINES)))
    return name, draw(graphs(max_nodes=10, devices=DEVICES[name], only=(*MAKERS, "conv"))), draw(st.integers(0, 99))


def check_on_machines(case):
    name, graph, seed = case
    base = compile(graph, "none", MACHINES[name])
    for transfer in ("publish", "outer"):
        plan = compile(graph, FUSED_BEST, MACHINES[name], transfer)
        assert validate(plan, findings="return") == []
        three_runs(plan, seed, ROUNDS.get(name, 1e-3), base)


@given(cases())
@settings(max_examples=25)
def test_plans_are_valid(case):
    name, graph, _ = case
    for transfer in ("publish", "outer"):
        assert validate(compile(graph, FUSED_BEST, MACHINES[name], transfer, pack_seconds=0), "return") == []
    plan = compile(graph, (FUSE, passes.InplaceShare(order="any")), MACHINES[name], order="any", pack_seconds=0)
    assert validate(plan, "return", order="any") == []


@given(cases())
@settings(max_examples=3)
def test_plans_are_right(case):
    check_on_machines(case)


@pytest.mark.slow
@given(cases())
@settings(max_examples=40)
def test_plans_are_right_on_many_more(case):
    check_on_machines(case)
