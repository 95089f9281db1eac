"""The three transfer policies on the smallest graphs, without any pass: what is written where, and what the name
means afterwards.
"""

from __future__ import annotations

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.errors import PlanError
from memopt.lowering import Call, Rebind, Transfer

RIGHT = ("publish", "outer")


def sgd_graph(device: str | None = "host"):
    """SGD on the host; the parameter lives on the machine's default device."""
    b = GraphBuilder("sgd")
    g = b.input("g", (4,))
    w = b.param("w", np.arange(1, 5, dtype=np.float32))
    lr = b.param("lr", np.array(0.5, np.float32))
    b.output(b.mul(b.op("SGD", w, g, lr, name="w1", device=device), b.param("two", np.full(4, 2, np.float32))))
    return b.build()


def kinds(plan):
    return [type(i).__name__ for i in plan.program.instructions if isinstance(i, (Call, Transfer, Rebind))]


@pytest.mark.parametrize("transfer", RIGHT)
def test_an_update_on_another_device_is_kept(transfer):
    graph = sgd_graph()
    plan = compile(graph, (), Machine.host_and("gpu"), transfer)
    state = None
    for seed in range(3):
        feeds = {"g": np.random.default_rng(seed).standard_normal(4).astype(np.float32)}
        want, state = run_reference(graph, feeds, state)
        got = plan.run(feeds)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
        np.testing.assert_array_equal(plan.state()["w"], state["w"])


def test_an_update_on_another_device_is_lost_under_fluid_without_any_pass():
    graph = sgd_graph()
    plan = compile(graph, (), Machine.host_and("gpu"), "fluid-1.5", validate=False)
    findings = validate(plan, findings="return")
    assert findings
    assert any(f.value in ("w", "w1") for f in findings)
    before = plan.state()["w"].copy()
    plan.run({"g": np.ones(4, np.float32)})
    np.testing.assert_array_equal(plan.state()["w"], before)  # the result is lost, without an error


def test_nothing_is_lost_where_nothing_is_transformed():
    graph = sgd_graph(device=None)
    plan = compile(graph, (), Machine.host_and("gpu"), "fluid-1.5")
    assert validate(plan, findings="return") == []


def test_nor_where_the_parameter_lives_with_its_update():
    graph = sgd_graph()
    graph.param_devices["w"] = "host"
    plan = compile(graph, (), Machine.host_and("gpu"), "fluid-1.5")
    assert plan.devices["host"].param_bytes == plan.devices["gpu"].param_bytes - 4 == 16
    plan.run({"g": np.ones(4, np.float32)})
    np.testing.assert_array_equal(plan.state()["w"], np.arange(1, 5, dtype=np.float32) - 0.5)


def test_a_parameter_on_no_device_of_the_machine_is_refused():
    graph = sgd_graph()
    graph.param_devices["w"] = "tpu"
    with pytest.raises(PlanError, match="parameter %w lives on device 'tpu'; the machine has host, gpu"):
        compile(graph, (), Machine.host_and("gpu"))


def test_publish_writes_into_the_copy_and_rebinds():
    plan = compile(sgd_graph(), (), Machine.host_and("gpu"), "publish")
    sgd = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "SGD")
    assert sgd.device == "host"
    assert sgd.outputs[0].buffer == sgd.inputs[0].buffer
    rebind = next(i for i in plan.program.instructions if isinstance(i, Rebind))
    assert rebind.target.buffer == sgd.outputs[0].buffer


def test_outer_writes_elsewhere_and_never_rebinds():
    plan = compile(sgd_graph(), (), Machine.host_and("gpu"), "outer")
    sgd = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "SGD")
    assert sgd.outputs[0].buffer != sgd.inputs[0].buffer
    assert not any(isinstance(i, Rebind) for i in plan.program.instructions)


def test_fluid_rebinds_to_the_stale_input():
    plan = compile(sgd_graph(), (), Machine.host_and("gpu"), "fluid-1.5", validate=False)
    sgd = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "SGD")
    rebind = next(i for i in plan.program.instructions if isinstance(i, Rebind))
    assert rebind.target.buffer == sgd.inputs[0].buffer != sgd.outputs[0].buffer


def increment_graph():
    """Hazard S54: x = fill(0) on the gpu, incremented on the host, read by the gpu."""
    b = GraphBuilder("s54")
    x = b.op("ConstantOfShape", shape=(3,), value=0.0, name="x", device="gpu")
    y = b.op("Increment", x, name="y", device="host")
    b.output(y, b.op("Neg", y, name="z", device="gpu"))
    return b.build()


@pytest.mark.parametrize("transfer", RIGHT)
def test_s54_increment_on_another_device(transfer):
    plan = compile(increment_graph(), (), Machine.host_and("gpu"), transfer)
    for _ in range(3):
        got = plan.run({})
        assert got["y"].tolist() == [1, 1, 1]
        assert got["z"].tolist() == [-1, -1, -1]


def test_s54_is_wrong_under_fluid_and_the_validator_says_so():
    plan = compile(increment_graph(), (), Machine.host_and("gpu"), "fluid-1.5", validate=False)
    assert plan.run({})["y"].tolist() == [0, 0, 0]
    assert any(f.value == "y" for f in validate(plan, findings="return"))


@pytest.mark.parametrize("strategy", ["none", "rename", "share"])
@pytest.mark.parametrize("transfer", ["publish", "outer", "fluid-1.5"])
def test_the_sum_script_of_the_report(strategy, transfer):
    """Two int64 constants on the host, summed on the gpu: 5 under every strategy and policy where the names differ."""
    b = GraphBuilder("sum")
    two = b.op("ConstantOfShape", shape=(1,), value=2.0, dtype="int64", name="two", device="host")
    three = b.op("ConstantOfShape", shape=(1,), value=3.0, dtype="int64", name="three", device="host")
    b.output(b.op("Sum", two, three, name="out", device="gpu"))
    graph = b.build()
    plan = compile(graph, strategy, Machine.host_and("gpu"), transfer, validate=False)
    same_name = graph.storage and plan.graph.storage.variable(plan.graph.value("out")) in (
        plan.graph.storage.variable(plan.graph.value("two")),
        plan.graph.storage.variable(plan.graph.value("three")),
    )
    right = plan.run({})["out"].tolist() == [5]
    assert right == (validate(plan, findings="return") == [])
    assert right or (same_name and transfer == "fluid-1.5")
