from __future__ import annotations

import itertools
import time

from hypothesis import given

import passes
from memopt.analysis import (
    Occupancy,
    analyze_aliases,
    analyze_liveness,
    buffer_interval,
    buffer_size,
    live_profile,
    needed_bytes,
    peak_bytes,
    walk_inplace,
    walk_reuse,
)
from memopt.analysis.order import Order
from memopt.ir import Graph, GraphBuilder
from memopt.pipeline import leave_out_passes, run_pipeline
from tests.strategies import graphs
from tests.twins import content, is_live, labels, must_hold_at_the_end

JOINED = graphs(max_nodes=12, min_dim=0, only=("concat", "split", "slice", "reshape", "unary"), updates=False)
ANY_GRAPH = graphs(max_nodes=14, min_dim=0, devices=(None, None, "gpu", "host"))


@given(ANY_GRAPH)
def test_liveness_is_what_it_is_by_definition(graph):
    liveness = analyze_liveness(graph)
    assert set(liveness.kept) == must_hold_at_the_end(graph)
    for value in graph.values:
        span = liveness.intervals[value]
        assert [s in range(*span) for s in range(len(graph.nodes))] == [
            is_live(graph, value, s) for s in range(len(graph.nodes))
        ]
        assert 0 <= span.start < span.end <= liveness.num_steps


@given(ANY_GRAPH)
def test_aliases_are_what_they_are_by_definition(graph):
    aliases = analyze_aliases(graph)
    for value in graph.values:
        assert aliases.root(value) == content(value)
        assert aliases.family(value) == tuple(v for v in graph.values if content(v)[0] is content(value)[0])


@given(JOINED)
def test_runs_are_what_they_are_by_definition(graph):
    aliases = analyze_aliases(graph)
    bytes_of = {value: labels(value) for value in graph.values}
    for value in graph.values:
        runs = aliases.runs(value)
        assert [(run.root, run.at + i) for run in runs for i in range(run.high - run.low)] == bytes_of[value]
        assert [run.low for run in runs] == [0, *(run.high for run in runs[:-1])][: len(runs)]
    for a, b in itertools.product(graph.values[-4:], graph.values):
        for shift in {0, 4, -8, b.nbytes, -b.nbytes // 2, a.nbytes // 2 - b.nbytes}:
            both = range(max(0, shift), min(a.nbytes, shift + b.nbytes))
            assert aliases.agree(a, b, shift) == all(bytes_of[a][i] == bytes_of[b][i - shift] for i in both)


@given(ANY_GRAPH)
def test_the_profile_is_the_sum_of_live_buffers(graph):
    liveness = analyze_liveness(graph)
    spans = [(range(*buffer_interval(graph, liveness, b)), buffer_size(graph, b)) for b in graph.storage.buffers]
    want = [sum(size for span, size in spans if s in span) for s in range(liveness.num_steps)]
    assert live_profile(graph).tolist() == want
    assert peak_bytes(graph) == max(want)


@given(ANY_GRAPH)
def test_no_sharing_goes_below_the_floor(graph):
    floor = needed_bytes(graph)
    for chain in (leave_out_passes(passes.BEST, ["share-views"]), passes.SHARE):
        run_pipeline(graph, chain)
        assert (floor <= live_profile(graph)).all()


def test_the_floor_counts_content_once():
    b = GraphBuilder()
    x = b.relu(b.input("x", (1, 2)))
    c = b.op("Concat", x, b.op("Neg", x), axis=1)
    b.output(b.op("Tanh", c))
    assert needed_bytes(b.build()).tolist() == [8 + 8, 8 + 16, 8 + 16, 8 + 16]


@given(ANY_GRAPH)
def test_the_occupancy_keeps_up_with_edits(graph):
    seen: list[Occupancy] = []

    def share(occupancy, candidate):
        seen.append(occupancy)
        source = occupancy.graph.storage.variable(candidate.input)  # of the graph, or of a copy for rehearsals
        occupancy.share(candidate.output, source.buffer, source.offset + (candidate.view_offset or 0))
        assert_fresh(occupancy, occupancy.graph)

    def reuse(occupancy, value, lender):
        predicted = occupancy.rise(graph.storage.buffer(value), lender, 0)
        home = occupancy.home(lender)
        before = occupancy.peak(home)
        occupancy.share(value, lender, graph.storage.variable(value).offset)
        assert max(predicted, 0) == occupancy.peak(home) - before == 0
        assert_fresh(occupancy, graph)
        return True

    walk_inplace(graph, share, lambda occupancy, candidate: None)
    walk_reuse(graph, reuse)


def assert_fresh(occupancy: Occupancy, graph: Graph) -> None:
    fresh = Occupancy(graph)
    for home in fresh.homes:
        assert fresh.profile(home).tolist() == occupancy.profile(home).tolist()
        assert fresh.peak(home) == occupancy.peak(home)
    for buffer in graph.storage.buffers:
        assert fresh.span(buffer) == occupancy.span(buffer)
        assert fresh.size(buffer) == occupancy.size(buffer)
        assert fresh.tenants(buffer) == occupancy.tenants(buffer)
        assert fresh.is_mixed(buffer) == occupancy.is_mixed(buffer)
    assert [fresh.begins(v) for v in graph.values] == [occupancy.begins(v) for v in graph.values]


@given(graphs(max_nodes=12))
def test_order_is_the_transitive_closure(graph):
    import networkx

    order = Order(graph)
    before = {node: networkx.ancestors(graph.to_networkx(), node) for node in graph.nodes}
    for a, b in itertools.permutations(graph.nodes, 2):
        assert (order.not_before([a], b) is None) == (a in before[b])


def test_a_graph_without_nodes_has_one_step():
    b = GraphBuilder()
    b.output(b.input("x", (2,)))
    graph = b.build()
    assert live_profile(graph).tolist() == [8]


def test_ten_thousand_nodes_take_seconds():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    h = x
    for i in range(2500):
        h = b.op("Relu", b.op("MatMul", h, x, name=f"m{i}"), name=f"r{i}")
        h = b.op("Add", b.op("Reshape", h, shape=(4, 4), name=f"s{i}"), x, name=f"a{i}")
    b.output(h)
    graph = b.build()
    begin = time.perf_counter()
    accepted = sum(v.accepted for _, v in walk_inplace(graph, _share, lambda occupancy, candidate: None))
    walk_reuse(graph, lambda occupancy, value, lender: bool(occupancy.share(value, lender, 0)) or True)
    assert accepted == 7500
    assert len(graph.storage.buffers) == 3
    assert time.perf_counter() - begin < 15  # about one second on an idle machine


def _share(occupancy, candidate):
    source = occupancy.graph.storage.variable(candidate.input)
    occupancy.share(candidate.output, source.buffer, source.offset)
