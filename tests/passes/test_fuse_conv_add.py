"""FuseConvAdd: before and after as text, every refusal, what holds on any graph, and what it saves on networks."""

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
from memopt.analysis import needed_bytes
from memopt.ir import Graph, GraphBuilder, Node, parse, print_graph, verify
from memopt.pipeline import run_pipeline
from tests.frontends.onnx_models import LIGHT, theirs
from tests.strategies import feeds_for
from tests.twins import storage_faults

FUSED = (passes.FuseConvAdd(), passes.InplaceShare())

HEAD = """graph "g" {
  input %x: f32[1,2,4,4]
  param %w: f32[2,2,3,3]
  param %s: f32[2] = [1, 2]
  param %t: f32[2] = [0, 1]
"""

BLOCK = (
    HEAD
    + """  %a = Relu(%x)
  %r = Neg(%x) after(a)
  %c = Conv(%a, %w) {pads=[1,1,1,1]}
  %n = BatchNormalization(%c, %s, %t, %t, %s) {epsilon=0.001}
  %y = Add(%r, %n) after(a)
  %z = Relu(%y)
  %q = Neg(%z) after(c, y)
  output %q
}"""
)

LATER = """graph "later" {
  input %x: f32[1,1,4,4]
  input %k: f32[1,4,4,4]
  param %w: f32[4,1,1,1]
  %a = Relu(%x)
  %c = Conv(%a, %w)
  %r = Relu(%k)
  %l = Neg(%r)
  %y = Add(%c, %r)
  %z = Relu(%y)
  output %l
  output %z
}"""

SHORTCUT = """graph "shortcut" {
  input %x: f32[1,2,4,4]
  param %w: f32[8,2,1,1]
  param %b: f32[8]
  %a = Relu(%x)
  %p = Conv(%a, %w)
  %q = Conv(%a, %w, %b)
  %y = Sum(%p, %q)
  %z = Neg(%y) after(q)
  output %y
  output %z
}"""

REFUSED = (
    HEAD
    + """  %a = Relu(%x)
  %c = Conv(%a, %w) {pads=[1,1,1,1]}
  %d = Conv(%c, %w) {pads=[1,1,1,1]}
  %e = Add(%c, %d)
  %f = Conv(%e, %w) {pads=[1,1,1,1]}
  %g = Add(%f, %x)
  %h = Conv(%g, %w) {pads=[1,1,1,1]}
  %k = Add(%h, %a)
  %l = Mul(%k, %a)
  output %l
}"""
)

CASES = {
    "fuse_conv_add_block": BLOCK,
    "fuse_conv_add_later": LATER,
    "fuse_conv_add_shortcut": SHORTCUT,
    "fuse_conv_add_refused": REFUSED,
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    graph = parse(CASES[name])
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [passes.FuseConvAdd()])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/{name}.txt", f"{before}\n# {passes.FuseConvAdd()!r}\n{why}\n{print_graph(graph)}")


# -- refusals ---------------------------------------------------------------------------------------------------------

CONV = "  %c = Conv(%a, %w) {pads=[1,1,1,1]}\n"
SUM = "  %r = Neg(%x)\n  %y = Add(%r, %c)\n"
END = "  output %y\n}"


def refusal(body: str, edit: Callable[[Graph], None] = lambda graph: None) -> tuple[str, str]:
    """(rule, reason) of the one candidate of the graph, which is refused."""
    graph = parse(HEAD + "  %a = Relu(%x)\n" + body)
    edit(graph)
    before = print_graph(graph)
    result = passes.FuseConvAdd().run(graph)
    assert not result.modified
    assert print_graph(graph) == before
    (decision,) = result.decisions
    assert not decision.accepted
    assert decision.bytes == 128
    return str(decision.rule), decision.reason


NORM = "  %n = BatchNormalization(%c, %s, %t, %t, %s)"


