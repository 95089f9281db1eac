"""Joins: an input in its slice is content of the result, there and under either name; anywhere else it is not."""

from __future__ import annotations

import pytest

from memopt.devices import Device, Machine
from memopt.ir import parse
from memopt.validate import validate
from tests.validate.plans import Sketch

GRAPH = """graph "join" {
  input %x: f32[4,4]
  %a = Relu(%x)
  %b = Neg(%x)
  %c = Concat(%a, %b) {axis=0}
  %d = Abs(%b)
  %e = MatMul(%c, %d)
  output %e
}"""


def join(text: str = GRAPH) -> Sketch:
    return Sketch(parse(text))


def in_slices(second: str = "b@c+64") -> Sketch:
    sketch = join().buffers_for("c", "d", "e").call("a", ["x"], ["a@c"]).call("b", ["x"], ["b@c+64"])
    return sketch.call("c", ["a@c", second], ["c"])


def test_both_inputs_in_their_slices():
    sketch = in_slices().call("d", ["b@c+64"], ["d"]).call("e", ["c", "d"], ["e"])
    assert [str(f) for f in sketch.findings()] == []
    assert validate(sketch.plan(), findings="return", order="any") == []


def test_one_in_its_slice_and_one_copied():
    sketch = join().buffers_for("b", "c", "d", "e").call("a", ["x"], ["a@c"]).call("b", ["x"], ["b"])
    sketch.call("c", ["a@c", "b"], ["c"]).call("d", ["b@c+64"], ["d"])  # the copy in the result will do
    sketch.call("e", ["c", "d"], ["e"])
    assert [str(f) for f in sketch.findings()] == []


def test_the_inputs_the_other_way_round():
    sketch = join().buffers_for("c", "d", "e").call("a", ["x"], ["a@c+64"]).call("b", ["x"], ["b@c"])
    sketch.call("c", ["a@c+64", "b@c"], ["c"]).call("d", ["b@c+64"], ["d"]).call("e", ["c", "d"], ["e"])
    sketch.only("overlap", 2, "%a", "%c")


def test_a_slice_that_was_overwritten():
    sketch = join().buffers_for("c", "d", "e").call("a", ["x"], ["a@c"]).call("b", ["x"], ["b@c+64"])
    sketch.call("d", ["b@c+64"], ["d@c+64"]).call("c", ["a@c", "b@c+64"], ["c"]).call("e", ["c", "d@c+64"], ["e"])
    kinds = [(f.kind, f.instruction, f.value) for f in sketch.findings()]
    assert kinds[0] == ("clobbered", 3, "b")


def test_a_part_of_the_result_that_was_overwritten():
    sketch = in_slices().call("d", ["b@c+64"], ["d@c+64"]).call("e", ["c", "d@c+64"], ["e"])
    found = sketch.findings()
    assert [(f.kind, f.instruction, f.value) for f in found] == [("clobbered", 4, "c")]
    assert "bytes of %b" in found[0].message


def test_a_part_that_is_written_in_any_order():
    """%d over %b's own bytes after the copy: nothing says that the Concat has read %b by then."""
    sketch = join().buffers_for("b", "c", "e").call("a", ["x"], ["a@c"]).call("b", ["x"], ["b"])
    sketch.call("c", ["a@c", "b"], ["c"]).call("d", ["b"], ["d@b"]).call("e", ["c", "d@b"], ["e"])
    assert sketch.findings() == []
    assert [f.kind for f in validate(sketch.plan(), findings="return", order="any")] == ["unordered"]


def test_a_join_that_is_no_run_holds_new_content():
    text = GRAPH.replace("axis=0", "axis=1").replace("MatMul(%c, %d)", "MatMul(%d, %c)")
    sketch = join(text).buffers_for("a", "b", "c", "d", "e").call("a", ["x"], ["a"]).call("b", ["x"], ["b"])
    sketch.call("c", ["a", "b"], ["c"]).call("d", ["b@c+64"], ["d"]).call("e", ["d", "c"], ["e"])
    sketch.only("stale-read", 3, "%b")


@pytest.mark.parametrize("swap", [False, True])
def test_layout_transfers_of_a_joined_tensor(swap):
    text = """graph "nhwc" {
      input %x: f32[1,2,3,3]
      param %w: f32[2,4,1,1]
      %a = Relu(%x)
      %b = Neg(%x)
      %c = Concat(%a, %b) {axis=1}
      %y = Conv(%c, %w)
      output %y
    }"""
    machine = Machine(host=Device("host", layouts={"Conv": "NHWC"}))
    sketch = Sketch(parse(text), machine).buffers_for("c", "y").buffer("n", 144).buffer("o", 72)
    a, b = ("a@c+72", "b@c") if swap else ("a@c", "b@c+72")
    sketch.call("a", ["x"], [a]).call("b", ["x"], [b]).call("c", [a, b], ["c"])
    nhwc = sketch.operand("c@n", layout="NHWC")
    sketch.transfer("layout", "c", nhwc, node="y").call(
        "y", [nhwc, "w"], [sketch.operand("y@o", layout="NHWC")], layout="NHWC"
    )
    sketch.transfer("layout", sketch.operand("y@o", layout="NHWC"), "y")
    assert [f.kind for f in sketch.findings()] == (["overlap"] if swap else [])
