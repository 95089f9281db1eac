"""`training_step`: what it adds, where updates stand, and that a compiled step trains as the reference does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memopt
from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.autodiff import grad
from memopt.errors import GradientError, OptionError
from memopt.training import SGD, Adam, AdamW, Momentum, trainable_params, training_step
from tests.strategies import feeds_for, graphs

OPTIMIZERS = [SGD(0.1), Momentum(0.05), Momentum(0.05, nesterov=True, weight_decay=0.01), Adam(0.01), AdamW(0.01)]
MACHINES = {
    "host": Machine.host_only(),
    "gpu": Machine.host_and("gpu", lacks={"Relu", "ReluGrad", "Momentum", "Adam", "SGD", "ReduceSum", "Sum"}),
}


def mlp(dtype="float32", loss="cross entropy"):
    """Two hidden layers that share a weight, a mask and a scale that are not to be trained."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("mlp")
    x, y = b.input("x", (5, 6), dtype), b.input("y", (5,), "int64")
    w0, w1 = (b.param(f"w{i}", rng.normal(0, 0.5, shape).astype(dtype)) for i, shape in enumerate(((6, 8), (8, 8))))
    bias = b.param("bias", np.zeros(8, dtype))
    hidden = b.relu(b.gemm(x, w0, bias))
    hidden = b.relu(b.add(b.matmul(hidden, w1), bias))
    hidden = b.tanh(b.mul(b.matmul(hidden, w1), b.param("factor", np.asarray(0.5, dtype))))
    logits = b.matmul(hidden, b.param("w2", rng.normal(0, 0.5, (8, 3)).astype(dtype)))
    b.increment(b.param("count", np.zeros((), "int64")))
    value, _ = b.softmax_cross_entropy_loss(logits, y, outputs=["loss", "log_prob"])
    b.output(value)
    return b.build()


def feeds(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(5, 6)).astype(dtype), "y": rng.integers(0, 3, 5)}


def test_what_is_trained_and_what_is_added():
    graph = mlp()
    text = str(graph)
    assert [v.name for v in trainable_params(graph, "loss")] == ["w0", "w1", "bias", "w2"]
    step = training_step(graph, "loss", Momentum(0.1), freeze=["w2"])
    assert str(graph) == text
    assert [v.name for v in step.params[-4:]] == ["lr", "w0.velocity", "w1.velocity", "bias.velocity"]
    assert [v.name for v in step.outputs] == ["loss"]
    updates = {n.name: n for n in step.nodes if n.op == "Momentum"}
    assert list(updates) == ["w1.update", "w0.update", "bias.update"]
    assert [v.name for v in updates["w0.update"].outputs] == ["w0.new", "w0.velocity.new"]
    assert step.storage.variable(step.value("w0.new")) is step.storage.variable(step.value("w0"))
    only = training_step(graph, graph.value("loss"), SGD(0.1), params=["factor"])
    assert [n.name for n in only.nodes if n.op == "SGD"] == ["factor.update"]


def test_an_update_stands_right_after_the_last_reader_of_the_old_value():
    step = training_step(mlp(), "loss", SGD(0.1))
    steps = step.steps()
    for node in step.nodes:
        if node.op == "SGD":
            old, slope = node.inputs[:2]
            last = max([steps[use.node] for use in old.data_uses if use.node is not node] + [steps[slope.producer]])
            between = step.nodes[last + 1 : steps[node]]
            assert all(other.op == "SGD" for other in between)


def test_an_update_waits_for_readers_of_a_view():
    b = GraphBuilder()
    w = b.param("w", np.ones((2, 3), "f"))
    flat = b.reshape(w, shape=(6,))
    x = b.input("x", (6,))
    b.output(b.reduce_sum(b.sin(b.mul(b.sin(b.mul(flat, x)), flat)), keepdims=0, name="loss"))
    step = training_step(b.build(), "loss", SGD(0.1))
    steps = step.steps()
    update = step.node("w.update")
    assert all(steps[use.node] < steps[update] for use in step.value(flat.name).data_uses)
    share, none = (compile(step, name).devices["host"].peak_bytes for name in ("share", "none"))
    assert share <= none


def test_errors():
    graph = mlp()
    with pytest.raises(OptionError, match="is not one of SGD"):
        training_step(graph, "loss", "adam")
    with pytest.raises(OptionError, match="nothing to train"):
        training_step(graph, "loss", SGD(), freeze=["w0", "w1", "bias", "w2"])
    with pytest.raises(OptionError, match="x is not a parameter"):
        training_step(graph, "loss", SGD(), params=["x"])
    with pytest.raises(GradientError, match="count is state that the graph updates itself"):
        training_step(graph, "loss", SGD(), params=["count", "w0"])
    graph.set_outputs([*graph.outputs, graph.value("w0")])
    with pytest.raises(GradientError, match="w0 is an output"):
        training_step(graph, "loss", SGD())


def assert_same(got, want, rtol):
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("machine", sorted(MACHINES))
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_compiled_step_trains_as_the_reference_does(optimizer, machine):
    step = training_step(mlp(), "loss", optimizer)
    plans = [
        compile(step, strategy, MACHINES[machine], transfer)
        for strategy in ("none", "rename", "share")
        for transfer in ("publish", "outer")
    ]
    state, losses = None, []
    for run in range(4):
        given = feeds(0)
        want, state = run_reference(step, given, state)
        losses.append(float(want["loss"]))
        first = plans[0].run(given)
        assert_same(first, want, 1e-4)
        for plan in plans[1:]:
            assert plan.run(given, sanitize=run == 1)["loss"] == first["loss"]
    for plan in plans:
        assert_same(plan.state(), state, 1e-4)
        for name, array in plans[0].state().items():
            np.testing.assert_array_equal(plan.state()[name], array, err_msg=name)
    assert losses[-1] < losses[0]
    if machine == "host":
        assert plans[-1].devices["host"].peak_bytes <= plans[0].devices["host"].peak_bytes


