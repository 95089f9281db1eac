"""Whole networks, in file order, at batch 1, on one host device: `best` reaches what no sharing can go below."""

from __future__ import annotations

import os

import pytest

import memopt
from memopt.analysis import needed_bytes
from tests.frontends.onnx_models import LIGHT

#: network -> MiB
FLOORS = {
    "squeezenet": 3.747,
    "inception_v1": 4.431,
    "inception_v2": 3.828,
    "shufflenet": 2.967,
    "densenet121": 6.891,
    "resnet50": 6.891,
}


@pytest.mark.parametrize("name", FLOORS)
def test_best_reaches_the_floor_and_copies_little(name):
    graph = memopt.load(os.path.join(LIGHT, f"light_{name}.onnx"), weights="random")
    apart = sum(value.nbytes for value in (*graph.inputs, *graph.params))
    floor = int(needed_bytes(graph).max()) - apart
    plan = memopt.compile(graph, "best")
    assert plan.devices["host"].height_bytes == floor
    assert floor / 2**20 == pytest.approx(FLOORS[name], abs=1e-3)
    joins = [d for d in plan.decisions if d.pass_name == "share-concat"]
    refused = [d for d in joins if not d.accepted]
    assert len(refused) <= (2 if name == "densenet121" else 0)
    assert {str(d.rule) for d in refused} <= {"raises-peak"}
