"""FuseNormConv: before and after as text, every refusal, what holds on any graph, and what it saves on networks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import memopt
import passes
from memopt.analysis import needed_bytes, peak_bytes
from memopt.ir import Graph, GraphBuilder, parse, print_graph
from memopt.pipeline import known_passes, run_pipeline
from tests.frontends.onnx_models import LIGHT, theirs
from tests.strategies import feeds_for
from tests.twins import storage_faults

FUSED = (passes.FuseNormConv(), passes.InplaceShare())

HEAD = """graph "g" {
  input %x: f32[1,2,4,4]
  param %w: f32[3,2,1,1]
  param %s: f32[2] = [1, 2]
  param %t: f32[2] = [0, 1]
  param %k: f32[2,1,1] = [3, 4]
"""
NORM = "  %n = BatchNormalization(%a, %s, %t, %t, %s)"

LAYER = (
    HEAD
    + """  %a = Relu(%x)
  %n = BatchNormalization(%a, %s, %t, %t, %s) {epsilon=0.001} after(a)
  %r = Relu(%n)
  %c = Conv(%r, %w)
  %y = Concat(%a, %c) {axis=1} after(n, c)
  output %y
}"""
)

SCALED = (
    HEAD.replace("input %x", "param %b: f32[3]\n  input %x")
    + NORM.replace("%a", "%x")
    + """
  %m = Mul(%k, %n)
  %q = Neg(%x)
  %p = Add(%m, %k)
  %r = Relu(%p)
  %c = Conv(%r, %w, %b) {strides=[1,1]}
  output %q
  output %c
}"""
)

REFUSED = (
    HEAD
    + """  %a = Relu(%x)
  %n = BatchNormalization(%a, %s, %t, %t, %s)
  %r = Relu(%n)
  %c = Conv(%r, %w)
  %m = BatchNormalization(%x, %s, %t, %t, %s)
  %d = Conv(%m, %w) {pads=[1,1,1,1]}
  %e = Conv(%x, %w)
  output %c
  output %d
  output %e
}"""
)

CASES = {"fuse_norm_conv_layer": LAYER, "fuse_norm_conv_scaled": SCALED, "fuse_norm_conv_refused": REFUSED}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    graph = parse(CASES[name])
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [passes.FuseNormConv()])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/{name}.txt", f"{before}\n# {passes.FuseNormConv()!r}\n{why}\n{print_graph(graph)}")


def test_it_is_found_by_its_name() -> None:
    assert "fuse-norm-conv" in {one.name for one in passes.FUSE[0].parts}
    assert "fuse-norm-conv" in known_passes()


# -- refusals ---------------------------------------------------------------------------------------------------------

CONV = "  %r = Relu(%n)\n  %c = Conv(%r, %w)\n"
END = "  %z = Neg(%a)\n  output %z\n  output %c\n}"


def refusal(body: str, edit: Callable[[Graph], None] = lambda graph: None) -> tuple[str, str]:
    """(rule, reason) of the one candidate of the graph, which is refused."""
    graph = parse(HEAD + "  %a = Relu(%x)\n" + body)
    edit(graph)
    before = print_graph(graph)
    result = passes.FuseNormConv().run(graph)
    assert not result.modified
    assert print_graph(graph) == before
    (decision,) = result.decisions
    assert not decision.accepted
    assert decision.bytes == 128
    return str(decision.rule), decision.reason


@pytest.mark.parametrize(
    ("body", "rule", "words"),
    [
        (NORM + " {training_mode=1}\n" + CONV + END, "training", "training batch normalization: %n needs"),
        (NORM + "\n" + CONV + "  output %n\n" + END, "input-is-output", "%n is an output"),
        (NORM + "\n" + CONV + "  output %r\n" + END, "input-is-output", "%r is an output"),
        (NORM + "\n" + CONV + "  %q = Neg(%r)\n  output %q\n" + END, "read-by-others", "%r is read by others: it is"),
        (NORM + "\n" + CONV + "  %q = Neg(%n)\n  output %q\n" + END, "read-by-others", "read by r, q"),
        (NORM + "\n" + CONV.replace("%w)", "%w) @gpu") + END, "different-device", "(BatchNormalization) on None"),
        (NORM + " @gpu\n" + CONV.replace(")", ") @gpu") + END, "different-device", "a (Relu) on None"),
        (NORM + "\n" + CONV.replace("%w)", "%w) {strides=[2,2]}") + END, "no-kernel", "one tap, stride 1, no pads"),
        (NORM + "\n" + CONV + "  output %c\n}", "nothing-to-save", "%a ends before node c: holding it"),
        (
            NORM + "\n" + CONV.replace("  %c", "  %q = Neg(%x) after(n)\n  %c") + "  output %q\n" + END,
            "unordered",
            "q must run after n (control edge), and stands before c",
        ),
        (
            NORM + "\n" + CONV.replace("  %c", "  %q = Increment(%t)\n  %c") + "  output %q\n" + END,
            "update-output",
            "q (Increment) updates %t",
        ),
        (
            "  %a2 = Relu(%x)\n  %v = Reshape(%a2) {shape=[1,2,4,4]}\n"
            + NORM.replace("%a", "%v")
            + "\n"
            + CONV.replace("  %c", "  %q = Increment(%a2)\n  %c")
            + "  output %q\n"
            + END,
            "update-output",
            "q (Increment) updates %a2",
        ),
    ],
)
def test_refusals_say_why(body: str, rule: str, words: str) -> None:
    found = refusal(body)
    assert found[0] == rule
    assert words in found[1]


@pytest.mark.parametrize("name", ["a", "n", "r", "c"])
def test_what_is_left_out_is_left_alone(name: str) -> None:
    def leave_out(graph: Graph) -> None:
        graph.excluded.add(name)

    assert refusal(NORM + "\n" + CONV + END, leave_out) == ("excluded", f"%{name} is left out by request")


def test_a_residual_sum_is_no_scale_layer() -> None:
    graph = parse(HEAD + "  %a = Relu(%x)\n" + NORM + "\n  %m = Add(%n, %x)\n" + CONV.replace("%n", "%m") + END)
    result = passes.FuseNormConv().run(graph)
    assert (result.modified, list(result.decisions)) == (False, [])


SHARERS = (
    HEAD
    + """  %a = Relu(%x)
  %v = Flatten(%a)
  %n = BatchNormalization(%a, %s, %t, %t, %s)
  %r = Relu(%n)
  %c = Conv(%r, %w)
  %z = Neg(%v)
  output %z
  output %c
}"""
)


def test_bytes_that_a_view_holds_on_count_as_held() -> None:
    """%a ends at the normalization, but its bytes are those of %v: the other way round there is nothing to save."""
    (decision,) = passes.FuseNormConv().run(parse(SHARERS)).decisions
    assert (decision.accepted, decision.bytes) == (True, 128)
    found = parse(SHARERS.replace("Neg(%v)", "Neg(%x)"))
    assert not passes.FuseNormConv().run(found).modified


def test_what_lives_longer_shares_no_bytes() -> None:
    graph = parse(SHARERS)
    run_pipeline(graph, [passes.InplaceShare()])
    (decision,) = passes.FuseNormConv().run(graph).decisions
    assert (decision.accepted, decision.rule) == (False, "already-borrowed")
    assert "fuse before sharing" in decision.reason
    graph = parse(LAYER)
    run_pipeline(graph, [passes.InplaceShare()])
    assert passes.FuseNormConv().run(graph).modified  # %a lives on as it is
    assert storage_faults(graph) == []


def test_one_fusion_may_hold_what_another_reads() -> None:
    """%a is read by both, and held to the last convolution: as the first one is listed it cannot know that."""
    body = """  %a = Relu(%x)
  %n = BatchNormalization(%a, %s, %t, %t, %s)
  %v = Flatten(%a)
  %m = BatchNormalization(%a, %s, %t, %t, %s)
  %c = Conv(%n, %w)
  %d = Conv(%m, %w)
  %z = Neg(%v)
  output %z
  output %c
  output %d
}"""
    graph = parse(HEAD + body)
    result = passes.FuseNormConv().run(graph)
    assert [d.accepted for d in result.decisions] == [True, True]
    assert not passes.FuseNormConv().run(graph).modified


# -- any graph --------------------------------------------------------------------------------------------------------

SHAPE = (2, 3, 3, 3)


class _Drawn:
    """Images of one shape, and layers of them: normalised, scaled, activated and convolved."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = GraphBuilder("drawn")
        self.rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.values = [self.builder.input("x0", SHAPE), self.builder.input("x1", SHAPE, donated=draw(st.booleans()))]
        self.weights = [self.param(3, 3, 1, 1), self.param(3, 3, 1, 1), self.param(3, 3, 3, 3)]
        self.vectors, self.scales = [self.param(3), self.param(3)], [self.param(3, 1, 1), self.param(1, 3, 1, 1)]
        self.var = self.builder.param("var", self.rng.uniform(0.5, 2, 3).astype(np.float32))

    def param(self, *shape: int) -> Any:
        name = self.builder.graph.fresh_name("w")
        return self.builder.param(name, self.rng.standard_normal(shape).astype(np.float32) / 2)

    def value(self) -> Any:
        return self.values[-1 - min(self.draw(st.integers(0, 3)), len(self.values) - 1)]

    def step(self, op: str) -> None:
        self.values.append(self.layer() if op == "layer" else self.make(op, self.value()))

    def layer(self) -> Any:
        """What is between may be read by others, too, and others may stand between."""
        made = [self.make("BatchNormalization", self.value())]
        for op in ("Mul", "Add", "Relu"):
            if self.draw(st.booleans()):
                scale = [self.draw(st.sampled_from(self.scales))] if op != "Relu" else []
                made.append(self.builder.op(op, made[-1], *scale))
            if self.draw(st.integers(0, 4)) == 0:
                self.step(self.draw(st.sampled_from(["Neg", "Concat", "Add"])))
        made.append(self.make("Conv", made[-1]))
        if self.draw(st.integers(0, 5)) == 0:
            self.values.append(self.draw(st.sampled_from(made)))
        return made[-1]

    def make(self, op: str, value: Any) -> Any:
        if op == "Conv":
            weights = self.draw(st.sampled_from(self.weights))
            bias = [self.vectors[0]] * self.draw(st.booleans())
            return self.builder.op("Conv", value, weights, *bias, pads=(weights.shape[2] // 2,) * 4)
        if op == "BatchNormalization":
            scale, shift, mean = self.vectors[0], self.draw(st.sampled_from(self.vectors)), self.vectors[1]
            return self.builder.op(op, value, scale, shift, mean, self.var)
        if op == "Concat":
            joined = self.builder.op("Concat", value, self.value(), axis=1)
            return self.builder.op("Conv", joined, self.param(3, 6, 1, 1))
        if op == "Add":
            return self.builder.op(op, value, self.value())
        return self.builder.op(op, value, **({"shape": SHAPE} if op == "Reshape" else {}))


_OPS = ("layer",) * 5 + ("Conv", "BatchNormalization", "Add", "Relu", "Neg", "Reshape", "Concat")


@st.composite
def layered_graphs(draw: st.DrawFn, devices: tuple[str | None, ...] = (None,)) -> Graph:
    drawn = _Drawn(draw)
    for op in draw(st.lists(st.sampled_from(_OPS), min_size=2, max_size=7)):
        drawn.builder.device = draw(st.sampled_from(devices))
        drawn.step(op)
    graph = drawn.builder.graph
    for _ in range(draw(st.integers(0, 2))):
        first, second = sorted(draw(st.tuples(*[st.integers(0, len(graph.nodes) - 1)] * 2)))
        if first < second:
            graph.nodes[second].controls.append(graph.nodes[first])
    extra = draw(st.lists(st.sampled_from(drawn.values), max_size=2))
    drawn.builder.output(*dict.fromkeys([drawn.values[-1], *extra]))
    return drawn.builder.build()


def levels(graph: Graph) -> tuple[int, int]:
    """The most bytes that are needed, and that are live as stored."""
    return int(needed_bytes(graph).max()), peak_bytes(graph)


@given(graph=layered_graphs(devices=(None, None, None, "gpu")))
@settings(max_examples=80)
def test_it_changes_only_what_it_says(graph: Graph) -> None:
    before, ends = print_graph(graph), (list(graph.inputs), list(graph.params), list(graph.outputs))
    peaks, values = levels(graph), {value.name: value for value in graph.values}
    (result,) = run_pipeline(graph, [passes.FuseNormConv()])
    after = print_graph(graph)
    assert result.modified == (before != after) == any(d.accepted for d in result.decisions)
    assert print_graph(parse(after)) == after
    assert (graph.inputs, graph.params, graph.outputs) == ends
    assert all(values[value.name] is value for value in graph.values)
    assert all(graph.nodes[d.step].name == d.node for d in result.decisions)
    made = [d.node for d in result.decisions if d.accepted]
    assert made == [node.name for node in graph.nodes if node.op == "NormConv"]
    assert all(0 < d.bytes <= values[d.subject[0]].nbytes for d in result.decisions)
    assert all(now <= then for now, then in zip(levels(graph), peaks, strict=True))
    (again,) = run_pipeline(graph, [passes.FuseNormConv()])
    assert not again.modified
    assert print_graph(graph) == after


@given(graph=layered_graphs(), first=st.sampled_from([passes.SHARE, passes.RENAME, passes.BEST]))
@settings(max_examples=25)
def test_it_leaves_shared_storage_sound(graph: Graph, first: Any) -> None:
    run_pipeline(graph, [*first, passes.FuseNormConv()])
    assert storage_faults(graph) == []
    run_pipeline(graph, [passes.InplaceShare()])
    assert storage_faults(graph) == []


MACHINES = {
    "host": memopt.Machine.host_only(),
    "gpu": memopt.Machine.host_and("gpu"),
    "no-norm": memopt.Machine.host_and("gpu", lacks={"BatchNormalization"}),
    "no-fused": memopt.Machine.host_and("gpu", lacks={"NormConv"}),
    "nhwc": memopt.Machine.host_and("gpu", layouts={"Conv": "NHWC", "BatchNormalization": "NHWC"}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "nhwc")) for n in MACHINES])
