"""Views without copies: which are taken and why not, and that what is taken is sound on every graph and machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
import passes
from memopt import Machine, compile, parse, run_reference, validate
from memopt.analysis import peak_bytes
from memopt.export import plan_from_dict, plan_to_dict
from memopt.ir import Graph, print_graph, verify
from memopt.pipeline import run_pipeline
from memopt.replay import merges_of, replayed
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import three_runs
from tests.twins import storage_faults

MAKERS = ("look", "look", "transpose", "split", "slice", "expand", "reshape", "unary", "binary", "concat", "matmul",
          "increment", "cast", "reduce")  # fmt: skip
VIEWS = graphs(max_nodes=7, only=MAKERS, min_dim=0)
GPU = Machine.host_and("gpu", lacks={"Transpose", "Neg", "Expand"})
CHAINS = {
    "alone": (passes.ShareViews(),),
    "in place": (passes.ShareViews(), passes.InplaceShare()),
    "share": (passes.ShareViews(), *passes.SHARE),
    "rename": (passes.ShareViews(), *passes.RENAME),
    "joined": (passes.ShareViews(), passes.InplaceShare(), passes.ShareConcat(), passes.InplaceShare()),
    "after": (passes.InplaceShare(), passes.ShareViews(), passes.ReuseShare()),
}


def in_strides(graph: Graph) -> dict[str, tuple[int, ...]]:
    """name -> strides of every value that lies in strides."""
    storage = graph.storage
    return {v.name: s for v in graph.values if (s := storage.variable(v).strides) is not None}


# -- golden texts ---------------------------------------------------------------------------------------------------

GOLDEN = {
    "transpose": """graph "transpose" {
  input %x: f32[4,6]
  param %w: f32[4,3]
  %a = Relu(%x)
  %t = Transpose(%a) {perm=[1,0]}
  %m = MatMul(%t, %w)
  %n = Neg(%a)
  output %m
  output %n
}""",
    "split": """graph "split" {
  input %x: f32[4,6]
  %a = Relu(%x)
  %p, %q, %r = Split(%a) {axis=1, split=[1,2,3]}
  %b = Exp(%p)
  %c = Exp(%q)
  %d = Exp(%r)
  output %b
  output %c
  output %d
}""",
    "expand": """graph "expand" {
  input %x: f32[1,4]
  %a = Relu(%x)
  %e = Expand(%a) {shape=[8,4]}
  %b = Add(%e, %e)
  output %b
}""",
    "view_of_view": """graph "view_of_view" {
  input %x: f32[2,3,4]
  param %w: f32[3,5]
  %a = Relu(%x)
  %t = Transpose(%a) {perm=[0,2,1]}
  %s = Slice(%t) {axes=[1], ends=[3], starts=[1]}
  %r = Reshape(%s) {shape=[2,1,2,3]}
  %m = MatMul(%r, %w)
  %n = Sigmoid(%a)
  output %m
  output %n
}""",
    "refused": """graph "refused" {
  input %x: f32[4,6]
  %a = Relu(%x)
  %t = Transpose(%a) {perm=[1,0]}
  %r = Slice(%a) {axes=[1], ends=[-9], starts=[5], steps=[-1]}
  %m = Exp(%r)
  output %t
  output %m
}""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_before_and_after(name, golden):
    graph, one = parse(GOLDEN[name]), passes.ShareViews()
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [one])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/share_views_{name}.txt", f"{before}\n# {one!r}\n{why}\n{print_graph(graph)}")


# -- each way to be refused -----------------------------------------------------------------------------------------

