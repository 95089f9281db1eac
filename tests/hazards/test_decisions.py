"""Graphs that broke real systems: what the passes decide on them (the values are tested elsewhere).

The names are those of the hazard list: S01, S02, ... Each case is judged under both styles where both apply.
"""

from __future__ import annotations

from typing import Any

import pytest

import passes
from memopt.analysis import analyze_liveness, peak_bytes
from memopt.ir import Graph, parse
from memopt.pipeline import Decision, run_pipeline
from tests.twins import storage_faults

INPLACE = [passes.InplaceRename(), passes.InplaceShare()]
STRATEGIES = [passes.RENAME, passes.SHARE]


def graph_of(body: str) -> Graph:
    return parse(f'graph "hazard" {{ {body} }}')


def decide(body: str, *chain: Any) -> tuple[Graph, dict[tuple[str, ...], Decision]]:
    """Run the passes; subject -> decision. Whatever they decide, the storage must be sound and the peak not higher."""
    graph = graph_of(body)
    peak = peak_bytes(graph)
    results = run_pipeline(graph, chain)
    assert storage_faults(graph) == []
    assert peak_bytes(graph) <= peak or any(one.fluid_rules for one in chain)
    return graph, {d.subject: d for result in results for d in result.decisions}


def rule(decisions: dict[tuple[str, ...], Decision], *subject: str) -> str:
    return decisions[subject].rule


def accepted(decisions: dict[tuple[str, ...], Decision], *subject: str) -> bool:
    return decisions[subject].accepted


