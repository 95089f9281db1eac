"""Before, after and why, as text, for each pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import passes
from memopt.ir import parse, print_graph
from memopt.pipeline import Pass, run_pipeline

CHAIN = """graph "chain" {
  input %x: f32[2,4]
  %a = Relu(%x)
  %b = Reshape(%a) {shape=[8]}
  %c = Neg(%b)
  %d = Neg(%b)
  %e = Add(%c, %d)
  output %e
}"""

SPLIT = """graph "split" {
  input %x: f32[4,2] donated
  %p, %q = Split(%x) {axis=0}
  %r = Relu(%p)
  %s = Mul(%r, %q)
  output %s
}"""

LADDER = """graph "ladder" {
  input %x: f32[4,4]
  param %w: f32[4,4]
  %a = MatMul(%x, %w)
  %b = MatMul(%a, %w)
  %c = MatMul(%b, %w)
  %d = MatMul(%c, %w)
  %e = Slice(%d) {axes=[0], ends=[1], starts=[0]}
  output %d
  output %e
}"""

TRAIN = """graph "train" {
  input %x: f32[4]
  param %w: f32[4]
  param %lr: f32[] = [0.1]
  %g = Mul(%x, %w)
  %h = Identity(%g)
  %w2 = SGD(%w, %h, %lr)
  %n = Increment(%g)
  %y = Add(%w2, %n)
  output %y
}"""

DENSE = """graph "dense" {
  input %x: f32[1,2,4]
  %a = Relu(%x)
  %b = Neg(%a)
  %c = Concat(%a, %b) {axis=1}
  %d = Abs(%c)
  %e = Concat(%c, %d, %b) {axis=1}
  output %e
}"""

CASES: dict[str, tuple[Pass, str]] = {
    "inplace_rename_chain": (passes.InplaceRename(), CHAIN),
    "inplace_share_chain": (passes.InplaceShare(), CHAIN),
    "inplace_rename_split": (passes.InplaceRename(), SPLIT),
    "inplace_share_split": (passes.InplaceShare(), SPLIT),
    "inplace_share_train": (passes.InplaceShare(), TRAIN),
    "share_concat_dense": (passes.ShareConcat(), DENSE),
    "share_concat_ladder": (passes.ShareConcat(), LADDER.replace("MatMul(%c, %w)", "Concat(%c, %x) {axis=0}")),
    "inplace_rename_fluid": (passes.InplaceRename(fluid_rules=True, min_elements=0), CHAIN),
    "inplace_rename_fluid_floor": (passes.InplaceRename(fluid_rules=True), CHAIN),
    "inplace_share_fluid": (passes.InplaceShare(fluid_rules=True), CHAIN),
    "reuse_rename_ladder": (passes.ReuseRename(), LADDER),
    "reuse_share_ladder": (passes.ReuseShare(), LADDER),
    "reuse_rename_fluid": (passes.ReuseRename(fluid_rules=True, min_elements=0), LADDER),
    "reuse_share_fluid": (passes.ReuseShare(fluid_rules=True), LADDER),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    one, text = CASES[name]
    graph = parse(text)
    before = print_graph(graph)
    (result,) = run_pipeline(graph, [one])
    why = "".join(f"# {decision}\n" for decision in result.decisions)
    golden(f"passes/{name}.txt", f"{before}\n# {one!r}\n{why}\n{print_graph(graph)}")
