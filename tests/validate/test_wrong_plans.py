"""One test for each way in which the bytes of a plan can be wrong: kind, instruction, both parties in the message."""

from __future__ import annotations

import numpy as np
import pytest

from memopt.devices import Device, Machine
from memopt.ir import Graph, GraphBuilder
from memopt.validate import FINDING_KINDS
from tests.validate.plans import Sketch
from tests.validate.test_right_plans import NHWC, chain, conv, on_gpu, sgd, views

FINE = Machine(Device("host", alignment=4))


def line(*ops: str, shape: tuple[int, ...] = (4, 4)) -> Graph:
    """x -> %a -> %b -> … , each by one op."""
    b = GraphBuilder()
    value = b.input("x", shape)
    for name, op in zip("abcdefgh", ops, strict=False):
        value = b.op(op, value, name=name)
    b.output(value)
    return b.build()


# -- what is read -----------------------------------------------------------------------------------------------


def test_stale_read():
    s = Sketch(line("Neg", "Relu", "Neg")).buffers_for("a", "b", "c")
    s.call("a", ["x"], ["a"]).call("b", ["a"], ["b"]).call("c", ["b@a"], ["c"])
    s.only("stale-read", 2, "%b", "%a", "instruction 0 (call a on host)", "instruction 1 (call b on host)", "[0, 64)")


def test_stale_read_of_the_wrong_half_of_a_value():
    b = GraphBuilder()
    p, q = b.op("Split", b.input("x", (4, 4)), outputs=("p", "q"), name="split", axis=0, split=(2, 2))
    b.output(b.neg(p, name="n"), q)
    s = Sketch(b.build()).buffers_for("p", "q", "n").call("split", ["x"], ["p", "q"]).call("n", ["p@q"], ["n"])
    s.only("stale-read", 1, "%p (bytes of %x)", "%q (bytes of %x)", "host arena")


def test_clobbered():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    a = b.neg(x, name="a")
    b.output(b.add(a, b.relu(x, name="c"), name="d"))
    s = Sketch(b.build()).buffers_for("a", "d").buffer("c", at=0)
    s.call("a", ["x"], ["a"]).call("c", ["x"], ["c"]).call("d", ["a", "c"], ["d"])
    found = s.only(
        "clobbered", 2, "%a", "%c", "buffer #1 (a)", "buffer #3 (c)", "instruction 0 (call a", "instruction 1 (call c"
    )
    assert (found.value, found.culprit, found.lower, found.upper, found.device, found.node) == (
        "a",
        1,
        0,
        64,
        "host",
        "d",
    )


def test_s01_in_place_before_the_other_reader():
    b = GraphBuilder()
    x, y, z = (b.input(name, (2,)) for name in "xyz")
    n = b.neg(y, name="n")
    e = b.add(n, z, name="e")
    b.output(e, b.mul(x, n, name="d"))
    s = Sketch(b.build()).buffers_for("n", "d")
    s.call("n", ["y"], ["n"]).call("e", ["n", "z"], ["e@n"]).call("d", ["x", "n"], ["d"]).result("e@n")
    s.only("clobbered", 2, "%n", "%e", "instruction 1 (call e on host)")


def test_s02_in_place_over_a_view_whose_source_is_still_read():
    s = Sketch(views()).buffers_for("x1", "x5")
    s.call("x1", ["x"], ["x1"]).call("x2", ["x1"], ["x2@x1"]).call("x3", ["x2@x1"], ["x3@x1"])
    s.call("x4", ["x3@x1"], ["x4@x1"]).call("x5", ["x1", "x4@x1"], ["x5"])
    s.only("clobbered", 4, "%x1", "%x3", "instruction 2 (call x3 on host)")


def test_s28_bytes_reused_while_a_view_is_to_be_read():
    b = GraphBuilder()
    p, c = b.input("p", (2, 2)), b.input("c", (4,))
    v = b.reshape(b.neg(p, name="t"), name="v", shape=(4,))
    b.output(b.add(v, b.neg(c, name="u"), name="w"))
    s = Sketch(b.build()).buffers_for("t").buffer("u", at=0).buffers_for("w")
    s.call("t", ["p"], ["t"]).call("v", ["t"], ["v@t"]).call("u", ["c"], ["u"]).call("w", ["v@t", "u"], ["w"])
    s.only("clobbered", 3, "%v (bytes of %t)", "%u", "instruction 2 (call u on host)")


