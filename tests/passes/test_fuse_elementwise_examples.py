"""What is fused, what is not and why, on graphs that exporters and training make."""

from __future__ import annotations

import numpy as np
import pytest

import passes
from memopt import GraphBuilder, Machine, TensorBuilder, compile, models, run_reference
from memopt.analysis import peak_bytes
from memopt.ir import parse, print_graph
from memopt.pipeline import run_pipeline
from memopt.report import inplace_outcomes
from memopt.training import SGD, training_step
from tests.passes.test_fuse_elementwise import FUSE, FUSED_BEST, assert_same_bits, check_the_executor, fused
from tests.strategies import feeds_for

# -- before, after and why ------------------------------------------------------------------------------------------

GOLDEN = {
    "hard_swish": """input %x: f32[1,2,4,4]  param %w: f32[3,2,1,1]
        param %three: f32[] = [3.0]  param %six: f32[] = [6.0]
        %c = Conv(%x, %w)  %a = Add(%c, %three)  %b = Clip(%a) {max=6.0, min=0.0}  %m = Mul(%c, %b)  %d = Div(%m, %six)
        %y = GlobalAveragePool(%d)  output %y""",
    "one_hot": """input %ids: i32[4,1]  param %numbers: i32[8]
        %e = Equal(%ids, %numbers)  %h = Cast(%e) {to="float32"}  output %h""",
    "kept": """input %x: f32[4]  %a = Exp(%x)  %b = Neg(%a)  %c = Mul(%a, %b)  %d = Abs(%c)  %s = ReduceSum(%d)
        %e = Sqrt(%d)  output %e  output %b  output %s""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_before_and_after(name, golden):
    graph = parse(f'graph "{name}" {{ {GOLDEN[name]} }}')
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [FUSE])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/fuse_elementwise_{name}.txt", f"{before}\n# {FUSE!r}\n{why}\n{print_graph(graph)}")


# -- what is fused, and what is not -----------------------------------------------------------------------------------


def number(b, value):
    return b.param(f"c{len(b.graph.params)}", np.array(value, np.float32))


def hard_swish(b, x):
    whole = b.op("Mul", x, b.op("Clip", b.op("Add", x, number(b, 3.0)), min=0.0, max=6.0))
    return b.op("Div", whole, number(b, 6.0))


def gelu(b, x):
    inner = b.op("Add", b.op("Erf", b.op("Div", x, number(b, 2.0**0.5))), number(b, 1.0))
    return b.op("Mul", b.op("Mul", x, inner), number(b, 0.5))


def swish(b, x):
    return b.op("Mul", x, b.op("Sigmoid", x))


def one_hot(b, x):
    numbers = b.param("numbers", np.arange(9, dtype=np.int32).reshape(9, 1, 1))
    ids = b.op("Cast", b.op("Floor", b.op("Abs", x)), to="int32")
    return b.op("Cast", b.op("Equal", ids, numbers), to="float32")


def between(middle, shape=(3, 64, 64)):
    """A product, the op in question, and a product that is small."""
    b = GraphBuilder("between")
    weight = np.random.default_rng(1).standard_normal((shape[-1], shape[-1])).astype(np.float32) / 4
    x = b.op("MatMul", b.input("x", shape), b.param("v", weight))
    b.output(b.op("MatMul", middle(b, x), b.param("w", weight[:, :1])))
    return b.build()


@pytest.mark.parametrize(
    ("middle", "steps"),
    [
        (hard_swish, ["Add(x0, x1)", "Clip(t0, max=6.0, min=0.0)", "Mul(x0, t1)", "Div(t2, x2)"]),
        (gelu, ["Div(x0, x1)", "Erf(t0)", "Add(t1, x2)", "Mul(x0, t2)", "Mul(t3, x3)"]),
        (swish, ["Sigmoid(x0)", "Mul(x0, t0)"]),
    ],
)
def test_activations_as_exporters_write_them(middle, steps):
    graph = between(middle)
    twin, _ = fused(graph)
    assert [node.op for node in twin.nodes] == ["MatMul", "Elementwise", "MatMul"]
    assert list(twin.nodes[1].attrs["steps"]) == steps
    assert twin.nodes[1].outputs[0].name == graph.nodes[-2].outputs[0].name
    size, small = 3 * 64 * 64 * 4, 3 * 64 * 4
    heights = [compile(graph, chain).devices["host"].height_bytes for chain in (passes.BEST, FUSED_BEST)]
    assert heights == [2 * size, size + small]
    check_the_executor(graph, 3)


def theirs(graph, feeds):
    """What onnxruntime makes of the same nodes."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, params = [], [numpy_helper.from_array(graph.param_data(value), value.name) for value in graph.params]
    for node in graph.nodes:
        inputs, attrs = [value.name for value in node.inputs], dict(node.attrs)
        if node.op == "Clip":
            limits = [np.array(attrs.pop(name), np.float32) for name in ("min", "max")]
            params += [numpy_helper.from_array(limit, f"{node.name}.{i}") for i, limit in enumerate(limits)]
            inputs += [f"{node.name}.{i}" for i in range(2)]
        nodes.append(helper.make_node(node.op, inputs, [value.name for value in node.outputs], **attrs))
    ends = [
        [helper.make_tensor_value_info(v.name, onnx.TensorProto.FLOAT, v.shape) for v in values]
        for values in (graph.inputs, graph.outputs)
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "theirs", *ends, params), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("middle", [hard_swish, gelu, swish])
def test_onnxruntime_agrees(middle):
    graph = between(middle)
    feeds = feeds_for(graph, 5)
    (want,) = theirs(graph, feeds)
    (got,) = compile(graph, FUSED_BEST).run(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_one_hot_needs_no_bools():
    graph = between(one_hot, (1, 64, 64))
    twin, _ = fused(graph)
    assert [node.op for node in twin.nodes] == ["MatMul", "Elementwise", "Elementwise", "MatMul"]
    assert list(twin.nodes[2].attrs["steps"]) == ["Equal(x0, x1)", "Cast(t0, to=float32)"]
    check_the_executor(graph, 3)


def test_a_shared_operand_is_one_input():
    graph = parse(
        """graph "dag" { input %x: f32[8]  %e = Exp(%x)  %a = Relu(%e)  %b = Neg(%e)  %c = Mul(%a, %b)
        %d = Add(%c, %x)  %y = ReduceSum(%d)  output %y }"""
    )
    run_pipeline(graph, [FUSE])
    node = graph.nodes[0]
    assert node.inputs == (graph.value("x"),)
    assert list(node.attrs["steps"]) == ["Exp(x0)", "Neg(t0)", "Relu(t0)", "Mul(t2, t1)", "Add(t3, x0)"]


REFUSED = {
    "input-is-output": "%a = Exp(%x)  %y = Relu(%a)  output %y  output %a",
    "read-elsewhere": "%a = Exp(%x)  %y = Relu(%a)  %z = ReduceSum(%a)  output %y  output %z",
    "different-device": "%a = Exp(%x) @gpu  %y = Relu(%a)  output %y",
    "broadcast": "%a = Exp(%r)  %y = Add(%x, %a)  output %y",
    "no-kernel": "%a = Cast(%x) {to=\"float16\"}  %y = Cast(%a) {to=\"float32\"}  output %y",
    "updated": "%a = Mul(%w, %x)  %g = ReduceSum(%x)  %n = SGD(%w, %x, %lr)  %y = Relu(%a)  output %y  output %g",
    "control-edge": "%a = Exp(%x)  %z = ReduceSum(%x) after(a)  %y = Relu(%a)  output %y  output %z",
    "already-lent": "%a = Exp(%x)  %y = Relu(%a)  output %y  storage { buffer a: a, y }",
    "raises-peak": "%p = MatMul(%x, %m)  %q = MatMul(%x, %m)  %a = Add(%p, %q)  %c = MatMul(%x, %m)  "
    "%d = MatMul(%c, %m)  %y = Sub(%a, %d)  output %y",
}


@pytest.mark.parametrize("rule", REFUSED)
def test_refusals(rule):
    graph = parse(
        f"""graph "refused" {{ input %x: f32[8,8]  input %r: f32[8]
        param %w: f32[8,8]  param %m: f32[8,8]  param %lr: f32[] = [0.1]  {REFUSED[rule]} }}"""
    )
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [FUSE])
    assert [d.rule for d in result.decisions] == [rule]
    assert print_graph(graph) == before


def test_values_that_are_kept_or_left_out_stay():
    graph = between(swish)
    name = graph.nodes[1].outputs[0].name
    feeds = feeds_for(graph, 1)
    want = run_reference(graph, feeds, fetch=[name])[0][name]
    np.testing.assert_allclose(compile(graph, FUSED_BEST, keep=[name]).run(feeds).kept[name], want, rtol=1e-5)
    plan = compile(graph, FUSED_BEST, without=[name])
    assert plan.graph.has_value(name)
    assert not compile(graph, FUSED_BEST).graph.has_value(name)
    assert [d.rule for d in plan.decisions if d.pass_name == FUSE.name] == ["excluded"]


def test_long_chains_are_cut():
    b = GraphBuilder("long")
    value = b.input("x", (4,))
    for _ in range(40):
        value = b.op("Neg", value)
    b.output(value)
    twin, result = fused(b.build())
    assert [len(node.attrs["steps"]) for node in twin.nodes] == [32, 8]
    assert [d.rule for d in result.decisions if not d.accepted] == ["too-long"]


def test_many_operands_are_not_fused():
    b = GraphBuilder("many")
    feeds = [b.input(f"x{i}", (4,)) for i in range(18)]
    value = feeds[0]
    for other in feeds[1:]:
        value = b.op("Add", value, other)
    b.output(value)
    twin, result = fused(b.build())
    assert [len(node.inputs) for node in twin.nodes] == [16, 3]
    assert [d.rule for d in result.decisions if not d.accepted] == ["no-kernel"]


def test_control_edges_are_carried_over():
    graph = parse(
        """graph "edges" { input %x: f32[8]  %s = ReduceSum(%x)  %a = Exp(%x) after(s)  %b = Neg(%a)
        %t = ReduceSum(%x) after(a)  output %s  output %b  output %t }"""
    )
    run_pipeline(graph, [FUSE])
    after = {node.name: [before.name for before in node.controls] for node in graph.nodes}
    assert after == {"s": [], "b": ["s"], "t": ["b"]}


def test_in_place_methods_of_what_is_not_stored_are_honoured():
    b = TensorBuilder("methods")
    y = b.op("Abs", b.input("x", (8,)))
    y.exp_()
    y.relu_()
    b.output(y, b.op("ReduceSum", y))
    outcomes = inplace_outcomes(compile(b.build(), FUSED_BEST))
    assert [(one.honoured, one.extra_bytes) for one in outcomes] == [(True, 0), (True, 0)]
    why = "is not stored: another node makes it on the way"
    assert [one.reason for one in outcomes] == [f"%abs {why}", f"%exp {why}"]


def test_a_training_step():
    """Gradients of activations are elementwise too."""
    b = GraphBuilder("step")
    scaled = b.op("Mul", b.input("x", (64, 8)), b.param("w", np.linspace(-2, 2, 8, dtype=np.float32)))
    whole = b.op("ReduceSum", hard_swish(b, scaled), name="loss")
    b.output(whole)
    graph = training_step(b.build(), whole.name, SGD(0.1))
    twin, result = fused(graph)
    assert any(d.accepted and d.subject[0].endswith(".grad") for d in result.decisions)
    assert len(twin.nodes) < len(graph.nodes)
    before, after = compile(graph, passes.BEST), compile(graph, FUSED_BEST)
    assert after.devices["host"].height_bytes < before.devices["host"].height_bytes
    feeds = feeds_for(graph, 1)
    assert_same_bits(after.run(feeds), before.run(feeds))
    assert_same_bits(after.state(), before.state())


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_training_steps_of_networks_need_no_more(name):
    graph = models.build(name, train=True)
    twin, result = fused(graph)
    assert result.modified
    for one in (graph, twin):
        run_pipeline(one, [passes.InplaceShare(), passes.ShareConcat()])
    assert peak_bytes(twin) <= peak_bytes(graph)


def test_machines_of_two_devices():
    graph = between(hard_swish)
    machine = Machine.host_and("gpu", lacks={"Clip"})
    plan = compile(graph, FUSED_BEST, machine)
    assert [node.op for node in plan.graph.nodes] == ["MatMul", "Add", "Clip", "Elementwise", "MatMul"]
    feeds = feeds_for(graph, 2)
    assert_same_bits(plan.run(feeds), compile(graph, "none", machine).run(feeds))

