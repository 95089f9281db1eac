"""Mutants of right plans: whatever changes a bit is rejected, what is right is not; and the holes that they showed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mutants import MUTATORS
from benchmarks.mutations import base_plan, mutants, observe, run
from memopt import GraphBuilder, Machine, compile, validate
from memopt.devices import Placement
from memopt.lowering.program import Call, Transfer
from tests.validate.plans import Sketch
from tests.validate.test_right_plans import chain, conv, sgd

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # host calls on garbage
]


def check(number: int, seed: int) -> None:
    with np.errstate(all="ignore"):
        tally = run(number, seed)
    assert tally.misses == [], str(tally)
    assert tally.count("harmful") > number // 4, str(tally)
    assert tally.count("harmless") > number // 20, str(tally)  # it does not reject everything


def test_every_harmful_mutant_is_rejected_and_no_right_plan():
    check(300, seed=11)


@pytest.mark.slow
def test_thousands_of_mutants():
    check(6000, seed=12)


def test_each_kind_of_mutant_occurs():
    import random

    kinds = set()
    for seed in range(60):
        plan = base_plan(seed)
        kinds |= {kind for kind, _ in mutants(plan, random.Random(seed), 20)}
    assert kinds == set(MUTATORS)


def test_the_judge_sees_an_untouched_plan_as_itself():
    plan = base_plan(3)
    assert observe(plan, 3) == observe(replace(plan), 3)


# -- holes that mutants found ---------------------------------------------------------------------------------------


def kinds(plan) -> list[tuple[str, int | None]]:
    return [(f.kind, f.instruction) for f in validate(plan, findings="return")]


@pytest.mark.parametrize("wrong", ["buffer", "value", "absent", "dtype"])
def test_where_and_as_what_a_parameter_ends(wrong):
    """A run goes by it: which parameters are copied, and where `plan.state()` looks."""
    plan = compile(sgd(), "share")
    right = next(r for r in plan.program.finals if r.operand.value != r.name)
    changed = {
        "buffer": replace(right, operand=replace(right.operand, buffer=plan.program.feeds[0].operand.buffer)),
        "value": replace(right, operand=replace(right.operand, value=right.name)),
        "dtype": replace(right, operand=replace(right.operand, placement=Placement("host", "int32", "NCHW"))),
        "absent": None,
    }[wrong]
    finals = [changed if r is right else r for r in plan.program.finals]
    broken = replace(plan, program=replace(plan.program, finals=tuple(r for r in finals if r is not None)))
    assert kinds(plan) == []
    assert kinds(broken) == [("malformed" if wrong == "absent" else "lost-parameter", None)]


def test_scratch_that_the_kernel_takes_is_planned():
    b = GraphBuilder()
    x = b.input("x", (1, 2, 4, 4))
    b.output(b.conv(x, b.param("w", np.ones((2, 2, 3, 3), np.float32)), pads=(1, 1, 1, 1), name="c"))
    plan = compile(b.build())
    (call,) = [i for i in plan.program.instructions if isinstance(i, Call)]
    if not call.scratch_bytes:
        pytest.skip("this kernel takes no scratch")
    instructions = tuple(replace(i, scratch_bytes=0) if i is call else i for i in plan.program.instructions)
    broken = replace(plan, program=replace(plan.program, instructions=instructions))
    assert kinds(broken) == [("out-of-bounds", 0)]
    assert "needs" in validate(broken, findings="return")[0].message


def test_a_feed_starts_where_its_allocation_does():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    s.slots[0] = replace(s.slots[0], offset=16)
    (finding,) = s.findings()
    assert finding.kind == "out-of-bounds"
    assert "does not start" in finding.message


def test_the_way_home_changes_one_thing():
    b = GraphBuilder()
    w, r = b.param("w", shape=(2, 2), dtype="float64"), b.param("r", shape=(), dtype="float64")
    b.output(b.op("SGD", w, b.input("g", (2, 2), "float64"), r, name="u"))
    plan = compile(b.build(), "none", Machine.host_only(dtypes={"float64": "float32"}))
    assert kinds(plan) == []
    (at,) = [i for i, t in enumerate(plan.program.instructions) if isinstance(t, Transfer) and t.kind == "home"]
    home = plan.program.instructions[at]
    source = replace(home.source, placement=replace(home.source.placement, layout="NHWC"))
    new = [replace(home, source=source) if i == at else t for i, t in enumerate(plan.program.instructions)]
    broken = replace(plan, program=replace(plan.program, instructions=tuple(new)))
    assert ("wrong-form", at) in kinds(broken)


def test_reordering_what_was_freed_is_a_finding_and_no_crash():
    plan = compile(conv(), "none", Machine.host_and("gpu", layouts={"Conv": "NHWC"}))
    instructions = list(plan.program.instructions)
    at = next(i for i, t in enumerate(instructions) if isinstance(t, Transfer) and t.kind == "layout")
    free = [i for i in instructions if getattr(i, "buffer", None) == instructions[at].source.buffer]
    for one in free:
        instructions.remove(one)
    instructions[at:at] = free
    found = kinds(replace(plan, program=replace(plan.program, instructions=tuple(instructions))))
    assert bool(found) == bool(free)


def test_no_bytes_in_another_layout():
    b = GraphBuilder()
    x = b.input("x", (0, 2, 4, 4))
    b.output(b.op("MaxPool", x, kernel_shape=(2, 2)))
    plan = compile(b.build(), "none", Machine.host_only(layouts={"MaxPool": "NHWC"}))
    assert kinds(plan) == []