@pytest.mark.parametrize(
    ("body", "rule", "words"),
    [
        (CONV + SUM + "  output %c\n" + END, "input-is-output", "conv result %c is an output"),
        (CONV + SUM + "  %z = Neg(%c)\n  output %z\n" + END, "read-by-others", "%c is read by others"),
        (CONV + "  %y = Add(%c, %c)\n" + END, "read-by-others", "read by y"),
        (CONV + SUM + "  %z = Mul(%r, %y)\n  output %z\n}", "not-last-use", "addend %r is read later by node z (Mul)"),
        (CONV + SUM + "  output %r\n" + END, "input-is-pinned", "%r is an output of the graph"),
        (CONV + "  %y = Add(%c, %x)\n" + END, "input-is-pinned", "%x is a feed"),
        (CONV + "  %v = Reshape(%x) {shape=[1,2,4,4]}\n  %y = Add(%c, %v)\n" + END, "input-is-pinned", "%x is a feed"),
        (CONV + "  %y = Add(%c, %a)\n" + END, "repeated-operand", "%a is what the convolution reads"),
        (CONV + "  %y = Sum(%c, %a, %x)\n" + END, "operands", "3 operands"),
        (CONV + "  %v = Reshape(%t) {shape=[2,1,1]}\n  %y = Add(%c, %v)\n" + END, "broadcast", "%v: f32[2,1,1]"),
        (
            CONV + NORM + " {training_mode=1}\n" + SUM.replace("%c", "%n") + END,
            "training",
            "training batch normalization",
        ),
        (CONV + NORM + "\n" + SUM.replace("%c", "%n") + "  output %n\n" + END, "input-is-output", "%n is an output"),
        (
            CONV + NORM + "\n  %z = Neg(%c)\n  output %z\n" + SUM.replace("%c", "%n") + END,
            "read-by-others",
            "conv result %c",
        ),
        (CONV + SUM.replace("Add(%r, %c)", "Add(%r, %c) @gpu") + END, "different-device", "y (Add) on gpu"),
        (CONV + SUM.replace("Neg(%x)", "Neg(%x) @gpu") + END, "different-device", "%r is made on device gpu"),
        (
            CONV + "  %k = Neg(%x) after(c)\n  %r = Neg(%k)\n  %y = Add(%r, %c)\n  output %k\n" + END,
            "unordered",
            "k must run after c (control edge), which must wait for %r",
        ),
        (
            "  %i = Neg(%x)\n  %c = Conv(%i, %w) {pads=[1,1,1,1]}\n  %o = Increment(%i)\n  %y = Add(%o, %c)\n" + END,
            "update-output",
            "o (Increment) updates %i",
        ),
    ],
)
def test_refusals_say_why(body: str, rule: str, words: str) -> None:
    found = refusal(body)
    assert found[0] == rule
    assert words in found[1]


@pytest.mark.parametrize("name", ["c", "r", "y"])
def test_what_is_left_out_is_left_alone(name: str) -> None:
    def leave_out(graph: Graph) -> None:
        graph.excluded.add(name)

    assert refusal(CONV + SUM + END, leave_out) == ("excluded", f"%{name} is left out by request")


def test_shared_bytes_are_left_alone() -> None:
    def share(graph: Graph) -> None:
        passes.InplaceShare().run(graph)

    rule, reason = refusal(CONV + SUM + END, share)
    assert rule == "already-borrowed"
    assert "fuse before sharing" in reason


def test_x_is_not_held_where_that_costs_what_is_saved() -> None:
    """x is eight times as large as the result, and would be held until the addend is made."""
    text = """graph "wide" {
      input %x: f32[1,16,8,8]
      input %k: f32[1,2,8,8]
      param %w: f32[2,16,1,1]
      %a = Relu(%x)
      %c = Conv(%a, %w)
      %r = Relu(%k)
      %y = Add(%c, %r)
      output %y
    }"""
    graph = parse(text)
    (decision,) = passes.FuseConvAdd().run(graph).decisions
    assert (decision.accepted, decision.rule) == (False, "raises-peak")
    graph = parse(text.replace("f32[1,16,8,8]", "f32[1,3,8,8]").replace("f32[2,16,1,1]", "f32[2,3,1,1]"))
    assert not passes.FuseConvAdd().run(graph).modified  # held: x and r, before: x and c, then c and r
    graph = parse(text.replace("f32[1,16,8,8]", "f32[1,1,8,8]").replace("f32[2,16,1,1]", "f32[2,1,1,1]"))
    assert passes.FuseConvAdd().run(graph).modified


