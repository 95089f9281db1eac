"""The gradient of Resize against central differences and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memopt.errors import TypeInferenceError
from tests.nn_gradients import by_rule, op_differences
from tests.nn_harness import assert_close, floats, make_query, reference

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 3, 4), {"scales": (1.0, 1.0, 2.0, 3.0)}),
    ((1, 2, 5, 4), {"sizes": (1, 2, 3, 7), "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}),
    ((1, 2, 3, 4), {"sizes": (1, 2, 5, 7), "mode": "linear"}),
    ((1, 2, 5, 4), {"sizes": (1, 2, 2, 4), "mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ((2, 6), {"sizes": (2, 9), "mode": "linear", "coordinate_transformation_mode": "asymmetric"}),
    ((1, 1, 4, 5), {"sizes": (1, 1, 6, 3), "mode": "cubic"}),
    ((1, 1, 7, 5), {"sizes": (1, 1, 3, 3), "mode": "linear", "antialias": 1}),
    ((2, 3), {"sizes": (2, 3)}),
    (
        (4, 5),
        {
            "sizes": (3, 4),
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "roi": (0.2, 0.3, 1.3, 0.9),
        },
    ),
]


@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_by_central_differences(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = floats(*shape, dtype="float64")
    slope = floats(*reference("Resize", [x], attrs)[0].shape, dtype="float64", seed=1)
    assert_close(by_rule("Resize", [x], slope, attrs), op_differences("Resize", [x], slope, attrs), 1e-8)


@pytest.mark.parametrize(("mode", "theirs"), [("nearest", "nearest"), ("linear", "bilinear")])
def test_by_torch(mode: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    x, slope = floats(1, 2, 3, 4), floats(1, 2, 6, 8, seed=1)
    attrs = {"scales": (1.0, 1.0, 2.0, 2.0), "mode": mode}
    if mode == "nearest":
        attrs |= {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    data = torch.tensor(x, requires_grad=True)
    torch.nn.functional.interpolate(data, scale_factor=2, mode=theirs).backward(torch.tensor(slope))
    assert_close(by_rule("Resize", [x], slope, attrs), [data.grad.numpy()])


def test_types_are_checked() -> None:
    for grad, dtype in (((1, 2, 6, 9), np.float32), ((1, 2, 6, 8), np.int32)):
        with pytest.raises(TypeInferenceError, match="dY is"):
            make_query("ResizeGrad", [np.zeros(grad, dtype)], {"shape": (1, 2, 3, 4), "scales": (1.0, 1.0, 2.0, 2.0)})
