"""What holds of every pass on every graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import compile
from memopt.analysis import Occupancy, candidates_of, peak_bytes
from memopt.ir import Graph, print_graph
from memopt.pipeline import run_pipeline
from tests.strategies import graphs
from tests.twins import storage_faults

DEFAULT = [
    passes.InplaceRename(),
    passes.InplaceShare(),
    passes.ShareConcat(),
    passes.ReuseRename(),
    passes.ReuseShare(),
]
FLUID = [
    passes.InplaceRename(fluid_rules=True, min_elements=0),
    passes.InplaceShare(fluid_rules=True),
    passes.ReuseRename(fluid_rules=True, min_elements=0),
    passes.ReuseShare(fluid_rules=True),
]
SOUND = [*DEFAULT, FLUID[1], FLUID[3]]
ANY_GRAPH = graphs(max_nodes=14, devices=(None, None, "gpu", "host"), min_dim=0)


def ids(one: object) -> str:
    return repr(one)


@pytest.mark.parametrize("one", [*DEFAULT, *FLUID], ids=ids)
@given(graph=ANY_GRAPH)
def test_modified_is_exact(one, graph):
    before = print_graph(graph)
    (first,) = run_pipeline(graph, [one])
    after = print_graph(graph)
    assert first.modified == (before != after) == any(d.accepted for d in first.decisions)
    (second,) = run_pipeline(graph, [one])
    assert not second.modified
    assert print_graph(graph) == after


@pytest.mark.parametrize("one", [*DEFAULT, *FLUID], ids=ids)
@given(graph=ANY_GRAPH)
def test_decisions_cover_every_candidate(one, graph):
    (result,) = run_pipeline(graph, [one])
    if "inplace" in one.name:
        wanted = [c.subject for step, node in enumerate(graph.nodes) for c in candidates_of(graph, node, step)]
        assert [d.subject for d in result.decisions] == wanted
    elif one.name == "share-concat":
        joins = [n for n in graph.nodes if n.op == "Concat" and len(n.inputs) > 1]
        assert [d.subject for d in result.decisions] == [(v.name, n.outputs[0].name) for n in joins for v in n.inputs]
    else:
        assert [d.subject[0] for d in result.decisions] == [v.name for n in graph.nodes for _, v in n.real_outputs]
    for decision in result.decisions:
        assert decision.reason.isascii()
        assert f"%{decision.subject[0]}" in decision.reason or f"%{decision.subject[-1]}" in decision.reason or (
            decision.rule == "not-in-table"
        )
        assert graph.nodes[decision.step].name == decision.node
        assert decision.pass_name == one.name


@pytest.mark.parametrize("one", SOUND, ids=ids)
@given(graph=ANY_GRAPH)
def test_storage_stays_sound(one, graph):
    assert storage_faults(graph) == []
    run_pipeline(graph, [one])
    assert storage_faults(graph) == []


@given(graph=graphs(max_nodes=14, min_dim=0), chain=st.lists(st.sampled_from(DEFAULT), min_size=1, max_size=5))
@settings(max_examples=200)
def test_default_passes_compose(graph, chain):
    peak = peak_bytes(graph)
    for one in chain:
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
        assert peak_bytes(graph) <= peak
        peak = peak_bytes(graph)


@given(graph=ANY_GRAPH)
@settings(max_examples=200)
def test_reuse_raises_the_peak_of_no_device(graph):
    run_pipeline(graph, [passes.InplaceShare()])
    peaks = device_peaks(graph)
    run_pipeline(graph, [passes.ReuseShare()])
    assert storage_faults(graph) == []
    after = device_peaks(graph)
    assert all(after.get(device, 0) <= peak for device, peak in peaks.items() if device is not None)


def device_peaks(graph: Graph) -> dict[str | None, int]:
    occupancy = Occupancy(graph)
    return {home: occupancy.peak(home) for home in occupancy.homes}


@pytest.mark.parametrize("chain", [passes.RENAME, passes.SHARE, FLUID[1::2]], ids=["rename", "share", "fluid-1.6"])
@given(graph=ANY_GRAPH)
def test_strategies_are_stable(chain, graph):
    run_pipeline(graph, chain)
    assert not any(result.modified for result in run_pipeline(graph, chain))


@given(graph=graphs(max_nodes=14))
def test_rename_and_share_take_the_same_pairs(graph):
    renamed, shared = graph.copy(), graph.copy()
    (by_name,) = run_pipeline(renamed, [passes.InplaceRename()])
    (by_bytes,) = run_pipeline(shared, [passes.InplaceShare()])
    if not any(d.rule == "offset-differs" or "one name means one value" in d.reason for d in by_name.decisions):
        taken = [[d.subject for d in result.decisions if d.accepted] for result in (by_name, by_bytes)]
        assert taken[0] == taken[1]
        assert peak_bytes(renamed) == peak_bytes(shared)
    assert len(shared.storage.variables) == len(graph.storage.variables)
    assert all(len(renamed.storage.variables_of(b)) == 1 for b in renamed.storage.buffers)


@given(graph=graphs(max_nodes=14))
def test_reuse_adds_nothing_to_packing(graph):
    alone, reused = compile(graph, [passes.InplaceShare()]), compile(graph, passes.SHARE)
    assert alone.devices["host"].peak_bytes == reused.devices["host"].peak_bytes


@given(graph=graphs())
def test_passes_are_deterministic(graph):
    twin = graph.copy()
    for one in (passes.InplaceShare(), passes.ReuseShare()):
        assert run_pipeline(graph, [one]) == run_pipeline(twin, [one])
    assert print_graph(graph) == print_graph(twin)