def test_relu_stays_where_it_cannot_be_taken_along() -> None:
    for relu in (
        "  %z = Relu(%y) @gpu\n  output %z\n}",
        "  %z = Relu(%y)\n  output %y\n  output %z\n}",
        "  %k = Neg(%r)\n  %z = Relu(%y) after(k)\n  output %k\n  output %z\n}".replace("%r", "%x"),
    ):
        graph = parse(HEAD + "  %a = Relu(%x)\n  %r = Neg(%x)\n" + CONV + "  %y = Add(%r, %c)\n" + relu)
        assert passes.FuseConvAdd().run(graph).modified
        verify(graph)
        assert graph.node("y").op == "FusedConv"
        assert graph.node("z").op == "Relu"


def test_a_donated_feed_is_an_addend_like_others() -> None:
    feeds = HEAD.replace("input", "input %k: f32[1,2,4,4] donated\n  input")
    graph = parse(feeds + CONV.replace("%a", "%x") + "  %y = Add(%c, %k)\n" + END)
    assert passes.FuseConvAdd().run(graph).modified
    plan = memopt.compile(graph, passes.InplaceShare())
    assert plan.devices["host"].height_bytes == 0


# -- any graph --------------------------------------------------------------------------------------------------------

SHAPE = (1, 3, 3, 3)