@pytest.mark.parametrize("one", INPLACE, ids=lambda p: p.name)
class TestInPlace:
    S01 = "input %a: f32[2] donated input %b: f32[2] donated input %c: f32[2] "
    S02 = """input %x: f32[2,2] %x1 = Abs(%x) %x2 = Reshape(%x1) {shape=[4]} %x3 = Neg(%x2)
             %r = Reshape(%x3) {shape=[2,2]} %x4 = Add(%x1, %r) output %x4"""

    def test_s01_reader_before(self, one):
        _, found = decide(self.S01 + "%d = Mul(%a, %c) %e = Add(%a, %b) output %d output %e", one)
        assert accepted(found, "e", "a")

    def test_s01_reader_after(self, one):
        _, found = decide(self.S01 + "%e = Add(%b, %c) %d = Mul(%a, %b) output %d output %e", one)
        assert rule(found, "e", "b") == "not-last-use"
        assert found["e", "b"].reason == "%b is read later by node d (Mul)"

    def test_s06_fetched_values_are_not_overwritten(self, one):
        _, found = decide("input %x: f32[2] %a = Abs(%x) %b = Neg(%x) %c = Sub(%a, %b) output %c output %a", one)
        assert rule(found, "c", "a") == "input-is-output"
        assert accepted(found, "c", "b")

    def test_s06_all_fetched(self, one):
        _, found = decide("input %x: f32[2] %a = Abs(%x) %c = Neg(%a) output %c output %a", one)
        assert not found["c", "a"].accepted

    def test_s17_weight_through_a_view(self, one):
        _, found = decide("param %w: f32[2] = [-1, 2] %v = Unsqueeze(%w) {axes=[0]} %y = Relu(%v) output %y", one)
        if accepted(found, "v", "w"):
            assert rule(found, "y", "v") == "input-is-pinned"
            assert "%w, which is a parameter" in found["y", "v"].reason

    def test_s20_an_expanded_scalar(self, one):
        _, found = decide("input %s: f32[] donated %e = Expand(%s) {shape=[3]} %y = Cos(%e) output %y", one)
        assert not accepted(found, "e", "s")
        assert accepted(found, "y", "e")  # three stored elements by now

    def test_s21_a_shifted_slice(self, one):
        body = """input %x: f32[8] donated %a = Relu(%x) %h = Slice(%a) {axes=[0], ends=[8], starts=[1]}
                  %t = Slice(%a) {axes=[0], ends=[7], starts=[0]} %y = Div(%h, %t) output %y"""
        decide(body, one)

    def test_s22_plus_its_transpose(self, one):
        body = "input %x: f32[2,2] %a = Abs(%x) %t = Transpose(%a) {perm=[1,0]} %b = Add(%a, %t) output %b"
        _, found = decide(body, one)
        assert not accepted(found, "t", "a")
        assert accepted(found, "b", "a")

    def test_s25_the_same_operand_twice(self, one):
        _, found = decide("input %x: f32[4] %a = Abs(%x) %s = Add(%a, %a) %t = Add(%s, %a) output %t", one)
        assert rule(found, "s", "a") == "not-last-use"
        assert accepted(found, "t", "s")

    def test_s25_twice_and_dead(self, one):
        _, found = decide("input %x: f32[4] %a = Abs(%x) %s = Add(%a, %a) output %s", one)
        assert accepted(found, "s", "a")

    def test_s30_broadcast_input(self, one):
        body = "input %x: f64[10,12] donated input %y: f64[2,3,10,12] donated %z = Sub(%x, %y) output %z"
        _, found = decide(body, one)
        assert not accepted(found, "z", "x")
        assert accepted(found, "z", "y")

    def test_s31_comparison_with_itself(self, one):
        _, found = decide("input %a: f32[4] donated %m = LessOrEqual(%a, %a) output %m output %a", one)
        assert not found["m", "a"].accepted

    @pytest.mark.parametrize(("to", "legal"), [("int32", True), ("float16", False), ("float64", False)])
    def test_s32_cast(self, one, to, legal):
        _, found = decide(f'input %x: f32[2] %a = Abs(%x) %i = Cast(%a) {{to="{to}"}} output %i', one)
        assert accepted(found, "i", "a") == legal

    def test_s32_cast_of_what_is_read_later(self, one):
        body = 'input %x: f32[2] %a = Abs(%x) %i = Cast(%a) {to="int32"} %y = Neg(%a) output %i output %y'
        _, found = decide(body, one)
        assert rule(found, "i", "a") == "not-last-use"

    def test_s36_no_bytes(self, one):
        _, found = decide("input %e: f32[0,4] donated %m = Relu(%e) output %m", one)
        assert rule(found, "m", "e") == "nothing-to-save"

    def test_s42_absent_optionals(self, one):
        body = "input %x: f32[2] donated %y = Clip(%x) {max=1} %d, _ = Dropout(%y) output %d"
        graph, found = decide(body, one)
        assert set(found) == {("y", "x"), ("d", "y")}
        assert accepted(found, "d", "y")
        assert len(graph.storage.buffers) == 1

    def test_a_kept_alias_read_by_the_last_node(self, one):
        """The end of what is kept is the end of the last step: no hand-over there."""
        _, found = decide("param %w: f32[2] = [1, 2] %v = Identity(%w) %y = Add(%v, %w) output %y", one)
        assert not accepted(found, "y", "w")
        if accepted(found, "v", "w"):
            assert rule(found, "y", "v") == "input-is-pinned"

    def test_an_update_is_no_candidate(self, one):
        body = "param %w: f32[2] = [1, 2] input %l: f32[] input %g: f32[2] donated %u = SGD(%w, %g, %l) output %u"
        _, found = decide(body, one)
        assert {d.rule for d in found.values()} == {"update-output"}

    def test_a_view_of_what_is_updated(self, one):
        body = "input %x: f32[2] %a = Abs(%x) %v = Identity(%a) %b = Increment(%a) %y = Add(%b, %v) output %y"
        _, found = decide(body, one)
        assert rule(found, "v", "a") == "already-lent"


