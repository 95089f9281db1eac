"""Updates: the references against formulas written out in float64; types; what is updated."""

from __future__ import annotations

import numpy as np
import pytest

from memopt import GraphBuilder
from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from memopt.types import TensorType as T

RATE = T(())


def run(op, *arrays, **attrs):
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = spec.infer([T.of(a.shape, a.dtype) for a in arrays], full, len(spec.outputs))
    results = spec.reference(arrays, full, types)
    for result, type in zip(results, types, strict=True):
        assert (result.shape, result.dtype.name) == (type.shape, type.dtype)
        assert not any(np.shares_memory(result, a) for a in arrays)
    return results


def state(count, dtype="float64"):
    draw = np.random.default_rng(3)
    return [np.abs(draw.standard_normal((2, 3))).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sgd(dtype):
    p, g = state(2, dtype)
    (new,) = run("SGD", p, g, np.array([0.1], dtype))
    np.testing.assert_allclose(new, p - 0.1 * g, rtol=1e-2 if dtype == "float16" else 1e-6)


def test_momentum_as_in_pytorch():
    p, g, v = state(3)
    slope = g + 0.01 * p
    speed = 0.8 * v + slope
    lr = np.array(0.1)
    new, velocity = run("Momentum", p, g, v, lr, mu=0.8, weight_decay=0.01)
    np.testing.assert_allclose([new, velocity], [p - 0.1 * speed, speed])
    new, velocity = run("Momentum", p, g, v, lr, mu=0.8, weight_decay=0.01, use_nesterov=True)
    np.testing.assert_allclose([new, velocity], [p - 0.1 * (slope + 0.8 * speed), speed])


@pytest.mark.parametrize("op", ["Adam", "AdamW"])
def test_adam_as_in_pytorch(op):
    p, g, m, v = state(4)
    for step in (0, 7):
        new, mean, square, count = run(op, p, g, m, v, np.array(step), np.array(0.1), weight_decay=0.02, beta2=0.99)
        t = step + 1
        slope = g + 0.02 * p if op == "Adam" else g
        base = p if op == "Adam" else p * (1 - 0.1 * 0.02)
        want_m, want_v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope**2
        corrected_m, corrected_v = want_m / (1 - 0.9**t), want_v / (1 - 0.99**t)
        np.testing.assert_allclose(new, base - 0.1 * corrected_m / (np.sqrt(corrected_v) + 1e-8))
        np.testing.assert_allclose([mean, square], [want_m, want_v])
        assert count.shape == ()
        assert int(count) == t


def test_increment():
    assert run("Increment", np.array(41))[0] == 42
    assert run("Increment", np.array([0.5], "f"), step=0.25)[0].tolist() == [0.75]
    with pytest.raises(TypeInferenceError, match="not whole"):
        run("Increment", np.array(1), step=0.5)
    with pytest.raises(TypeInferenceError, match="numbers"):
        run("Increment", np.array(True))


@pytest.mark.parametrize(
    ("op", "types", "match"),
    [
        ("SGD", [T((2,)), T((3,)), RATE], "grad must have"),
        ("SGD", [T((2,), "int32"), T((2,), "int32"), RATE], "float dtype"),
        ("SGD", [T((2,)), T((2,)), T((2,))], "lr must be one number"),
        ("Momentum", [T((2,)), T((2,)), T((2,), "float64"), RATE], "velocity must have"),
        ("Adam", [T((2,))] * 4 + [T((), "int32"), RATE], "step must be one number"),
    ],
)
def test_refused(op, types, match):
    spec = get_op(op)
    with pytest.raises(TypeInferenceError, match=match):
        spec.infer(types, spec.complete_attrs({}), len(spec.outputs))


def test_an_update_writes_the_variable_of_its_input():
    b = GraphBuilder()
    p, g, v, lr = b.param("p", np.ones(3, "f")), b.input("g", (3,)), b.param("v", np.zeros(3, "f")), b.input("lr", ())
    new, velocity = b.momentum(p, g, v, lr)
    count = b.increment(b.param("n", np.array(0)))
    graph = b.build()
    variable = graph.storage.variable
    assert variable(new) is variable(p)
    assert variable(velocity) is variable(v)
    assert variable(count) is variable(graph.value("n"))


def test_updates_may_be_in_place():
    for op in ("SGD", "Momentum", "Adam", "AdamW", "Increment"):
        spec = get_op(op)
        assert {pair.output: pair.input for pair in spec.inplace} == spec.updates
        assert [spec.outputs[o].name for o in spec.updates] == [spec.inputs[i].name for i in spec.updates.values()]