def test_clobbered_by_a_free():
    s = Sketch(line("Neg", "Relu", "Neg")).buffers_for("a", "c").buffer("b", at=0)
    s.buffer("dead", 64, at=0).call("a", ["x"], ["a"]).free("dead").call("b", ["a"], ["b"]).call("c", ["b"], ["c"])
    s.only("clobbered", 2, "%a", "instruction 1 (free", "buffer #4 (dead)")


def test_partial_overwrite():
    b = GraphBuilder()
    x, y = b.input("x", (4, 4)), b.input("y", (4,))
    a, small = b.neg(x, name="a"), b.neg(y, name="small")
    b.output(b.add(a, small, name="c"))
    s = Sketch(b.build(), FINE).buffers_for("a", "c").buffer("small", at=16)
    s.call("a", ["x"], ["a"]).call("small", ["y"], ["small"]).call("c", ["a", "small"], ["c"])
    found = s.only("partial-overwrite", 2, "%a", "%small", "[16, 32)", "[0, 64)", "instruction 1 (call small")
    assert (found.lower, found.upper) == (16, 32)


def test_read_before_write_of_bytes():
    s = Sketch(line("Neg", "Relu")).buffers_for("a", "b").buffer("other", 64)
    s.call("a", ["x"], ["a"]).call("b", ["a@other"], ["b"])
    s.only("read-before-write", 1, "%a", "buffer #3 (other)", "instruction 0 (call a on host)", "nothing")


def test_read_before_write_of_a_value():
    s = Sketch(line("Neg", "Relu", "Neg")).buffers_for("a", "b", "c")
    s.call("a", ["x"], ["a"]).call("c", ["b@a"], ["c"]).call("b", ["a"], ["b"])
    s.only("read-before-write", 1, "%b", "%a", "instruction 0 (call a", "has not been computed yet")


def test_one_reason_is_one_finding():
    b = GraphBuilder()
    x = b.input("x", (4,))
    a = b.neg(x, name="a")
    b.output(*(b.relu(a, name=f"r{i}") for i in range(5)))
    s = Sketch(b.build()).buffers_for("a", *(f"r{i}" for i in range(5))).buffer("z", 16).call("a", ["x"], ["a@z"])
    for i in range(5):
        s.call(f"r{i}", ["a"], [f"r{i}"])
    s.only("read-before-write", 1, "and 4 more for the same reason")


# -- lost updates -----------------------------------------------------------------------------------------------


def fluid() -> Sketch:
    """fluid.md 2.5: c = Sum(a, b) on the host, c renamed to a; then c is read on the gpu."""
    b = GraphBuilder(device="gpu")
    x, y = b.input("x", (4,)), b.input("y", (4,))
    a, bb = b.neg(x, name="a"), b.neg(y, name="b")
    c = b.op("Sum", a, bb, name="c", device="host")
    b.output(b.relu(c, name="m"))
    graph = b.build()
    graph.storage.rename(graph.storage.variable(c), graph.storage.variable(a))
    s = Sketch(graph, Machine.host_and("gpu", lacks={"Sum"}))
    s.buffers_for("a", "b", "m", device="gpu").buffer("A", 16).buffer("T.a", 16).buffer("T.b", 16)
    s.buffer("m/x", 16, device="gpu").buffer("m/y", 16, device="gpu").buffer("m/a", 16, device="gpu")
    s.transfer("device", "x", "x@m/x").transfer("device", "y", "y@m/y")
    s.call("a", ["x@m/x"], ["a"], device="gpu").call("b", ["y@m/y"], ["b"], device="gpu")
    s.transfer("device", "a", "a@T.a", "c").transfer("device", "b", "b@T.b", "c")
    s.call("c", ["a@T.a", "b@T.b"], ["c@A"])
    return s


def test_the_loss_of_fluid_1_5():
    s = fluid().rebind("c", "a", "c@T.a").transfer("device", "c@T.a", "c@m/a").call("m", ["c@m/a"], ["m"], device="gpu")
    found = s.only(
        "lost-update",
        9,
        "instruction 9 (call m on gpu) wants %c",
        "they hold %a",
        "copied by instruction 8",
        "written by instruction 2 (call a on gpu)",
        "%c was written by instruction 6 (call c on host) to bytes [0, 16) of host arena, buffer #5 (A)",
        "instruction 7 (rebind of variable a after c, fluid-1.5) made the variable mean buffer #6 (T.a)",
    )
    assert (found.value, found.node, found.device) == ("c", "m", "gpu")


def test_the_same_program_that_reads_the_result_is_right():
    s = fluid().transfer("device", "c@A", "c@m/a").call("m", ["c@m/a"], ["m"], device="gpu")
    assert s.findings() == []


