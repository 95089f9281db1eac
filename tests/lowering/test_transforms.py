"""dtype and layout transforms: on the host machine too, in the order layout, dtype, device."""

from __future__ import annotations

import numpy as np
import pytest

from memopt import Device, GraphBuilder, Machine, compile, parse, run_reference, validate
from memopt.devices import Placement
from memopt.errors import OptionError, PlanError
from memopt.lowering import Call, Transfer
from memopt.lowering.transfers import steps_between


def conv_net(dtype="float32"):
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 6, 5), dtype)
    w = b.param("w", rng.standard_normal((4, 3, 3, 3)).astype(dtype))
    y = b.relu(b.conv(x, w, pads=(1, 1, 1, 1)))
    z = b.conv(y, b.param("v", rng.standard_normal((2, 4, 1, 1)).astype(dtype)))
    b.output(b.add(z, b.param("c", rng.standard_normal((2, 1, 1)).astype(dtype))), y)
    return b.build()


def check(graph, machine, rtol, **options):
    plan = compile(graph, "share", machine, **options)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feeds = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
        want, _ = run_reference(graph, feeds)
        got = plan.run(feeds)
        for name, array in want.items():
            assert got[name].dtype == array.dtype
            np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(plan.run(feeds, sanitize=True)["add"], got["add"])
    return plan


def transfers(plan, kind):
    return [i for i in plan.program.instructions if isinstance(i, Transfer) and i.kind == kind]


@pytest.mark.parametrize("transfer", ["publish", "outer", "fluid-1.5"])
def test_a_host_whose_conv_wants_nhwc(transfer):
    plan = check(conv_net(), Machine.host_only(layouts={"Conv": "NHWC"}), 1e-5, transfer=transfer)
    relu = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "Relu")
    assert relu.layout == "NHWC"  # an elementwise kernel takes what it gets
    assert len(transfers(plan, "layout")) == 2  # x for the first conv; z for the broadcast add
    assert not transfers(plan, "device")


def test_a_device_that_wants_float32_for_float64():
    plan = check(conv_net("float64"), Machine.host_and("gpu", dtypes={"float64": "float32"}), 1e-4)
    assert transfers(plan, "dtype")


def test_dtype_on_the_host_machine():
    check(conv_net("float64"), Machine.host_only(dtypes={"float64": "float32"}), 1e-4)


@pytest.mark.parametrize("lifetime", ["last-read", "step"])
@pytest.mark.parametrize("share", [False, True])
def test_all_three_at_once(lifetime, share):
    machine = Machine.host_and("gpu", lacks={"Relu"}, dtypes={"float64": "float32"}, layouts={"Conv": "NHWC"})
    check(conv_net("float64"), machine, 1e-4, transfer_lifetime=lifetime, share_transfers=share)


def test_the_order_of_transforms():
    steps = steps_between(Placement("a", "float64", "NHWC"), Placement("b", "float32", "NCHW"))
    assert [kind for kind, _ in steps] == ["layout", "dtype", "device"]
    assert steps[-1][1] == Placement("b", "float32", "NCHW")


def test_s56_layout_dtype_and_device():
    """f16 NHWC on one device, a kernel that wants f32 NCHW on another: all three are applied."""
    b = GraphBuilder("s56")
    x = b.input("x", (1, 3, 2, 2), "float64")
    w = b.param("w", np.eye(3).reshape(3, 3, 1, 1))
    y = b.op("Conv", x, w, name="y", device="a")
    b.output(b.op("GlobalAveragePool", y, name="z", device="host"), y)
    graph = b.build()
    machine = Machine(Device("host"), (Device("a", dtypes={"float64": "float32"}, layouts={"Conv": "NHWC"}),), "host")
    plan = compile(graph, (), machine)
    x = np.arange(12.0).reshape(1, 3, 2, 2)
    got = plan.run({"x": x})
    np.testing.assert_allclose(got["y"], x)
    np.testing.assert_allclose(got["z"], x.mean((2, 3), keepdims=True))
    down = [i.kind for i in plan.program.instructions if isinstance(i, Transfer) and i.node == "z"]
    assert down == ["layout", "dtype", "device"]


def test_sharing_transfers_saves_copies():
    b = GraphBuilder("readers")
    x = b.input("x", (64,))
    b.output(*(b.op(op, x) for op in ("Relu", "Neg", "Exp")))
    graph = b.build()
    machine = Machine.host_and("gpu")
    counts = {
        share: compile(graph, (), machine, share_transfers=share).devices["gpu"].num_transfers
        for share in (False, True)
    }
    assert counts == {False: 3, True: 1}


def test_copies_to_the_end_of_the_step_cost_memory():
    b = GraphBuilder("chain")
    x = b.input("x", (64,))
    for i in range(6):
        x = b.op("Relu" if i % 2 else "Neg", x)
    b.output(x)
    graph, machine = b.build(), Machine.host_and("gpu", lacks={"Relu"})
    eager = compile(graph, (), machine).devices["gpu"].peak_bytes
    step = compile(graph, (), machine, transfer_lifetime="step").devices["gpu"].peak_bytes
    never = compile(graph, (), machine, free="never").devices["gpu"].peak_bytes
    assert eager < step < never


