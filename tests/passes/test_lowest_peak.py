"""`LowestPeak` runs the chain after which the fewest bytes are live, and says of the others why not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings

import passes
from memopt import compile, parse, validate
from memopt.analysis import Occupancy
from memopt.ir import Graph, print_graph
from memopt.pipeline import Compound, Pass, PassResult, leave_out_passes, pass_names, run_pipeline
from tests.strategies import graphs
from tests.twins import storage_faults

MAKERS = ("look", "transpose", "split", "slice", "expand", "reshape", "unary", "binary", "concat", "matmul", "conv",
          "batch_norm", "increment", "cast", "sum")  # fmt: skip
DRAWN = graphs(max_nodes=8, only=MAKERS, devices=(None, None, "gpu", "host"))

VIEWS_WIN = """graph "win" {
  input %x: f32[4,4]
  param %w: f32[4,1]
  %a = Relu(%x)
  %t = Transpose(%a)
  %c = MatMul(%t, %w)
  %d = MatMul(%a, %w)
  output %c
  output %d
}"""
VIEWS, IN_PLACE = passes.ShareViews(), passes.InplaceShare()


def peak(graph: Graph) -> int:
    """The sum of the devices' peaks."""
    occupancy = Occupancy(graph)
    return sum(occupancy.peak(home) for home in occupancy.homes)


def peak_after(graph: Graph, chain) -> int:
    copy = graph.copy()
    run_pipeline(copy, chain)
    return peak(copy)


@dataclass(frozen=True)
class Noted:
    """A pass that does nothing but note that it ran."""

    name: str
    notes: list = field(default_factory=list, compare=False)
    order: str = "listed"

    def run(self, graph: Graph) -> PassResult:
        self.notes.append((self.name, self.order))
        return PassResult(False)


@pytest.mark.parametrize("chains", [((IN_PLACE,), (VIEWS, IN_PLACE)), ((VIEWS, IN_PLACE), (IN_PLACE,))])
def test_the_lower_peak_wins(chains):
    graph = parse(VIEWS_WIN)
    assert peak_after(graph, [VIEWS, IN_PLACE]) < peak_after(graph, [IN_PLACE])
    (result,) = run_pipeline(graph, [passes.LowestPeak(chains)])
    assert result.modified
    assert graph.storage.variable(graph.value("t")).strides == (1, 4)
    refused = next(d for d in result.decisions if d.pass_name == "lowest-peak")
    assert (refused.accepted, refused.rule, refused.bytes) == (False, "higher-peak", 48)
    assert refused.reason == "inplace-share would leave a peak of 224 B; share-views, inplace-share leave 176 B"
    assert {d.pass_name for d in result.decisions} == {"lowest-peak", "share-views", "inplace-share"}


def test_of_equals_the_later_runs():
    notes: list = []
    first, second = Noted("first", notes), Noted("second", notes)
    graph = parse(VIEWS_WIN)
    (result,) = run_pipeline(graph, [passes.LowestPeak(((first,), (second,)))])
    assert notes[-1] == ("second", "listed")
    assert (result.modified, result.decisions) == (False, [])


def test_of_equals_one_that_changes_nothing_runs_first():
    graph = parse(VIEWS_WIN)
    run_pipeline(graph, [passes.LowestPeak(((VIEWS,),))])
    notes: list = []
    (result,) = run_pipeline(graph, [passes.LowestPeak(((Noted("idle", notes),), (passes.ReuseShare(),)))])
    assert len(notes) in (1, 2)
    assert peak(graph) <= peak_after(parse(VIEWS_WIN), [VIEWS])
    assert not result.modified or peak(graph) < peak_after(parse(VIEWS_WIN), [VIEWS])


def test_order_is_passed_on():
    notes: list = []
    run_pipeline(parse(VIEWS_WIN), [passes.LowestPeak(((Noted("one", notes),),), order="any")])
    assert set(notes) == {("one", "any")}
    plan = compile(parse(VIEWS_WIN), "best", order="any")
    assert validate(plan, "return", order="any") == []
    with pytest.raises(Exception, match="sideways"):
        passes.LowestPeak((), order="sideways")


def test_no_chain_and_no_nodes():
    for chains in ((), ((),)):
        graph = parse(VIEWS_WIN)
        assert run_pipeline(graph, [passes.LowestPeak(chains)]) == [PassResult(False, [])]
    empty = parse('graph "e" { input %x: f32[2] output %x }')
    (result,) = run_pipeline(empty, passes.FUSE)
    assert (result.modified, result.decisions) == (False, [])


def test_parts_and_without():
    (one,) = passes.BEST
    assert isinstance(one, Compound)
    assert pass_names(passes.BEST) == ("inplace-share", "share-concat", "share-views")
    assert set(pass_names(passes.FUSE)) >= set(pass_names(passes.BEST))
    (less,) = leave_out_passes(passes.BEST, ["share-views"])
    assert pass_names([less]) == ("inplace-share", "share-concat")
    assert len(less.alternatives) == len(set(less.alternatives)) < len(passes.BEST[0].alternatives)
    assert leave_out_passes(passes.BEST, ["lowest-peak"]) == ()
    nothing: tuple[Pass, ...] = leave_out_passes(passes.BEST, pass_names(passes.BEST))
    graph = parse(VIEWS_WIN)
    assert not any(result.modified for result in run_pipeline(graph, nothing))


@pytest.mark.parametrize("strategy", [passes.BEST, passes.FUSE], ids=["best", "fuse"])
@given(graph=DRAWN)
@settings(max_examples=20)
def test_modified_is_exact(strategy, graph):
    before = print_graph(graph)
    (first,) = run_pipeline(graph, strategy)
    after = print_graph(graph)
    assert first.modified == (before != after)
    assert storage_faults(graph) == []
    (second,) = run_pipeline(graph, strategy)
    assert (second.modified, print_graph(graph)) == (False, after)


def check_peaks(graph):
    for (one,) in (passes.BEST, passes.FUSE):
        assert peak_after(graph, [one]) == min(peak_after(graph, chain) for chain in one.alternatives)
    best = peak_after(graph, passes.BEST)
    assert peak_after(graph, passes.FUSE) <= best
    assert best <= peak_after(graph, [passes.InplaceShare()])


@given(DRAWN)
@settings(max_examples=20)
def test_it_is_the_best_of_its_chains(graph):
    check_peaks(graph)


@given(DRAWN)
@settings(max_examples=40)
def test_best_is_no_worse_than_share(graph):
    assert peak_after(graph, passes.BEST) <= peak_after(graph, passes.SHARE)


@pytest.mark.slow
@given(graphs(max_nodes=14, only=MAKERS, devices=(None, None, "gpu", "host")))
@settings(max_examples=80)
def test_many_more_peaks(graph):
    check_peaks(graph)
