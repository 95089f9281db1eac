"""`FoldPad`: padding that a convolution can read is no copy; what cannot be read so, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import passes
from memopt import GraphBuilder, Machine, compile, load, run_reference, validate
from memopt.analysis import peak_bytes
from memopt.autodiff import grad
from memopt.errors import TypeInferenceError
from memopt.ir import Graph, parse, print_graph
from memopt.lowering import resolve_devices
from memopt.pipeline import Decision, known_passes, run_pipeline
from passes import FoldPad
from tests.twins import storage_faults

# -- before and after, as text ----------------------------------------------------------------------------------------

CONV = """graph "conv" {
  input %x: f32[1,2,5,5]
  param %w: f32[3,2,3,3]
  %a = Relu(%x)
  %p = Pad(%a) {pads=[0,0,1,2,0,0,0,1]}
  %c = Conv(%p, %w) {auto_pad="SAME_UPPER", strides=[2,2]}
  %d = Conv(%p, %w)
  output %c
  output %d
}"""

POOLS = """graph "pools" {
  input %x: f32[1,2,6,6]
  %a = Relu(%x)
  %p = Pad(%a) {pads=[0,0,1,1,0,0,1,1]}
  %m = MaxPool(%p) {kernel_shape=[3,3], strides=[2,2]}
  %v = AveragePool(%p) {kernel_shape=[2,2], strides=[1,1]}
  %q = Pad(%x) {pads=[0,0,1,1,0,0,1,1]}
  %n = MaxPool(%q) {kernel_shape=[3,3], strides=[2,2]}
  output %m
  output %v
  output %n
}"""

TWICE = """graph "twice" {
  input %x: f64[2,1,7]
  param %w: f64[2,1,3]
  %p = Pad(%x) {pads=[0,0,1,0,0,0]}
  %q = Pad(%p) {pads=[0,0,0,0,0,2]}
  %c = Conv(%q, %w) {pads=[1,1]}
  output %c
}"""

CASES = {"conv": CONV, "pools": POOLS, "twice": TWICE}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    graph = parse(CASES[name])
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [FoldPad()])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/fold_pad_{name}.txt", f"{before}\n# {FoldPad()!r}\n{why}\n{print_graph(graph)}")


def test_it_is_found_by_name():
    assert "fold-pad" in known_passes()


# -- one decision at a time -------------------------------------------------------------------------------------------

PAD = "%p = Pad(%x) {pads=[0,0,1,1,0,0,1,1]} "
READ = "%c = Conv(%p, %w) output %c"


def decide(body: str, *before: Any, x: str = "1,1,4,4", change: Callable[[Graph], None] | None = None):
    """Run `before` and the pass on a graph of feed %x and weights %w; the graph and the decision of the only Pad."""
    graph = parse(f'graph "g" {{ input %x: f32[{x}] param %w: f32[1,1,3,3] {body} }}')
    if change is not None:
        change(graph)
    if before:
        run_pipeline(graph, before)
    text, peak = print_graph(graph), peak_bytes(graph)
    (result,) = run_pipeline(graph, [FoldPad()])
    (decision,) = result.decisions
    assert result.modified == decision.accepted == (print_graph(graph) != text)
    assert peak_bytes(graph) <= peak
    assert storage_faults(graph) == []
    assert not run_pipeline(graph, [FoldPad()])[0].modified
    return graph, decision


def refused(body: str, rule: str, text: str, *before: Any, **options: Any) -> Decision:
    _, decision = decide(body, *before, **options)
    assert (decision.accepted, decision.rule) == (False, rule), decision
    assert text in decision.reason
    return decision


def test_accepted():
    graph, decision = decide(PAD + READ)
    assert decision.accepted
    assert decision.subject == ("p", "x")
    assert decision.bytes == 6 * 6 * 4
    assert not graph.has_value("p")
    assert graph.node("c").attrs["pads"] == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('%p = Pad(%x) {mode="reflect", pads=[0,0,1,1,0,0,1,1]} ' + READ, "mode = 'reflect' repeats the data"),
        ("%p = Pad(%x) {pads=[0,0,-1,1,0,0,1,1]} " + READ, "do not only crop"),
        ("%p = Pad(%x) {pads=[0,0,-1,0,0,0,0,0]} " + READ, "%p is cut out of %x: no node makes it"),
        ("%p = Pad(%x) {pads=[1,0,1,1,0,0,1,1]} " + READ, "batch or channels"),
        ("%p = Pad(%x) {pads=[0,0,1,1,0,0,1,1], value=1} " + READ, "its pads hold 0, not 1.0"),
        (PAD + "%r = Relu(%p) output %r", "%p is read by node r (Relu): it has no pads"),
        (PAD + "%r = Conv(%w, %p) {pads=[9,9,9,9]} output %r", "it takes no pads for input 1"),
        (PAD + "%r = MaxPool(%p) {kernel_shape=[2,2]} output %r", "0.0 may be"),
        ("%a = Abs(%x) " + PAD.replace("%x", "%a") + "%r, %i = MaxPool(%p) {kernel_shape=[3,3]} output %r output %i",
         "its indices count the padding"),
        (PAD + "%r = AveragePool(%p) {kernel_shape=[3,3], pads=[1,1,1,1]} output %r", "but not its own pads"),
        (PAD + "%r = AveragePool(%p) {kernel_shape=[1,1]} output %r", "would see only padding"),
        (PAD + "%r = AveragePool(%p) {ceil_mode=1, count_include_pad=1, kernel_shape=[2,2], strides=[5,5]} output %r",
         "it would make other positions"),
        (PAD + READ + " %r = Neg(%p) output %r", "%p is read by node r (Neg): it has no pads"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_pads(body, text):
    refused(body, "op-condition", text)


def test_what_must_stay():
    refused(PAD + READ + " output %p", "input-is-output", "%p is an output")
    refused(PAD + "%c = Neg(%x) output %c", "no-candidate", "nobody reads %p")
    for name in "px":
        refused(PAD + READ, "excluded", f"%{name} is left out", change=lambda graph, it=name: graph.excluded.add(it))
    refused(PAD + READ, "excluded", "gradients stop", change=lambda graph: graph.inplace.stopped.setdefault("p"))


def test_keep_and_without():
    graph = parse('graph "g" { input %x: f32[1,1,4,4] param %w: f32[1,1,3,3] ' + PAD + READ + " }")
    graph.set_param("w", np.ones((1, 1, 3, 3), np.float32))
    x = {"x": np.ones((1, 1, 4, 4), np.float32)}
    plan = compile(graph, [FoldPad()], keep=["p"])
    assert plan.run(x).kept["p"].sum() == 16
    for without in ("p", "x", "fold-pad"):
        assert compile(graph, [FoldPad()], without=[without]).graph.has_value("p")
    assert not compile(graph, [FoldPad()]).graph.has_value("p")
    np.testing.assert_array_equal(compile(graph, [FoldPad()]).run(x)["c"], plan.run(x)["c"])


@pytest.mark.parametrize(
    ("op", "attrs"), [("Relu", ""), ("Sigmoid", ""), ("Clip", "{min=0, max=6}"), ("Softmax", ""), ("Abs", "")]
)
def test_a_maximum_of_what_is_at_least_zero(op, attrs):
    body = f"%a = {op}(%x) {attrs} {PAD.replace('%x', '%a')} %r = MaxPool(%p) {{kernel_shape=[3,3]}} output %r"
    assert decide(body)[1].accepted


@pytest.mark.parametrize("attrs", ["", "{min=-1}", "{max=6}", "{min=0, max=-1}"])
def test_a_maximum_of_what_may_be_below_zero(attrs):
    body = f"%a = Clip(%x) {attrs} {PAD.replace('%x', '%a')} %r = MaxPool(%p) {{kernel_shape=[3,3]}} output %r"
    refused(body, "op-condition", "0.0 may be")


def test_a_maximum_between_pads_of_minus_infinity():
    b = GraphBuilder("lowest")
    p = b.op("Pad", b.input("x", (1, 1, 4, 4)), pads=(0, 0, 1, 1, 0, 0, 1, 1), value=float("-inf"), name="p")
    b.output(b.op("MaxPool", p, kernel_shape=(3, 3), name="m"))
    graph = b.build()
    x = {"x": -np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)}
    want = run_reference(graph, x)[0]["m"]
    assert run_pipeline(graph, [FoldPad()])[0].modified
    np.testing.assert_array_equal(run_reference(graph, x)[0]["m"], want)


# -- devices, order, bytes --------------------------------------------------------------------------------------------


def test_another_device():
    for lacks, text in (("Conv", "made on gpu and read on host"), ("Relu", "%a is made on host"), ("Pad", "on gpu")):
        graph = parse(CONV)
        resolve_devices(graph, Machine.host_and("gpu", lacks={lacks}))
        (result,) = run_pipeline(graph, [FoldPad()])
        assert result.decisions[0].rule == "different-device"
        assert text in result.decisions[0].reason


def ordered(late: bool) -> Graph:
    """first; Pad after first; Conv; and a node that must run after the Pad, listed before or after the Conv."""
    b = GraphBuilder("ordered")
    x = b.input("x", (1, 1, 4, 4))
    w = b.param("w", np.ones((1, 1, 3, 3), np.float32))
    first = b.op("Neg", x, name="first")
    p = b.op("Pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), name="p")
    made = [] if late else [b.op("Abs", first, name="then")]
    made.append(b.op("Conv", p, w, name="c"))
    made += [b.op("Abs", first, name="then")] if late else []
    b.output(*made)
    graph = b.build()
    graph.node("p").controls.append(graph.node("first"))
    graph.node("then").controls.append(graph.node("p"))
    return graph


def test_control_edges_are_carried_on():
    graph = ordered(late=True)
    assert run_pipeline(graph, [FoldPad()])[0].modified
    assert graph.node("c").controls == [graph.node("first")]
    assert graph.node("then").controls == [graph.node("c")]
    graph = ordered(late=False)
    (result,) = run_pipeline(graph, [FoldPad()])
    assert result.decisions[0].rule == "unordered"
    assert "node then (Abs) must run after p" in result.decisions[0].reason


def test_bytes_that_are_lent():
    body = "%a = Neg(%x) " + PAD.replace("%x", "%a") + "%b = Abs(%a) " + READ + " output %b"
    assert decide(body)[1].accepted
    decision = refused(body, "already-lent", "%a has lent its bytes to %b", passes.InplaceShare())
    assert "read by node c (Conv)" in decision.reason
    refused(body, "already-lent", "%b", passes.InplaceRename())
    refused(body.replace("output %b", ""), "already-lent", "%b", passes.InplaceShare())


def test_bytes_that_a_view_has_too():
    """The view holds the same bytes; but where it took the name, the name would mean two values at once."""
    view = "%v = Reshape(%a) {shape=[16]} "
    body = "%a = Neg(%x) " + PAD.replace("%x", "%a") + view + READ + " %b = Neg(%v) output %b"
    assert decide(body, passes.InplaceShare())[1].accepted
    refused(body, "already-lent", "%v", passes.InplaceRename())


def test_a_source_that_is_updated():
    body = "%a = Neg(%x) " + PAD.replace("%x", "%a") + "%b = Increment(%a) " + READ + " output %b"
    refused(body, "already-lent", "%b")
    body = "%a = Neg(%x) " + PAD.replace("%x", "%a") + READ + " %b = Increment(%a) output %b"
    assert decide(body)[1].accepted


def test_a_peak_that_would_rise():
    """The source is a slice of something large, and shares its bytes: the large one would be held until the Conv."""
    body = """input %y: f32[16,16] %z = Relu(%x) %s = Slice(%z) {axes=[1], ends=[1], starts=[0]}
              %p = Pad(%s) {pads=[0,0,1,1,0,0,1,1]} %u = MatMul(%y, %y) %v = MatMul(%u, %y) output %v """ + READ
    assert decide(body, x="1,16,4,4")[1].accepted

    def share(graph: Graph) -> None:
        graph.storage.share(graph.storage.variable(graph.value("s")), graph.storage.buffer(graph.value("z")))

    decision = refused(body, "raises-peak", "raises the peak by 880 B", x="1,16,4,4", change=share)
    assert "holding %s until it is read by node c (Conv)" in decision.reason


def test_scratch_counts():
    """One tap without pads needs no scratch; with pads it does, and more than the padded value takes."""
    b = GraphBuilder("scratch")
    x = b.input("x", (1, 8, 4, 4))
    p = b.op("Pad", x, pads=(0, 0, 0, 0, 0, 0, 0, 1), name="p")
    c = b.op("Conv", p, b.param("w", np.ones((8, 8, 1, 1), np.float32)), strides=(1, 1), name="c")
    wide = b.op("Expand", b.op("ReduceSum", c, axes=(0, 1, 2, 3), keepdims=0), shape=(4096,), name="wide")
    b.output(wide)
    graph = b.build()
    (result,) = run_pipeline(graph, [FoldPad()])
    assert result.decisions[0].rule == "raises-peak"
    assert "B of scratch" in result.decisions[0].reason


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 2])
def test_the_gradient_of_the_weights_reads_pads_too(group):
    rng = np.random.default_rng(0)
    b = GraphBuilder("train")
    x = b.relu(b.param("v", rng.standard_normal((2, 2, 5, 4))), name="x")
    p = b.op("Pad", x, pads=(0, 0, 1, 2, 0, 0, 0, 1), name="p")
    w = b.param("w", rng.standard_normal((2, 2 // group, 3, 3)))
    c = b.op("Conv", p, w, group=group, strides=(2, 1), name="c")
    b.output(b.op("ReduceSum", b.mul(c, c), axes=(0, 1, 2, 3), keepdims=0, name="loss"))
    graph = b.build()
    grads = grad(graph, graph.value("loss"), [graph.value("v"), graph.value("w")])
    graph.set_outputs([*graph.outputs, *(grads.values() if isinstance(grads, dict) else grads)])
    want = run_reference(graph, {})[0]
    folded = graph.copy()
    (result,) = run_pipeline(folded, [FoldPad()])
    first, last = result.decisions
    assert first.accepted
    assert "(ConvGradWeight)" in first.reason
    assert last.accepted
    assert "(ConvGradInput) need not make the pads" in last.reason
    assert not any(node.op == "Pad" for node in folded.nodes)
    got = run_reference(folded, {})[0]
    run = compile(folded, [FoldPad(), *passes.BEST]).run({})
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        np.testing.assert_allclose(run[name], array, rtol=1e-9, atol=1e-9)


def crops(after: str = "", between: str = "", before: str = "", change: Any = None) -> Decision:
    """The decision about %d, which is cut out of the gradient %g of a Conv's data; with nodes around the two."""
    body = f"""input %y: f32[1,1,6,6] param %w: f32[1,1,3,3] {before}
               %g = ConvGradInput(%y, %w) {{input_shape=[1,1,8,8]}} {between}
               %d = Pad(%g) {{pads=[0,0,-1,-2,0,0,-1,0]}} {after} output %d"""
    graph = parse(f'graph "g" {{ {body} }}')
    if change is not None:
        change(graph)
    peak = peak_bytes(graph)
    (result,) = run_pipeline(graph, [FoldPad()])
    assert storage_faults(graph) == []
    assert peak_bytes(graph) <= peak
    assert result.modified == (not graph.has_value("g"))
    return result.decisions[0]


