"""Outputs that kernels write in strides: parts of a Concat where they lie in its rows, and whatever lies apart."""

from __future__ import annotations

import pytest

from memopt.devices import Device, Machine
from memopt.ir import parse
from memopt.strides import MOST_RUNS
from memopt.validate import validate
from tests.validate.plans import Sketch

#: `p` has 4 elements an item and `q` 12, so `c` has 16: row i of `p` is bytes [64 i, 64 i + 16) of it.
CONCAT = """graph "concat" {
  input %x: f32[3,1,2,2]
  input %y: f32[3,3,2,2]
  %p = Relu(%x)
  %q = Neg(%y)
  %c = Concat(%p, %q) {axis=1}
  %m = Abs(%c)
  output %m
}"""
P, Q = "p@c:16,4,2,1", "q@c+16:16,4,2,1"


def sketch(text: str, *buffers: str, machine: Machine | None = None) -> Sketch:
    return Sketch(parse(text), machine).buffers_for(*buffers)


def accepted(s: Sketch) -> None:
    assert [str(f) for f in s.findings()] == []
    assert [str(f) for f in validate(s.plan(), findings="return", order="any")] == []


def kinds(s: Sketch) -> list[tuple[str, int | None, str]]:
    return [(f.kind, f.instruction, f.value) for f in s.findings()]


def unordered(s: Sketch) -> set[tuple[int | None, int | None]]:
    assert s.findings() == []
    found = validate(s.plan(), findings="return", order="any")
    assert {f.kind for f in found} <= {"unordered"}
    return {(f.instruction, f.culprit) for f in found}


def joined(p: str = P, q: str = Q, reads: tuple[str, str] | None = None, text: str = CONCAT) -> Sketch:
    s = sketch(text, "p", "q", "c", "m").call("p", ["x"], [p]).call("q", ["y"], [q])
    return s.call("c", list(reads or (p, q)), ["c"]).call("m", ["c"], ["m"])


# -- right plans ------------------------------------------------------------------------------------------------------


def test_both_parts_in_their_rows():
    accepted(joined())


def test_one_part_in_its_rows_and_one_copied():
    accepted(joined(P, "q"))
    accepted(joined("p", Q))


def test_what_an_axis_of_length_1_steps_by_says_nothing():
    accepted(joined("p@c:16,0,2,1"))
    accepted(joined("p@c:16,7,2,1", Q, ("p@c:16,4,2,1", Q)))


def test_a_kernel_writes_a_transposed_value_in_strides():
    text = 'graph "g" {\n input %x: f32[4,3]\n %t = Transpose(%x)\n %m = Abs(%t)\n output %m\n}'
    accepted(sketch(text, "t", "m").call("t", ["x"], ["t:1,3"]).call("m", ["t:1,3"], ["m"]))
    accepted(sketch(text, "m").buffer("t", 96).call("t", ["x"], ["t:8,1"]).call("m", ["t:8,1"], ["m"]))


def test_a_part_is_read_by_another_op_too_before_and_after_it_was_joined():
    text = CONCAT.replace("output %m", "%r = Neg(%q)\n  output %m\n  output %r")
    for place in (3, 4):
        s = joined(text=text).buffers_for("r")
        s.instructions.insert(place, s.call("r", [Q], ["r"]).instructions.pop())
        accepted(s)


def test_the_copy_of_a_part_in_the_result_will_do():
    text = CONCAT.replace("output %m", "%r = Neg(%q)\n  output %m\n  output %r")
    accepted(joined(P, "q", text=text).buffers_for("r").free("q").call("r", [Q], ["r"]))


def test_a_part_may_be_fetched_from_its_rows():
    accepted(joined(text=CONCAT.replace("output %m", "output %m\n  output %q")).result(Q))


def test_rows_that_follow_each_other_are_one_run():
    """At batch size 1 the strides are those of a contiguous tensor."""
    accepted(joined(text=CONCAT.replace("[3,", "[1,")))


