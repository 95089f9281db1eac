"""Graphs that broke real systems, and the values that they must give: backward, devices, order and peaks (S43 to S67).

Left out: S46's and S47's recomputation and S61's search for an order (passes that we lack), S49 to S51 (control flow),
S58 and S59 A (streams: transfers are done when the next instruction starts), S64's pins in plans (the packer has them).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from memopt import Graph, GraphBuilder, Machine, compile, validate
from memopt.autodiff import grad
from memopt.errors import VerifyError
from memopt.packing import PackingBuffer, PackingProblem, pack
from memopt.validate import dependencies
from tests.hazards.line import forced, give, plans, right_everywhere, wrong_everywhere
from tests.hazards.test_values_inplace import S01, right_s01, s01

# -- backward ---------------------------------------------------------------------------------------------------------


def with_gradient(graph: Graph, loss: str, wrt: str) -> str:
    """Fetch d loss / d wrt too; its name."""
    found = grad(graph, graph.value(loss), [graph.value(wrt)])
    value = next(iter(found.values())) if isinstance(found, dict) else found[0]
    graph.set_outputs([*graph.outputs, value])
    return value.name


def test_s43_in_place_after_an_op_whose_output_is_needed():
    b = GraphBuilder()
    y = b.op("Exp", b.input("x", ()), name="y")
    b.output(b.op("Sqrt", y, name="z"))
    graph = b.build()
    name = with_gradient(graph, "z", "x")
    feeds = give(x=np.float32(np.log(4)))
    right_everywhere(graph, feeds, lambda x: {"z": np.exp(x / 2), name: np.exp(x / 2) / 2}, lacks="Sqrt")
    np.testing.assert_allclose(compile(graph).run(feeds)[name], 1.0, rtol=1e-6)
    wrong_everywhere(forced(graph, "z", "y"), feeds, {name: np.float32(1.0)})


def test_s43_in_place_sine():
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", ()), name="x")
    b.output(b.op("Sin", x, name="y"))
    graph = b.build()
    name = with_gradient(graph, "y", "x0")
    feeds = give(x0=np.float32(np.pi / 3))
    right_everywhere(graph, feeds, lambda x0: {"y": np.sin(x0), name: np.cos(x0)}, lacks="Sin")
    np.testing.assert_allclose(compile(graph).run(feeds)[name], 0.5, rtol=1e-6)
    wrong_everywhere(forced(graph, "y", "x"), feeds, {name: np.float32(np.cos(np.float32(np.pi / 3)))})


def test_s45_only_the_shape_is_needed():
    b = GraphBuilder()
    x, y = b.input("x", (1000,)), b.relu(b.input("y0", (1000,)), name="y")
    z = b.add(x, y, name="z")
    b.output(b.op("ReduceSum", b.mul(z, z), keepdims=0, name="loss"))
    graph = b.build()
    name = with_gradient(graph, "loss", "y0")
    feeds = {"x": np.linspace(-1, 1, 1000, dtype=np.float32), "y0": np.linspace(-2, 2, 1000, dtype=np.float32)}

    def right(x, y0):
        return {name: np.where(y0 > 0, 2 * (x + np.maximum(y0, 0)), 0)}

    right_everywhere(graph, feeds, right, lacks="Add")


def test_s46_the_mask_of_a_gradient_is_that_of_the_value():
    b = GraphBuilder()
    y = b.op("Dropout", b.input("x", (1000,)), ratio=0.5, seed=3, training=1, name="y")
    b.output(y, b.op("ReduceSum", y, keepdims=0, name="loss"))
    graph = b.build()
    name = with_gradient(graph, "loss", "x")
    for label, plan in plans(graph, "Dropout"):
        got = plan.run({"x": np.ones(1000, np.float32)})
        np.testing.assert_array_equal(got[name] != 0, got["y"] != 0, err_msg=label)
        assert 300 < np.count_nonzero(got["y"]) < 700


def test_s48_statistics_that_are_scale_and_bias_too():
    """Old values are used, or the plan is refused: never are statistics updated before they are read."""
    b = GraphBuilder()
    x = b.input("x", (2, 1))
    w, bias = b.param("w", np.float32([2])), b.param("b", np.float32([5]))
    made = b.op(
        "BatchNormalization", x, w, bias, bias, w, outputs=("y", "m", "v"), training_mode=1, epsilon=0.0, momentum=0.9
    )
    b.output(made[0])
    graph, feeds = b.build(), give(x=[[1], [3]])
    for strategy in ("none", "share"):
        plan = compile(graph, strategy, validate=False)
        findings = validate(plan, findings="return")
        if findings:
            assert {f.kind for f in findings} <= {"illegal-inplace", "overlap"}
        else:
            np.testing.assert_allclose(plan.run(feeds)["y"], [[3], [7]], rtol=1e-5)


def test_s48_statistics_move_once():
    b = GraphBuilder()
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    params = [b.param(name, data) for name, data in zip("wbmv", (ones, zeros, zeros, ones), strict=True)]
    x = b.input("x", (2, 1))
    made = b.op("BatchNormalization", x, *params, outputs=("y", "m2", "v2"), training_mode=1, momentum=0.9)
    b.output(made[0])
    for label, plan in plans(b.build(), "BatchNormalization"):
        plan.run(give(x=[[0], [2]]))
        np.testing.assert_allclose(plan.state()["m"], [0.1], rtol=1e-6, err_msg=label)


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transfer", ["publish", "outer", "fluid-1.5"])
def test_s54_the_result_of_an_op_on_another_device(transfer):
    b = GraphBuilder()
    x = b.op("ConstantOfShape", shape=(2,), value=0.0, name="x")
    x1 = b.op("Increment", x, name="x1")
    b.output(x1, b.add(x1, x1, name="y"))
    machine = Machine.host_and("gpu", lacks={"Increment"})
    for strategy in ("none", "rename", "share"):
        plan = compile(b.build(), strategy, machine, transfer, validate=False)
        findings = validate(plan, findings="return")
        got = plan.run()
        if transfer == "fluid-1.5":
            assert {f.kind for f in findings} & {"lost-update", "lost-output"}
            assert got["y"].tolist() == [0, 0]
        else:
            assert findings == []
            assert (got["x1"].tolist(), got["y"].tolist()) == ([1, 1], [2, 2])


@pytest.mark.parametrize("last", ["Conv", "Relu"])
def test_s56_device_layout_and_dtype_at_once(last):
    b = GraphBuilder()
    weight = np.random.default_rng(0).standard_normal((3, 2, 1, 1))
    made = b.conv(b.relu(b.input("x", (1, 2, 2, 3), "float64"), device="host"), b.param("w", weight), name="y")
    b.output(made if last == "Conv" else b.relu(made, name="z"))
    graph = b.build()
    x = np.linspace(-1, 1, 12).reshape(1, 2, 2, 3)
    want = np.einsum("nchw,oc->nohw", np.maximum(x, 0), weight[:, :, 0, 0])
    want = want if last == "Conv" else np.maximum(want, 0)
    for lacks in (set(), {"Relu"}):
        machine = Machine.host_and("gpu", lacks=lacks, dtypes={"float64": "float32"}, layouts={"Conv": "NHWC"})
        for strategy in ("none", "rename", "share"):
            plan = compile(graph, strategy, machine)
            for _ in range(3):
                (got,) = plan.run({"x": x}).values()
                assert (got.shape, got.dtype) == ((1, 3, 2, 3), np.float64)
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_s57_a_thousand_legal_orders():
    plan = forced(s01("d", donated=True, control=True), "e", "b")
    assert validate(plan, order="any") == []
    before, executor, rng = dependencies(plan), plan.executor(), random.Random(0)
    rows = {row.instruction: index for index, row in enumerate(executor._loaded.rows)}
    want = {name: array.tolist() for name, array in right_s01(**S01).items()}
    for _ in range(1000):
        for result in plan.program.feeds:
            executor._view(result.operand, result.name)[...] = S01[result.name]
        left = set(rows)
        while left:
            at = rng.choice(sorted(at for at in left if not left & set(before[at])))
            executor._step(rows[at])
            left.remove(at)
        assert {name: array.tolist() for name, array in executor._fetch({}).items()} == want


def test_s59_a_copy_keeps_what_it_copied():
    """h is a copy of A on the host; A's memory goes to B, which is written; then h is read."""
    b = GraphBuilder()
    a = b.relu(b.input("x", (16,)), name="A")
    h = b.neg(a, device="host", name="h")
    c = b.mul(b.param("w", np.full(16, 3, np.float32)), b.param("v", np.full(16, 2, np.float32)), name="B")
    b.output(b.add(h, b.op("Identity", c, device="host"), device="host", name="y"))
    feeds = give(x=np.arange(16, dtype=np.float32))
    for options in ({}, {"share_transfers": True}, {"transfer_lifetime": "step"}):
        right_everywhere(b.build(), feeds, lambda x: {"y": 6 - np.maximum(x, 0)}, lacks="Mul", **options)


