"""Which parameters are replaced, that they repeat, and what keeps activations in range; and the way back to ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.errors import LoadError
from memopt.frontends import load
from memopt.frontends.onnx_weights import with_weights
from memopt.frontends.random_weights import randomize
from memopt.ir import GraphBuilder
from memopt.runtime import run_reference
from tests.frontends.onnx_models import model, node, ours, small_net, theirs


def arrays(graph):
    return {v.name: graph.param_data(v) for v in graph.params}


def test_same_seed_same_weights():
    one, two, other = (arrays(load(small_net(), {"batch": 1}, "random", seed)) for seed in (1, 1, 2))
    file = arrays(load(small_net(), {"batch": 1}))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
        assert not np.array_equal(array, other[name])
        assert not np.array_equal(array, file[name])
        assert array.dtype == file[name].dtype
    assert one["var"].min() > 0


def test_what_is_not_a_weight_is_left_alone():
    f32 = np.float32
    weights = {
        "w": np.ones((3, 3), f32), "bias": np.ones(3, f32), "gain": np.ones(3, f32), "half": f32(0.5),
        "one": np.ones(1, f32),
        "free": np.ones(3, f32), "index": np.array([2, 1, 0]), "limit": np.ones(3, f32), "table": np.ones((3, 3), f32),
    }  # fmt: skip
    nodes = [
        node("Mul", ["x", "free"], ["m0"]),
        node("MatMul", ["m0", "w"], ["m"]),
        node("Mul", ["m", "gain"], ["m1"]),
        node("Add", ["m1", "bias"], ["m2"]),
        node("Mul", ["m2", "half"], ["m3"]),
        node("Add", ["m3", "one"], ["m4"]),
        node("Max", ["m4", "limit"], ["m5"]),
        node("Gather", ["table", "i"], ["t"]),
        node("Add", ["m5", "t"], ["m6"]),
        node("Gather", ["m6", "index"], axis=1),
    ]
    proto = model(nodes, {"x": (2, 3), "i": np.array([0, 1])}, weights=weights)
    before, after = arrays(load(proto)), arrays(load(proto, weights="random"))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"w", "bias", "gain"}


@pytest.mark.parametrize("depth", [60])
def test_deep_nets_stay_in_range(depth):
    b = GraphBuilder()
    x = plain = b.input("x", (8, 64))
    for i in range(depth):
        plain = b.relu(b.matmul(plain, b.param(f"p{i}", shape=(64, 64))))
        x = b.relu(b.add(x, b.matmul(x, b.param(f"r{i}", shape=(64, 64)))))
    b.output(plain, x)
    graph = b.build()
    assert len(randomize(graph, 3)) == 2 * depth
    results = run_reference(graph, {"x": np.random.default_rng(0).standard_normal((8, 64), np.float32)})[0]
    for result in results.values():
        assert np.isfinite(result).all()
        assert 1e-3 < np.sqrt(np.mean(result**2)) < 100


def test_float64_and_float16():
    for dtype in ("float64", "float16"):
        b = GraphBuilder()
        b.output(b.matmul(b.input("x", (2, 8), dtype), b.param("w", shape=(8, 4), dtype=dtype)))
        graph = b.build()
        randomize(graph, 0)
        assert graph.param_data("w").dtype == dtype
        assert 0.1 < graph.param_data("w").std() < 0.8


def test_with_weights():
    proto = small_net()
    before = proto.SerializeToString()
    graph = load(proto, {"batch": 2}, "random", 5)
    twin = with_weights(proto, graph)
    assert proto.SerializeToString() == before
    x = np.random.default_rng(0).standard_normal((2, 2, 4, 4), np.float32)
    np.testing.assert_allclose(
        theirs(twin, {"x": x})["y"], run_reference(graph, {"x": x})[0]["y"], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(ours(twin, {"x": x}, dims={"batch": 2})["y"], run_reference(graph, {"x": x})[0]["y"])


def test_with_weights_of_folded_nodes():
    nodes = [
        node("Split", ["w"], ["a", "b"], axis=0),
        node("ConstantOfShape", ["s"], ["c"]),
        node("MatMul", ["x", "b"], ["m"]),
        node("Add", ["m", "c"]),
    ]
    proto = model(nodes, {"x": (2, 2)}, weights={"w": np.ones((4, 2), np.float32), "s": np.array([2])}, opset=13)
    graph = load(proto, weights="random")
    twin = with_weights(proto, graph)
    x = np.ones((2, 2), np.float32)
    np.testing.assert_allclose(theirs(twin, {"x": x})["y"], run_reference(graph, {"x": x})[0]["y"], rtol=1e-5)


def test_with_weights_of_another_model():
    with pytest.raises(LoadError, match="not of this model"):
        with_weights(model([node("Relu", ["x"])], {"x": (2,)}), load(small_net(), {"batch": 1}))
