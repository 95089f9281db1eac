"""The nine `light_*` networks of the onnx package: with random weights, our references agree with onnxruntime.

Their weights are constants in the file, so that any wrong result would look right; see `random_weights`.
"""

from __future__ import annotations

import os
import time

import numpy as np
import onnx
import pytest

from memopt.frontends import load
from memopt.frontends.onnx_weights import with_weights
from memopt.runtime import run_reference
from tests.frontends.onnx_models import LIGHT, theirs

QUICK = ["shufflenet", "squeezenet"]
SLOW = ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "vgg19", "zfnet512"]
NETWORKS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def path_of(name):
    return os.path.join(LIGHT, f"light_{name}.onnx")


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_onnxruntime(name):
    graph = load(path_of(name), weights="random", seed=7)
    twin = with_weights(onnx.load(path_of(name)), graph)
    rng = np.random.default_rng(1)
    (feed,) = graph.inputs
    feeds = [{feed.name: rng.standard_normal(feed.shape, np.float32)} for _ in range(2)]
    one, other = (next(iter(theirs(twin, f).values())) for f in feeds)
    found = run_reference(graph, feeds[0])[0][graph.outputs[0].name]
    top = np.abs(one).max()
    assert np.isfinite(one).all()
    assert np.abs(found - one).max() <= 1e-3 * top
    np.testing.assert_allclose(found, one, rtol=1e-3, atol=1e-4 * top)
    assert len(np.unique(one)) > 0.6 * one.size  # classes differ (a Relu before the end makes some alike)
    assert np.abs(one - other).max() > 5e-3 * top  # the answer depends on the feed
    assert 1e-3 * top < one.std() < top  # and no class takes all


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "inception_v2", *QUICK])
def test_loads_quickly_into_few_ops(name):
    start = time.perf_counter()
    graph = load(path_of(name), weights="random")
    assert time.perf_counter() - start < 2
    assert not {"Constant", "ConstantOfShape", "Shape", "Unsqueeze"} & {node.op for node in graph.nodes}
    assert len(graph.inputs) == 1
    for value in graph.params:
        data = graph.param_data(value)
        assert data.size < 50 or data.std() > 0, f"{value.name} is constant"


def test_weights_of_the_file():
    graph = load(path_of("squeezenet"))
    weight = next(v for v in graph.params if v.name == "conv10_w_0")
    assert np.unique(graph.param_data(weight)).tolist() == [np.float32(0.02)]
