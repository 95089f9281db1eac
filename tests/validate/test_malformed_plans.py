"""Plans that are no programs over their graph: every one is a finding, none a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.devices import Device, Machine, Placement
from memopt.ir import GraphBuilder
from memopt.lowering.program import Call, Free, Operand, Rebind, Transfer
from memopt.plan import Slot
from memopt.validate import FINDING_KINDS, validate
from tests.validate.plans import Sketch
from tests.validate.test_right_plans import chain, on_gpu


def right() -> Sketch:
    return Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])


def found(sketch: Sketch, **changes: object) -> list[tuple[str, int | None]]:
    return [(f.kind, f.instruction) for f in sketch.findings(**changes)]


# -- slots ------------------------------------------------------------------------------------------------------


def test_misaligned():
    s = Sketch(chain()).buffer("a", at=32).buffers_for("c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    s.only("misaligned", None, "buffer #1 (a)", "bytes [32, 96) of host arena", "64")


def test_above_the_arena():
    plan = right().plan()
    plan = replace(plan, devices={"host": replace(plan.devices["host"], height_bytes=127)})
    (finding,) = validate(plan, findings="return")
    assert finding.kind == "out-of-bounds"
    assert "buffer #2 (c) at bytes [64, 128)" in finding.message
    assert "127 bytes" in finding.message
    assert [f.kind for f in validate(replace(plan, devices={}), findings="return")] == ["out-of-bounds"] * 2


def test_beyond_the_capacity():
    machine = Machine(Device("host", capacity_bytes=191))
    s = Sketch(chain(), machine).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    s.only("out-of-bounds", None, "host needs 192 bytes", "191 bytes")


def test_scratch_that_was_not_planned():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"], scratch=100).call("c", ["a"], ["c"])
    s.only("out-of-bounds", 0, "needs 100 bytes of scratch", "0")
    s.scratch["host"] = 100
    assert s.findings() == []


def test_an_operand_outside_of_its_buffer():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("c", ["a"], ["c@c+4"]).result("c@c+4")
    assert found(s) == [("out-of-bounds", 1), ("out-of-bounds", None)]
    assert "bytes [68, 132)" in s.findings()[0].message


def test_a_slot_smaller_than_its_buffer():
    s = right()
    s.slots[1] = replace(s.slots[1], size=60)
    assert found(s) == [("out-of-bounds", None)]


@pytest.mark.parametrize(
    "slot",
    [
        Slot("tpu", "arena", 0, 64),
        Slot("host", "feed:x", 0, 64),
        Slot("host", "arena", -64, 64),
        Slot("host", "arena", "0", 64),  # type: ignore[arg-type]
    ],
)
def test_a_slot_that_is_none(slot):
    s = right()
    plan = replace(s.plan(), slots=(*s.slots[:1], slot, *s.slots[2:]))
    kinds = [f.kind for f in validate(plan, findings="return") if f.kind != "out-of-bounds"]
    assert set(kinds) == {"malformed"}


def test_as_many_slots_as_buffers():
    plan = right().plan()
    findings = validate(replace(plan, slots=plan.slots[:-1]), findings="return")
    assert findings[0].kind == "malformed"
    assert "3 buffers, but 2 slots" in findings[0].message


def test_buffer_ids_are_positions():
    s = right()
    s.buffers[1] = replace(s.buffers[1], id=2)
    assert ("malformed", None) in found(s)


# -- nodes ------------------------------------------------------------------------------------------------------


def test_an_unknown_node():
    s = right().call("nobody", ["x"], ["a"])
    s.only("malformed", 2, "no node 'nobody'")


def test_a_node_that_never_runs():
    b = GraphBuilder()
    x = b.input("x", (4,))
    b.neg(x, name="unread")
    b.output(b.relu(x, name="c"))
    s = Sketch(b.build()).buffers_for("c").call("c", ["x"], ["c"])
    s.only("malformed", None, "node unread (Neg) never runs")


def test_a_node_that_runs_twice():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    s.only("malformed", 1, "node a", "a second time", "instruction 0 (call a on host)")


def test_control_edges():
    b = GraphBuilder()
    x = b.input("x", (4,))
    p, q = b.neg(x, name="p"), b.relu(x, name="q")
    b.output(p, q)
    graph = b.build()
    graph.node("q").controls.append(graph.node("p"))
    s = Sketch(graph).buffers_for("p", "q").call("q", ["x"], ["q"]).call("p", ["x"], ["p"])
    s.only("malformed", 0, "node q must run after p (control edge)")


def test_another_op():
    s = right()
    s.instructions[0] = replace(s.instructions[0], op="Neg")
    assert ("malformed", 0) in found(s)


def test_arity():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x", "x"], ["a"]).call("c", ["a"], ["c"])
    s.only("malformed", 0, "1 inputs and 1 outputs", "2 and 1")


def test_missing_operands():
    s = Sketch(chain()).buffers_for("a", "c").call("a", [None], ["a"]).call("c", ["a"], ["c"])
    s.only("malformed", 0, "input 0, %x has no operand")
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], [None]).call("c", ["a"], ["c"])
    assert found(s) == [("malformed", 0), ("read-before-write", 1)]


def test_an_operand_for_an_absent_slot():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    y = b.op("Dropout", x, outputs=("y", None), name="drop")[0]
    b.output(y)
    s = Sketch(b.build()).buffers_for("y").buffer("mask", 16)
    right_call = s.call("drop", ["x"], ["y", None]).findings()
    assert right_call == []
    s.instructions[0] = replace(s.instructions[0], outputs=(s.operand("y"), s.operand("y@mask", dtype="bool")))
    s.only("malformed", 0, "output 1 of node drop is absent")


# -- buffers ----------------------------------------------------------------------------------------------------


def test_read_after_free():
    s = Sketch(chain()).buffers_for("a", "c").call("a", ["x"], ["a"]).free("a").call("c", ["a"], ["c"])
    s.only("malformed", 2, "%a", "buffer #1 (a)", "after instruction 1 (free buffer #1)")


def test_write_after_free():
    s = Sketch(chain()).buffers_for("a", "c").free("c").call("a", ["x"], ["a"]).call("c", ["a"], ["c"])
    assert found(s) == [("malformed", 2), ("malformed", None)]


def test_freed_twice():
    right().free("a", "a").only("malformed", 3, "buffer #1 (a) was freed already", "instruction 2 (free buffer #1)")


def test_freed_feed():
    right().free("x").only("malformed", 2, "host feed:x")


def test_a_buffer_that_there_is_not():
    nowhere = Operand(99, 0, Placement("host", "float32", "NCHW"), "a", "a")
    s = right()
    s.instructions += [Free(99), Rebind("a", "a", nowhere, "publish"), Transfer("", "home", nowhere, nowhere)]
    assert {f[0] for f in found(s)} == {"malformed"}
    assert {f[1] for f in found(s)} == {2, 3, 4}


def test_home_is_a_parameters():
    s = on_gpu("outer").buffer("elsewhere", 16, device="gpu").transfer("home", "w2", "w2@elsewhere")
    s.only("malformed", 5, "the home of no parameter")


def test_feeds_and_parameters_are_named():
    assert ("malformed", None) in found(right(), feeds=())
    plan = right().plan()
    twice = replace(plan.program, feeds=plan.program.feeds * 2)
    assert [f.kind for f in validate(replace(plan, program=twice), findings="return")] == ["malformed"]


# -- no crash ---------------------------------------------------------------------------------------------------

_WRONG = [None, -1, 10**20, 1.5, "?", ""]


def _broken(thing: object, wrong: object) -> list[object]:
    """Copies of a frozen record, each with one field replaced."""
    return [replace(thing, **{name: wrong}) for name in thing.__slots__]  # type: ignore[type-var, attr-defined]


@pytest.mark.parametrize("wrong", _WRONG, ids=repr)
def test_no_field_crashes_the_validator(wrong):
    s = on_gpu("outer").free("n").rebind("w2", "w", "w2")
    base = s.plan()
    for index, instruction in enumerate(s.instructions):
        variants = _broken(instruction, wrong)
        if isinstance(instruction, Transfer):
            variants += [replace(instruction, source=o) for o in _broken(instruction.source, wrong)]
            variants += [replace(instruction, target=o) for o in _broken(instruction.target, wrong)]
            placed = _broken(instruction.source.placement, wrong)
            variants += [replace(instruction, source=replace(instruction.source, placement=p)) for p in placed]
        if isinstance(instruction, Call):
            variants += [
                replace(instruction, inputs=(o, *instruction.inputs[1:])) for o in _broken(instruction.inputs[0], wrong)
            ]
        for variant in (*variants, wrong):
            changed = (*s.instructions[:index], variant, *s.instructions[index + 1 :])
            for finding in validate(
                replace(base, program=replace(base.program, instructions=changed)), findings="return"
            ):
                assert finding.kind in FINDING_KINDS


@pytest.mark.parametrize("wrong", _WRONG, ids=repr)
def test_no_buffer_or_slot_crashes_the_validator(wrong):
    base = on_gpu("outer").plan()
    for index in range(len(base.slots)):
        for slot in _broken(base.slots[index], wrong):
            slots = (*base.slots[:index], slot, *base.slots[index + 1 :])
            assert all(f.kind in FINDING_KINDS for f in validate(replace(base, slots=slots), findings="return"))
        for buffer in _broken(base.program.buffers[index], wrong):
            buffers = (*base.program.buffers[:index], buffer, *base.program.buffers[index + 1 :])
            program = replace(base.program, buffers=buffers)
            assert all(f.kind in FINDING_KINDS for f in validate(replace(base, program=program), findings="return"))
