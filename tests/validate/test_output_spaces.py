"""Spaces of outputs: what is right there, and each way in which a plan can be wrong about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.devices import Machine
from memopt.ir import GraphBuilder
from memopt.validate import validate
from tests.validate.plans import Sketch


def chain(outputs="c"):
    b = GraphBuilder()
    a = b.relu(b.input("x", (4, 4)), name="a")
    c = b.neg(a, name="c")
    b.output(*[{"a": a, "c": c}[name] for name in outputs])
    return b.build()


def sketch(in_place=True, graph=None, machine=None):
    """a and c in the caller's array, or a in the arena."""
    s = Sketch(graph or chain(), machine)
    s._add("c", "host", "output", 64, 0)
    if in_place:
        return s.call("a", ["x"], ["a@c"]).call("c", ["a@c"], ["c"])
    return s.buffer("a").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])


def change(s, **of_slot):
    """The sketch with another slot for the output."""
    s.slots[s.id("c")] = replace(s.slots[s.id("c")], **of_slot)
    return s


@pytest.mark.parametrize("order", ["listed", "any"])
@pytest.mark.parametrize("in_place", [True, False])
def test_right(in_place, order):
    assert validate(sketch(in_place).plan(), order=order) == []


def test_the_space_has_the_name_of_no_output():
    s = change(sketch(), space="output:a")
    s.only("malformed", None, "buffer #1 (c) is in host output:a, but the graph has no output %a")


def test_the_space_is_another_outputs():
    s = change(sketch(False, chain("ac")), space="output:a")
    overlap, lost = s.findings()
    assert (overlap.kind, lost.kind) == ("overlap", "lost-output")
    assert "is in host output:a, but %c is found there too" in overlap.message
    assert "is in host output:a, but the program does not find output %a there" in lost.message


def test_the_output_is_found_elsewhere():
    """Its own array is never written: the caller would get what was there."""
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (4, 4)), name="c"))
    s = Sketch(b.build()).buffer("d", 64)
    s._add("c", "host", "output", 64, 0)
    s.call("c", ["x"], ["c@d"]).result("c@d")
    s.only("lost-output", None, "but the program does not find output %c there")


def test_two_buffers_in_one_space():
    s = sketch(False)
    s.slots[s.id("a")] = replace(s.slots[s.id("c")])
    s.buffers[s.id("a")] = replace(s.buffers[s.id("a")], space="output")
    found = s.findings()
    assert [f.kind for f in found] == ["overlap"]
    assert "buffer #1 (c) and buffer #2 (a) share host output:c, which is for one of them" in found[0].message


def test_another_result_is_found_there():
    b = GraphBuilder()
    c = b.relu(b.input("x", (4, 4)), name="c")
    b.output(c, b.reshape(c, shape=(16,), name="r"))
    s = Sketch(b.build())
    s._add("c", "host", "output", 64, 0)
    s.call("c", ["x"], ["c"]).call("r", ["c"], ["r@c"]).result("c", "r@c")
    s.only("overlap", None, "is in host output:c, but %r is found there too")


def test_it_is_overwritten_at_the_end():
    b = GraphBuilder()
    c = b.relu(b.input("x", (4, 4)), name="c")
    b.output(c)
    b.neg(c, name="d")
    s = Sketch(b.build())
    s._add("c", "host", "output", 64, 0)
    s.call("c", ["x"], ["c"]).call("d", ["c"], ["d@c"])
    s.only("lost-output", None, "%c")


@pytest.mark.parametrize("size", [60, 128])
def test_its_size_is_not_the_arrays(size):
    s = change(sketch(), size=size)
    found = s.findings()
    assert "out-of-bounds" in {f.kind for f in found}
    assert any("whose array has 64 bytes" in f.message for f in found), [str(f) for f in found]


def test_it_does_not_begin_where_the_array_does():
    s = Sketch(chain())
    s._add("c", "host", "output", 64, 64)
    s.call("a", ["x"], ["a@c"]).call("c", ["a@c"], ["c"])
    s.only("out-of-bounds", None, "does not start where its allocation")


def test_it_is_not_on_the_host():
    machine = Machine.host_and("gpu")
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (4, 4)), name="c"))
    s = Sketch(b.build(), machine).buffer("x2", 64, device="gpu")
    s._add("c", "gpu", "output", 64, 0)
    s.transfer("device", "x", "x@x2", "c").call("c", ["x@x2"], ["c"], device="gpu")
    s.only("wrong-device", None, "is in gpu output:c, but the caller's arrays are on host")


def test_it_ends_in_another_form():
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (4, 4), "float64"), name="c"))
    machine = Machine.host_only(dtypes={"float64": "float32"})
    s = Sketch(b.build(), machine).buffer("x2", 64)
    s._add("c", "host", "output", 128, 0)
    small = s.operand("x@x2", dtype="float32")
    s.transfer("dtype", "x", small, "c").call("c", [small], [s.operand("c", dtype="float32")])
    s.result(s.operand("c", dtype="float32"))
    s.only("wrong-form", None, "output %c is there as float32/NCHW@host from byte 0 on")