# -- order and peaks --------------------------------------------------------------------------------------------------


def s61() -> Graph:
    """No op but the last may be in place."""
    b = GraphBuilder()
    i = b.op("Expand", b.input("x", (1,)), shape=(100,), name="I")
    m = b.op("Slice", b.op("CumSum", i, axis=0, name="L"), starts=(0,), ends=(100,), axes=(0,), steps=(4,), name="M")
    n, p = b.op("Tile", m, repeats=(4,), name="N"), b.op("CumSum", i, axis=0, reverse=1, name="P")
    b.output(b.add(n, p, name="y"))
    return b.build()


@pytest.mark.parametrize(("order", "peak"), [("LMNP", 300), ("PLMN", 300), ("LPMN", 300), ("LMPN", 225)])
def test_s61_two_legal_orders_two_peaks(order, peak):
    graph = s61()
    graph.reorder([graph.node(name) for name in "I" + order + "y"])
    plan = compile(graph, "share", Machine.host_only(alignment=4))
    for x in (1, 2, 1):
        line = np.arange(1, 101, dtype=np.float32) * x
        np.testing.assert_allclose(plan.run(give(x=[x]))["y"], np.tile(line[::4], 4) + line[::-1])
    assert plan.devices["host"].peak_bytes == 4 * peak