def relu_elsewhere():
    b = GraphBuilder("elsewhere")
    x = b.input("x", (8,))
    y = b.op("Neg", x, name="y")
    b.output(b.op("Relu", y, name="z"))
    return b.build(), Machine.host_and("gpu", lacks={"Relu"})


def test_a_share_follows_its_lender_to_another_device():
    graph, machine = relu_elsewhere()
    plan = compile(graph, "share", machine)
    assert any(d.rule == "moved" and d.accepted and d.subject == ("z",) for d in plan.decisions)
    assert any(d.rule == "fallback" and "gpu lacks Relu" in d.reason for d in plan.decisions)
    relu = next(i for i in plan.program.instructions if isinstance(i, Call) and i.op == "Relu")
    assert relu.inputs[0].buffer == relu.outputs[0].buffer
    assert plan.devices["host"].peak_bytes == 32


def test_a_share_dissolves_across_devices_as_in_fluid():
    graph, machine = relu_elsewhere()
    plan = compile(graph, "share", machine, "fluid-1.5")
    lost = next(d for d in plan.decisions if d.rule == "dissolved")
    assert lost.subject == ("z",)
    assert "the lender's bytes are on gpu, the kernel runs on host" in lost.reason
    assert validate(plan, findings="return") == []


def test_errors_name_the_thing():
    b = GraphBuilder("bad")
    b.output(b.op("Relu", b.input("x", (2,)), device="tpu", name="r"))
    with pytest.raises(PlanError, match=r"node r .* device 'tpu'; the machine has host"):
        compile(b.build(), ())
    with pytest.raises(OptionError, match=r"transfer='none' is not one of"):
        compile(conv_net(), (), transfer="none")
    b = GraphBuilder("bad")
    x = b.input("x", (1, 1, 2, 2))
    b.output(b.matmul(x, x))
    graph = b.build()
    with pytest.raises(PlanError, match="wants NHWC for MatMul, which has no NHWC kernel"):
        compile(graph, (), Machine.host_only(layouts={"MatMul": "NHWC"}))


def test_a_view_spoils_no_bytes_that_lie_there_in_another_layout():
    """Flatten shares the bytes of a conv's result; on a device that makes NHWC, and reads it again, it cannot."""
    b = GraphBuilder("spoil")
    weight = np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1, 1)
    c = b.op("Conv", b.input("x", (1, 2, 3, 3)), b.param("w", weight), name="c")
    b.output(b.relu(b.op("Flatten", c, name="v")), b.op("Conv", c, b.param("u", weight), name="d"))
    graph = b.build()
    plan = compile(graph, "inplace-share", Machine.host_and("gpu", layouts={"Conv": "NHWC"}))
    assert [d.rule for d in plan.decisions if d.pass_name == "lowering"] == ["moved"]  # to the copy that it is made of
    feeds = {"x": np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)}
    want, _ = run_reference(graph, feeds)
    got = plan.run(feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5)


@pytest.mark.parametrize("kept", ["feed", "output"])
def test_a_view_of_a_copy_spoils_nothing_that_is_kept(kept):
    """The last node views a value that the device reads as a float32 copy: the float64 bytes must outlive it."""
    b = GraphBuilder("kept")
    x = b.input("x", (2, 2), "float64")
    if kept == "output":
        x = b.op("Neg", x, name="n", device="host")
        b.output(x)
    b.output(b.op("Dropout", x, outputs=2, name="d", device="gpu")[1])
    machine = Machine.host_and("gpu", dtypes={"float64": "float32"})
    host = Machine(Device("host", dtypes={"float64": "float32"}), (Device("gpu"),), "host")
    for chosen in (machine, host):
        assert validate(compile(b.build(), "share", chosen), findings="return") == []


def test_a_view_of_what_was_rounded_is_not_written_back_over_the_feed():
    """%d is a run of %b, which is a view in strides of the feed; on the gpu %b was rounded to float32."""
    graph = parse(
        'graph "g" { input %x: f64[2,2] %a, %b = Split(%x) {axis=1, split=[1,1]} @gpu '
        "%c, %d = Split(%b) {split=[1,1]} @host output %d }"
    )
    machine = Machine.host_and("gpu", dtypes={"float64": "float32"})
    x = np.random.default_rng(0).normal(size=(2, 2))
    for passes_of in ("share", "best", ("share-views",), ("share-views", "inplace-share")):
        kept = x.copy()
        got = compile(graph, passes_of, machine).run({"x": kept})["d"]
        np.testing.assert_array_equal(kept, x)
        np.testing.assert_allclose(got, x[1:, 1:], rtol=1e-6)
