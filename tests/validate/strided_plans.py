"""Plans with views in strides, in the terms of `tests.validate.plans`."""

from __future__ import annotations

from memopt.devices import Machine
from memopt.ir import parse
from memopt.validate import validate
from tests.validate.plans import Sketch

__all__ = ["SPLIT", "TRANSPOSE", "accepted", "kinds", "sketch", "sliced", "split", "transposed"]


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