@given(data=st.data())
@settings(max_examples=25)
def test_results_are_the_same_and_plans_hold(name: str, data: st.DataObject) -> None:
    devices = (None,) if name == "host" else (None, None, "host")
    graph = data.draw(layered_graphs(devices))
    strategy = data.draw(st.sampled_from([FUSED, (passes.FuseConvAdd(), passes.FuseNormConv(), *passes.BEST)]))
    order = data.draw(st.sampled_from(["listed", "listed", "any"]))
    plan = memopt.compile(graph, strategy, MACHINES[name], order=order, pack_seconds=0)  # validated
    feeds = feeds_for(graph, 1)
    want, _ = memopt.run_reference(graph, feeds)
    found = plan.run(feeds)
    for key, array in want.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5 * max(float(np.abs(array).max()), 1.0))


# -- networks ---------------------------------------------------------------------------------------------------------


def dense_block(channels: int = 8, size: int = 12, scaled: bool = True, batch: int = 1) -> onnx.ModelProto:
    """Three layers that read all before them; `scaled`: after each normalization a Mul and an Add."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    params: list[Any] = []

    def param(*shape: int, low: float = -1.0) -> str:
        params.append(numpy_helper.from_array(rng.uniform(low, 1, shape).astype(np.float32), f"p{len(params)}"))
        return str(params[-1].name)

    def act(op: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attrs))
        return f"v{len(nodes) - 1}"

    def layer(x: str, depth: int, maps: int, kernel: int) -> str:
        y = act("BatchNormalization", x, *(param(depth, low=0.5 if i == 3 else -1.0) for i in range(4)))
        for op in ("Mul", "Add") if scaled else ():
            y = act(op, y, param(depth, 1, 1))
        return act("Conv", act("Relu", y), param(maps, depth, kernel, kernel), pads=[kernel // 2] * 4)

    x = act("Relu", "x")
    for i in range(3):
        y = layer(layer(x, channels * (i + 2), 2 * channels, 1), 2 * channels, channels, 3)
        x = act("Concat", x, y, axis=1)
    shape = (batch, 2 * channels, size, size)
    feed = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "block", [feed], [result], params)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)


@pytest.mark.parametrize(("scaled", "batch"), [(True, 1), (False, 2)])
def test_a_dense_block_agrees_with_onnxruntime_and_needs_less(tmp_path: Any, scaled: bool, batch: int) -> None:
    model = onnx.shape_inference.infer_shapes(dense_block(scaled=scaled, batch=batch))
    path = tmp_path / "block.onnx"
    onnx.save(model, path)
    graph = memopt.load(path)
    feeds = feeds_for(graph, 2)
    want = theirs(model, feeds)
    plans = [memopt.compile(graph, passes.BEST), memopt.compile(graph, passes.FUSE)]
    for plan in plans:
        found = plan.run(feeds)
        assert found.host_calls == ()
        for name, array in want.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * float(np.abs(array).max()))
    unit = batch * 8 * 12 * 12 * 4
    assert [plan.devices["host"].height_bytes // unit for plan in plans] == [10, 7]


@pytest.mark.slow
def test_densenet121_needs_two_mebibytes_less() -> None:
    graph = memopt.load(os.path.join(LIGHT, "light_densenet121.onnx"), weights="random", seed=3)
    plan = memopt.compile(graph, "fuse")
    use = plan.devices["host"]
    apart = sum(value.nbytes for value in (*plan.graph.inputs, *plan.graph.params))
    assert use.height_bytes == int(needed_bytes(plan.graph).max()) - apart
    assert use.height_bytes / 2**20 == pytest.approx(4.594, abs=1e-3)
    assert sum(node.op == "NormConv" for node in plan.graph.nodes) == 58


def test_training_keeps_what_its_gradients_read() -> None:
    graph = memopt.models.build("densenet121", image=32, train=True)
    result = passes.FuseNormConv().run(graph)
    assert not result.modified
    assert {d.rule for d in result.decisions} == {"training"}
