"""The slow twin itself: it must see what is wrong."""

from __future__ import annotations

import pytest

from memopt.ir import parse
from tests.twins import storage_faults

WRONG = {
    "a reader comes after the overwrite": (
        "%d = Neg(%a) %e = Abs(%a)",
        "buffer a: a, d",
        "%a, read by e, is not there",
    ),
    "a kept feed is overwritten": ("%d = Neg(%x) %e = Abs(%d)", "buffer x: x, d", "%x, kept, is not there"),
    "two outputs are one": ("%d, %e = Split(%a) {axis=0}", "buffer d: d, e", "%d, written by d, is not there"),
    "the op forbids it": ("%d = MatMul(%a, %b) %e = Abs(%d)", "buffer a: a, d", "%d overwrites an input of d"),
    "half of an input is overwritten": (
        "%d = Neg(%a) %e = Abs(%d)",
        "buffer a: a, d+8",
        "%d lies across an input of d",
    ),
    "a view is clobbered": (
        "%v = Reshape(%a) {shape=[4]} %d = Neg(%a) %e = Abs(%v)",
        "buffer a: a, v, d",
        "%v, read by e, is not there",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_storage_is_seen(name):
    nodes, storage, fault = WRONG[name]
    head = 'graph "g" { input %x: f32[2,2] %a = Relu(%x) %b = Abs(%x) '
    graph = parse(f"{head}{nodes} output %e storage {{ {storage} }} }}")
    assert fault in storage_faults(graph)


def test_right_storage_is_right():
    text = """graph "g" {
      input %x: f32[2,2] donated
      %a = Relu(%x)
      %v = Reshape(%a) {shape=[4]}
      %d = Neg(%v)
      output %d
      storage { buffer x: x, a, v, d }
    }"""
    assert storage_faults(parse(text)) == []
