"""The onnx package's own cases, one small model for each form of each op: what loads must agree with them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from memopt.errors import UnsupportedOpError
from memopt.frontends import load
from memopt.runtime import run_reference

#: Of an opset before 7, or of a size that our ConvTranspose refuses.
OTHER = {"test_not_2d", "test_not_3d", "test_not_4d", "test_convtranspose_output_shape"}


@pytest.mark.slow
def test_node_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if case.name not in OTHER]
    agreed = 0
    for case in cases:
        feeds, wanted = case.data_sets[0]
        if any(not isinstance(array, np.ndarray) or array.dtype == object for array in feeds):
            continue
        try:
            graph = load(case.model)
        except UnsupportedOpError:
            continue
        names = [value.name for value in case.model.graph.input]
        results = run_reference(graph, dict(zip(names, feeds, strict=False)))[0]
        for output, want in zip(graph.outputs, wanted, strict=True):
            atol = 1e-2 if want.dtype == np.float16 else 1e-5
            assert results[output.name].dtype == want.dtype, case.name
            np.testing.assert_allclose(results[output.name], want, rtol=1e-3, atol=atol, err_msg=case.name)
        agreed += 1
    assert agreed > 400
