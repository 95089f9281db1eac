"""Kernels of normalisation and dropout against the references, against themselves as plain Python, and in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel
from tests.ops.test_nn import batch_norm_inputs

SHAPE = (2, 6, 3, 5)
VECTOR, OTHER = floats(6, seed=1), floats(6, seed=2)
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("BatchNormalization", batch_norm_inputs(SHAPE), {"epsilon": 1e-3}),
    ("BatchNormalization", batch_norm_inputs((5, 3)), {}),
    ("LayerNormalization", [floats(*SHAPE), floats(5, seed=1), floats(5, seed=2)], {}),
    ("LayerNormalization", [floats(*SHAPE), floats(3, 5, seed=1), None], {"axis": 2}),
    ("InstanceNormalization", [floats(*SHAPE), VECTOR, OTHER], {}),
    ("LRN", [floats(*SHAPE)], {"size": 4}),
    ("LRN", [floats(*SHAPE)], {"size": 5, "beta": 0.6, "alpha": 0.3}),
    ("Dropout", [floats(*SHAPE)], {"training": 1, "ratio": 0.4, "seed": -7}),
    ("Dropout", [floats(*SHAPE)], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attrs"), CASES)
def test_kernels_equal_the_reference(op: str, arrays: list[Any], attrs: dict[str, Any]) -> None:
    wanted = reference(op, arrays, attrs)
    found = run_by_kernel(op, arrays, attrs)
    assert_close(found, wanted)
    assert_close(run_by_kernel(op, arrays, attrs, plain=True), found)


@pytest.mark.parametrize(("op", "arrays", "attrs"), [case for case in CASES if get_op(case[0]).inplace])
def test_in_place_is_bit_equal(op: str, arrays: list[Any], attrs: dict[str, Any]) -> None:
    apart = run_by_kernel(op, arrays, attrs)[0]
    assert run_by_kernel(op, arrays, attrs, inplace={0: 0})[0].tobytes() == apart.tobytes()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("training", [0, 1])
def test_batch_norm_in_both_layouts(layout: str, training: int) -> None:
    arrays, attrs = batch_norm_inputs(SHAPE), {"training_mode": training, "momentum": 0.7}
    outputs = 3 if training else 1
    found = run_by_kernel("BatchNormalization", arrays, attrs, outputs=outputs, layout=layout)
    assert_close(found, reference("BatchNormalization", arrays, attrs, outputs=outputs))


@pytest.mark.parametrize("plain", [False, True])
def test_batch_norm_in_training_updates_in_place(plain: bool) -> None:
    arrays, attrs = batch_norm_inputs(SHAPE), {"training_mode": 1}
    apart = run_by_kernel("BatchNormalization", arrays, attrs, outputs=3)
    found = run_by_kernel("BatchNormalization", arrays, attrs, outputs=3, inplace={0: 0, 1: 3, 2: 4}, plain=plain)
    assert_close(found, apart, 1e-6)
    if not plain:
        assert [a.tobytes() for a in found] == [a.tobytes() for a in apart]


@pytest.mark.parametrize("plain", [False, True])
def test_statistics_are_updated_after_use_even_if_parameters_alias(plain: bool) -> None:
    # Hazard S48: the weight's bytes are the running variance's, the bias's the running mean's.
    from memopt.runtime.entry import run_kernel

    x, mean_bias, var_weight = (
        np.array([[1.0], [3.0]], np.float32),
        np.full(1, 5, np.float32),
        np.full(1, 2, np.float32),
    )
    y = np.zeros_like(x)
    attrs = {"training_mode": 1, "epsilon": 0.0, "momentum": 0.1}
    arrays = [x, var_weight, mean_bias, mean_bias, var_weight]
    call = get_op("BatchNormalization").kernel(make_query("BatchNormalization", arrays, attrs, outputs=3))
    assert call is not None
    stored = {"out": [y, mean_bias, var_weight], "in": arrays}
    operands = [stored[arg.role][arg.index] for arg in call.arrays]
    if plain:
        from memopt.kernels.nn import batch_norm_train

        shaped = [a.reshape(arg.shape) for a, arg in zip(operands, call.arrays, strict=True)]
        batch_norm_train(*shaped, *call.scalars)
    else:
        run_kernel(call, operands)
    np.testing.assert_allclose(y.ravel(), [3, 7], rtol=1e-6)
    np.testing.assert_allclose([mean_bias[0], var_weight[0]], [5 * 0.1 + 2 * 0.9, 2 * 0.1 + 1 * 0.9], rtol=1e-6)


def test_a_large_mean_does_not_cancel() -> None:
    x = floats(4, 2, 8) + np.float32(4096)
    vectors = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    arrays, attrs = [x, *vectors, *vectors], {"training_mode": 1}
    found = run_by_kernel("BatchNormalization", arrays, attrs, outputs=3)
    assert_close(found[:1], reference("BatchNormalization", arrays, attrs, outputs=3)[:1], 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("training", [0, 1])
def test_dropout_draws_what_the_reference_draws(dtype: str, training: int) -> None:
    x, attrs = floats(3, 40, dtype=dtype), {"training": training, "ratio": 0.3, "seed": 2**62}
    wanted = reference("Dropout", [x], attrs, outputs=2)
    found = run_by_kernel("Dropout", [x], attrs, outputs=2)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert wanted[1].all() == (not training)
