"""`grad` itself: what it adds and what not, accumulation, names, errors, and what is alive after the forward."""

from __future__ import annotations

import numpy as np
import pytest

import memopt
from memopt import GraphBuilder, run_reference
from memopt.analysis import analyze_liveness
from memopt.autodiff import grad
from memopt.errors import GradientError, OptionError


def loss_of(b, value):
    return b.reduce_sum(value, keepdims=0)


def run(b, *values, **feeds):
    b.output(*dict.fromkeys(values))
    outputs, _ = run_reference(b.build(), feeds)
    return [outputs[value.name] for value in values]


def test_only_what_is_on_a_path_is_differentiated():
    b = GraphBuilder()
    x, w, v = b.input("x", (2, 3)), b.param("w", np.ones((3, 4), "f")), b.param("v", np.ones((3, 4), "f"))
    loss = loss_of(b, b.add(b.matmul(x, w), b.matmul(b.tanh(x), v)))
    (g,) = grad(b.graph, loss, [w])
    assert g.name == "w.grad"
    assert [n.op for n in b.graph.nodes[5:]] == ["ConstantOfShape", "Expand", "Gemm"]  # none for x, tanh, v
    b.output(g)
    b.build()


def test_contributions_are_summed_one_by_one():
    b = GraphBuilder()
    x = b.param("x", np.array([1.0, 2]))
    parts = [b.scale(x, factor=float(i)) for i in range(1, 4)]
    (g,) = grad(b.graph, loss_of(b, b.sum(*parts, b.mul(x, x))), ["x"])
    sums = [n for n in b.graph.nodes if n.op == "Sum" and n.outputs[0].name.startswith("x.grad")]
    assert [len(n.inputs) for n in sums] == [2, 2, 2]
    assert g.name == "x.grad"
    assert run(b, g)[0].tolist() == [8, 10]


def test_two_gradients_may_be_one_value():
    b = GraphBuilder()
    x, y = b.param("x", np.ones(3)), b.param("y", np.ones(3))
    gx, gy = grad(b.graph, loss_of(b, b.add(x, y)), [x, y])
    assert gx is gy


def test_zero_where_nothing_leads_to_the_loss():
    b = GraphBuilder()
    x, y = b.param("x", np.ones(3)), b.param("y", np.ones((2, 2), "f"))
    z = b.floor(y)
    loss = b.add(loss_of(b, x), loss_of(b, b.cast(z, to="float64")))
    gx, gy, gz, own = grad(b.graph, loss, [x, y, z, loss])
    assert gy.producer.op == "ConstantOfShape"
    values = run(b, gx, gy, gz, own)
    assert [v.tolist() for v in values] == [[1, 1, 1], [[0, 0], [0, 0]], [[1, 1], [1, 1]], 1]


def test_stop_gradient():
    b = GraphBuilder()
    x = b.param("x", np.array([3.0]))
    y = b.mul(x, x)
    (g,) = grad(b.graph, loss_of(b, b.mul(x, y)), [x], stop_gradient=[y])
    assert run(b, g)[0].tolist() == [9]


def test_integers_and_comparisons_stop_by_themselves():
    b = GraphBuilder()
    x = b.param("x", np.array([-1.0, 2]))
    (g,) = grad(b.graph, loss_of(b, b.mul(x, b.cast(b.greater(x, b.param("zero", np.zeros(()))), to="float64"))), [x])
    assert run(b, g)[0].tolist() == [0, 1]


def test_the_device_is_the_forward_nodes():
    b = GraphBuilder()
    x = b.input("x", (3,))
    y = b.relu(x, device="gpu")
    loss = loss_of(b, b.add(b.tanh(y, device="host"), y))
    grad(b.graph, loss, [x])
    placed = {n.op: n.device for n in b.graph.nodes if n.op in ("ReluGrad", "TanhGrad", "Sum")}
    assert placed == {"ReluGrad": "gpu", "TanhGrad": "host", "Sum": "host"}


def test_errors_leave_the_graph_as_it_was():
    b = GraphBuilder()
    x, n = b.param("x", np.ones(3)), b.param("n", np.ones(3, "int64"))
    w, rate = b.param("w", np.ones(3)), b.param("rate", np.ones(()))
    y = b.mul(x, w)
    hard = b.reduce_sum(b.sgd(w, y, rate), keepdims=0)
    loss = loss_of(b, y)
    before = str(b.graph)
    other = GraphBuilder().input("x", (1,))
    for call, error, text in (
        (lambda: grad(b.graph, y, [x]), OptionError, "not one number: reduce it first"),
        (lambda: grad(b.graph, loss, [n]), OptionError, "only values of float dtypes"),
        (lambda: grad(b.graph, loss, ["nowhere"]), OptionError, "no value 'nowhere'"),
        (lambda: grad(b.graph, loss, [other]), OptionError, "is not a value of graph"),
        (lambda: grad(b.graph, loss, [x], stop_gradient=[x]), OptionError, "take it out of one"),
        (lambda: grad(b.graph, hard, [x]), GradientError, "no gradient through an update"),
        (lambda: grad(b.graph, loss, [x]), GradientError, "reads %w, which node sgd .SGD. has updated"),
    ):
        with pytest.raises(error, match=text):
            call()
        assert str(b.graph) == before