NESTED = """graph "nested" {
  input %x: f32[2,3]
  %a = Relu(%x)
  %b = Neg(%x)
  %c = Concat(%a, %b) {axis=1}
  %d = Abs(%x)
  %e = Concat(%d, %c) {axis=1}
  %m = Neg(%e)
  output %m
}"""
A, B, C, D = "a@e+12:9,1", "b@e+24:9,1", "c@e+12:9,1", "d@e:9,1"


def nested(a: str = A, b: str = B, c: str = C, d: str = D, text: str = NESTED) -> Sketch:
    s = sketch(text, "e", "m").call("a", ["x"], [a]).call("b", ["x"], [b]).call("c", [a, b], [c])
    return s.call("d", ["x"], [d]).call("e", [d, c], ["e"]).call("m", ["e"], ["m"])


def test_a_join_within_a_join():
    accepted(nested())


def test_a_join_within_a_join_is_read_by_its_parts():
    s = nested(text=NESTED.replace("output %m", "%n = Abs(%b)\n  %o = Abs(%c)\n  output %m\n  output %n\n  output %o"))
    accepted(s.buffers_for("n", "o").call("n", [B], ["n"]).call("o", [C], ["o"]))


def test_a_join_within_a_join_along_another_axis():
    text = NESTED.replace("{axis=1}", "{axis=0}", 1)
    text = text.replace("%d = Abs(%x)", "%z = Concat(%x, %x) {axis=0}\n  %d = Abs(%z)")
    s = sketch(text, "z", "e", "m").call("a", ["x"], ["a@e+12:6,1"]).call("b", ["x"], ["b@e+60:6,1"])
    s.call("c", ["a@e+12:6,1", "b@e+60:6,1"], ["c@e+12:6,1"]).call("z", ["x", "x"], ["z"])
    accepted(s.call("d", ["z"], ["d@e:6,1"]).call("e", ["d@e:6,1", "c@e+12:6,1"], ["e"]).call("m", ["e"], ["m"]))


def test_views_of_a_part():
    """The part lies in rows, and its views in strides of these; a Reshape of it is a run of it."""
    text = CONCAT.replace("output %m", """%s = Slice(%q) {axes=[1], ends=[2], starts=[1]}
  %t = Transpose(%q) {perm=[0,2,3,1]}
  %r = Reshape(%q) {shape=[3,12]}
  %k = Neg(%s)
  %l = Neg(%t)
  %o = Neg(%r)
  output %m\n  output %k\n  output %l\n  output %o""")
    s = joined(text=text).buffers_for("k", "l", "o")
    s.call("s", [Q], ["s@c+32:16,0,2,1"]).call("t", [Q], ["t@c+16:16,2,1,4"]).call("r", [Q], ["r@c+16:16,1"])
    s.call("k", ["s@c+32:16,0,2,1"], ["k"]).call("l", ["t@c+16:16,2,1,4"], ["l"]).call("o", ["r@c+16:16,1"], ["o"])
    accepted(s)
    s = joined(text=text).buffers_for("k", "l", "o")
    s.call("s", [Q], ["s@c+28:16,0,2,1"]).call("t", [Q], ["t@c+16:16,2,1,4"]).call("r", [Q], ["r@c+16:16,1"])
    s.call("k", ["s@c+28:16,0,2,1"], ["k"]).call("l", ["t@c+16:16,2,1,4"], ["l"]).call("o", ["r@c+16:16,1"], ["o"])
    assert kinds(s)[0] == ("overlap", 4, "s")


# -- in place ---------------------------------------------------------------------------------------------------------

INPLACE = CONCAT.replace("%c = Concat(%p, %q)", "%r = Relu(%q)\n  %c = Concat(%p, %r)")


def inplace(r: str = "r@c+16:16,4,2,1", q: str = Q, op: str = "Relu(%q)") -> Sketch:
    s = sketch(INPLACE.replace("Relu(%q)", op), "c", "m").call("p", ["x"], [P]).call("q", ["y"], [q])
    return s.call("r", [q, q][: op.count("%")], [r]).call("c", [P, r], ["c"]).call("m", ["c"], ["m"])


def test_in_place_over_a_part():
    accepted(inplace())
    accepted(inplace(op="Add(%q, %q)"))


def test_in_place_in_other_strides():
    inplace(q="q@c+16:16,4,1,2").only("illegal-inplace", 2, "%r", "%q", "(16, 4, 1, 2)", "(16, 4, 2, 1)")


