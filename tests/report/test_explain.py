"""`plan.explain()` lists exactly the peak, says why, and its moves earn what they say."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt import Machine, models, parse
from memopt.errors import OptionError
from memopt.report import needed_bytes
from memopt.report.explain_edits import delayed, later_reader_first, moved_node, recomputed, without_output
from tests.strategies import graphs

GPU = Machine.host_and("gpu", lacks={"BatchNormalization", "Relu"})
DIAMOND = """graph "o" { input %x: f32[256] %a = Abs(%x) %r = ReduceSum(%a) {axes=[0], keepdims=1} %b = Exp(%x)
    %c = Neg(%b) %q = Mul(%c, %r) %d = Add(%q, %a) output %d output %b }"""
LATE = """graph "late" { input %x: f32[64] %a = Abs(%x) %b = Exp(%a) %c = Neg(%a) %d = Relu(%x) %e = Add(%b, %c)
    %f = Add(%e, %d) output %f }"""


def explain(text, passes="share", **options):
    plan = memopt.compile(parse(text), passes, **options)
    return plan, plan.explain()


def why(explanation, value, device="host"):
    return next(one.why for one in explanation.peak(device).live if one.value == value)


def move(explanation, kind):
    return next(one for one in explanation.moves.found if one.kind == kind)


class TestLive:
    @settings(max_examples=25)
    @given(
        graphs(devices=(None, "host", "gpu")),
        st.sampled_from(["none", "rename", "share", "best"]),
        st.sampled_from(["eager", "never"]),
        st.sampled_from(["last-read", "step"]),
    )
    def test_the_live_values_are_exactly_the_peak(self, graph, strategy, free, lifetime):
        plan = memopt.compile(graph, strategy, GPU, free=free, transfer_lifetime=lifetime, pack_seconds=0)
        explanation = plan.explain(seconds=0)
        for name, use in plan.devices.items():
            peak = explanation.peak(name)
            assert sum(one.bytes for one in peak.live) == use.peak_bytes if peak else not use.peak_bytes
        assert all(len(line) <= 80 for line in str(explanation).splitlines())
        assert all(one.why for peak in explanation.peaks for one in peak.live)
        json.dumps(explanation.to_dict())

    def test_reasons(self):
        _, e = explain(DIAMOND)
        assert why(e, "a") == "read later by d (Add), 2 nodes on"
        assert why(e, "b") == "read here, an output of the graph"
        assert why(e, "c") == "being written here, read later by q (Mul), 1 node on"

    def test_a_kept_value_says_so(self):
        _, e = explain(DIAMOND, keep=["c"])
        assert "kept by request" in why(e, "c")

    def test_what_is_never_freed_is_dead(self):
        _, e = explain(LATE, (), free="never")
        assert "held to the end of the step (free='never'" in why(e, "a")
        assert move(e, "free").saved["host"] > 0

    def test_a_copy_says_for_whom(self):
        text = 'graph "c" { input %x: f32[64] %a = Abs(%x) %b = Neg(%a) output %b }'
        plan = memopt.compile(parse(text), "none", Machine.host_and("gpu", lacks={"Neg"}))
        assert "a copy for a (Abs)" in why(plan.explain(), "x", "gpu")
        assert "a copy for b (Neg)" in why(plan.explain(), "a")

    def test_views_share_their_buffer(self):
        text = """graph "v" { input %x: f32[8] %a = Abs(%x) %v = Reshape(%a) {shape=[2,4]} %n = Neg(%v)
                  %s = ReduceSum(%a) {axes=[0], keepdims=1} %m = Exp(%v) output %n output %s output %m }"""
        _, e = explain(text)
        one = next(one for one in e.peak("host").live if {one.value, *one.shares} == {"a", "v"})
        assert "its buffer holds" in one.why

    def test_decisions_are_those_about_the_value(self):
        _, e = explain(DIAMOND)
        one = next(one for one in e.peak("host").live if one.value == "c")
        assert any(d.rule == "input-is-output" for d in one.decisions)
        assert "%c over %b: %b is an output of the graph" in " ".join(str(e).split())

    def test_an_empty_plan(self):
        _, e = explain('graph "e" { input %x: f32[4] output %x }')
        assert e.peaks == ()
        assert "nothing to explain" in str(e)


class TestMoves:
    @settings(max_examples=15)
    @given(graphs(), st.sampled_from(["none", "rename", "share", "best"]), st.sampled_from(["eager", "never"]))
    def test_measured_options_earn_what_they_say(self, graph, strategy, free):
        plan = memopt.compile(graph, strategy, free=free, pack_seconds=0)
        now = needed_bytes(plan)
        for one in plan.explain(seconds=1).moves.found:
            assert one.total > 0
            if one.method != "measured" or one.kind not in ("donate", "free", "strategy", "scratch", "apart"):
                continue
            changed = plan.replan(**eval(f"dict({one.how})"), pack_seconds=0)
            memopt.validate(changed)
            then = needed_bytes(changed)
            assert {n: now[n] - then[n] for n in now if now[n] != then[n]} == one.saved

    def test_donate(self):
        plan, e = explain(LATE)
        one = move(e, "donate")
        assert (one.saved, one.method, one.how) == ({"host": 256}, "measured", "donate=['x']")
        assert plan.replan(donate=["x"]).devices["host"].peak_bytes == plan.devices["host"].peak_bytes - 256

    def test_a_value_that_waits_for_a_concat_says_so(self):
        e = memopt.compile(models.build("unet"), "best").explain(seconds=0)
        waiting = [one for one in e.peak("host").live if one.waits_for]
        assert {one.waits_for for one in waiting} <= {"up0.concat", "up1.concat", "up2.concat"}
        assert waiting
        assert all(f"larger, for %{one.waits_for} later" in one.why for one in waiting)

    def test_fewer_outputs(self):
        _, e = explain(DIAMOND)
        assert move(e, "outputs").text == "do not return %b"
        _, e = explain(DIAMOND.replace("output %b", ""), keep=["b"])
        assert move(e, "outputs").how == "keep=[]"

    def test_run_later(self):
        _, e = explain(LATE)
        one = move(e, "order")
        assert one.text.startswith("run d later, just before f")
        assert one.saved == {"host": 256}
        graph = parse(LATE)
        graph.reorder([graph.node(name) for name in "abcedf"])
        assert memopt.compile(graph).devices["host"].peak_bytes == e.peak("host").peak_bytes - 256

    def test_recompute(self):
        _, e = explain(DIAMOND)
        one = move(e, "recompute")
        assert one.text == "compute %a (Abs) once more for d, instead of holding it"
        assert one.method == "measured"

    def test_an_upper_bound_names_the_refusal(self):
        _, e = explain(DIAMOND)
        one = move(e, "in-place")
        assert one.method == "upper bound"
        assert one.text == "if %c could overwrite %b; refused: %b is an output of the graph"

    def test_a_node_is_moved_to_its_operand(self):
        text = """graph "m" { input %x: f32[64] %a = Abs(%x) %b = Neg(%a) %c = Relu(%b) %d = Add(%c, %a)
                  output %d }"""
        graph = parse(text)
        graph.node("b").device = "host"
        plan = memopt.compile(graph, "share", Machine.host_and("gpu"))
        found = [one for one in plan.explain().moves.found if one.kind == "device"]
        assert any(one.text.startswith("run b (Neg) on gpu") for one in found)
        assert all(one.method == "measured" for one in found)

    def test_a_loaded_plan_has_bounds_only(self, tmp_path):
        plan, _ = explain(DIAMOND)
        plan.save(tmp_path / "p.json")
        loaded = memopt.load_plan(tmp_path / "p.json")
        e = loaded.explain()
        assert {one.method for one in e.moves.found} == {"upper bound"}
        assert "nothing could be measured" in str(e)
        with pytest.raises(OptionError, match="loaded from a file"):
            loaded.replan()

    def test_a_changed_graph_has_bounds_only(self):
        graph = parse(DIAMOND)
        plan = memopt.compile(graph)
        graph.set_outputs(graph.outputs[:1])
        assert not plan.explain().moves.can_replan
        with pytest.raises(OptionError, match="was changed since"):
            plan.replan()

    def test_no_time_is_said(self):
        plan, _ = explain(LATE)
        e = plan.explain(seconds=0)
        assert e.moves.num_untried > 0
        assert "not tried for lack of time" in str(e)


class TestEdits:
    def same(self, graph, edited):
        feeds = models.random_feeds(graph)
        want, _ = memopt.run_reference(graph, feeds)
        have, _ = memopt.run_reference(edited, feeds)
        for name, array in have.items():
            assert np.array_equal(array, want[name])

    @pytest.mark.parametrize(
        "edit",
        [
            lambda g: later_reader_first(g, "c", "b"),
            lambda g: delayed(g, "d", "f"),
            lambda g: recomputed(g, "a", "c"),
            lambda g: moved_node(g, "c", "host"),
        ],
    )
    def test_an_edit_changes_no_result_and_not_the_graph(self, edit):
        graph = parse(LATE)
        before = str(graph)
        edited = edit(graph)
        assert edited is not None
        assert str(edited) != before
        assert str(graph) == before
        self.same(graph, edited)
        memopt.validate(memopt.compile(edited))

    def test_what_cannot_be(self):
        graph = parse(LATE)
        assert later_reader_first(graph, "e", "b") is None
        assert later_reader_first(graph, "zz", "b") is None
        assert delayed(graph, "c", "zz") is None
        assert delayed(graph, "d", "e") is None
        assert moved_node(graph, "zz", "host") is None
        assert recomputed(graph, "f", "f") is None
        assert without_output(graph, "a") is None


def test_resnet50_in_three_seconds():
    plan = memopt.compile(models.build("resnet50"), "share", Machine.host_and("gpu", lacks={"BatchNormalization"}))
    start = time.perf_counter()
    assert plan.explain().peak("gpu") is not None
    assert time.perf_counter() - start < 3