def test_a_crop_of_a_gradient():
    assert crops().accepted
    assert crops().bytes == 8 * 8 * 4
    assert crops("%f = Neg(%d) output %f", "%e = Neg(%y) output %e").accepted
    for decision, rule, text in (
        (crops("output %g"), "input-is-output", "%g is an output"),
        (crops("%e = Neg(%g) output %e"), "not-last-use", "%g is read by node e (Neg) too"),
        (crops(change=lambda graph: graph.excluded.add("g")), "excluded", "%g is left out"),
        (crops(change=lambda graph: graph.excluded.add("d")), "excluded", "%d is left out"),
    ):
        assert not decision.accepted
        assert decision.rule == rule
        assert text in decision.reason


def test_a_crop_that_has_borrowed_bytes():
    """%d lies where %a did, which is read between the gradient and the crop: %d cannot be made earlier."""

    def borrow(graph: Graph) -> None:
        graph.storage.share(graph.storage.variable(graph.value("d")), graph.storage.buffer(graph.value("a")))

    decision = crops("output %b", "%b = Relu(%a)", "%a = Neg(%y)", borrow)
    assert (decision.accepted, decision.rule) == (False, "already-borrowed")
    assert "in which %a is when node g runs" in decision.reason
    assert crops("output %b", "%b = Relu(%a)", "%a = Neg(%y)").accepted


