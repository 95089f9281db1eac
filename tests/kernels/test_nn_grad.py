"""The kernels of normalisation's gradients against the references, in place, and as plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, run_by_kernel

SHAPES = [(2, 3), (3, 2, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2), (2, 2, 300)]


def operands(op: str, shape: tuple[int, ...], dtype: str = "float32", *, stats: bool = True) -> list[np.ndarray | None]:
    """dY, X, scale and for batch normalisation the statistics, with a mean far from 0."""
    dy, x = floats(*shape, seed=1, dtype=dtype), floats(*shape, seed=2, dtype=dtype) + np.dtype(dtype).type(3)
    if op == "LayerNormalizationGrad":
        return [dy, x, floats(*shape[-1:], seed=3, dtype=dtype)]
    scale = floats(shape[1], seed=3, dtype=dtype)
    if op == "InstanceNormalizationGrad" or not stats:
        return [dy, x, scale]
    axes = (0, *range(2, len(shape)))
    return [dy, x, scale, x.mean(axis=axes), x.var(axis=axes)]


CASES = [
    (op, shape)
    for op in ("BatchNormalizationGrad", "LayerNormalizationGrad", "InstanceNormalizationGrad")
    for shape in SHAPES
    if op != "InstanceNormalizationGrad" or len(shape) > 2
]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("op", "shape"), CASES)
def test_kernels_equal_the_reference(op: str, shape: tuple[int, ...], plain: bool) -> None:
    arrays = operands(op, shape)
    assert_close(run_by_kernel(op, arrays, outputs=3, plain=plain), reference(op, arrays, outputs=3))


@pytest.mark.parametrize("op", ["BatchNormalizationGrad", "LayerNormalizationGrad", "InstanceNormalizationGrad"])
def test_float64(op: str) -> None:
    arrays = operands(op, (2, 3, 11), "float64")
    assert_close(run_by_kernel(op, arrays, outputs=3), reference(op, arrays, outputs=3), 1e-12)


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize(("op", "shape"), CASES)
def test_in_place_gives_the_same_bits(op: str, shape: tuple[int, ...], source: int) -> None:
    assert any((pair.output, pair.input) == (0, source) for pair in get_op(op).inplace)
    arrays = operands(op, shape)
    apart, over = (run_by_kernel(op, arrays, outputs=3, inplace=where) for where in ({}, {0: source}))
    for a, b in zip(apart, over, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("attrs", [{"training_mode": 0}, {"training_mode": 1, "epsilon": 0.1}])
def test_batch_norm_in_both_modes_and_layouts(attrs: dict[str, Any], layout: str) -> None:
    arrays = operands("BatchNormalizationGrad", (2, 3, 4, 5))
    found = run_by_kernel("BatchNormalizationGrad", arrays, attrs, outputs=3, layout=layout)
    assert_close(found, reference("BatchNormalizationGrad", arrays, attrs, outputs=3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_and_recomputed_statistics_give_the_same_bits(dtype: str) -> None:
    arrays = operands("BatchNormalizationGrad", (3, 4, 7), dtype)
    vectors = [arrays[2], floats(4, dtype=dtype), *arrays[3:]]
    outs = run_by_kernel("BatchNormalization", [arrays[1], *vectors], {"training_mode": 1}, outputs=5)
    saved = run_by_kernel("BatchNormalizationGrad", [*arrays[:3], *outs[3:]], outputs=3)
    again = run_by_kernel("BatchNormalizationGrad", arrays[:3], outputs=3)
    for a, b in zip(saved, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("outputs", [1, 3, 5])
def test_batch_norm_saves_its_statistics(outputs: int) -> None:
    shape = (4, 3, 5)
    arrays = [floats(*shape), *(floats(3, seed=i) for i in range(1, 4)), np.abs(floats(3, seed=4))]
    wanted = reference("BatchNormalization", arrays, {"training_mode": 1}, outputs=outputs)
    for plain in (False, True):
        found = run_by_kernel("BatchNormalization", arrays, {"training_mode": 1}, outputs=outputs, plain=plain)
        assert_close(found, wanted)


def test_layer_norm_plans_its_sums_and_has_no_kernel_where_they_do_not_fit() -> None:
    spec = get_op("LayerNormalizationGrad")
    arrays = operands("LayerNormalizationGrad", (2, 3, 4))
    for scratch, fits in ((64, True), (63, False)):
        query = make_query("LayerNormalizationGrad", arrays, outputs=3, scratch=scratch)
        assert spec.workspace(query) == (64 if fits else 0)
        assert (spec.kernel(query) is not None) == fits
    wide = make_query("LayerNormalizationGrad", [*arrays[:2], floats(1)], outputs=2)
    assert spec.kernel(wide) is None  # a scale that is broadcast


def test_layer_norm_without_bias() -> None:
    arrays = operands("LayerNormalizationGrad", (5, 9))
    found = run_by_kernel("LayerNormalizationGrad", arrays, outputs=2)
    assert_close(found, reference("LayerNormalizationGrad", arrays, outputs=2))


def test_there_is_no_kernel_for_half_precision() -> None:
    for op in ("BatchNormalizationGrad", "LayerNormalizationGrad", "InstanceNormalizationGrad"):
        query = make_query(op, operands(op, (2, 3, 4), "float16"), outputs=3)
        assert get_op(op).kernel(query) is None
        assert get_op(op).workspace(query) == 0