def test_in_place_from_rows_to_contiguous_bytes():
    text = INPLACE.replace("%c = Concat(%p, %r) {axis=1}\n  %m = Abs(%c)", "%m = Abs(%r)")
    s = sketch(text, "m", "p").buffer("c", 192).call("p", ["x"], ["p"]).call("q", ["y"], ["q@c:16,4,2,1"])
    s.call("r", ["q@c:16,4,2,1"], ["r@c"]).call("m", ["r@c"], ["m"])
    s.only("overlap", 2, "%r", "%q", "one after the other")


def test_in_place_a_row_further():
    s = sketch(INPLACE, "m").buffer("c", 256).call("p", ["x"], [P]).call("q", ["y"], ["q@c+80:16,4,2,1"])
    s.call("r", ["q@c+80:16,4,2,1"], ["r@c+16:16,4,2,1"]).call("c", [P, "r@c+16:16,4,2,1"], ["c"])
    s.call("m", ["c"], ["m"]).only("overlap", 2, "%r", "%q")


def test_in_place_where_the_op_has_no_such_pair():
    text = CONCAT.replace("%q = Neg(%y)", "%z = Neg(%y)\n  %q = MatMul(%z, %z)")
    s = sketch(text, "c", "m").call("p", ["x"], [P]).call("z", ["y"], ["z@c+16:16,4,2,1"])
    s.call("q", ["z@c+16:16,4,2,1"] * 2, [Q]).call("c", [P, Q], ["c"]).call("m", ["c"], ["m"])
    s.only("illegal-inplace", 2, "%q", "no such in-place pair")


def test_the_parts_of_a_call_lie_between_each_other():
    """Two outputs, and an output and an input, in the rows of one value are apart."""
    text = """graph "g" {
  input %x: f32[2,4]
  %a, %b = Split(%x) {axis=1, split=[1,3]}
  %n = Neg(%a)
  %c = Concat(%n, %b, %a) {axis=1}
  %m = Abs(%c)
  output %m
}"""
    n, b, a = "n@c:5,1", "b@c+4:5,1", "a@c+16:5,1"
    s = sketch(text, "c", "m").call("a", ["x"], [a, b]).call("n", [a], [n]).call("c", [n, b, a], ["c"])
    accepted(s.call("m", ["c"], ["m"]))
    a = "a@c+12:5,1"
    s = sketch(text, "c", "m").call("a", ["x"], [a, b]).call("n", [a], [n]).call("c", [n, b, a], ["c"])
    assert kinds(s.call("m", ["c"], ["m"]))[0] == ("overlap", 0, "b")


# -- ways to be wrong -------------------------------------------------------------------------------------------------


def test_parts_swapped():
    s = joined("p@c+48:16,4,2,1", "q@c:16,4,2,1")
    assert kinds(s)[0][:2] == ("overlap", 2)


@pytest.mark.parametrize("q", ["q@c+20:16,4,2,1", "q@c+12:16,4,2,1", "q@c+80:16,4,2,1", "q@c+16:17,4,2,1",
                               "q@c+16:12,4,2,1", "q@c+16:16,4,1,2", "q@c+16"])  # fmt: skip
def test_a_part_that_is_not_where_it_belongs(q):
    s = sketch(CONCAT, "m").buffer("c", 320).call("p", ["x"], [P]).call("q", ["y"], [q])
    s.call("c", [P, q], ["c"]).call("m", ["c"], ["m"])
    assert s.findings()
    assert all(f.instruction in (1, 2) for f in s.findings())


def test_a_part_that_is_read_where_it_is_not():
    found = joined(P, Q, (P, "q@c+16:16,4,1,2")).findings()
    assert [(f.kind, f.instruction, f.value) for f in found[:1]] == [("wrong-form", 2, "q")]
    assert "in strides (16, 4, 1, 2), in which no view of %q lies, nor was it written" in found[0].message
    s = sketch(CONCAT, "m").buffer("c", 320).call("p", ["x"], [P]).call("q", ["y"], [Q])
    s.call("c", [P, "q@c+80:16,4,2,1"], ["c"]).call("m", ["c"], ["m"])
    found = kinds(s)
    assert found[0][:2] in (("stale-read", 2), ("read-before-write", 2))