def test_a_crop_that_takes_more_than_it_saves():
    """%d is small, but lies in the large bytes of what comes later; begun earlier, these meet the large %u."""
    between = "%u = Expand(%y) {shape=[1,9,6,6]} %s = ReduceSum(%u) {keepdims=0} output %s"
    after = "%e = ReduceSum(%d) {keepdims=0} %k = Expand(%e) {shape=[1000]} output %k"

    def lend(graph: Graph) -> None:
        graph.set_outputs([graph.value("s"), graph.value("k")])
        graph.storage.share(graph.storage.variable(graph.value("d")), graph.storage.buffer(graph.value("k")))

    decision = crops(after, between, change=lend)
    assert (decision.accepted, decision.rule) == (False, "raises-peak")
    assert "making %d when %g is made takes 1040 B more" in decision.reason
    assert crops(after, between).accepted


def test_a_crop_of_channels():
    body = "%g = ConvGradInput(%y, %w) {input_shape=[1,2,8,8]} %d = Pad(%g) {pads=[0,-1,-1,0,0,0,0,0]} output %d"
    graph = parse(f'graph "g" {{ input %y: f32[1,1,6,6] param %w: f32[1,2,3,3] {body} }}')
    (decision,) = run_pipeline(graph, [FoldPad()])[0].decisions
    assert "crop batch or channels" in decision.reason


