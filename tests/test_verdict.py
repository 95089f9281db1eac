"""Whose fault a lost value is, and what a run shows of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import memopt
from memopt import models
from memopt.verdict import Errors, Expected, differences, lost_values, max_rel_error, updated_params

LACKS = {"BatchNormalization", "BatchNormalizationGrad"}
MACHINE = memopt.Machine.host_and("gpu", lacks=LACKS)
POLICIES = ("fluid-1.5", "publish", "outer")


def step(stats_device=None):
    return models.build("resnet18", train=True, batch=2, image=32, stats_device=stats_device)


@pytest.fixture(scope="module")
def on_gpu():
    return memopt.compare(step(), transfers=POLICIES, machine=MACHINE, show=False)


def test_statistics_are_lost_by_the_program_and_gradients_by_the_pass(on_gpu):
    counts = {(row.strategy, row.transfer): (row.num_lost("pass"), row.num_lost("program")) for row in on_gpu.rows}
    num_statistics = 2 * 20
    renamed, own = counts["rename", "fluid-1.5"]
    assert renamed > 0
    assert own == num_statistics
    assert counts["none", "fluid-1.5"] == counts["share", "fluid-1.5"] == (0, num_statistics)
    assert all(counts[s, t] == (0, 0) for s, t in counts if t != "fluid-1.5")


def test_the_programs_own_fault_is_what_no_pass_loses_too(on_gpu):
    lost = {
        row.strategy: {one.value for one in row.lost if one.fault == "program"}
        for row in on_gpu.rows
        if row.transfer == "fluid-1.5"
    }
    assert lost["none"] == lost["share"] == lost["rename"]
    assert {one.value for one in on_gpu.row("none", "fluid-1.5").lost} == lost["none"]


def test_a_run_confirms_each_verdict(on_gpu):
    for row in on_gpu.rows:
        wrong = {kind for kind, one in row.differences.items() if one.differing}
        if row.transfer != "fluid-1.5":
            assert row.right
            assert wrong == set()
        elif row.strategy == "rename":
            assert wrong == {"outputs", "parameters", "statistics", "state"}
        else:
            assert wrong == {"statistics"}
            assert row.differences["statistics"].differing == row.differences["statistics"].count == 40
            assert row.differences["statistics"].error == pytest.approx(1)  # they never moved


def test_with_statistics_on_the_host_share_is_wholly_right():
    comparison = memopt.compare(step("host"), transfers=["fluid-1.5"], machine=MACHINE, show=False)
    assert comparison.row("none").right
    assert comparison.row("share").right
    rename = comparison.row("rename")
    assert rename.num_lost("program") == 0
    assert rename.num_lost("pass") > 0
    assert not rename.right


def test_the_table_of_faults_fits(on_gpu):
    _, second = str(on_gpu).split("\n\nWhose fault")
    assert all(len(line) <= 80 for line in str(on_gpu).splitlines())
    assert "40/40" in second
    data = on_gpu.to_dict()["rows"][0]
    assert {one["fault"] for one in data["lost"]} == {"program"}
    assert data["differences"]["statistics"]["differing"] == 40


def test_without_updates_there_is_one_table():
    comparison = memopt.compare(models.build("lenet"), ["none"], show=False)
    assert not comparison.updates
    assert comparison.rounding is None
    assert len(comparison.tables()) == 1


def test_parameters_are_told_from_state_and_statistics():
    groups = updated_params(step())
    assert groups["bn1.mean"] == groups["bn1.var"] == "statistics"
    assert groups["conv1.weight"] == groups["bn1.scale"] == "parameters"
    assert groups["conv1.weight.velocity"] == "state"
    assert "lr" not in groups
    adam = updated_params(models.build("mlp", train=True, optimizer="adam"))
    assert {name for name, group in adam.items() if group == "parameters"} == {
        f"{layer}.{kind}" for layer in ("fc1", "fc2", "fc3", "logits") for kind in ("weight", "bias")
    }


def test_a_clobbered_update_is_not_the_programs_fault():
    finding = memopt.Finding("clobbered", 3, "w.new", "gone")
    graph = models.build("mlp", train=True)
    name = next(node for node in graph.nodes if node.op == "Momentum").outputs[0].name
    lost = memopt.Finding("lost-parameter", None, name, "lost")
    again = memopt.Finding("lost-update", 7, name, "lost before")
    assert [(one.value, one.fault) for one in lost_values(graph, [finding, lost, again])] == [
        ("w.new", "pass"),
        (name, "program"),
    ]


def test_an_array_differs_only_beyond_what_rounding_explains():
    errors = Errors({"outputs": {"a": 0.5, "b": 0.5, "c": 0.0}, "state": {}})
    rounding = Errors({"outputs": {"a": 0.2, "b": 0.0, "c": 0.0}, "state": {}})
    found = differences(errors, rounding)
    assert list(found) == ["outputs"]
    assert (found["outputs"].differing, found["outputs"].count, found["outputs"].worst) == (1, 3, "b")
    assert differences(errors)["outputs"].differing == 2
    assert differences(Errors({"outputs": {"a": math.nan}}))["outputs"].differing == 1


def test_error_is_relative_to_the_largest_element_and_sees_nan():
    want = {"y": np.array([1.0, -4.0])}
    assert max_rel_error({"y": np.array([1.0, -3.0])}, want) == 0.25
    assert max_rel_error({"y": np.array([1.0, math.nan])}, want) == math.inf
    assert max_rel_error({"y": np.array([0.5])}, {"y": np.array([0.0])}) == 0.5
    assert max_rel_error({"y": np.array([math.inf])}, {"y": np.array([math.inf])}) == 0.0
    assert max_rel_error({"y": np.zeros(0)}, {"y": np.zeros(0)}) == 0.0


def test_what_is_updated_is_judged_by_how_far_it_moved():
    builder = memopt.GraphBuilder("step")
    weight = builder.param("w", np.array([1, 1, 1], np.float32))
    rate = builder.param("lr", np.array(1, np.float32))
    builder.output(builder.op("SGD", weight, builder.input("g", (3,)), rate, name="w.new"))
    expected = Expected(builder.build(), {}, {"w": np.array([1, 4, 5], np.float32), "lr": np.array(1, np.float32)})

    def error(*numbers):
        return expected.errors({}, {"w": np.array(numbers, np.float32)}).groups["parameters"]["w"]

    assert error(1, 4, 5) == 0
    assert error(1, 1, 1) == pytest.approx(1)
    assert error(1, 4, 10) == pytest.approx(1)
    assert error(1, 4, math.nan) == error(1, 4, math.inf) == math.inf
    assert error(1, 4, 2e30) == pytest.approx(4e29)


def test_infinities_are_equal_in_the_same_places():
    builder = memopt.GraphBuilder("step")
    builder.output(builder.op("Increment", builder.param("w", np.zeros(2, np.float32)), name="w.new"))
    expected = Expected(builder.build(), {}, {"w": np.array([math.inf, 1], np.float32)})
    assert expected.errors({}, {"w": np.array([math.inf, 1], np.float32)}).worst == 0
    assert expected.errors({}, {"w": np.array([-math.inf, 1], np.float32)}).worst == math.inf