class TestViews:
    def test_s02_source_is_read_later(self):
        _, found = decide(TestInPlace.S02, passes.InplaceShare())
        assert accepted(found, "x2", "x1")
        assert rule(found, "x3", "x2") == "view-is-read-later"
        assert found["x3", "x2"].reason == "%x1 holds bytes of %x2 and is read later by node x4 (Add)"

    def test_s02_under_names(self):
        decide(TestInPlace.S02, passes.InplaceRename())

    @pytest.mark.parametrize(
        ("reads", "legal"),
        [("%e = Neg(%p2)", True), ("%e = Mul(%p2, %q)", True), ("%k = Concat(%p2, %b) {axis=0} %e = Neg(%k)", False)],
        ids=["none", "the other half", "the whole"],
    )
    def test_s27_one_output_of_split(self, reads, legal):
        body = f"input %x: f32[4] %b = Abs(%x) %p, %q = Split(%b) {{axis=0}} %p2 = Relu(%p) {reads} output %e"
        _, found = decide(body, passes.InplaceShare())
        assert accepted(found, "p", "b")
        assert accepted(found, "p2", "p") == legal
        if not legal:
            assert rule(found, "p2", "p") == "view-is-read-later"

    @pytest.mark.parametrize("chain", STRATEGIES, ids=["rename", "share"])
    @pytest.mark.parametrize("view", ["Reshape(%t) {shape=[4]}", "Flatten(%t)", "Unsqueeze(%t) {axes=[0]}"])
    def test_s28_memory_of_a_live_view(self, chain, view):
        body = f"""input %a: f32[2,2] input %c: f32[2,2] %t = Add(%a, %a) %v = {view} %u = Mul(%c, %c)
                   %n = Neg(%v) %k = Reshape(%n) {{shape=[2,2]}} %w = Add(%k, %u) output %w"""
        graph, _ = decide(body, *chain)
        assert graph.storage.buffer(graph.value("u")) is not graph.storage.buffer(graph.value("v"))

    def test_s28_nested_views(self):
        body = """input %x: f32[2,4] %t = Abs(%x) %h, %l = Split(%t) {axis=0} %v = Reshape(%l) {shape=[4]}
                  %u = Neg(%h) %y = Mul(%v, %v) %z = ReduceSum(%u) output %y output %z"""
        graph, found = decide(body, passes.InplaceShare())
        assert accepted(found, "v", "l")
        assert graph.storage.variable(graph.value("v")).offset == 16


@pytest.mark.parametrize("chain", STRATEGIES, ids=["rename", "share"])
class TestStrategies:
    def test_s04_unread_output(self, chain):
        graph, _ = decide("input %x: f32[4,2] %a, %b = Split(%x) {axis=0} %c = Neg(%a) output %c", *chain)
        span = analyze_liveness(graph).intervals[graph.value("b")]
        assert span.end > span.start
        assert graph.storage.buffer(graph.value("b")) is not graph.storage.buffer(graph.value("c"))

    def test_s09_outputs_stay_apart(self, chain):
        body = "input %x: f32[2] %y = Abs(%x) %z = Identity(%y) output %y output %z output %y"
        graph, found = decide(body, *chain)
        assert rule(found, "z", "y") == "input-is-output"
        assert graph.storage.buffer(graph.value("z")) is not graph.storage.buffer(graph.value("y"))

    def test_s09_through_an_intermediate(self, chain):
        body = "input %x: f32[2] %a = Abs(%x) %y = Identity(%a) %z = Identity(%a) output %y output %z"
        graph, _ = decide(body, *chain)
        assert graph.storage.buffer(graph.value("z")) is not graph.storage.buffer(graph.value("y"))

    def test_s11_an_output_is_no_weight(self, chain):
        graph, _ = decide("param %w: f32[2] = [1, 2] %y = Identity(%w) output %w output %y", *chain)
        assert graph.storage.buffer(graph.value("y")) is not graph.storage.buffer(graph.value("w"))

    def test_s12_an_undonated_feed_is_not_overwritten(self, chain):
        _graph, found = decide("input %x: f32[4] %y = Relu(%x) output %y", *chain)
        assert rule(found, "y", "x") == "input-is-pinned"
        assert found["y", "x"].reason == "%x is a feed that is not donated"

    def test_s63_a_chain_is_one_buffer(self, chain):
        graph, _ = decide("input %x: f32[64] %a = Relu(%x) %b = Relu(%a) %c = Relu(%b) output %c", *chain)
        assert peak_bytes(graph) == 2 * 256  # the feed, and the chain


