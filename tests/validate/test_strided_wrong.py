"""Views in strides: one test for each way to be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.strides import MOST_RUNS
from tests.validate.strided_plans import SPLIT, TRANSPOSE, accepted, kinds, sketch, sliced, split, transposed

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
