"""Views in strides: right plans with views that nobody writes, copies of them, and any order.

One test for each way to be wrong is in `test_strided_wrong.py`, what kernels write in strides in
`test_strided_writes.py`.
"""

from __future__ import annotations

import pytest

from memopt.devices import Device, Machine
from memopt.ir import parse
from memopt.validate import validate
from tests.validate.plans import Sketch
from tests.validate.strided_plans import TRANSPOSE, accepted, kinds, sketch, sliced, split, transposed

# -- right plans ------------------------------------------------------------------------------------------------------


def test_a_transposed_value_is_read_where_it_is():
    accepted(transposed())


def test_a_transposed_feed_is_read_where_it_is():
    s = sketch('graph "g" {\n input %x: f32[4,3]\n %t = Transpose(%x)\n %m = MatMul(%t, %x)\n output %m\n}', "m")
    accepted(s.call("t", ["x"], ["t@x:1,3"]).call("m", ["t@x:1,3", "x"], ["m"]))


def test_both_halves_of_an_inner_axis():
    accepted(split())
    accepted(split("a@y:4,0"))  # what an axis of length 1 steps by says nothing


def test_a_kernel_writes_the_transposed_value_contiguously():
    accepted(sketch(TRANSPOSE, "y", "t", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t"])
             .call("m", ["t", "x"], ["m"]))  # fmt: skip


def test_strides_of_a_contiguous_operand():
    s = sketch(TRANSPOSE, "y", "t", "m").call("y", ["x"], ["y"]).call("t", ["y:3,1"], ["t"])
    accepted(s.call("m", ["t:4,1", "x:3,1"], ["m"]))


def test_an_expanded_row():
    s = sketch(
        'graph "g" {\n input %x: f32[1,3]\n %y = Neg(%x)\n %e = Expand(%y) {shape=[4,3]}\n %a = Abs(%e)\n output %a\n}',
        "y", "a",
    )  # fmt: skip
    accepted(s.call("y", ["x"], ["y"]).call("e", ["y"], ["e@y:0,1"]).call("a", ["e@y:0,1"], ["a"]))




def test_a_slice_with_steps():
    accepted(sliced())


TWICE = """graph "twice" {
  input %x: f32[4,3]
  %y = Neg(%x)
  %t = Transpose(%y)
  %u = Transpose(%t)
  %a = Abs(%u)
  output %a
}"""


def test_transposed_twice_is_what_it_was():
    accepted(sketch(TWICE, "y", "a").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,3"])
             .call("u", ["t@y:1,3"], ["u@y"]).call("a", ["y"], ["a"]))  # fmt: skip
    accepted(sketch(TWICE, "y", "a").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,3"])
             .call("u", ["t@y:1,3"], ["u@y:3,1"]).call("a", ["u@y"], ["a"]))  # fmt: skip


def test_transposed_twice_may_be_read_from_a_copy_of_either():
    s = sketch(TWICE, "y", "t", "a").call("y", ["x"], ["y"]).call("t", ["y"], ["t"]).free("y")
    accepted(s.call("u", ["t"], ["u@t:1,4"]).call("a", ["u@t:1,4"], ["a"]))
    s = sketch(TWICE, "y", "t", "u", "a").call("y", ["x"], ["y"]).call("t", ["y"], ["t"]).call("u", ["t"], ["u"])
    accepted(s.call("a", ["u"], ["a"]))


def test_reshape_of_a_transposed_value():
    s = sketch(
        """graph "g" {
  input %x: f32[3,4]
  %y = Neg(%x)
  %t = Transpose(%y)
  %r = Reshape(%t) {shape=[2,2,3]}
  %a = Abs(%r)
  output %a
}""",
        "y", "a",
    )  # fmt: skip
    s.call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"]).call("r", ["t@y:1,4"], ["r@y:2,1,4"])
    accepted(s.call("a", ["r@y:2,1,4"], ["a"]))


RUN = """graph "run" {
  input %x: f32[4,4]
  %y = Neg(%x)
  %s = Slice(%y) {axes=[1], ends=[2], starts=[0]}
  %r = Slice(%s) {axes=[0], ends=[2], starts=[1]}
  %a = Abs(%r)
  %b = Abs(%s)
  output %a
  output %b
}"""


def test_a_run_of_a_value_that_is_no_run_is_there_under_both_names():
    """Row 1 of `s` is elements [2, 4) of `s`, and elements [4, 6) of `y`."""
    s = sketch(RUN, "y", "a", "b").call("y", ["x"], ["y"]).call("s", ["y"], ["s@y:4,1"])
    accepted(s.call("r", ["s@y:4,1"], ["r@y+16"]).call("a", ["r@y+16"], ["a"]).call("b", ["s@y:4,1"], ["b"]))
    s = sketch(RUN, "y", "s", "a", "b").call("y", ["x"], ["y"]).call("s", ["y"], ["s"]).free("y")
    accepted(s.call("r", ["s"], ["r@s+8"]).call("a", ["r@s+8"], ["a"]).call("b", ["s"], ["b"]))


def test_an_output_may_be_fetched_in_strides():
    s = sketch(TRANSPOSE.replace("output %m", "output %m\n  output %t"), "y", "m").call("y", ["x"], ["y"])
    accepted(s.call("t", ["y"], ["t@y:1,3"]).call("m", ["t@y:1,3", "x"], ["m"]).result("t@y:1,3"))


def test_a_view_of_values_that_were_joined():
    s = sketch(
        """graph "g" {
  input %x: f32[2,3]
  %a = Neg(%x)
  %b = Abs(%x)
  %c = Concat(%a, %b) {axis=0}
  %t = Transpose(%c)
  %d = Abs(%t)
  output %d
}""",
        "c", "d",
    )  # fmt: skip
    s.call("a", ["x"], ["a@c"]).call("b", ["x"], ["b@c+24"]).call("c", ["a@c", "b@c+24"], ["c"])
    accepted(s.call("t", ["c"], ["t@c:1,3"]).call("d", ["t@c:1,3"], ["d"]))


# -- copies -----------------------------------------------------------------------------------------------------------

GPU = Machine(Device("host", alignment=16), (Device("gpu", alignment=16, dtypes={"float64": "float32"}),), "gpu")


def copied(source: str = "t@y:1,3", target: str = "t@T") -> Sketch:
    text = TRANSPOSE.replace("MatMul(%t, %x)", "Abs(%t)")
    s = sketch(text, "y", machine=GPU).buffer("T", 48, device="gpu").buffer("m", device="gpu").call("y", ["x"], ["y"])
    s.graph.node("m").device, s.graph.node("y").device, s.graph.node("t").device = "gpu", "host", "host"
    s.call("t", ["y"], ["t@y:1,3"]).transfer("device", source, target, "m")
    return s.call("m", ["t@T"], ["m"], device="gpu")


def test_a_copy_reads_element_by_element():
    accepted(copied())


@pytest.mark.parametrize("source", ["t@y:3,1", "t@y:0,3", "t@y:1,2"])
def test_a_copy_in_other_strides_is_spoilt(source):
    found = copied(source).findings()
    assert [(f.kind, f.instruction, f.value) for f in found] == [("wrong-form", 3, "t")]
    assert "no view of %t lies" in found[0].message


def test_a_copy_of_bytes_that_do_not_hold_it_is_spoilt():
    s = copied()
    s.instructions.insert(2, s.instructions.pop(0))  # `y` is computed too late
    assert ("false-view", 0, "t") in kinds(s)
    s = copied()
    s.instructions.insert(2, s.free("y").instructions.pop())
    assert kinds(s) == [("malformed", 3, "t"), ("read-before-write", 4, "t")]


def test_a_copy_to_strides():
    found = kinds(copied(target="t@T:1,3"))
    assert found[0] == ("malformed", 2, "t")


def test_a_copy_of_the_bytes_between_is_not_one_of_the_elements():
    """Without strides the copy moves the run of bytes, which is `y`."""
    assert kinds(copied("t@y")) == [("stale-read", 3, "t")]


def test_a_copy_over_its_own_source():
    s = copied()
    s.transfer("layout", "t@y:1,3", "t@y", "m")
    assert ("overlap", 4, "t") in kinds(s)


LAYOUTS = Machine(Device("host", alignment=16, layouts={"MaxPool": "NHWC"}))
POOL = """graph "pool" {
  input %x: f32[1,2,4,4]
  %y = Neg(%x)
  %t = Transpose(%y) {perm=[0,1,3,2]}
  %m = MaxPool(%t) {kernel_shape=[2,2]}
  output %m
}"""


def pooled(source: str = "t@y:32,16,1,4") -> Sketch:
    s = sketch(POOL, "y", machine=LAYOUTS)
    s.buffer("L", 128).buffers_for("m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:32,16,1,4"])
    target = s.operand("t@L", layout="NHWC")
    s.transfer("layout", source, target, "m")
    return s.call("m", [target], [s.operand("m", layout="NHWC")], layout="NHWC").result(s.operand("m", layout="NHWC"))


