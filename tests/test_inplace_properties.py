"""Random graphs with in-place methods and views equal the same graphs written without them, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memopt
from memopt.autodiff import check_saved, grad
from memopt.errors import GradientError
from memopt.report import inplace_outcomes
from memopt.training import SGD, Momentum, training_step
from tests.inplace_programs import EXACT, programs, run_handles, run_numpy, run_twin

PLANNED = settings(deadline=None, max_examples=25)


def same(got, want):
    """Bit for bit, but for the sign of zeros."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def finished(b, outputs):
    """(graph, names of the outputs, one for each): what is fetched twice is copied."""
    seen, names = set(), []
    for value in outputs:
        while value in seen:
            value = b.append("Identity", value)
        seen.add(value)
        b.output(value)
        names.append(value.name)
    return b.build(), names


def with_gradients(b, leaves, outputs):
    """As `finished`, with a loss that weighs every output, and its gradients."""
    graph, terms = b.graph, []
    for i, value in enumerate(outputs):
        weights = b.append("ConstantOfShape", shape=value.shape, value=float(i + 1), dtype="float64")
        terms.append(b.append("ReduceSum", b.append("Mul", value, weights), keepdims=0))
    loss = b.append("Sum", *terms)
    return finished(b, [*outputs, loss, *grad(graph, loss, leaves)])


def by_name(results, names):
    return [results[name] for name in names]


@settings(max_examples=150)
@given(programs())
def test_values_by_reference(program):
    b, _, outputs = run_handles(program)
    graph, names = finished(b, outputs)
    results, _ = memopt.run_reference(graph, {})
    for got, want in zip(by_name(results, names), run_numpy(program), strict=True):
        same(got, want)


@PLANNED
@given(programs())
def test_values_by_plans(program):
    graph, names = finished(*run_handles(program)[::2])
    twin, twin_names = finished(*run_twin(program)[::2])
    wanted = by_name(memopt.compile(twin, "none").run({}), twin_names)
    for strategy in ("share", "rename"):
        plan = memopt.compile(graph, strategy)
        for _ in range(2):
            for got, want in zip(by_name(plan.run({}), names), wanted, strict=True):
                same(got, want)
        assert len(inplace_outcomes(plan)) == len(graph.inplace.requests)


@PLANNED
@given(programs(), st.sampled_from(["publish", "outer"]), st.sampled_from(["share", "rename"]))
def test_values_on_two_devices(program, transfer, strategy):
    """Writes that the gpu has no kernel for run on the host."""
    graph, names = finished(*run_handles(program)[::2])
    machine = memopt.Machine.host_and("gpu", lacks={"SliceAssign", "Sin", "Mul"})
    wanted = by_name(memopt.compile(graph, "none").run({}), names)
    plan = memopt.compile(graph, strategy, machine, transfer)
    for got, want in zip(by_name(plan.run({}), names), wanted, strict=True):
        same(got, want)
    for outcome in inplace_outcomes(plan):
        assert outcome.honoured == (outcome.extra_bytes == 0)


@PLANNED
@given(programs(unary=EXACT))
def test_gradients(program):
    """On small integers all sums are exact, so that the order of adding does not matter."""
    b, leaves, outputs = run_handles(program, exact=True)
    graph, names = with_gradients(b, leaves, outputs)
    twin, twin_names = with_gradients(*run_twin(program, exact=True))
    wanted = by_name(memopt.run_reference(twin, {})[0], twin_names)
    for got, want in zip(by_name(memopt.run_reference(graph, {})[0], names), wanted, strict=True):
        same(got, want)
    for strategy in ("share", "rename"):
        for got, want in zip(by_name(memopt.compile(graph, strategy).run({}), names), wanted, strict=True):
            same(got, want)


@PLANNED
@given(programs(views=False))
def test_gradients_without_views(program):
    """x.op_() is x = op(x): the same nodes, hence the same bits."""
    graph, names = with_gradients(*run_handles(program))
    functional = tuple(("new", *s[1:]) if s[0] == "write" else s for s in program.statements)
    assert all(s[0] in ("new", "hold") for s in functional)
    plain, plain_names = with_gradients(*_functional(program))
    assert [node.op for node in graph.nodes] == [node.op for node in plain.nodes]
    wanted = by_name(memopt.compile(plain, "none").run({}), plain_names)
    for strategy in ("share", "rename"):
        for got, want in zip(by_name(memopt.compile(graph, strategy).run({}), names), wanted, strict=True):
            same(got, want)


@PLANNED
@given(programs(views=False, max_statements=6), st.sampled_from([SGD(0.01), Momentum(0.01, nesterov=True)]))
def test_training_steps(program, optimizer):
    """Parameters after three steps, bit for bit."""
    wanted = None
    for write in (_functional, run_handles):
        b, leaves, outputs = write(program)
        loss = b.append("Sum", *(b.append("ReduceMean", value, keepdims=0) for value in outputs))
        b.output(loss)
        step = training_step(b.build(), loss, optimizer, params=[leaf.name for leaf in leaves])
        for strategy in ("none",) if wanted is None else ("share", "rename"):
            plan = memopt.compile(step, strategy)
            losses = [plan.run({})[loss.name] for _ in range(3)]
            found = [*losses, *(plan.state()[leaf.name] for leaf in leaves)]
            wanted = wanted or found
            for got, want in zip(found, wanted, strict=True):
                same(got, want)


def _functional(program):
    """The program with `x = op(x)` for `x.op_()`, in plain values."""
    from tests.inplace_programs import leaf_data

    b = memopt.GraphBuilder("plain")
    values = [b.param(f"w{i}", data) for i, data in enumerate(leaf_data(program, exact=False))]
    leaves, held = list(values), []
    for kind, t, *rest in program.statements:
        if kind == "hold":
            held.append(values[t])
            continue
        op, operands = rest
        number = values[t].type.with_shape(())
        inputs = [values[o] if isinstance(o, int) else b.make_constant(o, number) for o in operands]
        made = b.op(op, values[t], *inputs)
        if kind == "new":
            values.append(made)
        else:
            values[t] = made
    return b, leaves, [*(values[t] for t in program.kept), *held]


@settings(max_examples=100)
@given(programs(unary=("Relu", "Sin", "Exp", "Neg")))
def test_strict_refuses_only_what_costs(program):
    """Where strict mode is silent, no old value that the backward reads stood in the way of an in-place method."""
    b, leaves, outputs = run_handles(program)
    terms = [b.append("ReduceSum", value, keepdims=0) for value in outputs]
    loss = b.append("Sum", *terms)
    before = str(b.graph)
    b.graph.inplace.strict = True
    try:
        check_saved(b.graph, loss, leaves)
    except GradientError:
        with pytest.raises(GradientError, match="strict"):
            grad(b.graph, loss, leaves)
        assert str(b.graph) == before
        return
    assert str(b.graph) == before
    num_nodes = len(b.graph.nodes)
    grad(b.graph, loss, leaves)
    backward = b.graph.nodes[num_nodes:]
    read = {value.name for node in backward for _, value in node.data_inputs}
    assert not any(place.old in read for request in b.graph.inplace.requests for place in request.places)