def test_a_part_that_is_written_after_it_was_joined():
    s = joined()
    s.instructions.insert(2, s.instructions.pop(1))
    assert kinds(s)[0] == ("read-before-write", 1, "q")


def test_a_row_that_was_overwritten():
    text = CONCAT.replace("output %m", "%r = Neg(%p)\n  output %m\n  output %r")
    s = joined(text=text)
    s.instructions.insert(2, s.call("r", [P], ["r@c+80"]).instructions.pop())
    found = s.result("r@c+80").findings()
    assert (found[0].kind, found[0].instruction, found[0].value) == ("clobbered", 3, "q")
    assert (found[0].culprit, found[0].lower % 64, found[0].upper % 64) == (2, 16, 0)


def test_a_freed_part():
    s = joined()
    s.instructions.insert(2, s.free("c").instructions.pop())
    assert kinds(s)[:2] == [("malformed", 3, "p"), ("malformed", 3, "q")]


def test_parts_that_overlap():
    s = joined("p@c+4:16,4,2,1", "q@c+16:16,4,2,1")
    assert kinds(s)[0] == ("partial-overwrite", 2, "p")
    text = 'graph "g" {\n input %x: f32[4,4]\n %a, %b = Split(%x) {axis=1}\n output %a\n output %b\n}'
    for b, wrong in (("b@A+8:4,1", False), ("b@A+4:4,1", True), ("b@A+8:3,1", True)):
        s = sketch(text).buffer("A", 128).call("a", ["x"], ["a@A:4,1", b]).result("a@A:4,1", b)
        assert (("overlap", 0, "b") in kinds(s)) == wrong
        assert bool(s.findings()) == wrong


@pytest.mark.parametrize("steps", ["1,1", "0,1", "4,0", "2,1", "0,0"])
def test_elements_that_share_bytes(steps):
    text = 'graph "g" {\n input %x: f32[4,3]\n %y = Neg(%x)\n %m = Abs(%y)\n output %m\n}'
    s = sketch(text, "m").buffer("y", 96).call("y", ["x"], [f"y:{steps}"]).call("m", [f"y:{steps}"], ["m"])
    assert kinds(s)[0] == ("wrong-form", 0, "y")
    assert "share bytes" in s.findings()[0].message


def test_equal_elements_that_share_bytes():
    """Both rows of `c` are `p`: they must be apart all the same."""
    text = 'graph "g" {\n input %x: f32[1,4]\n %p = Neg(%x)\n %c = Concat(%p, %p) {axis=0}\n output %c\n}'
    s = sketch(text, "p", "c").call("p", ["x"], ["p"]).call("c", ["p", "p"], ["c:0,1"]).result("c")
    assert kinds(s)[0] == ("wrong-form", 1, "c")


def test_too_many_runs():
    text = 'graph "g" {\n input %x: f32[1025,1]\n %y = Neg(%x)\n %m = Abs(%y)\n output %m\n}'
    for rows, wrong in ((MOST_RUNS, False), (MOST_RUNS + 1, True)):
        s = sketch(text.replace("1025", str(rows)), "m").buffer("y", 8 * rows)
        s.call("y", ["x"], ["y:2,1"]).call("m", ["y:2,1"], ["m"])
        assert bool(s.findings()) == wrong


def test_too_many_runs_of_a_join_are_bytes_of_its_own():
    """Sound, and refused: what lies in it is no input any more."""
    half = MOST_RUNS // 2
    for rows, wrong in ((half, False), (half + 1, True)):
        text = f"""graph "g" {{
  input %x: f32[{rows},1]
  %p = Neg(%x)
  %q = Abs(%x)
  %c = Concat(%p, %q) {{axis=1}}
  output %c
}}"""
        s = sketch(text, "c").call("p", ["x"], ["p@c:2,0"]).call("q", ["x"], ["q@c+4:2,0"])
        s.call("c", ["p@c:2,0", "q@c+4:2,0"], ["c"])
        assert bool(s.findings()) == wrong
        s = sketch(text, "p", "q", "c").call("p", ["x"], ["p"]).call("q", ["x"], ["q"]).call("c", ["p", "q"], ["c"])
        accepted(s)


