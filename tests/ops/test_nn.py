"""References of normalisation and dropout against onnxruntime and known answers, and their types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_onnxruntime


def batch_norm_inputs(shape: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    c = shape[1]
    return [floats(*shape), *(floats(c, seed=i) for i in range(1, 4)), np.abs(floats(c, seed=4))]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2), (0, 3, 2)])
def test_batch_norm_for_inference(shape: tuple[int, ...]) -> None:
    arrays, attrs = batch_norm_inputs(shape), {"epsilon": 1e-3}
    assert_close(
        reference("BatchNormalization", arrays, attrs), run_by_onnxruntime("BatchNormalization", arrays, attrs)
    )


def test_batch_norm_in_training() -> None:
    arrays, attrs = batch_norm_inputs((4, 3, 4, 5)), {"training_mode": 1, "momentum": 0.8}
    found = reference("BatchNormalization", arrays, attrs, outputs=3)
    assert_close(found, run_by_onnxruntime("BatchNormalization", arrays, attrs, outputs=3, opset=14))


def test_statistics_are_updated_after_use() -> None:
    # The weight is also the running variance, the bias also the running mean (hazard S48).
    five, two = np.array([5.0], np.float32), np.array([2.0], np.float32)
    arrays = [np.array([[1.0], [3.0]], np.float32), two, five, five, two]
    y, mean, var = reference("BatchNormalization", arrays, {"training_mode": 1, "epsilon": 0.0}, outputs=3)
    np.testing.assert_allclose(y.ravel(), [3.0, 7.0])
    np.testing.assert_allclose([mean[0], var[0]], [5 * 0.9 + 2 * 0.1, 2 * 0.9 + 1 * 0.1], rtol=1e-6)
    assert get_op("BatchNormalization").updates == {1: 3, 2: 4}


@pytest.mark.parametrize("axis", [-1, 1, -3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_norm(axis: int, has_bias: bool) -> None:
    x = floats(2, 3, 4)
    shape = x.shape[axis % 3 :]
    arrays = [x, floats(*shape, seed=1), *([floats(*shape, seed=2)] if has_bias else [])]
    attrs = {"axis": axis, "epsilon": 1e-2}
    assert_close(
        reference("LayerNormalization", arrays, attrs), run_by_onnxruntime("LayerNormalization", arrays, attrs)
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    arrays = [floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)]
    assert_close(reference("InstanceNormalization", arrays), run_by_onnxruntime("InstanceNormalization", arrays))


@pytest.mark.parametrize(
    "attrs", [{"size": 3}, {"size": 5, "alpha": 0.5, "beta": 0.6, "bias": 2.0}, {"size": 9, "alpha": 2.0}]
)
def test_lrn(attrs: dict[str, Any]) -> None:
    x = floats(2, 6, 3, 4)
    assert_close(reference("LRN", [x], attrs), run_by_onnxruntime("LRN", [x], attrs))


def test_lrn_of_even_size_looks_further_ahead() -> None:
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 3, 1)
    found = reference("LRN", [x], {"size": 2, "alpha": 2.0, "beta": 1.0, "bias": 0.0})[0].ravel()
    np.testing.assert_allclose(found, [1 / 5, 2 / 13, 3 / 9], rtol=1e-6)


def test_dropout_for_inference() -> None:
    x = floats(3, 4)
    y, mask = reference("Dropout", [x], {"ratio": 0.9}, outputs=2)
    np.testing.assert_array_equal(y, x)
    assert mask.dtype == np.bool_
    assert mask.all()
    assert len(reference("Dropout", [x])) == 1


def test_dropout_in_training_is_a_function_of_seed_and_place() -> None:
    x, attrs = np.ones((100, 300), np.float32), {"training": 1, "ratio": 0.3, "seed": 11}
    y, mask = reference("Dropout", [x], attrs, outputs=2)
    np.testing.assert_array_equal(y, np.where(mask, np.float32(1 / 0.7), np.float32(0)))
    assert abs(mask.mean() - 0.7) < 0.01
    again = reference("Dropout", [x[:50]], attrs)[0]
    np.testing.assert_array_equal(again, y[:50])
    other = reference("Dropout", [x], attrs | {"seed": 12}, outputs=2)[1]
    assert abs((mask == other).mean() - 0.58) < 0.01  # independent draws agree with probability 0.7² + 0.3²


def test_dropout_is_a_view_unless_it_trains() -> None:
    view = get_op("Dropout").view_of(0)
    assert view is not None
    for training, offset in ((0, 0), (1, None)):
        query = make_query("Dropout", [floats(3)], {"training": training})
        assert view.byte_offset(query.inputs, query.outputs, query.attrs, 0) == offset


@pytest.mark.parametrize("op", ["BatchNormalization", "LRN", "Dropout", "InstanceNormalization", "LayerNormalization"])
def test_float16_is_near_float32(op: str) -> None:
    x, v = floats(2, 3, 3), floats(3, seed=1)
    arrays = {
        "BatchNormalization": [x, v, v, v, np.abs(v)],
        "InstanceNormalization": [x, v, v],
        "LayerNormalization": [x, v],
    }
    attrs = {"size": 3} if op == "LRN" else {"training": 1} if op == "Dropout" else {}
    full = arrays.get(op, [x])
    half = reference(op, [a.astype(np.float16) for a in full], attrs)[0]
    np.testing.assert_allclose(half, reference(op, full, attrs)[0], atol=0.03, rtol=0.02)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "outputs", "words"),
    [
        ("BatchNormalization", [(2, 3), (3,), (3,), (2,), (3,)], {}, 1, ["input_mean has shape [2]", "[3]"]),
        ("BatchNormalization", [(2, 3), (3,), (3,), (3,), (3,)], {}, 3, ["training_mode = 0"]),
        ("BatchNormalization", [(0, 3), (3,), (3,), (3,), (3,)], {"training_mode": 1}, 3, ["training_mode = 1"]),
        ("BatchNormalization", [(3,), (3,), (3,), (3,), (3,)], {}, 1, ["X is f32[3]"]),
        ("LayerNormalization", [(2, 3), (4,)], {}, 1, ["Scale is f32[4]"]),
        ("LayerNormalization", [(2, 3), (3,)], {"axis": 2}, 1, ["axis = 2"]),
        ("InstanceNormalization", [(2, 3), (3,), (3,)], {}, 1, ["spatial"]),
        ("LRN", [(2, 3)], {"size": 0}, 1, ["size = 0"]),
        ("Dropout", [(2, 3)], {"ratio": 1.0}, 1, ["ratio = 1.0"]),
    ],
)
def test_errors_name_the_attribute(op: str, shapes: Any, attrs: Any, outputs: int, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query(op, [np.zeros(shape, np.float32) for shape in shapes], attrs, outputs=outputs)
    for word in words:
        assert word in str(error.value)
