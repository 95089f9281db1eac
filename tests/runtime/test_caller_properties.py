"""Outputs in the caller's arrays, feeds in place and donation, on random graphs: bit by bit what copying gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import Machine, compile, validate
from memopt.errors import FeedError
from memopt.export import plan_from_dict, plan_to_dict
from memopt.runtime.feeds import CONSUMED
from memopt.runtime.frames import load_frames
from memopt.runtime.memory import allocate
from memopt.runtime.rows import make_rows
from tests.hazards.line import lent
from tests.strategies import feeds_for, graphs

MACHINES = {
    "host": Machine.host_only(),
    "gpu": Machine.host_and("gpu", lacks={"Relu", "Add", "SGD", "Reshape"}),
    "host float32": Machine.host_only(dtypes={"float64": "float32"}),
}
VIEWS = (passes.ShareViews(), passes.InplaceShare(), passes.ShareConcat())
ONLY = ("unary", "binary", "reshape", "transpose", "split", "sgd")


@st.composite
def cases(draw, only=ONLY, max_nodes=6):
    """(graph, arguments of compile but `outputs`)"""
    name = draw(st.sampled_from(sorted(MACHINES)))
    devices = (None, None, "host") if name == "gpu" else (None,)
    options = {
        "passes": draw(st.sampled_from(["none", "rename", "share", "best", "fuse", VIEWS])),
        "machine": MACHINES[name],
        "transfer": draw(st.sampled_from(["publish", "outer"])),
        "free": draw(st.sampled_from(["eager", "eager", "never"])),
        "transfer_lifetime": draw(st.sampled_from(["last-read", "step"])),
        "share_transfers": draw(st.booleans()),
        "order": draw(st.sampled_from(["listed", "listed", "any"])),
        "pack_seconds": 0,
    }
    return draw(graphs(max_nodes=max_nodes, min_dim=0, devices=devices, only=only)), options


def odd_array(value, kind):
    """An array for an output: plain, with gaps, in the other byte order, or not aligned."""
    if kind == "gaps":
        return np.empty((*value.shape, 2), value.dtype)[..., 0]
    if kind == "order":
        return np.empty(value.shape, np.dtype(value.dtype).newbyteorder())
    if kind == "misaligned":
        return np.empty(value.nbytes + 1, np.uint8)[1:].view(value.dtype).reshape(value.shape)
    return np.empty(value.shape, value.dtype)


def same(got, want):
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype.name == array.dtype.name
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def check(graph, options, seed, kinds):
    """Three runs with changed feeds, by each way of giving and taking arrays, against a plan that copies."""
    twin, *plans = (compile(graph, outputs=outputs, **options) for outputs in ("arena", "arena", "caller", "caller"))
    arena, caller = plans[0].devices["host"], plans[1].devices["host"]
    assert caller.peak_bytes <= arena.peak_bytes <= caller.peak_bytes + caller.output_bytes
    assert caller.output_bytes <= sum(value.nbytes for value in graph.outputs)
    made = [d.subject[0] for d in plans[1].decisions if d.rule == "in-caller"]
    for run in range(3):
        feeds = feeds_for(graph, seed + run)
        want = twin.run(feeds, copy_feeds=True)
        same(feeds, feeds_for(graph, seed + run))
        for number, plan in enumerate(plans):
            given_feeds = lent(plan, feeds)
            out = {v.name: odd_array(v, kinds[run]) for v in graph.outputs} if number == 2 else {}
            got = plan.run(given_feeds, out=out, sanitize=run == 1)
            same(got, want)
            assert all(got[name] is array for name, array in out.items())
            same(plan.state(), twin.state())
            same(undonated(graph, given_feeds), undonated(graph, feeds_for(graph, seed + run)))
            if kinds[run] == "plain" and plan is not plans[0]:
                assert [name for name, how in got.outputs.items() if how == "in place"] == made


def undonated(graph, feeds):
    return {name: array for name, array in feeds.items() if name not in graph.donated}


KINDS = st.permutations(["plain", "plain", "gaps", "order", "misaligned"])


@given(cases(), st.integers(0, 99), KINDS)
@settings(max_examples=16)
def test_the_callers_arrays_hold_what_copies_hold(case, seed, kinds):
    check(*case, seed, kinds)


@given(cases())
@settings(max_examples=15)
def test_plans_survive_json(case):
    graph, options = case
    plan = compile(graph, outputs="caller", **options)
    again = plan_from_dict(plan_to_dict(plan))
    assert (again.program, again.slots, dict(again.devices)) == (plan.program, plan.slots, dict(plan.devices))
    assert validate(again, findings="return") == []
    assert not again.is_validated


@given(cases())
@settings(max_examples=10)
def test_moved_frames_are_those_that_would_be_loaded(case):
    graph, options = case
    plan = compile(graph, outputs="caller", **options)
    executor = plan.executor()
    own = {key: region for key, region in executor.regions.items() if key[1].startswith(("feed:", "output:"))}
    for _ in range(2):
        for key, region in own.items():
            executor._move(key, allocate(region.data.size))
        fresh = load_frames(plan, make_rows(plan, executor.regions), executor.regions)
        np.testing.assert_array_equal(executor._loaded.words, fresh.words)


@given(cases(), st.integers(0, 99))
@settings(max_examples=10)
def test_donated_arrays_are_consumed_exactly_if_they_are_overwritten(case, seed):
    """What a run leaves unchanged may be fed again; `taken` says what it does not."""
    graph, options = case
    plan = compile(graph, **options)
    unused = {d.subject[0] for d in plan.decisions if d.rule == "donation-unused"}
    feeds = feeds_for(graph, seed)
    kept = {name: array.copy() for name, array in feeds.items()}
    got = plan.run(feeds)
    for name, array in feeds.items():
        assert (name in graph.donated) or np.array_equal(array, kept[name])
        if name in unused or got.feeds[name] != "in place":
            np.testing.assert_array_equal(array, kept[name])
    for name, array in feeds.items():
        taken = name in graph.donated and name not in unused and got.feeds[name] == "in place" and array.nbytes
        if taken:
            with pytest.raises(FeedError, match="consumed"):
                CONSUMED.check([(name, array)])
        else:
            CONSUMED.check([(name, array)])


def check_one_memory(graph, options, draw):
    """Feeds, and one output, at places of one memory that may overlap: as if each had memory of its own."""
    data = np.random.default_rng(draw(st.integers(0, 99))).uniform(-2, 2, 1024).astype(np.float32)
    places = st.integers(0, 24).map(lambda number: 8 * number)
    at = {value.name: draw(places) for value in (*graph.inputs, graph.outputs[0])}
    for outputs in ("arena", "caller"):
        plan, memory = compile(graph, outputs=outputs, **options), data.copy().view(np.uint8)

        def carve(value, memory=memory):
            start = at[value.name]
            return memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)

        feeds = {value.name: carve(value) for value in graph.inputs}
        want = plan.run({name: array.copy() for name, array in feeds.items()})
        plan.reset()
        first = graph.outputs[0]
        out = {first.name: carve(first)} if draw(st.booleans()) else {}
        before = memory.copy()
        got = plan.run(feeds, out=out)
        same(got, want)
        owned = np.ones(memory.size, bool)  # bytes that nobody may write
        for value in [*(v for v in graph.inputs if v.name in graph.donated), *(v for v in (first,) if out)]:
            owned[at[value.name] : at[value.name] + value.nbytes] = False
        np.testing.assert_array_equal(memory[owned], before[owned])


@given(cases(), st.data())
@settings(max_examples=20)
def test_arrays_that_overlap_are_as_good_as_arrays_apart(case, data):
    check_one_memory(*case, data.draw)


@pytest.mark.slow
@given(cases(only=None, max_nodes=10), st.data())
@settings(max_examples=120)
def test_many_more_overlaps(case, data):
    check_one_memory(*case, data.draw)


@pytest.mark.slow
@given(cases(only=None, max_nodes=10), st.integers(0, 99), KINDS)
@settings(max_examples=120)
def test_many_more_graphs(case, seed, kinds):
    check(*case, seed, kinds)
