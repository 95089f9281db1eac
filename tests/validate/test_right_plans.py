"""Plans that are right, each with one thing that the validator must understand: no findings."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.devices import Device, Machine
from memopt.errors import InvalidPlanError, OptionError
from memopt.ir import GraphBuilder
from memopt.validate import validate
from tests.validate.plans import Sketch


def chain(*, donated: bool = False):
    b = GraphBuilder()
    x = b.input("x", (4, 4), donated=donated)
    a = b.relu(x, name="a")
    b.output(b.neg(a, name="c"))
    return b.build()


def right(sketch: Sketch) -> None:
    assert [str(f) for f in sketch.findings()] == []
    assert validate(sketch.plan()) == []


def test_every_value_in_a_buffer_of_its_own():
    right(Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"]))


def test_in_place():
    right(Sketch(chain()).buffers_for("a").call("a", ["x"], ["a"]).call("c", ["a"], ["c@a"]).result("c@a"))


def test_in_place_with_another_dtype_of_the_same_width():
    b = GraphBuilder()
    b.output(b.op("Cast", b.neg(b.input("x", (4,)), name="a"), to="int32", name="c"))
    right(Sketch(b.build()).buffers_for("a").call("a", ["x"], ["a"]).call("c", ["a"], ["c@a"]).result("c@a"))


def test_in_place_over_a_donated_feed():
    right(Sketch(chain(donated=True)).call("a", ["x"], ["a@x"]).call("c", ["a@x"], ["c@x"]).result("c@x"))


def test_bytes_of_a_freed_buffer_are_used_again():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    b.output(b.neg(b.neg(b.neg(x, name="a"), name="b"), name="c"))
    s = Sketch(b.build()).buffers_for("a", "b").buffer("c", at=0)
    s.call("a", ["x"], ["a"]).call("b", ["a"], ["b"]).free("a").call("c", ["b"], ["c"]).free("b")
    right(s)


def test_two_small_tensors_in_the_bytes_of_a_large_one():
    b = GraphBuilder()
    x = b.input("x", (32,))
    p, q = b.op("Split", b.neg(x, name="big"), outputs=("p", "q"), name="split", axis=0, split=(16, 16))
    b.output(b.add(b.neg(p, name="r"), b.neg(q, name="s"), name="t"))
    s = Sketch(b.build()).buffers_for("big", "p", "q").buffer("r", at=0).buffer("s", at=64).buffers_for("t")
    s.call("big", ["x"], ["big"]).call("split", ["big"], ["p", "q"]).free("big")
    s.call("r", ["p"], ["r"]).call("s", ["q"], ["s"]).call("t", ["r", "s"], ["t"])
    right(s)


def views():
    """S02: x1 is read after a view of it was made, and after the view was read."""
    b = GraphBuilder()
    x = b.input("x", (2, 2))
    x1 = b.relu(x, name="x1")
    x2 = b.reshape(x1, name="x2", shape=(4,))
    x3 = b.neg(x2, name="x3")
    x4 = b.reshape(x3, name="x4", shape=(2, 2))
    b.output(b.add(x1, x4, name="x5"))
    return b.build()


def test_both_names_of_a_view_may_be_read():
    s = Sketch(views()).buffers_for("x1", "x3", "x5")
    s.call("x1", ["x"], ["x1"]).call("x2", ["x1"], ["x2@x1"]).call("x3", ["x2@x1"], ["x3"])
    right(s.call("x4", ["x3"], ["x4@x3"]).call("x5", ["x1", "x4@x3"], ["x5"]))


def test_a_view_may_be_copied_too():
    s = Sketch(views()).buffers_for("x1", "x2", "x3", "x4", "x5")
    s.call("x1", ["x"], ["x1"]).call("x2", ["x1"], ["x2"]).free("x1")
    s.call("x3", ["x2"], ["x3"]).call("x4", ["x3"], ["x4"])
    right(s.call("x5", ["x1@x2", "x4"], ["x5"]))  # x1 is read from its view's bytes: they are the same


def test_outputs_of_split_in_the_bytes_of_its_input():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    y = b.neg(x, name="y")
    p, q = b.op("Split", y, outputs=("p", "q"), name="split", axis=0, split=(2, 2))
    b.output(b.relu(p, name="r"), q)
    s = Sketch(b.build()).buffers_for("y")
    s.call("y", ["x"], ["y"]).call("split", ["y"], ["p@y", "q@y+32"]).call("r", ["p@y"], ["r@y"])
    right(s.result("r@y", "q@y+32"))


def sgd(device: str = "host"):
    b = GraphBuilder()
    g = b.input("g", (4,))
    w = b.param("w", np.ones(4, np.float32))
    lr = b.param("lr", np.float32(0.1))
    b.op("SGD", w, g, lr, name="w2", device=device)
    b.output(b.neg(g, name="n"))
    return b.build()


def test_an_update_in_its_parameters_bytes():
    right(Sketch(sgd()).buffers_for("n").call("w2", ["w", "g", "lr"], ["w2@w"]).call("n", ["g"], ["n"]))


def test_an_update_elsewhere_that_is_brought_home():
    s = Sketch(sgd()).buffers_for("n", "w2").call("w2", ["w", "g", "lr"], ["w2"])
    right(s.call("n", ["g"], ["n"]).transfer("home", "w2", "w2@w"))


def on_gpu(policy: str) -> Sketch:
    """SGD on the host, its parameter on the gpu."""
    s = Sketch(sgd(), Machine.host_and("gpu")).buffer("T.w", 16).buffer("T.lr", 4).buffers_for("n", "w2")
    s.transfer("device", "w", "w@T.w").transfer("device", "lr", "lr@T.lr")
    into = "w2@T.w" if policy == "publish" else "w2"
    s.call("w2", ["w@T.w", "g", "lr@T.lr"], [into]).call("n", ["g"], ["n"])
    return s.transfer("home", into, "w2@w")


@pytest.mark.parametrize("policy", ["publish", "outer"])
def test_an_update_on_another_device(policy):
    right(on_gpu(policy))


def test_transfers_of_dtype_and_back():
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float64")
    b.output(b.neg(b.relu(x, name="a"), name="c", device="host"))
    s = Sketch(b.build(), Machine.host_and("gpu", dtypes={"float64": "float32"}))
    s.buffer("x32", 64).buffer("g", 64, device="gpu").buffer("a", 64, device="gpu").buffer("h", 64).buffer(
        "h64", 128
    ).buffers_for("c")
    f32 = {
        name: s.operand(f"{value}@{name}", dtype="float32")
        for name, value in (("x32", "x"), ("g", "x"), ("a", "a"), ("h", "a"))
    }
    s.transfer("dtype", "x", f32["x32"]).transfer("device", f32["x32"], f32["g"]).call(
        "a", [f32["g"]], [f32["a"]], device="gpu"
    )
    s.transfer("device", f32["a"], f32["h"]).transfer("dtype", f32["h"], "a@h64").call("c", ["a@h64"], ["c"])
    right(s)


def conv(channels: int = 3):
    b = GraphBuilder()
    x = b.input("x", (1, channels, 4, 4))
    w = b.param("w", np.ones((2, channels, 1, 1), np.float32))
    y = b.op("Conv", b.relu(x, name="a"), w, name="y")
    b.output(b.neg(y, name="c"))
    return b.build()


NHWC = Machine(Device("host", layouts={"Conv": "NHWC"}))


def test_transfers_of_layout():
    s = Sketch(conv(), NHWC).buffer("a", 192).buffer("T", 192).buffer("y", 128).buffer("c", 128)
    nhwc = {text: s.operand(text, layout="NHWC") for text in ("a@T", "y", "c")}
    s.call("a", ["x"], ["a"]).transfer("layout", "a", nhwc["a@T"])
    s.call("y", [nhwc["a@T"], "w"], [nhwc["y"]], layout="NHWC").call("c", [nhwc["y"]], [nhwc["c"]], layout="NHWC")
    s.buffer("out", 128).transfer("layout", nhwc["c"], "c@out").result("c@out")
    right(s)


def test_one_channel_lies_alike_in_both_layouts():
    s = Sketch(conv(1), NHWC).buffers_for("a", "y", "c")
    nhwc = {text: s.operand(text, layout="NHWC") for text in ("a", "y", "c")}
    s.call("a", ["x"], ["a"]).call("y", [nhwc["a"], "w"], [nhwc["y"]], layout="NHWC")
    right(s.call("c", [nhwc["y"]], [nhwc["c"]], layout="NHWC").result(nhwc["c"]))


def test_empty_tensors_are_always_where_they_should_be():
    b = GraphBuilder()
    e = b.input("e", (0, 4))
    b.output(b.neg(b.relu(e, name="a"), name="c"))
    right(Sketch(b.build()).buffers_for("a").buffer("c", at=0).call("a", ["e"], ["a"]).call("c", ["a"], ["c"]))


def test_the_same_value_twice_in_place():
    b = GraphBuilder()
    b.output(b.add(a := b.neg(b.input("x", (4,)), name="a"), a, name="c"))
    right(Sketch(b.build()).buffers_for("a").call("a", ["x"], ["a"]).call("c", ["a", "a"], ["c@a"]).result("c@a"))


def test_raise_or_return():
    wrong = Sketch(chain()).buffers_for("a", "c").call("c", ["a"], ["c"]).plan()
    with pytest.raises(
        InvalidPlanError, match=r"2 findings\n  read-before-write: .*instruction 0 \(call c on host\)"
    ) as caught:
        validate(wrong)
    assert caught.value.findings == validate(wrong, findings="return")
    with pytest.raises(OptionError, match="'print'"):
        validate(wrong, findings="print")  # type: ignore[arg-type]
