"""Levels under trial: what they say after fusing is what a fresh look at the rewritten graph says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from memopt.analysis import Occupancy, analyze_aliases, analyze_liveness, needed_bytes
from memopt.analysis.floor import content_bytes, in_place_bytes
from memopt.ir import parse
from passes.fuse_elementwise import _Fuser
from tests.strategies import graphs

MAKERS = ("unary", "binary", "compare", "cast", "sum", "concat", "reshape", "split", "increment", "sgd", "reduce")


@given(graphs(max_nodes=16, only=MAKERS, devices=(None, None, None, "gpu", "host"), min_dim=0))
@settings(max_examples=150)
def test_levels_are_those_of_the_rewritten_graph(graph):
    check_levels(graph)


def test_a_feed_that_nobody_reads_is_live_at_the_first_step_that_is_left():
    text = "input %x: f32[2]  input %idle: f32[3] donated  %a = Relu(%x)  %b = Relu(%a)  output %b"
    check_levels(parse(f'graph "idle" {{ {text} }}'))


def check_levels(graph):
    fuser = _Fuser(graph)
    before = needed_bytes(graph), {home: fuser.levels.live(home).max() for home in homes(graph)}
    for value in list(fuser.candidates()):
        fuser.fuse(value)
    fuser.rewrite()
    np.testing.assert_array_equal(fuser.levels.needed(), needed_bytes(graph))
    assert needed_bytes(graph).max() <= before[0].max()
    occupancy = Occupancy(graph)
    for home in occupancy.homes:
        np.testing.assert_array_equal(fuser.levels.live(home), occupancy.profile(home), err_msg=str(home))
        assert occupancy.peak(home) <= before[1][home]


def homes(graph):
    return Occupancy(graph).homes


@given(graphs(max_nodes=16, min_dim=0))
@settings(max_examples=150)
def test_needed_bytes_are_the_content_at_each_step(graph):
    liveness, aliases = analyze_liveness(graph), analyze_aliases(graph)
    for step, needed in enumerate(needed_bytes(graph)):
        live = [value for value, span in liveness.intervals.items() if span.start <= step < span.end]
        saved = in_place_bytes(liveness, aliases, graph.nodes[step], step) if graph.nodes else 0
        assert needed == content_bytes(aliases, live) - saved
