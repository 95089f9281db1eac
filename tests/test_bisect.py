"""`bisect` names the decisions that change a result, and nobody where nothing does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt import Machine, models, parse
from memopt.bisect import minimal_set
from memopt.compile import Plan
from memopt.pipeline import Decision, PassResult
from memopt.replay import merges_of, replayed
from tests.strategies import feeds_for, graphs

GPU = Machine.host_and("gpu", lacks={"BatchNormalization"})


@pytest.fixture(scope="module")
def small():
    return models.build("resnet18", image=32)


def partition(storage, values):
    """The values that share a buffer, with their distances in it, and those that share a variable."""
    buffers, names = {}, {}
    for value in values:
        variable = storage.variable(value)
        buffers.setdefault(id(variable.buffer), []).append((value.name, variable.offset))
        names.setdefault(id(variable), []).append(value.name)
    shifted = [[(name, at - min(o for _, o in group)) for name, at in group] for group in buffers.values()]
    return sorted(map(sorted, shifted)), sorted(map(sorted, names.values()))


class TestReplay:
    @settings(max_examples=25)
    @given(graphs(devices=(None, "host", "gpu")), st.sampled_from(["rename", "share", "best"]))
    def test_all_merges_make_the_same_storage(self, graph, strategy):
        plan = memopt.compile(graph, strategy, Machine.host_and("gpu", lacks={"Relu"}), pack_seconds=0)
        twin = replayed(plan, merges_of(plan))
        assert partition(twin.storage, twin.values) == partition(plan.graph.storage, plan.graph.values)

    @settings(max_examples=25)
    @given(graphs(devices=(None, "host", "gpu")), st.sampled_from(["rename", "share", "best"]), st.data())
    def test_any_subset_is_sound(self, graph, strategy, data):
        plan = memopt.compile(graph, strategy, Machine.host_and("gpu", lacks={"Relu"}), pack_seconds=0)
        some = [d for d in merges_of(plan) if data.draw(st.booleans())]
        memopt.compile(replayed(plan, some), (), plan.machine, pack_seconds=0)  # validates


class TestMinimalSet:
    @given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.integers(31, 40))
    def test_it_is_the_cause_and_no_more(self, cause, count):
        units = [Decision("p", str(i), (str(i),), True, "", 0, i) for i in range(count)]
        found = minimal_set(units, lambda some: cause <= {d.step for d in some})
        assert {d.step for d in found} == cause

    def test_few_trials_for_one_of_many(self):
        units = [Decision("p", str(i), (str(i),), True, "", 0, i) for i in range(1024)]
        trials = []
        minimal_set(units, lambda some: trials.append(1) or units[700] in some)
        assert len(trials) <= 20


class TestBisect:
    def test_rename_under_fluid_names_the_decision(self, small):
        plan = memopt.compile(small, "rename", GPU, "fluid-1.5", validate=False)
        found = memopt.bisect(plan)
        assert found.cause == "decisions"
        [culprit] = found.culprits
        [decision] = culprit.decisions
        assert decision.pass_name == "inplace-rename"
        assert small.node(decision.node).op == "BatchNormalization"
        assert culprit.right_elsewhere == "publish"
        assert "fluid-1.5" in culprit.finding
        assert not found.rest_is_right
        text = str(found)
        assert "One decision of" in text
        assert all(len(line) <= 80 for line in text.splitlines())
        json.dumps(found.to_dict())

    def test_every_one_until_the_rest_is_right(self):
        text = """graph "two" { input %x: f32[8] %a = Abs(%x) %b = Relu(%a) %c = Neg(%b) %d = Relu(%c) %e = Exp(%d)
                  output %e }"""
        machine = Machine.host_and("gpu", lacks={"Relu"})
        plan = memopt.compile(parse(text), "rename", machine, "fluid-1.5", validate=False)
        feeds = {"x": np.linspace(-2, 2, 8, dtype=np.float32)}
        found = memopt.bisect(plan, feeds, every=True)
        assert found.rest_is_right
        subjects = {d.subject for culprit in found.culprits for d in culprit.decisions}
        assert ("d", "c") in subjects  # relu of -|x| is lost; that of |x| changes nothing
        assert ("b", "a") not in subjects
        assert "Without" in str(found)

    @pytest.mark.parametrize(
        ("strategy", "transfer"), [("rename", "publish"), ("share", "fluid-1.5"), ("none", "outer")]
    )
    def test_nothing_changes_a_valid_plan(self, small, strategy, transfer):
        found = memopt.bisect(memopt.compile(small, strategy, GPU, transfer))
        assert (found.cause, found.culprits, found.changed) == ("nothing", (), False)
        assert "Nothing changes the result" in str(found)

    @settings(max_examples=10)
    @given(graphs(devices=(None, "host", "gpu"), updates=False), st.sampled_from(["rename", "share"]))
    def test_it_agrees_with_the_validator(self, graph, strategy):
        machine = Machine.host_and("gpu", lacks={"Relu", "Neg"})
        plan = memopt.compile(graph, strategy, machine, "fluid-1.5", validate=False, pack_seconds=0)
        found = memopt.bisect(plan, feeds_for(graph, 3))
        if found.changed:
            assert memopt.validate(plan, findings="return")
            assert found.culprits[0].finding

    def test_the_policy_alone(self):
        b = memopt.GraphBuilder("sgd")
        w, g = b.param("w", np.ones(4, np.float32)), b.input("g", (4,))
        b.output(b.neg(b.sgd(w, g, b.param("lr", np.float32(0.5)))))
        plan = memopt.compile(b.build(), "rename", Machine.host_and("gpu", lacks={"SGD"}), "fluid-1.5", validate=False)
        found = memopt.bisect(plan)
        assert found.cause == "transfer"
        assert "param:w" in found.outputs
        assert found.finding
        assert "even without any pass" in " ".join(str(found).split())

    def test_the_plan_itself(self):
        graph = parse('graph "p" { input %x: f32[64] %a = Abs(%x) %b = Exp(%x) %c = Sub(%a, %b) output %c }')
        plan = memopt.compile(graph, "share")
        slots = tuple(replace(slot, offset=0) if slot.space == "arena" else slot for slot in plan.slots)
        broken = replace(plan, slots=slots)
        found = memopt.bisect(broken)
        assert found.cause == "plan"
        assert found.finding

    def test_a_pass_that_edits_the_graph_wrongly(self):
        class Wrong:
            name = "wrong"

            def run(self, graph):
                node = graph.node("b")
                graph.replace_uses(node.outputs[0], node.inputs[0])
                graph.remove_node(node)
                return PassResult(True)

        graph = parse('graph "w" { input %x: f32[64] %a = Abs(%x) %b = Exp(%a) %c = Sin(%b) output %c }')
        plan = memopt.compile(graph, ["inplace-share", Wrong()])
        found = memopt.bisect(plan)
        assert (found.cause, found.passes) == ("passes", ("wrong",))
        assert "wrong" in str(found)

    def test_a_loaded_plan(self, tmp_path):
        machine = Machine.host_and("gpu", lacks={"Relu"})
        graph = parse('graph "l" { input %x: f32[8] %a = Neg(%x) %b = Relu(%a) %c = Exp(%b) output %c }')
        memopt.compile(graph, "rename", machine, "fluid-1.5", validate=False).save(tmp_path / "p.json")
        plan = memopt.load_plan(tmp_path / "p.json", validate=False)
        found = memopt.bisect(plan, {"x": np.linspace(-1, 1, 8, dtype=np.float32)})
        assert [d.subject for d in found.culprits[0].decisions] == [("b", "a")]

    def test_the_plan_is_not_touched(self, small):
        plan = memopt.compile(small, "share", GPU)
        memopt.bisect(plan)
        assert isinstance(plan, Plan)
        assert "_executor" not in plan.__dict__
