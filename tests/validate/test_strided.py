"""Views in strides: right plans with views that nobody writes, and one test for each way to be wrong.

What kernels write in strides is in `test_strided_writes.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.devices import Device, Machine
from memopt.ir import parse
from memopt.strides import MOST_RUNS
from memopt.validate import validate
from tests.validate.plans import Sketch

#: A transposed value that a matrix product reads; `y` is [4, 3] and takes 48 bytes, so does `t`.
TRANSPOSE = """graph "transpose" {
  input %x: f32[4,3]
  %y = Neg(%x)
  %t = Transpose(%y)
  %m = MatMul(%t, %x)
  output %m
}"""
#: `a` is columns [0, 1) and `b` columns [1, 4) of `y`.
SPLIT = """graph "split" {
  input %x: f32[4,4]
  %y = Neg(%x)
  %a, %b = Split(%y) {axis=1, split=[1,3]}
  %p = Abs(%a)
  %q = Add(%b, %a)
  output %p
  output %q
}"""


def sketch(text: str, *buffers: str, machine: Machine | None = None) -> Sketch:
    return Sketch(parse(text), machine).buffers_for(*buffers)


def accepted(s: Sketch) -> None:
    assert [str(f) for f in s.findings()] == []
    assert [str(f) for f in validate(s.plan(), findings="return", order="any")] == []


def kinds(s: Sketch) -> list[tuple[str, int | None, str]]:
    return [(f.kind, f.instruction, f.value) for f in s.findings()]


def transposed(read: str = "t@y:1,3", made: str | None = None) -> Sketch:
    s = sketch(TRANSPOSE, "y", "m").call("y", ["x"], ["y"])
    return s.call("t", ["y"], [made or read]).call("m", [read, "x"], ["m"])


def split(a: str = "a@y:4,1", b: str = "b@y+4:4,1", *more: str) -> Sketch:
    s = sketch(SPLIT, "y", "p", "q", *more).call("y", ["x"], ["y"]).call("a", ["y"], [a, b])
    return s.call("p", [a], ["p"]).call("q", [b, a], ["q"])


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


SLICE = """graph "slice" {
  input %x: f32[8,4]
  %y = Neg(%x)
  %s = Slice(%y) {axes=[0,1], ends=[8,4], starts=[1,1], steps=[2,2]}
  %a = Abs(%s)
  output %a
}"""


def sliced(operand: str = "s@y+20:8,2") -> Sketch:
    s = sketch(SLICE, "y", "a").call("y", ["x"], ["y"]).call("s", ["y"], [operand])
    return s.call("a", [operand], ["a"])


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


# -- ways to be wrong -------------------------------------------------------------------------------------------------


def test_strides_permuted():
    s = transposed("t@y:3,1", "t@y:1,3")
    s.only("wrong-form", 2, "%t", "in strides (3, 1)", "no view")


def test_strides_permuted_of_a_square():
    """There every permutation lies within the bytes."""
    text = TRANSPOSE.replace("[4,3]", "[4,4]")
    right = sketch(text, "y", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"])
    accepted(right.call("m", ["t@y:1,4", "x"], ["m"]))
    s = sketch(text, "y", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"]).call("m", ["t@y", "x"], ["m"])
    s.only("stale-read", 2, "%t", "%y")
    s = sketch(text, "y", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"]).call("m", ["y", "x"], ["m"])
    s.only("stale-read", 2, "%t", "%y")


def test_another_value_read_in_these_strides():
    s = sketch(TRANSPOSE.replace("[4,3]", "[4,4]"), "y", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"])
    s.call("m", ["t@y:1,4", "x:1,4"], ["m"]).only("wrong-form", 2, "%x", "in strides (1, 4)")
    s.instructions.pop()
    s.call("m", ["t@x:1,4", "x"], ["m"]).only("stale-read", 2, "%t", "%y", "%x")


def test_off_by_one_element():
    found = kinds(sliced("s@y+16:8,2"))
    assert found == [("overlap", 1, "s")]  # where it is no view, a kernel has to write it
    s = split()
    s.instructions[-1] = s.call("q", ["b@y:4,1", "a@y:4,1"], ["q"]).instructions.pop()
    assert [f[:2] for f in kinds(s)] == [("stale-read", 3)]


def test_beyond_the_buffer():
    assert ("out-of-bounds", 2, "t") in kinds(transposed("t@y:2,3", "t@y:1,3"))
    assert ("out-of-bounds", 1, "s") in kinds(sliced("s@y+24:8,2"))


def test_the_hull_is_overwritten_before_it_is_read():
    s = split()
    s.instructions.insert(2, s.call("p", ["a@y:4,1"], ["p@y+8"]).instructions.pop())
    del s.instructions[3]
    found = kinds(s.result("p@y+8"))
    assert found[0][:2] == ("overlap", 2)
    assert ("partial-overwrite", 3, "b") in found


@pytest.mark.parametrize("rows", [4, MOST_RUNS, MOST_RUNS + 1])
def test_a_kernel_writes_between_the_elements_of_a_live_view(rows):
    """Bytes that belong to no element of the view are anybody's, unless there are too many runs to look into: then they
    are within its hull, and nobody may write there.
    """
    text = SPLIT.replace("%q = Add(%b, %a)", "%r = Slice(%x) {axes=[0,1], ends=[1,2], starts=[0,0]}\n  %q = Abs(%a)")
    text = text.replace("output %p\n  output %q", "output %p\n  output %q\n  output %r").replace("[4,4]", f"[{rows},4]")
    s = sketch(text, "y", "p", "q").call("y", ["x"], ["y"]).call("a", ["y"], ["a@y:4,1", "b@y+4:4,1"])
    s.call("p", ["a@y:4,1"], ["p"]).call("r", ["x"], ["r@y+4"]).call("q", ["a@y:4,1"], ["q"]).result("r@y+4")
    if rows > MOST_RUNS:
        s.only("partial-overwrite", 4, "%a")
    else:
        assert s.findings() == []


def test_one_part_in_place_and_the_other_as_it_is():
    """ShuffleNet's: `b` is computed where it is, and the two are joined where they are; `y` is gone then."""
    text = """graph "g" {
  input %x: f32[3,4]
  %y = Neg(%x)
  %a, %b = Split(%y) {axis=1}
  %r = Relu(%b)
  %c = Concat(%a, %r) {axis=1}
  %m = Abs(%c)
  output %m
}"""
    s = sketch(text, "y", "m").call("y", ["x"], ["y"]).call("a", ["y"], ["a@y:4,1", "b@y+8:4,1"])
    s.call("r", ["b@y+8:4,1"], ["r@y+8:4,1"]).call("c", ["a@y:4,1", "r@y+8:4,1"], ["c@y"])
    accepted(s.call("m", ["c@y"], ["m"]))
    text = text.replace("output %m", "%n = Abs(%y)\n  output %m\n  output %n")
    s = sketch(text, "y", "m", "n").call("y", ["x"], ["y"])
    s.call("a", ["y"], ["a@y:4,1", "b@y+8:4,1"]).call("r", ["b@y+8:4,1"], ["r@y+8:4,1"])
    s.call("c", ["a@y:4,1", "r@y+8:4,1"], ["c@y"]).call("m", ["c@y"], ["m"]).call("n", ["y"], ["n"])
    s.only("partial-overwrite", 5, "%y", "%r")