def test_the_gradient_of_an_average_counts_the_pads():
    b = GraphBuilder("average")
    p = b.op("Pad", b.input("x", (1, 2, 5, 5)), pads=(0, 0, 1, 1, 0, 0, 0, 1), name="p")
    v = b.op("AveragePool", p, kernel_shape=(3, 2), strides=(1, 2), name="v")
    b.output(b.op("ReduceSum", b.mul(v, v), keepdims=0, name="loss"))
    graph = b.build()
    graph.set_outputs([*graph.outputs, *grad(graph, graph.value("loss"), [graph.value("x")])])
    feeds = feeds_of(graph)
    want = run_reference(graph, feeds)[0]
    (result,) = run_pipeline(graph, [FoldPad()])
    assert [d.accepted for d in result.decisions] == [True, True]
    assert not any(node.op == "Pad" for node in graph.nodes)
    got, run = run_reference(graph, feeds)[0], compile(graph).run(feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        np.testing.assert_allclose(run[name], array, rtol=1e-5, atol=1e-6)


def test_a_crop_that_must_wait():
    def wait(graph: Graph) -> None:
        graph.node("d").controls.append(graph.node("b"))

    decision = crops("output %b", "%b = Relu(%y)", change=wait)
    assert (decision.accepted, decision.rule) == (False, "unordered")


# -- properties -------------------------------------------------------------------------------------------------------


class _Net:
    """Pads, and what reads them, one after the other, over images of one or two spatial axes."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.spatial = draw(st.integers(1, 2))
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
        self.builder = GraphBuilder("pads")
        shape = (draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4])), *self.ints(3, 7))
        self.images = [self.builder.input("x", shape)]
        for _ in range(draw(st.integers(1, 5))):
            self.step()
        unread = [value for value in self.images if not value.uses]
        self.builder.output(*unread)
        self.graph = self.builder.build()

    def ints(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.draw(st.integers(low, high)) for _ in range(self.spatial))

    def step(self) -> None:
        """A Pad and one or two that read it, or one node of another kind."""
        value = self.draw(st.sampled_from(self.images[-4:]))
        readers = [self.conv, self.conv, self.average, self.maximum, self.maximum]
        others = [self.relu, self.neg, self.concat, self.sum, self.sum, *readers]
        if not self.draw(st.booleans()):
            self.add(self.draw(st.sampled_from(others)), value)
            return
        if self.draw(st.booleans()):
            value = self.add(self.relu, value)
        padded = self.add(self.pad, value)
        for _ in range(self.draw(st.integers(1, 2))):
            self.add(self.draw(st.sampled_from(readers)), padded)
        if self.draw(st.integers(0, 3)) == 0:
            self.add(self.draw(st.sampled_from(others)), padded)

    def add(self, make: Callable[[Any], Any], value: Any) -> Any:
        try:
            self.images.append(make(value))
        except TypeInferenceError:  # a window that is larger than the image, and the like
            return value
        return self.images[-1]

    def window(self) -> dict[str, Any]:
        given: dict[str, Any] = {"strides": self.ints(1, 2), "dilations": self.ints(1, 2)}
        pads = self.draw(st.sampled_from(["none", "none", "own", "SAME_UPPER", "SAME_LOWER", "VALID"]))
        if pads == "own":
            given["pads"] = self.ints(0, 1) + self.ints(0, 1)
        elif pads != "none":
            given["auto_pad"] = pads
        return given

    def pad(self, value: Any) -> Any:
        frame = (0, 0, *self.ints(0, 2))
        after = (0, 0, *self.ints(0, 2))
        lowest = self.draw(st.sampled_from([0.0, 0.0, 0.0, float("-inf"), 1.0]))
        return self.builder.op("Pad", value, pads=frame + after, value=lowest)

    def conv(self, value: Any) -> Any:
        channels = value.shape[1]
        group = self.draw(st.sampled_from([1, channels]))
        weights = self.rng.standard_normal((channels, channels // group, *self.ints(1, 3))).astype(np.float32)
        given = [self.builder.param(self.builder.graph.fresh_name("w"), weights)]
        if self.draw(st.booleans()):
            bias = self.rng.standard_normal(channels).astype(np.float32)
            given.append(self.builder.param(self.builder.graph.fresh_name("b"), bias))
        return self.builder.op("Conv", value, *given, group=group, **self.window())

    def average(self, value: Any) -> Any:
        flags = {name: self.draw(st.integers(0, 1)) for name in ("ceil_mode", "count_include_pad")}
        return self.builder.op("AveragePool", value, kernel_shape=self.ints(1, 3), **flags, **self.window())

    def maximum(self, value: Any) -> Any:
        ceil = self.draw(st.integers(0, 1))
        return self.builder.op("MaxPool", value, kernel_shape=self.ints(1, 3), ceil_mode=ceil, **self.window())

    def relu(self, value: Any) -> Any:
        return self.builder.relu(value)

    def neg(self, value: Any) -> Any:
        return self.builder.neg(value)

    def sum(self, value: Any) -> Any:
        return self.builder.add(value, self.draw(st.sampled_from([v for v in self.images if v.type == value.type])))

    def concat(self, value: Any) -> Any:
        return self.builder.concat(value, value, axis=self.draw(st.integers(0, 1)))


def with_gradients(graph: Graph) -> Graph:
    """The gradients of the sum of what the graph makes, with respect to the feed and the weights."""
    sums = [graph.add_node("ReduceSum", [value], [f"sum{i}"], {"keepdims": 0}) for i, value in enumerate(graph.outputs)]
    total = sums[0].outputs[0]
    for i, node in enumerate(sums[1:]):
        total = graph.add_node("Add", [total, node.outputs[0]], [f"total{i}"]).outputs[0]
    wanted = [value for value in (*graph.inputs, *graph.params) if value.dtype == "float32"]
    found = grad(graph, total, wanted)
    graph.set_outputs([total, *(value for value in found if value is not None)])
    return graph


nets = st.composite(lambda draw: _Net(draw).graph)()
both = st.one_of(nets, nets.map(with_gradients))


@pytest.mark.parametrize("addend", ["z", "p"])
def test_a_fused_convolution_has_pads_too(addend):
    """Its addend may be the padded value itself, which then must stay."""
    b = GraphBuilder("fused")
    x, z = b.input("x", (1, 1, 4, 4)), b.neg(b.input("y", (1, 1, 6, 6)), name="z")
    p = b.op("Pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), name="p")
    w = b.param("w", np.full((1, 1, 1, 1), 2, np.float32))
    b.output(b.op("FusedConv", p, w, *[None] * 5, {"z": z, "p": p}[addend], activation="Relu", name="a"))
    graph = b.build()
    feeds = {v.name: np.random.default_rng(2).standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    want = run_reference(graph, feeds)[0]["a"]
    (result,) = run_pipeline(graph, [FoldPad()])
    assert result.modified == (addend == "z")
    assert addend == "z" or "it takes no pads for input 7" in result.decisions[0].reason
    np.testing.assert_array_equal(run_reference(graph, feeds)[0]["a"], want)


def feeds_of(graph: Graph) -> dict[str, Any]:
    (x,) = graph.inputs
    return {"x": np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)}


@given(graph=both)
@settings(max_examples=40)
def test_the_reference_gives_the_same_bits(graph):
    assume(any(node.op == "Pad" for node in graph.nodes))
    want = run_reference(graph, feeds_of(graph))[0]
    text, peak = print_graph(graph), peak_bytes(graph)
    (result,) = run_pipeline(graph, [FoldPad()])
    assert result.modified == (print_graph(graph) != text) == any(d.accepted for d in result.decisions)
    assert peak_bytes(graph) <= peak
    assert not run_pipeline(graph, [FoldPad()])[0].modified
    got = run_reference(graph, feeds_of(graph))[0]
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


FOLDED = [FoldPad(), *passes.BEST]
OTHERS = [
    passes.InplaceShare(),
    passes.InplaceRename(),
    passes.ReuseShare(),
    passes.ShareConcat(),
    passes.FuseConvAdd(),
    FoldPad(),
]


@given(graph=both, chain=st.lists(st.sampled_from(OTHERS), min_size=1, max_size=4))
@settings(max_examples=40)
def test_it_composes(graph, chain):
    for one in [*chain, FoldPad()]:
        peak = peak_bytes(graph)
        run_pipeline(graph, [one])
        assert storage_faults(graph) == []
        assert peak_bytes(graph) <= peak


@given(graph=nets, order=st.sampled_from(["listed", "any"]), views=st.booleans())
@settings(max_examples=25)
def test_kernels_agree(graph, order, views):
    feeds = feeds_of(graph)
    want = compile(graph, "none").run(feeds)
    strategy = [FoldPad(order), passes.InplaceShare(order=order), passes.ShareConcat(order)]
    strategy = [passes.ShareViews(order), *strategy] if views else strategy
    plan = compile(graph, strategy, order=order)
    assert validate(plan, order=order) == []
    got = plan.run(feeds, sanitize=True)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


# -- as others see it -------------------------------------------------------------------------------------------------


def unfolded(graph: Graph) -> Graph:
    """The graph with a Pad before each convolution and pool that has pads, as some exporters write it."""
    b = GraphBuilder(graph.name)
    new = {value: b.input(value.name, value.shape, value.dtype) for value in graph.inputs}
    new.update({value: b.graph.add_param(value.name, value.type, graph.param_data(value)) for value in graph.params})
    for node in graph.nodes:
        inputs, attrs = [None if v is None else new[v] for v in node.inputs], dict(node.attrs)
        pads = attrs.get("pads", ())
        if node.op in ("Conv", "AveragePool", "MaxPool") and any(pads):
            half = len(pads) // 2
            frame = (0, 0, *pads[:half], 0, 0, *pads[half:])
            value = float("-inf") if node.op == "MaxPool" else 0.0
            inputs[0] = b.op("Pad", inputs[0], pads=frame, value=value, name=b.graph.fresh_name("pad"))
            attrs["pads"] = (0,) * len(pads)
        made = b.graph.add_node(node.op, inputs, [v and v.name for v in node.outputs], attrs, name=node.name)
        new.update({old: value for old, value in zip(node.outputs, made.outputs, strict=True) if old is not None})
    b.output(*(new[value] for value in graph.outputs))
    return b.build()


@pytest.mark.parametrize(
    ("name", "image"), [("resnet18", 32), ("unet", 32), pytest.param("mobilenetv2", 64, marks=pytest.mark.slow)]
)
def test_networks_are_what_they_were(name, image):
    """Pads that were taken out of the convolutions of a network go back into them, and the plan is as small again."""
    graph = load(name, dims={"batch": 1, "image": image}, weights="random")
    apart = unfolded(graph)
    assert sum(node.op == "Pad" for node in apart.nodes) > 5
    plans = [compile(one, chain) for one, chain in ((graph, passes.BEST), (apart, passes.BEST), (apart, FOLDED))]
    before, padded, after = (plan.devices["host"].height_bytes for plan in plans)
    assert after == before < padded
    assert run_pipeline(apart, [FoldPad()])[0].modified
    assert print_graph(apart) == print_graph(graph)


def test_onnxruntime_agrees():
    """The frame of a network from Keras: Pad, Conv, Relu, Pad, MaxPool, and pads given as inputs with a value."""
    rng = np.random.default_rng(0)
    given = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "d": rng.standard_normal((4, 1, 3, 3)).astype(np.float32),
        "one": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
        "two": np.array([1, 1, 1, 1], np.int64),
        "axes": np.array([2, -1], np.int64),
        "zero": np.float32(0),
    }
    nodes = [
        helper.make_node("Pad", ["x", "one", "zero"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["c"], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Pad", ["r", "two", "", "axes"], ["q"], mode="constant"),
        helper.make_node("MaxPool", ["q"], ["m"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Pad", ["m", "two", "zero", "axes"], ["s"]),
        helper.make_node("Conv", ["s", "d"], ["e"], group=4),
        helper.make_node("AveragePool", ["s"], ["y"], kernel_shape=[2, 2]),
    ]
    shapes = {"x": [2, 3, 12, 10], "e": [2, 4, 3, 3], "y": [2, 4, 4, 4]}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "keras", infos[:1], infos[1:],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in given.items()])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    x = rng.standard_normal(shapes["x"]).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = dict(zip(("e", "y"), session.run(None, {"x": x}), strict=True))
    loaded = load(model)
    folded = compile(loaded, [FoldPad(), *passes.BEST])
    assert [node.op for node in folded.graph.nodes if node.op == "Pad"] == []
    got, plain = folded.run({"x": x}), compile(loaded, "best").run({"x": x})
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[name], plain[name], rtol=1e-6, atol=1e-6)
    assert folded.devices["host"].height_bytes < compile(loaded, "best").devices["host"].height_bytes