def test_s63_a_peak_counts_each_byte_once():
    mib = 1 << 20
    b = GraphBuilder()
    x = b.input("x", (mib // 4,))
    for name in ("a", "b", "c"):
        x = b.relu(x, name=name)
    b.param("w", np.zeros(2 * mib, np.float32))
    b.output(x)
    graph = b.build()
    for strategy, peak in (("none", 2 * mib), ("rename", mib), ("share", mib)):
        use = compile(graph, strategy, pack_seconds=0).devices["host"]
        assert (use.peak_bytes, use.height_bytes) == (peak, peak)
        assert (use.feed_bytes, use.param_bytes, use.scratch_bytes, use.transfer_bytes) == (mib, 8 * mib, 0, 0)
        assert use.total_bytes == peak + 9 * mib


def test_s64_a_pin_is_kept_and_an_impossible_one_is_infeasible():
    a, other = PackingBuffer("A", 4, 0, 2, offset=8), PackingBuffer("B", 8, 0, 2)
    plan = pack(PackingProblem((a, other)))
    assert (plan.offsets["A"], plan.offsets["B"], plan.height) == (8, 0, 12)
    assert plan.lower_bound <= plan.height
    assert pack(PackingProblem((a, PackingBuffer("C", 4, 1, 3, offset=10)))).status == "infeasible"


def test_s67_an_order_is_a_permutation():
    graph = s61()
    with pytest.raises(VerifyError, match="permutation"):
        graph.reorder(graph.nodes[:-1])
    with pytest.raises(VerifyError, match="before"):
        graph.reorder(graph.nodes[::-1])


def test_s67_a_share_by_hand_is_refused_with_the_read_that_it_breaks():
    found = wrong_everywhere(forced(s01("e", donated=True), "e", "b"), S01, right_s01(**S01), "clobbered")
    assert "call d on host" in found[0].message
    assert "call e on host" in found[0].message
