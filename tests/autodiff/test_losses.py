"""Gradients of the losses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.numeric import Case, check_gradient
from tests.autodiff.test_rules import real

LABELS = np.array([0, 2, 1])


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 2}], ids=repr)
def test_cross_entropy(options, outputs):
    check_gradient(Case("SoftmaxCrossEntropyLoss", [real(3, 4), LABELS], outputs=outputs, **options), kernels=False)


def test_cross_entropy_of_pixels():
    labels = np.arange(12).reshape(2, 2, 3) % 3
    check_gradient(Case("SoftmaxCrossEntropyLoss", [real(2, 3, 2, 3), labels], outputs=2), kernels=False)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_squared_error(reduction):
    check_gradient(Case("MSELoss", [real(3, 4), real(3, 4, seed=1)], reduction=reduction), kernels=False)
    check_gradient(Case("MSELoss", [real(3), real(3, seed=1)], reduction=reduction, wrt=[0]), kernels=False)
