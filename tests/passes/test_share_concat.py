"""Concat by view: sound on every graph and machine, never worse than copying, as good as trying every subset."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.analysis import Body, Occupancy, joined_at, peak_bytes, view_source
from memopt.ir import Graph, parse
from memopt.lowering import Call
from memopt.pipeline import run_pipeline
from tests.strategies import feeds_for, graphs
from tests.test_whole_line import DEVICES, MACHINES, ROUNDS, three_runs
from tests.twins import storage_faults

BY_VIEW = passes.BEST
MAKERS = ("concat", "unary", "split", "slice", "reshape", "binary", "conv", "increment", "cast", "sum")
JOINS = graphs(max_nodes=14, only=MAKERS, min_dim=0)


def joined_places(graph: Graph) -> list[tuple[str, str, bool]]:
    """(input, result, whether it lies in its slice) for each run of each Concat."""
    storage, found = graph.storage, []
    for node in graph.nodes:
        for _, output in node.real_outputs:
            for _, source, offset in joined_at(output):
                mine, theirs = storage.variable(source), storage.variable(output)
                there = mine.buffer is theirs.buffer and mine.offset == theirs.offset + offset
                found.append((source.name, output.name, there))
    return found


@given(JOINS)
@settings(max_examples=150)
def test_joins_are_sound_and_raise_no_peak(graph):
    run_pipeline(graph, [passes.InplaceShare()])
    peak = peak_bytes(graph)
    (result,) = run_pipeline(graph, [passes.ShareConcat()])
    assert storage_faults(graph) == []
    assert peak_bytes(graph) <= peak
    accepted = [d.subject for d in result.decisions if d.accepted]
    there = {(source, output) for source, output, is_there in joined_places(graph) if is_there}
    assert set(accepted) <= there
    for one in (passes.InplaceShare(), passes.ReuseShare(), passes.InplaceShare(), passes.ShareConcat()):
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
    assert storage_faults(graph) == []
    assert peak_bytes(graph) <= peak


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(MACHINES)))
    graph = draw(graphs(devices=DEVICES[name], only=MAKERS, max_nodes=12))
    return name, graph, {"free": draw(st.sampled_from(["eager", "eager", "never"]))}, draw(st.integers(0, 99))


@given(cases())
@settings(max_examples=50)
def test_plans_with_joins_are_valid_and_right(case):
    name, graph, options, seed = case
    base = compile(graph, "none", MACHINES[name], **options)
    for chain, transfer in ((BY_VIEW, "publish"), ((*BY_VIEW, passes.ReuseShare()), "outer")):
        plan = compile(graph, chain, MACHINES[name], transfer, **options)
        assert validate(plan, findings="return") == []
        three_runs(plan, seed, ROUNDS.get(name, 1e-3), base)


# -- the slow twin: every subset of every join ---------------------------------------------------------------------


def exhaustive_peak(graph: Graph) -> int:
    """The lowest peak that any choice of inputs to be made in their slices reaches, over all sound choices."""
    pairs = [
        (source.name, output.name, offset)
        for node in graph.nodes
        for _, output in node.real_outputs
        if view_source(output) is None
        for _, source, offset in joined_at(output)
    ]
    best = peak_bytes(graph)
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        twin = graph.copy()
        done = all(put(twin, *pair) for pair, wanted in zip(pairs, chosen, strict=True) if wanted)
        if done and storage_faults(twin) == [] and not outputs_meet(twin):
            best = min(best, peak_bytes(twin))
    return best


def put(graph: Graph, source: str, output: str, offset: int) -> bool:
    """Put the input where it lies in the result; False if that contradicts where it lies already, or is a feed's."""
    occupancy = Occupancy(graph)
    mine, theirs = graph.storage.variable(graph.value(source)), graph.storage.variable(graph.value(output))
    if mine.buffer is theirs.buffer:
        return mine.offset == theirs.offset + offset
    buffers = (mine.buffer, theirs.buffer)
    if any(tenant.value.producer is None for buffer in buffers for tenant in occupancy.tenants(buffer)):
        return False
    occupancy.join([Body(mine.buffer, theirs.offset + offset - mine.offset), Body(theirs.buffer, 0)])
    return True


def outputs_meet(graph: Graph) -> bool:
    """Whether two outputs of the graph share bytes."""
    places = [(graph.storage.variable(value), value.nbytes) for value in graph.outputs]
    return any(
        a.buffer is b.buffer and a.offset < b.offset + m and b.offset < a.offset + n
        for (a, n), (b, m) in itertools.combinations(places, 2)
    )


@given(graphs(max_nodes=8, only=("concat", "unary", "binary"), donated=False))
@settings(max_examples=150)
def test_no_choice_of_slices_is_better(graph):
    pairs = joined_places(graph)
    if not 0 < len(pairs) <= 6:
        return
    best = exhaustive_peak(graph)
    run_pipeline(graph, [passes.ShareConcat()])
    assert peak_bytes(graph) == best


# -- the cases that users know ---------------------------------------------------------------------------------------