def test_a_lost_update_that_nobody_reads_is_none():
    b = GraphBuilder()
    x = b.input("x", (4,))
    a = b.neg(x, name="a")
    c = b.op("Sum", a, a, name="c")
    b.output(b.relu(x, name="m"))
    graph = b.build()
    graph.storage.rename(graph.storage.variable(c), graph.storage.variable(a))
    s = (
        Sketch(graph)
        .buffers_for("a", "m", "c")
        .call("a", ["x"], ["a"])
        .call("c", ["a", "a"], ["c"])
        .rebind("c", "a", "c@a")
    )
    assert s.call("m", ["x"], ["m"]).findings() == []


def test_a_lost_update_that_is_fetched():
    b = GraphBuilder()
    a = b.neg(b.input("x", (4,)), name="a")
    c = b.op("Sum", a, a, name="c")
    b.output(c)
    graph = b.build()
    graph.storage.rename(graph.storage.variable(c), graph.storage.variable(a))
    s = Sketch(graph).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a", "a"], ["c"]).rebind("c", "a", "c@a")
    s.result("c@a").only(
        "lost-update", None, "at the end", "%c", "%a", "instruction 1 (call c", "instruction 2 (rebind"
    )


def test_sgd_on_the_host_with_its_parameter_on_the_gpu_under_fluid():
    s = Sketch(sgd(), Machine.host_and("gpu")).buffer("T.w", 16).buffer("T.lr", 4).buffers_for("n", "w2")
    s.transfer("device", "w", "w@T.w", "w2").transfer("device", "lr", "lr@T.lr", "w2")
    s.call("w2", ["w@T.w", "g", "lr@T.lr"], ["w2"]).rebind("w2", "w", "w2@T.w").call("n", ["g"], ["n"])
    s.transfer("home", "w2@T.w", "w2@w")
    s.only(
        "lost-parameter",
        None,
        "%w2",
        "%w as",
        "gpu param:w",
        "instruction 2 (call w2 on host)",
        "instruction 3 (rebind",
    )


# -- the end ----------------------------------------------------------------------------------------------------


def test_lost_output():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"]).result("c@a")
    s.only("lost-output", None, "%c", "%a", "instruction 1 (call c", "instruction 0 (call a")


def test_output_overwritten_after_it_was_made():
    b = GraphBuilder()
    x = b.input("x", (4,))
    b.output(b.neg(x, name="a"), b.relu(x, name="c"))
    s = Sketch(b.build()).buffers_for("a").buffer("c", at=0).call("a", ["x"], ["a"]).call("c", ["x"], ["c"])
    s.only("lost-output", None, "%a", "%c", "instruction 1 (call c", "overwritten")


def test_output_that_the_program_does_not_name():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    (found,) = s.findings(results=())
    assert (found.kind, found.instruction, found.value) == ("lost-output", None, "c")


def test_lost_parameter():
    s = on_gpu("outer")
    s.instructions.pop()  # the home transfer
    s.only("lost-parameter", None, "%w2", "%w as float32 (there at the start)", "instruction 2 (call w2 on host)")


def test_lost_feed_is_reported_as_the_write():
    s = Sketch(chain()).buffers_for("a").call("a", ["x"], ["a"]).call("c", ["a"], ["c@x"]).result("c@x")
    s.only("pinned-write", 1, "%c", "%x", "feed:x", "not donated")


def test_lost_feed():
    b = GraphBuilder()
    x, y = b.input("x", (4,)), b.input("y", (4,))
    b.output(b.add(x, y, name="c"))
    s = Sketch(b.build()).buffers_for("c").call("c", ["x", "y"], ["c"])
    s.slots[1] = s.slots[0]
    found = s.findings()
    kinds = [(f.kind, f.instruction, f.value) for f in found]
    assert kinds[:2] == [("malformed", None, "y"), ("overlap", None, "y")]
    assert kinds[-1] == ("lost-feed", None, "x")
    assert "%y" in found[-1].message


def test_a_feed_in_the_arena_is_none():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"]).buffer("hole", 64)
    s.slots[s.id("x")] = s.slots[s.id("hole")]
    assert {f.kind for f in s.findings()} == {"malformed"}


# -- what is written --------------------------------------------------------------------------------------------


def test_pinned_write_of_a_parameter():
    b = GraphBuilder()
    w = b.param("w", np.ones((4,), np.float32))
    b.output(b.relu(b.op("Unsqueeze", w, name="w2", axes=(0,)), name="y"))
    s = Sketch(b.build()).call("w2", ["w"], ["w2@w"]).call("y", ["w2@w"], ["y@w"]).result("y@w")
    s.only("pinned-write", 1, "%y", "%w", "no node updates")  # S17: the view itself writes what is there already