class _Drawn:
    """Images of one shape, made by convolutions, batch normalization, sums and the like of each other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = GraphBuilder("drawn")
        self.rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.values = [self.builder.input("x0", SHAPE), self.builder.input("x1", SHAPE, donated=draw(st.booleans()))]
        self.params = [self.param(3, 3, 1, 1), self.param(3, 3, 3, 3), self.param(3, 1, 3, 3)]
        self.bias, self.mean = self.param(3), self.param(3)
        self.var = self.builder.param("var", self.rng.uniform(0.5, 2, 3).astype(np.float32))

    def param(self, *shape: int) -> Any:
        name = self.builder.graph.fresh_name("w")
        return self.builder.param(name, self.rng.standard_normal(shape).astype(np.float32) / 2)

    def value(self) -> Any:
        return self.values[-1 - min(self.draw(st.integers(0, 3)), len(self.values) - 1)]

    def step(self, op: str) -> None:
        self.values.append(self.branch() if op == "branch" else self.make(op, self.value()))

    def branch(self) -> Any:
        """A convolution of one value that is added to another; what is between may be read by others, too."""
        made = [self.make("Conv", self.value())]
        if self.draw(st.booleans()):
            made.append(self.make("BatchNormalization", made[-1]))
        if self.draw(st.booleans()):
            self.step("Neg")
        operands = self.draw(st.permutations([made[-1], self.value()]))
        made.append(self.builder.op(self.draw(st.sampled_from(["Add", "Sum"])), *operands))
        if self.draw(st.booleans()):
            made.append(self.make("Relu", made[-1]))
        if self.draw(st.integers(0, 4)) == 0:
            self.values.append(self.draw(st.sampled_from(made)))
        return made[-1]

    def make(self, op: str, value: Any) -> Any:
        if op == "Conv":
            weights = self.draw(st.sampled_from(self.params))
            group = 3 if weights.shape[1] == 1 else 1
            size = weights.shape[2]
            bias = [self.bias] * self.draw(st.booleans())
            return self.builder.op("Conv", value, weights, *bias, group=group, pads=(size // 2,) * 4)
        if op == "BatchNormalization":
            return self.builder.op(op, value, self.bias, self.mean, self.mean, self.var)
        if op == "Add":
            return self.builder.op(op, value, self.value())
        if op == "bias":
            return self.builder.op("Add", value, self.builder.op("Reshape", self.bias, shape=(3, 1, 1)))
        return self.builder.op(op, value, **({"shape": SHAPE} if op == "Reshape" else {}))


_OPS = ("branch",) * 4 + ("Conv", "BatchNormalization", "Add", "Relu", "Neg", "Reshape", "bias")


@st.composite
def residual_graphs(draw: st.DrawFn, devices: tuple[str | None, ...] = (None,)) -> Graph:
    drawn = _Drawn(draw)
    for op in draw(st.lists(st.sampled_from(_OPS), min_size=2, max_size=8)):
        drawn.builder.device = draw(st.sampled_from(devices))
        drawn.step(op)
    graph = drawn.builder.graph
    for _ in range(draw(st.integers(0, 2))):
        first, second = sorted(draw(st.tuples(*[st.integers(0, len(graph.nodes) - 1)] * 2)))
        if first < second:
            graph.nodes[second].controls.append(graph.nodes[first])
    extra = draw(st.lists(st.sampled_from(drawn.values), max_size=1))
    drawn.builder.output(*dict.fromkeys([drawn.values[-1], *extra]))
    return drawn.builder.build()


def described(node: Node) -> tuple[Any, ...]:
    return node.op, node.inputs, node.outputs, dict(node.attrs), node.device


@given(graph=residual_graphs(devices=(None, None, None, "gpu")))
@settings(max_examples=120)
def test_it_changes_only_what_it_says(graph: Graph) -> None:
    before, nodes = print_graph(graph), {node: described(node) for node in graph.nodes}
    values = {value.name: value for value in graph.values}
    edges = [(one, node) for node in graph.nodes for one in node.controls]
    ends = (list(graph.inputs), list(graph.params), list(graph.outputs))
    peak = int(needed_bytes(graph).max())
    (result,) = run_pipeline(graph, [passes.FuseConvAdd()])
    after = print_graph(graph)
    assert result.modified == (before != after) == any(d.accepted for d in result.decisions)
    assert print_graph(parse(after)) == after
    assert (graph.inputs, graph.params, graph.outputs) == ends
    assert all(values[value.name] is value for value in graph.values)
    made = {node.name: node for node in graph.nodes}
    fused = [d for d in result.decisions if d.accepted]
    assert [d.node for d in fused] == [node.name for node in graph.nodes if node.op == "FusedConv"]
    assert all(made[d.node] is graph.nodes[d.step] for d in result.decisions)
    assert all(described(node) == nodes[node] for node in graph.nodes if node in nodes)
    stands = _stand_ins(graph, nodes)
    for one, node in edges:
        assert stands[one] is stands[node] or stands[one] in stands[node].controls
    assert int(needed_bytes(graph).max()) <= peak
    (again,) = run_pipeline(graph, [passes.FuseConvAdd()])
    assert not again.modified
    assert print_graph(graph) == after


def _stand_ins(graph: Graph, nodes: dict[Node, tuple[Any, ...]]) -> dict[Node, Node]:
    """Each of the old nodes, and the node that makes what it made or was made of it."""
    now = {value: node for node in graph.nodes for value in node.outputs}
    found = {node: node for node in graph.nodes}
    for node in reversed(nodes):
        if node not in found:
            (value,) = nodes[node][2]
            reader = next((other for other in nodes if value in nodes[other][1]), None)
            found[node] = now.get(value) or found[reader]
    return found


@given(graph=residual_graphs(), first=st.sampled_from([passes.SHARE, passes.RENAME, passes.BEST]))
def test_it_leaves_shared_storage_sound(graph: Graph, first: Any) -> None:
    run_pipeline(graph, [*first, passes.FuseConvAdd()])
    assert storage_faults(graph) == []
    run_pipeline(graph, [passes.InplaceShare()])
    assert storage_faults(graph) == []


MACHINES = {
    "host": memopt.Machine.host_only(),
    "gpu": memopt.Machine.host_and("gpu"),
    "no-norm": memopt.Machine.host_and("gpu", lacks={"BatchNormalization"}),
    "no-fused": memopt.Machine.host_and("gpu", lacks={"FusedConv"}),
    "nhwc": memopt.Machine.host_and("gpu", layouts={"Conv": "NHWC", "FusedConv": "NHWC"}),
}


@pytest.mark.parametrize("name", MACHINES)
@given(data=st.data())
@settings(max_examples=25)
def test_results_are_the_same_and_plans_hold(name: str, data: st.DataObject) -> None:
    devices = (None,) if name == "host" else (None, None, "host")
    graph = data.draw(residual_graphs(devices))
    before = print_graph(graph)
    order = data.draw(st.sampled_from(["listed", "listed", "any"]))
    plan = memopt.compile(graph, FUSED, MACHINES[name], order=order, pack_seconds=0)  # validated
    assert print_graph(graph) == before
    feeds = feeds_for(graph, 1)
    want, _ = memopt.run_reference(graph, feeds)
    found = plan.run(feeds)
    for key, array in want.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5 * max(float(np.abs(array).max()), 1.0))


def test_a_node_on_a_device_that_lacks_it_falls_back() -> None:
    graph = parse(BLOCK)
    for value in graph.params:
        graph.set_param(value.name, np.ones(value.shape, np.float32))
    plan = memopt.compile(graph, FUSED, MACHINES["no-fused"])
    (call,) = [i for i in plan.program.instructions if getattr(i, "op", "") == "FusedConv"]
    assert (call.device, call.fallback) == ("host", True)


# -- networks ---------------------------------------------------------------------------------------------------------


def residual_block(channels: int = 8, size: int = 12) -> onnx.ModelProto:
    """A bottleneck with a projected shortcut, and one without."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    params: list[Any] = []

    def param(name: str, *shape: int, low: float = -1.0) -> str:
        array = rng.uniform(low, 1, shape).astype(np.float32)
        params.append(numpy_helper.from_array(array, name))
        return name

    def layer(x: str, name: str, maps: int, width: int, kernel: int) -> str:
        weights = param(f"{name}.w", width, maps, kernel, kernel)
        nodes.append(helper.make_node("Conv", [x, weights], [f"{name}.c"], pads=[kernel // 2] * 4))
        norm = [param(f"{name}.{i}", width, low=0.5 if i == 3 else -1.0) for i in range(4)]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.c", *norm], [name]))
        return name

    def act(op: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"]))
        return f"v{len(nodes) - 1}"

    x = act("Relu", "x")
    for i in range(2):
        width = channels if i == 0 else 4 * channels
        y = act("Relu", layer(x, f"{i}.a", width, channels, 1))
        y = act("Relu", layer(y, f"{i}.b", channels, channels, 3))
        y = layer(y, f"{i}.c", channels, 4 * channels, 1)
        x = act("Relu", act("Add", y, x if i else layer(x, f"{i}.d", width, 4 * channels, 1)))
    feed = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, channels, size, size))
    result = helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "block", [feed], [result], params)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)


