"""`plan.explain("name")`: places, tenants, refusals, and what keeping a value costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt import Machine, models, parse
from memopt.errors import OptionError
from memopt.report import needed_bytes
from tests.strategies import graphs

GPU = Machine.host_and("gpu", lacks={"BatchNormalization"})
CHAIN = """graph "chain" { input %x: f32[8] %a = Abs(%x) %b = Neg(%a) %v = Reshape(%b) {shape=[2,4]} %c = Exp(%v)
    %s = ReduceSum(%c) {axes=[0, 1], keepdims=1} %d = Mul(%c, %s) output %d }"""


@settings(max_examples=25)
@given(graphs(devices=(None, "host", "gpu")), st.sampled_from(["none", "rename", "share"]), st.data())
def test_every_value_can_be_explained(graph, strategy, data):
    plan = memopt.compile(graph, strategy, Machine.host_and("gpu", lacks={"Relu", "Add"}), pack_seconds=0)
    value = data.draw(st.sampled_from(plan.graph.values))
    e = plan.explain(value.name)
    assert all(len(line) <= 80 for line in str(e).splitlines())
    json.dumps(e.to_dict())
    for place in e.places:
        slot, buffer = plan.slots[place.buffer], plan.program.buffers[place.buffer]
        assert slot.offset <= place.offset
        assert place.offset + place.size <= slot.offset + slot.size
        assert place.device == buffer.device
        assert buffer.start <= place.start <= place.end <= max(buffer.end, place.start)
    storage = plan.graph.storage
    assert {one.value for one in e.tenants} == {
        v.name for v in storage.tenants(storage.buffer(value)) if v is not value
    }


@settings(max_examples=25)
@given(graphs(), st.sampled_from(["none", "rename", "share"]), st.data())
def test_keeping_costs_exactly_what_was_predicted(graph, strategy, data):
    plan = memopt.compile(graph, strategy, pack_seconds=0)
    value = data.draw(st.sampled_from(plan.graph.values))
    e = plan.explain(value.name)
    if e.keep_cost is None:
        return
    kept = memopt.compile(graph, strategy, keep=[value.name], pack_seconds=0)
    before, after = needed_bytes(plan), needed_bytes(kept)
    assert {name: after[name] - before[name] for name in before} == e.keep_cost


def test_all_of_it():
    e = memopt.compile(parse(CHAIN)).explain("%b")
    assert (e.type, e.bytes, e.producer, e.readers) == ("f32[8]", 32, "b", ("v",))
    assert (e.start, e.end, e.held) == (1, 3, "")
    assert e.aliases == ("v",)
    assert [one.value for one in e.tenants if one.same_content] == ["v"]
    assert {"a", "v", "c"} <= {one.value for one in e.tenants}
    [place] = e.places
    assert (place.kind, place.device, place.space, place.size) == ("home", "host", "arena", 32)
    text = " ".join(str(e).split())
    assert "+ inplace-share at b: %b over %a" in text
    assert "It is gone at the end" in text
    assert "keep=['b']" in text


def test_who_overwrote_it():
    e = memopt.compile(parse(CHAIN)).explain("a")
    assert e.places[-1].ended == "overwritten by b (Neg), with %b"
    e = memopt.compile(parse(CHAIN), "none").explain("a")
    assert e.places[-1].ended == "freed after b (Neg)"


def test_what_was_refused_and_why():
    text = "input %x: f32[8] %a = Abs(%x) %b = Neg(%a) %c = Exp(%a) %d = Add(%b, %c) output %d"
    e = memopt.compile(parse(f'graph "r" {{ {text} }}')).explain("b")
    assert any(not d.accepted and d.rule == "not-last-use" for d in e.decisions)
    assert "- inplace-share at b: %b over %a: %a is read later by node c (Exp)" in str(e)


def test_transfers_are_places():
    graph = models.build("resnet18", image=32)
    e = memopt.compile(graph, "share", GPU).explain("conv1")
    assert [(p.kind, p.for_node, p.device) for p in e.places] == [("home", "conv1", "gpu"), ("copy", "bn1", "host")]


def test_variables_under_renaming():
    e = memopt.compile(parse(CHAIN), "rename").explain("b")
    assert "a" in e.same_variable
    assert "which" in str(e)


@pytest.mark.parametrize(
    ("name", "held"), [("d", "an output of the graph"), ("x", "a feed that is not donated"), ("s", "kept by request")]
)
def test_what_holds_to_the_end_says_why(name, held):
    e = memopt.compile(parse(CHAIN), keep=["s"]).explain(name)
    assert e.held == held
    assert e.keep_cost is None
    assert f"it is {held}" in str(e)


def test_unknown_names_are_met_with_near_ones():
    plan = memopt.compile(models.build("lenet"))
    with pytest.raises(OptionError, match="did you mean %conv1 or"):
        plan.explain("cov1")
    with pytest.raises(OptionError, match=r"it has .* values, such as"):
        plan.explain("zzzzzz")


def test_a_node_with_one_output_stands_for_it():
    graph = parse('graph "n" { input %x: f32[8] %a = Abs(%x) output %a }')
    graph.rename_value(graph.value("a"), "other")
    name = graph.nodes[0].name
    assert memopt.compile(graph).explain(name).value == "other"