def test_a_copy_from_strides_to_another_layout():
    accepted(pooled())


def test_a_copy_from_other_strides_to_another_layout():
    assert kinds(pooled("t@y:32,16,4,1")) == [("wrong-form", 3, "t")]


def test_strides_count_in_the_default_layout():
    s = Sketch(parse(POOL), LAYOUTS).buffers_for("y", "m").call("y", ["x"], ["y"])
    operand = s.operand("t@y:32,16,1,4", layout="NHWC")
    s.call("t", ["y"], ["t@y:32,16,1,4"]).call("m", [operand], [s.operand("m", layout="NHWC")], layout="NHWC")
    assert kinds(s.result(s.operand("m", layout="NHWC"))) == [("wrong-form", 2, "t")]
    s.instructions.pop()
    s.call("m", ["t@y:32,16,1,4"], [s.operand("m", layout="NHWC")], layout="NHWC")
    assert kinds(s) == [("wrong-form", 2, "t")]


# -- any order --------------------------------------------------------------------------------------------------------


def test_whoever_writes_in_the_hull_comes_after_its_readers():
    text = """graph "g" {
  input %x: f32[4,4]
  %y = Neg(%x)
  %a, %b = Split(%y) {axis=1, split=[1,3]}
  %p = Abs(%a)
  %q = Abs(%x)
  output %p
  output %q
}"""
    s = sketch(text, "y", "p").call("y", ["x"], ["y"]).call("a", ["y"], ["a@y:4,1", "b@y+4:4,1"])
    s.call("p", ["a@y:4,1"], ["p"]).call("q", ["x"], ["q@y"]).result("q@y")
    assert s.findings() == []
    found = validate(s.plan(), findings="return", order="any")
    assert {(f.kind, f.instruction, f.culprit) for f in found} == {("unordered", 3, i) for i in (0, 1, 2)}


def test_a_view_written_in_strides_onto_itself_is_a_reading():
    """A kernel that copies `u`, a transposed `t`, from `y` to `y` changes nothing: the readers of `t` need no order."""
    s = sketch(TWICE.replace("output %a", "%b = Abs(%t)\n  output %a\n  output %b"), "y", "a", "b")
    s.call("y", ["x"], ["y"])
    s.call("t", ["y"], ["t@y:1,3"]).call("u", ["t@y:1,3"], ["u@y"]).call("a", ["u@y"], ["a"])
    accepted(s.call("b", ["t@y:1,3"], ["b"]))
