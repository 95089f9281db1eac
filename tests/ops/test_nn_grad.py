"""The gradients of normalisation and dropout against central differences, known answers and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ir import GraphBuilder
from memopt.ops import get_op
from tests.nn_gradients import by_rule, by_torch, gradient_graph, op_differences
from tests.nn_harness import assert_close, floats, make_query, reference


def wide(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, seed=seed, dtype="float64")


def batch_norm_inputs(shape: tuple[int, ...], dtype: str = "float64") -> list[np.ndarray]:
    vectors = [floats(shape[1], seed=i, dtype=dtype) for i in range(1, 5)]
    return [floats(*shape, dtype=dtype), *vectors[:3], np.abs(vectors[3]) + 0.5]


def without_constants(grads: list[Any]) -> list[Any]:
    """The gradients of X, scale and B; running statistics are constants."""
    assert grads[3:] == [None, None]
    return grads[:3]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 4), (2, 2, 2, 3)])
@pytest.mark.parametrize(("training", "outputs"), [(0, 1), (1, 1), (1, 3), (1, 5)])
def test_batch_norm_by_central_differences(shape: tuple[int, ...], training: int, outputs: int) -> None:
    arrays, slope = batch_norm_inputs(shape), wide(*shape, seed=7)
    attrs = {"training_mode": training, "epsilon": 1e-3}
    found = without_constants(by_rule("BatchNormalization", arrays, slope, attrs, outputs=outputs))
    assert_close(found, op_differences("BatchNormalization", arrays, slope, attrs, outputs=outputs)[:3], 1e-7)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_saved_and_recomputed_statistics_give_the_same_bits(dtype: str) -> None:
    arrays, slope = batch_norm_inputs((4, 3, 5), dtype), floats(4, 3, 5, seed=7, dtype=dtype)
    saved = by_rule("BatchNormalization", arrays, slope, {"training_mode": 1}, outputs=5)
    again = by_rule("BatchNormalization", arrays, slope, {"training_mode": 1}, outputs=3)
    for a, b in zip(without_constants(saved), without_constants(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_saved_statistics_are_those_of_the_batch() -> None:
    arrays = batch_norm_inputs((4, 3, 5, 2))
    *_, mean, var = reference("BatchNormalization", arrays, {"training_mode": 1}, outputs=5)
    np.testing.assert_allclose(mean, arrays[0].mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(var, arrays[0].var(axis=(0, 2, 3)))


def test_batch_norm_reads_what_was_saved_or_x_alone() -> None:
    arrays = batch_norm_inputs((4, 3))
    for outputs, wanted in (
        (5, ["dy", "x0", "x1", "batch_normalization.3", "batch_normalization.4"]),
        (3, ["dy", "x0", "x1"]),
    ):
        graph, _ = gradient_graph("BatchNormalization", arrays, {"training_mode": 1}, outputs=outputs)
        (node,) = [node for node in graph.nodes if node.op == "BatchNormalizationGrad"]
        assert [value.name for _, value in node.data_inputs] == wanted


@pytest.mark.parametrize("training", [0, 1])
def test_batch_norm_by_pytorch(training: int) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    torch = pytest.importorskip("torch")
    arrays, slope = batch_norm_inputs((4, 3, 5, 6), "float32"), floats(4, 3, 5, 6, seed=7)
    mean, var = (torch.tensor(a) for a in arrays[3:])

    def function(x: Any, scale: Any, bias: Any) -> Any:
        return functional.batch_norm(x, mean.clone(), var.clone(), scale, bias, training=bool(training), eps=1e-3)

    attrs = {"training_mode": training, "epsilon": 1e-3}
    found = without_constants(by_rule("BatchNormalization", arrays, slope, attrs, outputs=5 if training else 1))
    assert_close(found, by_torch(function, arrays[:3], slope))


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        (((2, 3), (2, 4), (3,)), {}, "want the same type"),
        (((2, 3), (2, 3), (2,)), {}, r"scale has shape \[2\]"),
        (((2, 3), (2, 3), (3,), (3,)), {}, "come together"),
        (((2, 3), (2, 3), (3,)), {"training_mode": 0}, "needs mean and var"),
        (((2, 3), (2, 3), (3,), (3,), (1,)), {}, r"var has shape \[1\]"),
    ],
)
def test_what_does_not_fit_is_named(shapes: Any, attrs: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        make_query("BatchNormalizationGrad", [floats(*shape) for shape in shapes], attrs, outputs=3)


@pytest.mark.parametrize(
    ("axis", "scale", "bias"),
    [
        (-1, (4,), (4,)),
        (1, (3, 4), (3, 4)),
        (-3, (2, 3, 4), None),
        (1, (4,), (3, 1)),
        (1, (3, 1), (2, 3, 4)),
        (2, (1,), ()),
    ],
)
def test_layer_norm_by_central_differences(axis: int, scale: Any, bias: Any) -> None:
    arrays = [wide(2, 3, 4), wide(*scale, seed=1), *([] if bias is None else [wide(*bias, seed=2)])]
    attrs, slope = {"axis": axis, "epsilon": 1e-2}, wide(2, 3, 4, seed=3)
    found = by_rule("LayerNormalization", arrays, slope, attrs)
    assert_close(found, op_differences("LayerNormalization", arrays, slope, attrs), 1e-7)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 2, 2, 3)])
def test_instance_norm_by_central_differences(shape: tuple[int, ...]) -> None:
    arrays = [wide(*shape), wide(shape[1], seed=1), wide(shape[1], seed=2)]
    slope = wide(*shape, seed=3)
    found = by_rule("InstanceNormalization", arrays, slope, {"epsilon": 1e-3})
    assert_close(found, op_differences("InstanceNormalization", arrays, slope, {"epsilon": 1e-3}), 1e-7)


@pytest.mark.parametrize(
    "attrs", [{"size": 3}, {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}, {"size": 9, "alpha": 2.0}]
)
def test_lrn_by_central_differences(attrs: dict[str, Any]) -> None:
    x, slope = wide(2, 6, 2, 2), wide(2, 6, 2, 2, seed=1)
    assert_close(by_rule("LRN", [x], slope, attrs), op_differences("LRN", [x], slope, attrs), 1e-7)


@pytest.mark.parametrize("name", ["layer_norm", "instance_norm", "local_response_norm"])
def test_others_by_pytorch(name: str) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    function = getattr(functional, name)
    x, slope = floats(3, 5, 7), floats(3, 5, 7, seed=3)
    if name == "layer_norm":
        arrays = [x, floats(7, seed=1), floats(7, seed=2)]
        found, wanted = (
            by_rule("LayerNormalization", arrays, slope),
            by_torch(lambda x, s, b: function(x, (7,), s, b), arrays, slope),
        )
    elif name == "instance_norm":
        arrays = [x, floats(5, seed=1), floats(5, seed=2)]
        found = by_rule("InstanceNormalization", arrays, slope)
        wanted = by_torch(lambda x, s, b: function(x, weight=s, bias=b), arrays, slope)
    else:
        found = by_rule("LRN", [x], slope, {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0})
        wanted = by_torch(lambda x: function(x, 3, 0.5, 0.6, 2.0), [x], slope)
    assert_close(found, wanted)


def test_dropout_has_a_gradient_exactly_where_its_output_is_not_zero() -> None:
    # Hazard S46: the gradient draws the mask again, from the seed.
    attrs, ones = {"ratio": 0.5, "seed": 7, "training": 1}, np.ones(1000, np.float32)
    y = reference("Dropout", [ones], attrs)[0]
    (grad,) = by_rule("Dropout", [ones], ones, attrs)
    np.testing.assert_array_equal(grad, y)
    assert 400 < np.count_nonzero(grad) < 600


def test_dropout_keeps_neither_mask_nor_data() -> None:
    rule = get_op("Dropout").gradient
    assert rule is not None
    assert (rule.needs_inputs, rule.needs_outputs) == ((), ())
    graph, _ = gradient_graph("Dropout", [floats(10)], {"training": 1}, outputs=2)
    assert [value.name for _, value in graph.nodes[-1].data_inputs] == ["dy"]


def test_no_gradient_flows_from_running_statistics() -> None:
    builder = GraphBuilder()
    x, *vectors = (builder.input(f"x{i}", shape) for i, shape in enumerate([(4, 3), (3,), (3,), (3,), (3,)]))
    _, mean, _ = builder.op("BatchNormalization", x, *vectors, outputs=3, training_mode=1)
    rule = get_op("BatchNormalization").gradient
    assert rule is not None
    assert rule.build(builder, mean.producer, [None, mean, None]) == [None] * 5