def test_a_part_of_a_part_is_joined_in_the_terms_of_either():
    """A value that is a run of two others is found in the bytes of either, and read again as the other after a join."""
    text = """graph "g" {
  input %x: f32[2,4]
  %y = Neg(%x)
  %a, %b = Split(%y) {axis=1, split=[1,3]}
  %p, %q = Split(%b) {axis=0, split=[1,1]}
  %c = Concat(%p, %q) {axis=1}
  %m = Abs(%c)
  %n = Abs(%b)
  output %m
  output %n
}"""
    s = sketch(text, "y", "a", "b", "m", "n").call("y", ["x"], ["y"]).call("a", ["y"], ["a", "b"]).free("y")
    s.call("p", ["b"], ["p@b", "q@b+12"]).call("c", ["p@b", "q@b+12"], ["c@b"])
    accepted(s.call("m", ["c@b"], ["m"]).call("n", ["b"], ["n"]))


def test_freed():
    s = transposed()
    s.instructions.insert(2, s.free("y").instructions.pop())
    assert kinds(s) == [("malformed", 3, "t")]
    s = transposed()
    s.instructions.insert(1, s.free("y").instructions.pop())
    assert {(k, i) for k, i, _ in kinds(s)} == {("malformed", 2), ("malformed", 3)}


def test_an_output_over_the_hull_of_an_input():
    """Add may run in place over what it reads contiguously, not over what it reads in strides."""
    text = """graph "g" {
  input %x: f32[4,4]
  %y = Neg(%x)
  %t = Transpose(%y)
  %a = Add(%t, %x)
  output %a
}"""
    s = sketch(text, "y").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"])
    s.call("a", ["t@y:1,4", "x"], ["a@y"]).result("a@y").only("illegal-inplace", 2, "%a", "%t", "in strides")
    s = sketch(text, "y").buffer("z", 96, at=0).call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,4"])
    s.call("a", ["t@y:1,4", "x"], ["a@z+32"]).result("a@z+32").only("overlap", 2, "%a", "%t")


