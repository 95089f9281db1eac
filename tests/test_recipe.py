"""`keep=` and `without=`: what holds to the end costs exactly its bytes; what is left out shares with nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt import Machine, models, parse
from memopt.errors import MissingValueError, OptionError, VerifyError
from memopt.report import live_bytes
from tests.strategies import feeds_for, graphs

CHAIN = """graph "chain" { input %x: f32[256] %a = Abs(%x) %b = Neg(%a) %c = Exp(%b) %d = Sin(%c) output %d }"""
STRATEGIES = ["none", "rename", "share", "best"]
GPU = Machine.host_and("gpu", lacks={"Relu", "Add"})


class TestKeep:
    @settings(max_examples=25)
    @given(graphs(devices=(None, "host", "gpu")), st.sampled_from(STRATEGIES), st.data())
    def test_kept_values_are_there_and_right(self, graph, strategy, data):
        overwritten = {v.name for v in graph.values if any(u.node.spec.updates for u in v.uses)}
        names = [v.name for v in graph.values if v.name not in overwritten]
        keep = data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        plan = memopt.compile(graph, strategy, GPU, keep=keep, pack_seconds=0)
        feeds = feeds_for(graph, 1)
        want, _ = memopt.run_reference(graph, feeds, fetch=keep)
        results = plan.run(feeds)
        assert list(results) == [v.name for v in graph.outputs]
        assert list(results.kept) == keep
        for name in keep:
            np.testing.assert_allclose(results.kept[name], want[name], rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(results[name], results.kept[name])

    @settings(max_examples=25)
    @given(graphs(), st.data())
    def test_with_no_pass_the_cost_is_the_values_bytes_from_its_end_on(self, graph, data):
        """Where nobody shares, keeping a value adds its bytes to every instruction after the one that freed it."""
        plan = memopt.compile(graph, (), pack_seconds=0)
        buffers = {b.name: b for b in plan.program.buffers if b.space == "arena"}
        free = [v.name for v in graph.values if v.name in buffers and v not in graph.outputs]
        free = [name for name in free if buffers[name].end < len(plan.program.instructions)]
        if not free:
            return
        name = data.draw(st.sampled_from(free))
        live = live_bytes(plan)["host"].copy()
        live[buffers[name].end :] += buffers[name].size_bytes
        try:
            kept = memopt.compile(graph, (), keep=[name], pack_seconds=0)
        except VerifyError:  # an update overwrites it
            return
        assert kept.devices["host"].peak_bytes == live.max()

    def test_the_measured_peak_differs_by_the_predicted_cost(self):
        graph = parse(CHAIN.replace("256", "262144"))
        plan = memopt.compile(graph)
        cost = plan.explain("b").keep_cost["host"]
        kept = memopt.compile(graph, keep=["b"])
        feeds = models.random_feeds(graph)
        before, after = (p.run(feeds, measure=True).measured for p in (plan, kept))
        assert after.planned_bytes["host"] - before.planned_bytes["host"] == cost == 1 << 20
        if before.arena_bytes["host"] is not None:
            assert abs(after.arena_bytes["host"] - before.arena_bytes["host"] - cost) <= 4096

    def test_a_kept_value_is_not_overwritten(self):
        plan = memopt.compile(parse(CHAIN), keep=["%b"])
        refused = [d for d in plan.decisions if d.subject == ("c", "b")]
        assert [d.rule for d in refused] == ["input-is-output"]

    def test_an_output_may_be_kept_too(self):
        plan = memopt.compile(parse(CHAIN), keep=["d", "d"])
        results = plan.run({"x": np.ones(256, np.float32)})
        assert list(results) == ["d"]
        assert list(results.kept) == ["d"]

    def test_it_survives_a_file(self, tmp_path):
        memopt.compile(parse(CHAIN), keep=["b"]).save(tmp_path / "p.json")
        results = memopt.load_plan(tmp_path / "p.json").run({"x": np.ones(256, np.float32)})
        assert list(results) == ["d"]
        assert list(results.kept) == ["b"]

    @pytest.mark.parametrize(
        ("keep", "message"), [(["bb"], "did you mean %b"), ("b", r"give a list of names: keep=\['b'\]")]
    )
    def test_wrong_names(self, keep, message):
        with pytest.raises(OptionError, match=message):
            memopt.compile(parse(CHAIN), keep=keep)

    def test_a_value_that_an_update_overwrites(self):
        text = "param %w: f32[2] = [1, 2] input %g: f32[2] %w1 = SGD(%w, %g) {lr=0.1} output %w1"
        try:
            graph = parse(f'graph "sgd" {{ {text} }}')
        except memopt.MemoptError:
            builder = memopt.GraphBuilder("sgd")
            w, g = builder.param("w", np.ones(2, np.float32)), builder.input("g", (2,))
            builder.output(builder.sgd(w, g, builder.param("lr", np.float32(0.1))))
            graph = builder.build()
        with pytest.raises(VerifyError, match=r"%w is an output, but node .* overwrites it; fetch"):
            memopt.compile(graph, keep=["w"])

    def test_what_is_gone_says_how_to_keep_it(self):
        plan = memopt.compile(parse(CHAIN))
        results = plan.run({"x": np.ones(256, np.float32)})
        with pytest.raises(MissingValueError) as error:
            results["b"]
        assert str(error.value) == (
            "%b is not in the result: its bytes were overwritten by node c (Exp); to keep it, compile with keep=['b'] "
            "(the outputs are d)"
        )
        with pytest.raises(KeyError, match="has no value 'dd'"):
            results["dd"]
        assert results.get("b") is None


class TestWithout:
    @settings(max_examples=25)
    @given(graphs(devices=(None, "host", "gpu")), st.sampled_from(STRATEGIES), st.data())
    def test_a_value_that_is_left_out_is_alone(self, graph, strategy, data):
        name = data.draw(st.sampled_from([v.name for v in graph.values]))
        plan = memopt.compile(graph, strategy, GPU, without=[name], pack_seconds=0)
        storage = plan.graph.storage
        value = plan.graph.value(name)
        versions = storage.values_of(storage.variable(value))
        assert set(storage.tenants(storage.buffer(value))) == set(versions)
        updates = [v for v in versions if v.producer is not None and v.producer.spec.updates]
        assert len(versions) == 1 or updates
        assert not any(d.accepted and name in d.subject for d in plan.decisions if d.pass_name != "lowering") or updates

    def test_a_pass_that_is_left_out_decides_nothing(self):
        plan = memopt.compile(parse(CHAIN), without=["inplace-share"])
        assert {d.pass_name for d in plan.decisions} == {"reuse-share"}
        assert memopt.compile(parse(CHAIN), without=["inplace-share", "reuse-share"]).decisions == ()

    def test_refusals_say_so(self):
        plan = memopt.compile(parse(CHAIN), without=["%b"])
        found = {d.subject: d for d in plan.decisions if d.pass_name == "inplace-share"}
        assert found["b", "a"].reason == found["c", "b"].reason == "%b is left out by request"
        assert found["d", "c"].accepted

    def test_fluid_rules_obey(self):
        import passes

        for one in (passes.InplaceShare(fluid_rules=True), passes.InplaceRename(fluid_rules=True, min_elements=1)):
            plan = memopt.compile(parse(CHAIN), [one, passes.ReuseShare(fluid_rules=True)], without=["b"])
            assert len(plan.graph.storage.tenants(plan.graph.storage.buffer(plan.graph.value("b")))) == 1

    @pytest.mark.parametrize(
        ("without", "message"),
        [(["nope"], "neither a pass nor a value .* the passes are inplace-share"), ("b", "give a list of names")],
    )
    def test_wrong_names(self, without, message):
        with pytest.raises(OptionError, match=message):
            memopt.compile(parse(CHAIN), without=without)


def test_replan_changes_one_option():
    plan = memopt.compile(parse(CHAIN), "share", donate=["x"])
    other = plan.replan(passes="none")
    assert (other.strategy, other.graph.donated) == ("none", {"x"})
    assert plan.strategy == "share"