def test_an_op_without_a_gradient_is_named_with_the_way_out():
    b = GraphBuilder()
    x = b.param("x", np.ones(3))
    y = b.increment(b.relu(x))
    with pytest.raises(GradientError, match="update"):
        grad(b.graph, loss_of(b, y), [x])
    b = GraphBuilder()
    x = b.param("x", np.ones((1, 3)))
    y = b.softmax_grad(x, x, name="mine")
    loss = loss_of(b, y)
    with pytest.raises(GradientError, match=r"SoftmaxGrad \(node mine\) has no gradient.*stop_gradient=\['mine'\]"):
        grad(b.graph, loss, [x])
    (g,) = grad(b.graph, loss, [x], stop_gradient=["mine"])
    assert run(b, g)[0].tolist() == [[0, 0, 0]]


# -- hazards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["none", "rename", "share"])
def test_s43_what_the_backward_reads_is_not_overwritten(strategy):
    b = GraphBuilder()
    x = b.param("x", np.log(np.array([4.0])))
    (g,) = grad(b.graph, loss_of(b, b.sqrt(b.exp(x))), [x])
    b.output(g)
    assert memopt.compile(b.build(), strategy).run()[g.name] == pytest.approx(1.0)
    b = GraphBuilder()
    x = b.input("x", (1,), "float64", donated=True)
    (g,) = grad(b.graph, loss_of(b, b.sin(x)), [x])
    b.output(g)
    assert memopt.compile(b.build(), strategy).run({"x": np.array([np.pi / 3])})[g.name] == pytest.approx(0.5)


def test_s45_shapes_are_known_without_the_data():
    """Backward of add, mean, reshape, concat, slice and transpose keeps no forward value alive."""
    b = GraphBuilder()
    x, y = b.input("x", (10, 100), donated=True), b.input("y", (1, 100), donated=True)
    added = b.add(b.neg(x), b.neg(y))
    cut = b.slice(b.transpose(b.reshape(added, shape=(100, 10))), starts=(1,), ends=(7,), axes=(0,))
    loss = b.reduce_mean(b.concat(cut, cut, axis=1), keepdims=0)
    forward = len(b.graph.nodes)
    b.output(*grad(b.graph, loss, [x, y]))
    graph = b.build()
    live = analyze_liveness(graph)
    for value in (x, y, added, *(v for n in graph.nodes[:forward] for v in n.outputs)):
        assert live.intervals[value].end <= forward, value


@pytest.mark.parametrize(
    ("op", "keeps_input", "keeps_output"),
    [("Relu", False, True), ("Sigmoid", False, True), ("Tanh", False, True), ("Exp", False, True), ("Sqrt", False,
    True),
     ("Softmax", False, True), ("Clip", False, True), ("Sin", True, False), ("Log", True, False), ("Gelu", True, False),
     ("Neg", False, False)],
)  # fmt: skip
def test_each_op_keeps_only_what_it_needs(op, keeps_input, keeps_output):
    b = GraphBuilder()
    x = b.input("x", (4, 4), donated=True)
    before = b.scale(x, factor=2.0)
    y = b.op(op, before)
    loss = loss_of(b, b.scale(y, factor=3.0))
    forward = len(b.graph.nodes)
    b.output(*grad(b.graph, loss, [x]))
    live = analyze_liveness(b.build())
    assert (live.intervals[before].end > forward) is keeps_input
    assert (live.intervals[y].end > forward) is keeps_output


def test_the_output_is_taken_over_by_its_own_gradient():
    """Relu's gradient may lie over dY or over the output that it reads."""
    b = GraphBuilder()
    x = b.input("x", (64, 64), donated=True)
    y = b.relu(x)
    loss = loss_of(b, b.sin(y))
    (g,) = grad(b.graph, loss, [x])
    b.output(g)
    graph = b.build()
    plans = {name: memopt.compile(graph, name).devices["host"] for name in ("none", "share")}
    size = x.nbytes
    assert plans["none"].peak_bytes >= 3 * size
    assert plans["share"].peak_bytes <= 2 * size + 64