def test_a_view_of_bytes_that_do_not_hold_it():
    s = sketch(TRANSPOSE, "y", "m").call("y", ["x"], ["y"]).call("t", ["y@x"], ["t@x:1,3"])
    s.call("m", ["t@x:1,3", "x"], ["m"])
    assert kinds(s) == [("stale-read", 1, "y"), ("false-view", 1, "t")]
    for word in ("no kernel runs", "%x", "1 more"):
        assert word in s.findings()[1].message


def test_a_view_where_nothing_was_written():
    s = sketch(TRANSPOSE, "y", "t", "m").call("y", ["x"], ["y"])
    s.call("t", ["y@t"], ["t:1,3"]).call("m", ["t:1,3", "x"], ["m"])
    assert kinds(s) == [("read-before-write", 1, "y"), ("false-view", 1, "t")]
    assert "nothing" in s.findings()[1].message


def test_a_view_before_the_value():
    s = sketch(TRANSPOSE, "y", "m").call("t", ["y"], ["t@y:1,3"]).call("y", ["x"], ["y"])
    s.call("m", ["t@y:1,3", "x"], ["m"])
    assert kinds(s)[:2] == [("read-before-write", 0, "y"), ("false-view", 0, "t")]


def test_what_the_op_does_not_declare_is_no_view():
    """A kernel writes it, over what it reads in other strides."""
    s = sketch('graph "g" {\n input %x: f32[4,4] donated\n %y = Neg(%x)\n %z = Abs(%y)\n output %z\n}', "z")
    s.call("y", ["x"], ["y@x:1,4"]).call("z", ["y@x:1,4"], ["z"])
    s.only("illegal-inplace", 0, "%y", "one after the other", "in strides (1, 4)")


def test_one_output_is_a_view_and_the_other_is_not_there():
    """The executor skips the whole call: nobody computes `b`."""
    s = split("a@y:4,1", "b", "b")
    s.only("false-view", 1, "%b", "no kernel runs")
    s = split("a", "b@y+4:4,1", "a")
    assert kinds(s) == [("false-view", 1, "a")]


def test_one_output_is_a_view_and_the_other_a_run_that_is_there():
    text = SPLIT.replace("f32[4,4]", "f32[1,4]")
    s = sketch(text, "y", "p", "q").call("y", ["x"], ["y"]).call("a", ["y"], ["a@y:1,1", "b@y+4"])
    accepted(s.call("p", ["a@y"], ["p"]).call("q", ["b@y+4", "a@y"], ["q"]))


def test_a_fetched_view_that_is_not_there():
    text = TRANSPOSE.replace("output %m", "output %m\n  output %t")
    for where, kind in (("t@y:3,1", "wrong-form"), ("t@x:1,3", "lost-output")):
        s = sketch(text, "y", "m").call("y", ["x"], ["y"]).call("t", ["y"], ["t@y:1,3"])
        s.call("m", ["t@y:1,3", "x"], ["m"]).result(where).only(kind, None, "%t")


@pytest.mark.parametrize("steps", [(1,), (1, 3, 1), (), (1, -3), (1, 3.0), [1, 3], "13", (1, None)])
def test_no_strides_at_all(steps):
    s = transposed()
    wrong = replace(s.operand("t@y"), strides=steps)
    s.instructions[2] = s.call("m", [wrong, "x"], ["m"]).instructions.pop()
    s.only("malformed", 2, "%t", "strides", "one for each axis")
    s = transposed()
    s.instructions[1] = s.call("t", ["y"], [wrong]).instructions.pop()
    s.only("malformed", 1, "%t", "strides")


@pytest.mark.parametrize("kind", ["feeds", "params", "finals"])
def test_what_enters_and_what_stays_is_contiguous(kind):
    text = TRANSPOSE.replace("%y = Neg(%x)", "param %w: f32[4,3]\n  %y = Add(%x, %w)")
    s = sketch(text, "y", "m").call("y", ["x", "w"], ["y"]).call("t", ["y"], ["t@y:1,3"])
    s.call("m", ["t@y:1,3", "x"], ["m"])
    accepted(s)
    (one,) = getattr(s.plan().program, kind)
    changed = (replace(one, operand=replace(one.operand, strides=(3, 1))),)
    found = s.findings(**{kind: changed})
    assert found[0].kind == "malformed"
    assert "contiguous" in found[0].message


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