def test_a_feed_that_is_not_donated():
    s = joined("p@y:12,4,2,1", Q)
    assert ("pinned-write", 0, "y") in kinds(s)


def test_beyond_the_buffer():
    assert kinds(joined("p@c+144:16,4,2,1"))[0] == ("out-of-bounds", 0, "p")


def test_strides_count_in_the_default_layout():
    s = joined()
    s.instructions[0] = s.call("p", ["x"], [s.operand(P, layout="NHWC")]).instructions.pop()
    assert ("wrong-form", 0, "p") in kinds(s)


# -- copies -----------------------------------------------------------------------------------------------------------

GPU = Machine(Device("host", alignment=16), (Device("gpu", alignment=16, dtypes={"float64": "float32"}),), "gpu")


def copied(source: str = Q) -> Sketch:
    text = CONCAT.replace("output %m", "%r = Neg(%q)\n  output %m\n  output %r")
    s = sketch(text, "c", "m", machine=GPU).buffer("T", 144, device="gpu").buffer("r", device="gpu")
    for name in "pqcm":
        s.graph.node(name).device = "host"
    s.graph.node("r").device = "gpu"
    s.call("p", ["x"], [P]).call("q", ["y"], [Q]).call("c", [P, Q], ["c"]).call("m", ["c"], ["m"])
    return s.transfer("device", source, "q@T", "r").call("r", ["q@T"], ["r"], device="gpu")


def test_a_copy_of_a_part():
    accepted(copied())


@pytest.mark.parametrize("source", ["q@c:16,4,2,1", "q@c+16:16,4,1,2", "q@c+16"])
def test_a_copy_of_other_bytes(source):
    assert [f[1:] for f in kinds(copied(source))] == [(5, "q")]


def test_a_copy_of_the_whole_in_another_layout():
    text = CONCAT.replace("%m = Abs(%c)", "%m = MaxPool(%c) {kernel_shape=[2,2]}")
    machine = Machine(Device("host", alignment=16, layouts={"MaxPool": "NHWC"}))
    s = sketch(text, "c", machine=machine).buffer("L", 192).buffers_for("m").call("p", ["x"], [P]).call("q", ["y"], [Q])
    target, result = s.operand("c@L", layout="NHWC"), s.operand("m", layout="NHWC")
    s.call("c", [P, Q], ["c"]).transfer("layout", "c", target, "m").call("m", [target], [result], layout="NHWC")
    accepted(s.result(result))


# -- any order --------------------------------------------------------------------------------------------------------


def test_rows_that_lie_between_each_other_need_no_order():
    """`r` is written between the elements of `p` that `o` reads."""
    text = CONCAT[: CONCAT.index("%c")] + "%o = Neg(%p)\n  output %o\n  output %q\n}"
    s = sketch(text, "o").buffer("c", 192).call("p", ["x"], [P]).call("o", [P], ["o"]).call("q", ["y"], [Q]).result(Q)
    assert unordered(s) == set()
    s = sketch(text, "o").buffer("c", 192).call("p", ["x"], [P]).call("o", [P], ["o"]).call("q", ["y"], ["q@c"])
    assert unordered(s.result("q@c")) == {(2, 0), (2, 1)}


def test_whoever_writes_over_a_part_comes_after_its_readers():
    text = CONCAT.replace("output %m", "%r = Neg(%p)\n  output %m\n  output %r")
    s = joined(text=text).buffers_for("r").call("r", [P], ["r@c:16,4,2,1"]).result("r@c:16,4,2,1")
    assert unordered(s) == {(4, 2), (4, 3)}


def test_a_part_that_is_copied_into_its_place_late():
    """Nothing orders a reader of the copy of `q` in the result before `d`, which is written over `q`'s own rows."""
    text = CONCAT.replace("output %m", "%d = Neg(%q)\n  output %m\n  output %d")
    s = joined(P, "q@q", text=text).call("d", ["q"], ["d@q"]).result("d@q")
    assert unordered(s) == {(4, 2)}