def test_pinned_write_by_a_transfer():
    s = Sketch(chain(), Machine.host_and("gpu")).buffers_for("a", "c")
    s.transfer("device", "x", s.operand("x@a")).call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    assert {f.kind for f in s.findings()} == {"wrong-device"}
    s = (
        Sketch(chain(), Machine.host_and("gpu"))
        .buffers_for("c")
        .buffer("a", device="gpu")
        .buffer("T", 64, device="gpu")
    )
    s.transfer("device", "x", "x@T").call("a", ["x@T"], ["a"], device="gpu").transfer("device", "a", "a@x")
    s.call("c", ["a@x"], ["c"]).only("pinned-write", 2, "%x", "not donated", "instruction 2 (device transfer of %a")


def test_illegal_in_place():
    b = GraphBuilder()
    x = b.param("x", np.ones((4, 4), np.float32))
    a = b.neg(b.input("y", (4, 4)), name="a")
    b.output(b.matmul(x, a, name="c"))
    s = Sketch(b.build()).buffers_for("a").call("a", ["y"], ["a"]).call("c", ["x", "a"], ["c@a"]).result("c@a")
    s.only("illegal-inplace", 1, "%c", "%a", "MatMul declares no such in-place pair")


def test_in_place_that_the_op_refuses_for_these_types():
    b = GraphBuilder()
    a = b.neg(b.input("x", (4, 4)), name="a")
    b.output(b.op("Transpose", a, perm=(1, 0), name="c"))
    s = Sketch(b.build()).buffers_for("a").call("a", ["x"], ["a"]).call("c", ["a"], ["c@a"]).result("c@a")
    s.only("illegal-inplace", 1, "%c", "%a", "the transpose moves elements")


def test_in_place_over_a_broadcast_input():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    a = b.neg(b.input("y", (4,)), name="a")
    b.output(b.add(x, a, name="c"))
    s = Sketch(b.build()).buffers_for("a").buffer("big", 64, at=0)
    s.call("a", ["y"], ["a"]).call("c", ["x", "a"], ["c@big"]).result("c@big")
    s.only("overlap", 1, "%c", "%a", "they share a part of their bytes only")


def test_output_over_a_part_of_an_input():
    s = Sketch(chain()).buffer("a", 128)
    s.call("a", ["x"], ["a"]).call("c", ["a"], ["c@a+16"]).result("c@a+16")
    s.only("overlap", 1, "%c", "%a", "[16, 80)", "[0, 64)")


def test_update_over_another_input():
    b = GraphBuilder()
    g = b.neg(b.input("x", (4,)), name="g")
    w, lr = b.param("w", np.ones(4, np.float32)), b.param("lr", np.float32(0.1))
    b.output(b.op("SGD", w, g, lr, name="w2"))
    s = Sketch(b.build()).buffers_for("g").call("g", ["x"], ["g"]).call("w2", ["w", "g", "lr"], ["w2@g"])
    s.transfer("home", "w2@g", "w2@w").result("w2@w")
    s.only("illegal-inplace", 1, "%w2", "input 1, %g", "SGD declares no such in-place pair")


def test_two_outputs_that_overlap():
    b = GraphBuilder()
    p, q = b.op("Split", b.input("x", (4, 4)), outputs=("p", "q"), name="split", axis=0, split=(2, 2))
    b.output(p, q)
    s = Sketch(b.build(), FINE).buffer("p").buffer("q", at=16).call("split", ["x"], ["p", "q"])
    found = s.findings()
    assert [(f.kind, f.instruction) for f in found] == [("overlap", 0), ("lost-output", None)]
    assert "%p" in found[0].message
    assert "%q" in found[0].message


def test_a_transfer_onto_itself():
    s = Sketch(conv(), NHWC).buffer("a", 192).buffer("y", 128).buffer("c", 128)
    nhwc = {text: s.operand(text, layout="NHWC") for text in ("a", "y", "c")}
    s.call("a", ["x"], ["a"]).transfer("layout", "a", nhwc["a"]).call("y", [nhwc["a"], "w"], [nhwc["y"]], layout="NHWC")
    s.call("c", [nhwc["y"]], [nhwc["c"]], layout="NHWC").result(nhwc["c"]).only("overlap", 1, "source", "target")


# -- forms and devices ------------------------------------------------------------------------------------------