HEAD = 'graph "g" { input %x: f32[4,6] param %w: f32[4,3] %a = Relu(%x) '
T = "%t = Transpose(%a) {perm=[1,0]} "
READ = "%m = MatMul(%t, %w) %n = Neg(%a) output %m output %n }"
#: rule -> (the graph, a piece of the reason's text).
REFUSED = {
    "already-borrowed": (
        HEAD + "%b = Neg(%x) " + T + READ.replace("}", "output %b storage { buffer t: t, b } }"),
        "%t shares its bytes with %b already",
    ),
    "op-condition": (
        HEAD + "%t = Slice(%a) {axes=[0], ends=[-9], starts=[3], steps=[-1]} %m = Neg(%t) output %m }",
        "no strides say how %t steps through the bytes of %a",
    ),
    "nothing-to-save": (
        'graph "g" { input %x: f32[0,6] %a = Relu(%x) ' + T + "%m = Neg(%t) output %m }",
        "%t has no bytes",
    ),
    "input-is-output": (HEAD + T + READ.replace("}", "output %t }"), "%t is an output of the graph"),
    "different-device": (
        HEAD.replace("(%x)", "(%x) @host") + T.replace("} ", "} @gpu ") + READ,
        "%a is not made on the device of t",
    ),
    "already-lent": (
        HEAD + T + "%n = Neg(%a) %m = MatMul(%t, %w) output %m output %n storage { buffer a: a, n } }",
        "bytes of %a go to %n while %t is read by node m (MatMul)",
    ),
    "in-strides": (
        HEAD + T + "%m = CumSum(%t) {axis=0} %n = Neg(%a) output %m output %n }",
        "%t is read by node m",
    ),
    "raises-peak": (
        HEAD + "%t = Slice(%a) {axes=[1], ends=[2], starts=[1]} %b = Exp(%x) %c = Add(%b, %x) %d = Add(%c, %t) "
        "output %d }",
        "holding the buffer of %a for %t raises the peak by",
    ),
    "sibling": (
        'graph "g" { input %x: f32[4,6] %a = Relu(%x) %p, %q = Split(%a) {axis=1} %b = Exp(%p) %n = Neg(%a) '
        "output %q output %b output %n }",
        "%p is made by the call that makes %q, which is no view in strides",
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_each_refusal(rule):
    text, why = REFUSED[rule]
    graph = parse(text)
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [passes.ShareViews()])
    found = {d.rule: d.reason for d in result.decisions if not d.accepted}
    assert why in found[rule]
    if rule != "sibling":
        assert len(found) == 1
    assert not result.modified
    assert print_graph(graph) == before


def test_excluded():
    for name in ("t", "a"):
        graph = parse(HEAD + T + READ)
        graph.excluded.add(name)
        (result,) = run_pipeline(graph, [passes.ShareViews()])
        [decision] = result.decisions
        assert (decision.accepted, decision.rule) == (False, "excluded")
        assert f"%{name} is left out by request" in decision.reason


def test_of_a_feed_that_is_kept():
    """What nobody writes may be looked at for ever."""
    graph = parse('graph "g" { input %a: f32[4,6] param %w: f32[4,3] ' + T + READ)
    run_pipeline(graph, [passes.ShareViews()])
    assert in_strides(graph) == {"t": (1, 6)}
    assert storage_faults(graph) == []


ONCE = {
    "views of what was laid just now": """graph "g" {
      input %x: f32[2,2]
      %a = Relu(%x)
      %p, %q = Split(%a) {axis=1}
      %r, %s = Split(%q) {axis=0}
      output %s
    }""",
    "bytes that became free": """graph "g" {
      input %x: f32[2]
      input %y: f32[2,2]
      input %z: f32[2,2]
      %a = ReduceSum(%z) {axes=[0], keepdims=0}
      %p, %q = Split(%a) {split=[1,1]}
      %r = Reshape(%q) {shape=[1]}
      %b = Relu(%r)
      output %b
      output %q
    }""",
}


@pytest.mark.parametrize("name", ONCE)
def test_one_run_does_it_all(name):
    graph = parse(ONCE[name])
    first, second = run_pipeline(graph, [passes.ShareViews(), passes.ShareViews()])
    assert all(decision.accepted for decision in first.decisions)
    assert not second.modified
    assert storage_faults(graph) == []


# -- what goes with it ----------------------------------------------------------------------------------------------

TEXT = HEAD + T + "%p, %q = Split(%a) {axis=1, split=[2,4]} %b = Neg(%p) %c = Exp(%q) " + READ.replace(
    "}", "output %b output %c }"
)



def both() -> Graph:
    graph = parse(TEXT)
    graph.set_param("w", np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    return graph


@pytest.mark.parametrize("name", GOLDEN)
def test_text_and_plan_round_trip(name):
    graph = parse(GOLDEN[name])
    run_pipeline(graph, [passes.ShareViews()])
    again = memopt.parse(str(graph))
    assert str(again) == str(graph)
    assert in_strides(again) == in_strides(graph)
    plan = compile(parse(GOLDEN[name]), CHAINS["in place"])
    loaded = plan_from_dict(plan_to_dict(plan))
    assert (loaded.program, loaded.slots) == (plan.program, plan.slots)
    assert str(loaded.graph) == str(plan.graph)
    assert validate(loaded, "return") == []


def test_a_plan_saved_and_loaded_runs(tmp_path):
    graph = both()
    plan = compile(graph, "best")
    assert set(in_strides(plan.graph)) == {"t", "p", "q"}
    plan.save(tmp_path / "plan.json")
    feeds = feeds_for(graph, 3)
    for name, array in memopt.load_plan(tmp_path / "plan.json").run(feeds).items():
        np.testing.assert_array_equal(array, plan.run(feeds)[name])


def test_keep_makes_it_an_output():
    plan = compile(both(), "best", keep=["t"])
    assert "t" not in in_strides(plan.graph)
    [decision] = [d for d in plan.decisions if d.pass_name == "share-views" and d.subject[0] == "t"]
    assert decision.rule == "input-is-output"
    feeds = feeds_for(plan.graph, 1)
    plan.run(feeds)
    np.testing.assert_array_equal(plan.run(feeds).kept["t"], np.maximum(feeds["x"], 0).T)


@pytest.mark.parametrize(("without", "left"), [("share-views", set()), ("t", {"p", "q"}), ("p", {"t"}), ("a", set())])
def test_without(without, left):
    plan = compile(both(), "best", without=[without])
    assert set(in_strides(plan.graph)) == left
    assert validate(plan, "return") == []
    graph, feeds = both(), feeds_for(plan.graph, 1)
    want, _ = run_reference(graph, feeds)
    for name, array in plan.run(feeds).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-5)
    if without == "share-views":
        assert not any(d.pass_name == "share-views" for d in plan.decisions)


def test_replayed_views_are_views():
    plan = compile(both(), "best")
    again = replayed(plan, merges_of(plan))
    verify(again)
    assert in_strides(again) == in_strides(plan.graph)


def test_replayed_in_part():
    """Without the merge of a view with its source, it shares with nobody; each merge alone is sound too."""
    plan = compile(parse(GOLDEN["view_of_view"]), CHAINS["in place"])
    for left_out in merges_of(plan):
        rest = [d for d in merges_of(plan) if d is not left_out]
        for some in (rest, [left_out]):
            again = replayed(plan, some)
            verify(again)
            assert storage_faults(again) == []
    no_first = replayed(plan, [d for d in merges_of(plan) if d.subject != ("t", "a")])
    assert in_strides(no_first) == {}


def test_bisect_knows_views():
    plan = compile(both(), "best")
    assert memopt.bisect(plan).cause == "nothing"


# -- on every graph -------------------------------------------------------------------------------------------------


@given(VIEWS)
@settings(max_examples=60)
def test_views_are_sound_and_raise_no_peak(graph):
    before, peak = print_graph(graph), peak_bytes(graph)
    (result,) = run_pipeline(graph, [passes.ShareViews()])
    assert storage_faults(graph) == []
    assert peak_bytes(graph) <= peak
    after = print_graph(graph)
    assert result.modified == (before != after) == any(d.accepted for d in result.decisions)
    (second,) = run_pipeline(graph, [passes.ShareViews()])
    assert not second.modified
    assert print_graph(graph) == after
    assert print_graph(parse(after)) == after
    for decision in result.decisions:
        assert any(f"%{name}" in decision.reason for name in decision.subject)
        assert graph.nodes[decision.step].name == decision.node


@given(VIEWS, st.sampled_from(sorted(CHAINS)))
@settings(max_examples=80)
def test_what_follows_is_sound(graph, name):
    for one in CHAINS[name]:
        peak = peak_bytes(graph)
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
        assert peak_bytes(graph) <= peak
    (last,) = run_pipeline(graph, CHAINS[name][-1:])
    assert not last.modified


@given(VIEWS, st.data())
@settings(max_examples=30)
def test_any_part_of_the_merges_is_sound(graph, data):
    plan = compile(graph, CHAINS["in place"], pack_seconds=0)
    assert storage_faults(replayed(plan, merges_of(plan))) == []
    some = [d for d in merges_of(plan) if data.draw(st.booleans())]
    again = replayed(plan, some)
    verify(again)
    assert storage_faults(again) == []
    compile(again, (), pack_seconds=0)  # validates


@st.composite
def cases(draw, max_nodes=7):
    devices = draw(st.sampled_from([(None,), (None, "host", "gpu")]))
    machine = Machine.host_only() if devices == (None,) else GPU
    graph = draw(graphs(devices=devices, only=MAKERS, max_nodes=max_nodes))
    return graph, machine, draw(st.sampled_from(sorted(CHAINS))), draw(st.integers(0, 99))


@given(cases())
@settings(max_examples=30)
def test_plans_are_valid(case):
    graph, machine, name, _ = case
    for transfer in ("publish", "outer"):
        plan = compile(graph, CHAINS[name], machine, transfer, pack_seconds=0)
        assert validate(plan, "return") == []
    plan = compile(graph, CHAINS[name], machine, order="any", pack_seconds=0)
    assert validate(plan, "return", order="any") == []


def check_runs(case):
    graph, machine, name, seed = case
    for transfer in ("publish", "outer"):  # not bit by bit: kernels in strides sum in another order
        three_runs(compile(graph, CHAINS[name], machine, transfer), seed, 1e-5)


@given(cases(max_nodes=4))
@settings(max_examples=10)
def test_results_are_the_same(case):
    check_runs(case)


@pytest.mark.slow
@given(cases(max_nodes=12))
@settings(max_examples=120)
def test_many_more_results(case):
    check_runs(case)


@pytest.mark.slow
@given(graphs(max_nodes=14, only=MAKERS, min_dim=0), st.sampled_from(sorted(CHAINS)))
@settings(max_examples=600)
def test_many_more_are_sound(graph, name):
    for one in CHAINS[name]:
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