def test_against_torch():
    torch = pytest.importorskip("torch")
    dtype = "float64"
    graph = mlp(dtype)
    made = {
        SGD(0.1): lambda p: torch.optim.SGD(p, 0.1),
        Momentum(0.05): lambda p: torch.optim.SGD(p, 0.05, 0.9),
        OPTIMIZERS[2]: lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01, nesterov=True),
        Adam(0.01): lambda p: torch.optim.Adam(p, 0.01),
        AdamW(0.01): lambda p: torch.optim.AdamW(p, 0.01),
    }
    for optimizer, make in made.items():
        step = training_step(graph, "loss", optimizer)
        names = [v.name for v in trainable_params(graph, "loss")]
        p = {name: torch.tensor(graph.param_data(name), requires_grad=True) for name in names}
        rule, state = make(list(p.values())), None
        for run in range(3):
            given = feeds(run, dtype)
            x = torch.relu(torch.tensor(given["x"]) @ p["w0"] + p["bias"])
            x = torch.tanh(torch.relu(x @ p["w1"] + p["bias"]) @ p["w1"] * 0.5)
            loss = torch.nn.functional.cross_entropy(x @ p["w2"], torch.tensor(given["y"]))
            rule.zero_grad()
            loss.backward()
            rule.step()
            outputs, state = run_reference(step, given, state)
            np.testing.assert_allclose(outputs["loss"], loss.detach().numpy(), rtol=1e-9)
        for name in names:
            np.testing.assert_allclose(state[name], p[name].detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=name)


# -- random graphs ----------------------------------------------------------------------------------------------------

SMOOTH = ("unary", "binary", "reshape", "flatten", "transpose", "concat", "split", "slice", "matmul", "gemm", "reduce",
          "sum", "cast", "batch_norm", "conv", "max_pool")  # fmt: skip


@st.composite
def training_graphs(draw, devices=(None,)):
    """A random graph, a loss over some of its floats, and the gradients of all float feeds and parameters."""
    graph = draw(graphs(devices=devices, updates=False, only=SMOOTH))
    b = GraphBuilder()
    b.graph = graph
    floats = [v for v in graph.values if v.producer is not None and v.dtype.startswith("float") and v.type.num_elements]
    assume(floats)
    chosen = draw(st.lists(st.sampled_from(floats[-4:]), min_size=1, max_size=3))
    parts = [b.cast(b.reduce_mean(b.tanh(v), keepdims=0), to="float32") for v in chosen]
    loss = b.sum(*parts) if len(parts) > 1 else b.identity(parts[0])
    wrt = [v for v in (*graph.inputs, *graph.params) if v.dtype.startswith("float")]
    grads = grad(graph, loss, wrt)
    graph.set_outputs([*graph.outputs, loss, *dict.fromkeys(draw(st.lists(st.sampled_from(grads), max_size=3)))])
    rate = b.param("rate", np.float32(0.1))
    for value, slope in zip(wrt, grads, strict=True):
        if value in graph.params and value not in graph.outputs and draw(st.booleans()):
            b.sgd(value, slope, rate)
    return b.build()


@given(training_graphs(devices=(None, "host", "gpu")), st.integers(0, 9))
@settings(max_examples=25)
def test_random_training_graphs_are_valid_and_right_everywhere(graph, seed):
    machine = Machine.host_and("gpu", lacks={"Relu", "Sum", "SGD", "Expand", "Mul"})
    given_feeds = feeds_for(graph, seed)
    want, after = run_reference(graph, given_feeds)
    base = compile(graph, "none", machine)
    first = base.run(given_feeds, copy_feeds=True)
    assert_same(first, want, 2e-4)
    assert_same(base.state(), after, 2e-4)
    for strategy in ("rename", "share"):
        for transfer in ("publish", "outer"):
            plan = compile(graph, strategy, machine, transfer)
            assert validate(plan, findings="return") == []
            got = plan.run(given_feeds, copy_feeds=True)
            for name, array in first.items():
                np.testing.assert_array_equal(got[name], array, err_msg=name)
            for name, array in base.state().items():
                np.testing.assert_array_equal(plan.state()[name], array, err_msg=name)


def test_batch_norm_updates_its_statistics_once_and_trains_scale_and_bias():
    b = GraphBuilder()
    x = b.input("x", (4, 3, 2, 2))
    names = ("scale", "shift", "mean", "var")
    vectors = [b.param(name, np.full(3, value, "f")) for name, value in zip(names, (1, 0, 0, 1), strict=True)]
    y = b.op("BatchNormalization", x, *vectors, outputs=["y", "new_mean", "new_var"], training_mode=1)[0]
    b.output(b.reduce_mean(b.mul(y, b.sin(y)), keepdims=0, name="loss"))
    graph = b.build()
    assert [v.name for v in trainable_params(graph, "loss")] == ["scale", "shift"]
    step = training_step(graph, "loss", SGD(0.1))
    given_feeds = {"x": np.random.default_rng(0).normal(1, 2, (4, 3, 2, 2)).astype("f")}
    _, after = run_reference(step, given_feeds)
    np.testing.assert_allclose(after["mean"], 0.1 * given_feeds["x"].mean((0, 2, 3)), rtol=1e-4)
    machine = Machine.host_and("gpu", lacks={"BatchNormalization", "BatchNormalizationGrad"})
    for strategy in ("none", "rename", "share"):
        plan = memopt.compile(step, strategy, machine, "publish")
        plan.run(given_feeds, copy_feeds=True)
        assert_same(plan.state(), after, 1e-4)