def dense_block(channels: int = 4, growth: int = 2, layers: int = 4, side: int = 6) -> Graph:
    """DenseNet's growing Concat: each layer reads all that was made before it."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("dense")

    def conv(value, out):
        weight = rng.standard_normal((out, value.shape[1], 1, 1)).astype(np.float32)
        return b.op("Conv", value, b.param(f"w{len(b.graph.params)}", weight))

    block = conv(b.input("x", (1, 2, side, side)), channels)
    for _ in range(layers):
        block = b.op("Concat", block, conv(b.relu(block), growth), axis=1)
    b.output(conv(block, 1))
    return b.build()


def test_one_buffer_serves_a_dense_block():
    graph = dense_block(layers=4)
    run_pipeline(graph, BY_VIEW)
    concats = [node.outputs[0] for node in graph.nodes if node.op == "Concat"]
    assert all(there for *_, there in joined_places(graph))
    assert len({graph.storage.buffer(value) for value in concats}) == 1


def test_eight_products_need_only_what_they_fill():
    b = GraphBuilder("eight")
    x = b.input("x", (16, 8))
    parts = [b.matmul(x, b.param(f"w{i}", np.ones((8, 16), np.float32))) for i in range(8)]
    b.output(b.matmul(b.op("Concat", *parts, axis=0), b.param("v", np.ones((16, 1), np.float32))))
    graph = b.build()
    bytes_of_parts, result = 8 * 16 * 16 * 4, 8 * 16 * 4
    assert compile(graph, "share").devices["host"].height_bytes == 2 * bytes_of_parts
    plan = compile(graph, BY_VIEW)
    assert plan.devices["host"].height_bytes == bytes_of_parts + result
    assert validate(plan, "return", order="any") == []
    call = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "Concat")
    assert [o.offset for o in call.inputs] == [call.outputs[0].offset + i * 16 * 16 * 4 for i in range(8)]
    assert {o.buffer for o in (*call.inputs, *call.outputs)} == {call.outputs[0].buffer}


def test_gradients_of_concat_and_split_copy_nothing():
    """Forward Concat and backward Split, forward Split and backward Concat: every part lies where it belongs."""
    text = """graph "both" {
      input %x: f32[4,3]
      %a = Relu(%x)
      %b = Neg(%x)
      %c = Concat(%a, %b) {axis=0}
      %d = Tanh(%c)
      %p, %q = Split(%d) {axis=0}
      %r = Sigmoid(%p)
      %s = Abs(%q)
      %t = Concat(%r, %s) {axis=0}
      %u = Exp(%t)
      output %u
    }"""
    graph = parse(text)
    run_pipeline(graph, BY_VIEW)
    assert all(there for *_, there in joined_places(graph))
    assert len({graph.storage.buffer(graph.value(name)) for name in "abcdpqrstu"}) == 1
    assert storage_faults(graph) == []
    assert compile(graph, ()).devices["host"].height_bytes == 2 * 4 * 3 * 4


REFUSED = {
    "batch of two": ("%t = Transpose(%a) %c = Concat(%t, %b) {axis=1}", "in-strides"),
    "a feed": ("%c = Concat(%x, %b) {axis=0}", "input-is-pinned"),
    "twice": ("%c = Concat(%a, %a) {axis=0}", "repeated-operand"),
    "overwritten meanwhile": ("%c = Concat(%a, %b) {axis=0} %d = Increment(%a) %e = Add(%d, %d)", "already-lent"),
    "both are outputs": ("%c = Concat(%a, %b) {axis=0} output %a", "input-is-output"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_reasons(name):
    nodes, rule = REFUSED[name]
    text = f'graph "g" {{ input %x: f32[2,2] %a = Relu(%x) %b = Neg(%x) {nodes} output %c output %b }}'
    graph = parse(text if "%e" not in nodes else text.replace("output %c", "output %c output %e"))
    (result,) = run_pipeline(graph, [passes.ShareConcat()])
    assert rule in [str(d.rule) for d in result.decisions if not d.accepted]


def test_a_join_on_two_devices_is_refused():
    graph = dense_block()
    for node in graph.nodes:
        if node.op == "Relu":
            node.device = "gpu"
    plan = compile(graph, BY_VIEW, Machine.host_and("gpu", lacks={"Concat"}))
    rules = {str(d.rule) for d in plan.decisions if d.pass_name == "share-concat" and not d.accepted}
    assert rules == {"different-device"}
    feeds = feeds_for(graph, 1)
    want, _ = run_reference(graph, feeds)
    for name, array in plan.run(feeds).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-5)


@pytest.mark.parametrize("parts", ["%slice, %slice", "%slice, %x", "%x, %slice"])
def test_a_view_in_strides_is_not_written_around_while_it_is_read(parts):
    """The Concat would write between the elements of the slice, which it reads in strides, at its own step."""
    graph = parse(
        f'graph "g" {{ input %x: f32[2,3,3,3] %whole = Concat(%x, %x) {{axis=1}} '
        f"%slice = Slice(%whole) {{axes=[1], ends=[4], starts=[1]}} %c = Concat({parts}) {{axis=1}} "
        "%r = Neg(%c) output %r }"
    )
    plan = compile(graph, (passes.ShareViews(), passes.InplaceShare(), passes.ShareConcat()))
    assert any(d.pass_name == "share-concat" and d.rule == "in-strides" for d in plan.decisions)