def test_dtype_converted_by_nobody():
    b = GraphBuilder()
    b.output(b.neg(b.input("x", (4,), "float64"), name="c"))
    s = Sketch(b.build(), Machine(Device("host", dtypes={"float64": "float32"}))).buffer("c", 16)
    s.call("c", ["x"], [s.operand("c", dtype="float32")]).result(s.operand("c", dtype="float32"))
    s.only("wrong-form", 0, "%x", "float64/NCHW@host", "float32/NCHW")


def test_dtype_said_but_not_converted():
    b = GraphBuilder()
    b.output(b.neg(b.input("x", (4,), "float64"), name="c"))
    s = Sketch(b.build(), Machine(Device("host", dtypes={"float64": "float32"}))).buffer("c", 16)
    s.call("c", [s.operand("x", dtype="float32")], [s.operand("c", dtype="float32")]).result(
        s.operand("c", dtype="float32")
    )
    s.only("wrong-form", 0, "%x as float32", "%x as float64 (there at the start)")


def test_layout_converted_by_nobody():
    s = Sketch(conv(), NHWC).buffer("a", 192).buffer("y", 128).buffer("c", 128)
    s.call("a", ["x"], ["a"]).call(
        "y", [s.operand("a", layout="NHWC"), "w"], [s.operand("y", layout="NHWC")], layout="NHWC"
    )
    s.call("c", [s.operand("y", layout="NHWC")], ["c"], layout="NHWC").call("c", [s.operand("y", layout="NHWC")], ["c"])
    kinds = [(f.kind, f.instruction, f.value) for f in s.findings()]
    assert kinds[0] == ("wrong-form", 1, "a")
    assert ("wrong-form", 2, "c") in kinds
    assert ("wrong-form", 3, "y") in kinds


def test_layout_that_the_op_does_not_take():
    b = GraphBuilder()
    b.output(b.op("LRN", b.input("x", (1, 2, 4, 4)), name="y", size=3))
    s = Sketch(b.build()).buffers_for("y")
    s.call("y", [s.operand("x", layout="NHWC")], [s.operand("y", layout="NHWC")], layout="NHWC").result(
        s.operand("y", layout="NHWC")
    )
    assert ("wrong-form", 0) in [(f.kind, f.instruction) for f in s.findings()]


def test_a_dtype_that_loses_the_value():
    b = GraphBuilder()
    b.output(b.neg(b.input("x", (4,)), name="c"))
    s = Sketch(b.build()).buffers_for("c").buffer("i", 4).buffer("back", 16)
    small = s.operand("x@i", dtype="int8")
    s.transfer("dtype", "x", small).transfer("dtype", small, "x@back").call("c", ["x@back"], ["c"])
    s.only("wrong-form", 2, "%x", "int8", "copied by instruction 1")


@pytest.mark.parametrize("kind", ["layout", "dtype", "device"])
def test_a_transfer_that_changes_something_else(kind):
    s = Sketch(chain()).buffers_for("a", "c").buffer("T", 64)
    s.call("a", ["x"], ["a"]).transfer(kind, "a", "a@T").call("c", ["a@T"], ["c"])
    assert (s.findings()[0].kind, s.findings()[0].instruction) == (
        "wrong-device" if kind == "device" else "wrong-form",
        1,
    )


def test_a_call_that_touches_bytes_of_another_device():
    s = Sketch(chain(), Machine.host_and("gpu")).buffer("a", device="gpu").buffer("c", device="gpu")
    s.call("a", ["x"], ["a"], device="gpu").call("c", ["a"], ["c"], device="gpu")
    s.only("wrong-device", 0, "%x", "host feed:x", "gpu")


def test_a_call_where_there_is_no_kernel():
    s = Sketch(chain(), Machine.host_and("gpu", lacks={"Relu"})).buffer("T", 64, device="gpu")
    s.buffers_for("a", "c", device="gpu").transfer("device", "x", "x@T")
    s.call("a", ["x@T"], ["a"], device="gpu").call("c", ["a"], ["c"], device="gpu")
    s.only("wrong-device", 1, "gpu has no kernel for Relu")


def test_a_call_on_another_device_than_the_nodes():
    b = GraphBuilder()
    b.output(b.neg(b.input("x", (4,)), name="c", device="gpu"))
    s = Sketch(b.build(), Machine.host_and("gpu")).buffers_for("c").call("c", ["x"], ["c"])
    s.only("wrong-device", 0, "node c is placed on gpu, not on host")


def test_every_kind_of_finding_is_documented():
    assert all(FINDING_KINDS.values())