def test_a_residual_block_agrees_with_onnxruntime_and_needs_less(tmp_path: Any) -> None:
    model = onnx.shape_inference.infer_shapes(residual_block())
    path = tmp_path / "block.onnx"
    onnx.save(model, path)
    graph = memopt.load(path)
    feeds = feeds_for(graph, 2)
    want = theirs(model, feeds)
    plans = [memopt.compile(graph, one) for one in ((passes.InplaceShare(),), FUSED)]
    for plan in plans:
        found = plan.run(feeds)
        assert found.host_calls == ()
        for name, array in want.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * float(np.abs(array).max()))
    unit = 8 * 12 * 12 * 4
    assert [plan.devices["host"].height_bytes // unit for plan in plans] == [9, 6]


def test_resnet50_needs_two_mebibytes_less() -> None:
    graph = memopt.load(os.path.join(LIGHT, "light_resnet50.onnx"), weights="random", seed=3)
    plan = memopt.compile(graph, [passes.FuseConvAdd(), *passes.BEST])
    use = plan.devices["host"]
    apart = sum(value.nbytes for value in (*plan.graph.inputs, *plan.graph.params))
    assert use.height_bytes == int(needed_bytes(plan.graph).max()) - apart
    assert use.height_bytes / 2**20 == pytest.approx(4.977, abs=1e-3)
    assert sum(node.op == "FusedConv" for node in plan.graph.nodes) == 16


def test_training_keeps_what_its_gradients_read() -> None:
    graph = memopt.models.build("resnet18", image=32, train=True)
    result = passes.FuseConvAdd().run(graph)
    assert not result.modified
    assert {d.rule for d in result.decisions} == {"training"}
