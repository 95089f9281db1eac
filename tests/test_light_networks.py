"""Real networks down the whole line: the nine `light_*` files of the onnx package, with seeded random weights,
against onnxruntime.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

import memopt
from memopt.frontends.onnx_weights import with_weights
from tests.frontends.onnx_models import LIGHT, theirs

STRATEGIES = ("none", "rename", "share")
#: network -> (height in MiB that `share` must not exceed on one host device, in file order)
HEIGHTS = {
    "squeezenet": 3.75,
    "shufflenet": 2.97,
    "bvlc_alexnet": 2.14,
    "densenet121": 6.90,
    "inception_v1": 4.44,
    "inception_v2": 3.83,
    "resnet50": 6.90,
    "vgg19": 24.50,
    "zfnet512": 8.71,
}
QUICK = ("squeezenet", "shufflenet")
NETWORKS = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in HEIGHTS]


def load(name):
    path = os.path.join(LIGHT, f"light_{name}.onnx")
    graph = memopt.load(path, weights="random", seed=3)
    rng = np.random.default_rng(5)
    return path, graph, {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}


def relative_error(got, want):
    return max(float(np.abs(got[name] - array).max() / np.abs(array).max()) for name, array in want.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_onnxruntime_and_is_small(name):
    path, graph, feeds = load(name)
    want = {value.name: theirs(with_weights(onnx.load(path), graph), feeds)[value.name] for value in graph.outputs}
    heights = {}
    for strategy in STRATEGIES:
        plan = memopt.compile(graph, strategy)
        use = plan.devices["host"]
        heights[strategy] = use.height_bytes
        print(f"{name} {strategy}: height {use.height_bytes} B, peak {use.peak_bytes} B, scratch {use.scratch_bytes} B")
        got = plan.run(feeds)
        assert relative_error(got, want) < 1e-3
        assert got.host_calls == ()
        assert use.height_bytes == use.lower_bound_bytes
        assert use.scratch_bytes <= 1 << 20
    assert heights["share"] <= HEIGHTS[name] * 2**20
    assert heights["share"] <= heights["none"]
    assert heights["rename"] <= heights["none"]


def device_run(name):
    """On a gpu that lacks batch normalization: what the validator says of each pairing, and how wrong a run is."""
    _, graph, feeds = load(name)
    machine = memopt.Machine.host_and("gpu", lacks={"BatchNormalization"})
    want, _ = memopt.run_reference(graph, feeds)
    found = {}
    for strategy in STRATEGIES:
        for transfer in ("fluid-1.5", "publish", "outer"):
            plan = memopt.compile(graph, strategy, machine, transfer, validate=False)
            findings = memopt.validate(plan, findings="return")  # before anything runs
            found[strategy, transfer] = findings, relative_error(plan.run(feeds), want)
    return graph, found


@pytest.mark.slow
def test_resnet50_loses_values_by_renaming_under_fluid_only():
    graph, found = device_run("resnet50")
    lost, error = found.pop(("rename", "fluid-1.5"))
    assert error > 1e-2
    assert len(lost) > 50
    assert {finding.kind for finding in lost} == {"lost-update"}
    ops = {graph.value(finding.value).producer.op for finding in lost}
    assert ops <= {"BatchNormalization", "Relu", "Add", "Sum"}
    for pairing, (findings, error) in found.items():
        assert findings == [], pairing
        assert error < 1e-5, pairing
