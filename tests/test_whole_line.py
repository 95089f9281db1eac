"""The whole line on random graphs: strategies x machines x policies, against the reference and against our own
unoptimized run.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt import Machine, compile, run_reference, validate
from tests.hazards.line import lent
from tests.strategies import feeds_for, graphs
from tests.trace import coincide, wrong_reads

STRATEGIES = ("none", "rename", "share", "best")
#: Those whose kernels see what they see without passes: their results are the same, bit by bit.
SAME_BITS = ("none", "rename", "share")
MACHINES = {
    "host": Machine.host_only(),
    "gpu lacks": Machine.host_and("gpu", lacks={"Relu", "Add", "BatchNormalization", "SGD", "Reshape", "Increment"}),
    "gpu float32": Machine.host_and("gpu", lacks={"Mul"}, dtypes={"float64": "float32"}),
    "nhwc": Machine.host_and("gpu", lacks={"Sigmoid", "Momentum"}, layouts={"Conv": "NHWC"}),
    "host float32": Machine.host_only(dtypes={"float64": "float32"}, layouts={"Conv": "NHWC"}),
}
DEVICES = {
    name: (None, None, "host") if len(m.all_devices) == 1 else (None, None, "host", "gpu")
    for name, m in MACHINES.items()
}
ROUNDS = {"host": 1e-5}  # a change of dtype costs digits: 1e-3 elsewhere


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(MACHINES)))
    graph = draw(graphs(devices=DEVICES[name]))
    options = {
        "free": draw(st.sampled_from(["eager", "eager", "never"])),
        "transfer_lifetime": draw(st.sampled_from(["last-read", "step"])),
        "share_transfers": draw(st.booleans()),
    }
    return name, graph, options, draw(st.integers(0, 99))


def assert_close(got, want, rtol):
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol, err_msg=name)


def three_runs(plan, seed, rtol, base=None):
    """Three runs with changed feeds against the reference (close) and the base plan (bit by bit)."""
    graph, state = plan.graph, None
    plan.reset()
    if base is not None:
        base.reset()
    for run in range(3):
        feeds = feeds_for(graph, seed + run)
        kept = {name: array.copy() for name, array in feeds.items()}
        want, state = run_reference(graph, feeds, state)
        got = plan.run(lent(plan, feeds), sanitize=run == 1)
        assert_close(got, want, rtol)
        assert_close(plan.state(), state, rtol)
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, kept[name])
        if base is not None:
            for name, array in base.run(feeds, copy_feeds=True).items():
                np.testing.assert_array_equal(got[name], array, err_msg=name)
            for name, array in base.state().items():
                np.testing.assert_array_equal(plan.state()[name], array, err_msg=name)
    for value in graph.params:  # the graph's own data is nobody's to write
        before = graph.param_data(value)
        assert before is not None
        plan.reset()
        np.testing.assert_array_equal(plan.state()[value.name], before)


@given(cases())
@settings(max_examples=70)
def test_sound_policies_are_valid_and_right(case):
    name, graph, options, seed = case
    rtol = ROUNDS.get(name, 1e-3)
    base = compile(graph, "none", MACHINES[name], "publish", **options)
    three_runs(base, seed, rtol)
    for strategy in STRATEGIES:
        for transfer in ("publish", "outer"):
            if (strategy, transfer) != ("none", "publish"):
                plan = compile(graph, strategy, MACHINES[name], transfer, **options)
                assert validate(plan, findings="return") == []
                three_runs(plan, seed, rtol, base if strategy in SAME_BITS else None)


@given(cases(), st.sampled_from(STRATEGIES))
@settings(max_examples=80)
def test_fluid_is_objected_to_when_it_is_wrong_and_only_then(case, strategy):
    name, graph, options, seed = case
    plan = compile(graph, strategy, MACHINES[name], "fluid-1.5", validate=False, **options)
    findings = validate(plan, findings="return")
    feeds = feeds_for(graph, seed)
    wrong = wrong_reads(plan, feeds, 1e-3)
    if wrong:
        assert findings, f"wrong reads {wrong}, and the validator is silent"
    elif findings:
        assert coincide(graph, feeds, rtol=1e-3), f"nothing is wrong, but the validator says: {findings[0].message}"


@given(cases())
@settings(max_examples=60)
def test_fluid_rules_are_as_unsound_as_the_validator_says(case):
    """Fluid's own rules know no fetches: a plan made by them may be wrong, but never without a finding."""
    import passes

    name, graph, options, seed = case
    for chosen in (
        (passes.InplaceRename(fluid_rules=True), passes.ReuseRename(fluid_rules=True)),
        (passes.InplaceShare(fluid_rules=True), passes.ReuseShare(fluid_rules=True)),
    ):
        plan = compile(graph, chosen, MACHINES[name], "publish", validate=False, **options)
        if wrong_reads(plan, feeds_for(graph, seed), 1e-3):
            assert validate(plan, findings="return")


@given(graphs(devices=(None,)))
@settings(max_examples=60)
def test_sharing_never_costs_memory_on_one_device(graph):
    none, *others = (compile(graph, strategy).devices["host"] for strategy in (*STRATEGIES, "fuse"))
    for use in others:
        assert use.peak_bytes <= none.peak_bytes
    for use in (none, *others):
        assert use.peak_bytes <= use.lower_bound_bytes <= use.height_bytes


@given(graphs(devices=(None, "host", "gpu"), min_dim=0))
@settings(max_examples=60)
def test_plans_and_empty_tensors_survive_json(graph):
    from memopt.export import plan_from_dict, plan_to_dict

    machine = MACHINES["gpu lacks"]
    plan = compile(graph, "share", machine)
    again = plan_from_dict(plan_to_dict(plan))
    assert again.program == plan.program
    assert again.slots == plan.slots
    assert memopt.validate(again, findings="return") == []


@pytest.mark.slow
@given(cases())
@settings(max_examples=500)
def test_many_more_graphs(case):
    name, graph, options, seed = case
    for strategy in STRATEGIES:
        plan = compile(graph, strategy, MACHINES[name], "publish", **options)
        three_runs(plan, seed, ROUNDS.get(name, 1e-3))


@pytest.mark.slow
@given(cases())
@settings(max_examples=60)
def test_graphs_that_passes_rewrite(case):
    """Fewer, since each chain of ops that is fused is code to compile."""
    name, graph, options, seed = case
    plan = compile(graph, "fuse", MACHINES[name], "publish", **options)
    assert validate(plan, findings="return") == []
    three_runs(plan, seed, ROUNDS.get(name, 1e-3))