def test_s34_a_large_dead_buffer_is_not_held_for_a_small_one():
    """Holding the dead 800 B whole for the first 400 B would cost 400 B more than to pack both into them."""
    body = """input %x: f32[200] %d = Neg(%x) %s = ReduceSum(%d) {axes=[0], keepdims=0}
              %e = Expand(%s) {shape=[100]} %f = Expand(%s) {shape=[100]} output %e output %f"""
    _, found = decide(body, passes.ReuseShare())
    assert rule(found, "e", "d") == "raises-peak"
    assert found["e", "d"].reason == "holding buffer d for %e raises the peak by 400 B"


class TestFluidRules:
    """Where Fluid's rule is a limitation of its time, its own decision is kept under `fluid_rules`."""

    def test_s06_fluid_15_knows_no_fetches(self):
        graph = graph_of("input %x: f32[2] %a = Abs(%x) %c = Relu(%a) output %c output %a")
        (result,) = run_pipeline(graph, [passes.InplaceRename(fluid_rules=True, min_elements=0)])
        assert [d.subject for d in result.decisions if d.accepted] == [("c", "a")]
        assert storage_faults(graph) == ["%a, kept, is not there"]

    def test_s06_fluid_16_does(self):
        _, found = decide(
            "input %x: f32[2] %a = Abs(%x) %c = Relu(%a) output %c output %a", passes.InplaceShare(fluid_rules=True)
        )
        assert rule(found, "c", "a") == "input-is-output"

    def test_s01_needs_a_dependency_path(self):
        """The other reader comes first in the list, but need not: Fluid refuses, the listed order allows it."""
        body = "input %x: f32[4] %a = Abs(%x) %d = Neg(%a) %e = Relu(%a) %y = Mul(%d, %e) output %y"
        for one in (passes.InplaceRename(fluid_rules=True, min_elements=0), passes.InplaceShare(fluid_rules=True)):
            _, found = decide(body, one)
            assert rule(found, "e", "a") == "not-last-use"
        _, found = decide(body, passes.InplaceShare())
        assert accepted(found, "e", "a")

    def test_only_the_first_argument(self):
        body = "input %x: f32[4] %a = Abs(%x) %y = Add(%x, %a) output %y"
        _, found = decide(body, passes.InplaceShare(fluid_rules=True))
        assert rule(found, "y", "a") == "not-in-table"
        _, found = decide(body, passes.InplaceShare())
        assert accepted(found, "y", "a")

    def test_reuse_is_of_exact_size(self):
        body = """input %x: f32[4,4] %a = MatMul(%x, %x) %b = MatMul(%a, %x) %c = ReduceSum(%b) {axes=[0]}
                  %d = MatMul(%c, %x) output %d"""
        _, found = decide(body, passes.ReuseShare(fluid_rules=True))
        assert found["c",].rule == "no-candidate"
        _, found = decide(body, passes.ReuseShare())
        assert accepted(found, "c", "a")

    def test_reuse_15_wants_the_same_dtype(self):
        body = """input %x: f32[4,4] %a = MatMul(%x, %x) %b = MatMul(%a, %x) %c = Cast(%b) {to="int32"}
                  %y = Cast(%c) {to="float32"} output %y"""
        _, found = decide(body, passes.ReuseRename(fluid_rules=True, min_elements=0))
        assert found["c",].rule == "no-candidate"
        _, found = decide(body, passes.ReuseShare(fluid_rules=True))
        assert accepted(found, "c", "a")
