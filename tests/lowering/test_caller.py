"""Which outputs get a space of their own under `outputs="caller"`, why others do not, and what that takes and saves."""

from __future__ import annotations

import numpy as np
import pytest

from memopt import Device, GraphBuilder, Machine, compile, validate
from memopt.errors import CapacityError, OptionError


def decisions(plan):
    """output -> "" or why it is copied out."""
    return {
        d.subject[0]: "" if d.accepted else d.reason
        for d in plan.decisions
        if d.rule in ("in-caller", "copied-out")
    }


def spaces(plan):
    return {slot.space for slot in plan.slots}


def test_the_chain_that_ends_in_an_output_lives_in_its_array():
    b = GraphBuilder()
    h = b.input("x", (8, 8))
    for i in range(4):
        h = b.relu(h, name=f"h{i}")
    b.output(h)
    graph = b.build()
    arena, caller = (compile(graph, "share", outputs=outputs) for outputs in ("arena", "caller"))
    assert (arena.devices["host"].height_bytes, arena.devices["host"].output_bytes) == (256, 0)
    assert (caller.devices["host"].height_bytes, caller.devices["host"].output_bytes) == (0, 256)
    assert arena.devices["host"].total_bytes == caller.devices["host"].total_bytes
    assert spaces(caller) == {"feed:x", "output:h3"}
    assert decisions(arena) == {}
    assert decisions(caller) == {"h3": ""}
    assert "outputs" in str(caller.report())
    assert "outputs" not in [row[0] for row in arena.report().rows]


def build(kind):
    b = GraphBuilder(kind)
    x = b.input("x", (8, 4), donated=kind == "feed")
    if kind == "views":
        y = b.relu(x, name="y")
        z = b.reshape(y, shape=(32,), name="z")
        b.output(y, z)
        storage = b.graph.storage  # no pass of ours does that: results are the caller's to write
        storage.share(storage.variable(z), storage.buffer(y))
    elif kind == "offset":
        b.output(b.slice(b.relu(x, name="r"), starts=(4,), ends=(8,), axes=(0,), name="y"))
    elif kind == "larger":
        b.output(b.slice(b.relu(x, name="r"), starts=(0,), ends=(4,), axes=(0,), name="y"))
    elif kind == "feed":
        b.output(b.relu(x, name="y"))
    elif kind == "itself":
        b.output(x, b.param("w", np.zeros(3, np.float32)))
    return b.build()


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        ("views", {"y": "output %z lies in the same buffer", "z": "output %y lies in the same buffer"}),
        ("offset", {"y": "it starts at byte 64 of its buffer"}),
        ("larger", {"y": "its buffer has 128 bytes, it has 64"}),
        ("feed", {"y": "it lies in the bytes of feed %x"}),
        ("itself", {"x": "it lies in the bytes of feed %x", "w": "it lies in the bytes of parameter %w"}),
    ],
)
def test_why_an_output_is_copied_out(kind, reasons):
    plan = compile(build(kind), "share", outputs="caller")
    assert decisions(plan) == {name: f"%{name} is copied out: {why}" for name, why in reasons.items()}
    assert plan.devices["host"].output_bytes == 0
    got = plan.run({"x": np.ones((8, 4), np.float32)})
    for name, why in reasons.items():
        assert got.outputs[name] == f"copied: {why}"


def test_outputs_that_end_in_another_form_or_elsewhere():
    b = GraphBuilder()
    x = b.input("x", (1, 2, 4, 4), "float64")
    b.output(b.relu(x, name="y"), b.shape(x, name="s"))
    graph = b.build()
    plan = compile(graph, outputs="caller", machine=Machine.host_only(dtypes={"float64": "float32"}))
    assert decisions(plan) == {"y": "%y is copied out: it ends as float32/NCHW@host", "s": ""}
    plan = compile(graph, outputs="caller", machine=Machine.host_and("gpu", lacks={"Relu"}))
    assert decisions(plan) == {"y": "", "s": "%s is copied out: it ends on gpu"}


def test_only_the_last_part_of_a_split_buffer_is_the_callers():
    """Reuse lets two values share a buffer one after the other; between them nobody needs it, and it is split."""
    b = GraphBuilder()
    x = b.input("x", (64,))
    a = b.neg(b.relu(x, name="r"), name="a")
    s = b.op("ReduceSum", a, keepdims=0, name="s")
    c = b.op("Expand", b.exp(s, name="e"), shape=(64,), name="c")
    b.output(c)
    for free, held in (("eager", 1), ("never", 1)):
        plan = compile(b.build(), "best", outputs="caller", free=free)
        assert [slot.space for slot in plan.slots].count("output:c") == held
        assert validate(plan, findings="return") == []
        x = np.linspace(-1, 0.5, 64, dtype=np.float32)
        out = np.empty(64, np.float32)
        got = plan.run({"x": x}, out={"c": out}, sanitize=True)
        assert got["c"] is out
        np.testing.assert_allclose(out, np.exp(-np.maximum(x, 0).sum()), rtol=1e-5)


def test_capacity_counts_them():
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (256,)), name="y"))
    for capacity in (2048, 2047):
        machine = Machine(Device("host", capacity_bytes=capacity))
        if capacity == 2048:
            assert compile(b.build(), machine=machine, outputs="caller").devices["host"].total_bytes == 2048
            continue
        with pytest.raises(CapacityError, match=r"1 bytes too many \(arena 0, .*, outputs 1024\)"):
            compile(b.build(), machine=machine, outputs="caller")


def test_arguments():
    with pytest.raises(OptionError, match="outputs='elsewhere' is not one of arena, caller"):
        compile(build("views"), outputs="elsewhere")
    plan = compile(build("feed"), "none", outputs="caller")
    assert spaces(plan.replan()) == {"feed:x", "output:y"}
    assert spaces(plan.replan(outputs="arena")) == {"feed:x", "arena"}
    text = str(plan.explain("y"))
    assert "host output:y, bytes [0, 128)" in text
    assert "holds to the end" in text


def test_eight_products_and_their_concat_take_no_more_than_the_concat():
    b = GraphBuilder("eight")
    x = b.input("x", (1024, 256))
    parts = [b.matmul(x, b.param(f"w{i}", shape=(256, 1024))) for i in range(8)]
    b.output(b.matmul(b.op("Concat", *parts, axis=0), b.param("v", shape=(1024, 1)), name="y"))
    plan = compile(b.build(), "best", outputs="caller")
    assert plan.devices["host"].height_bytes == 32 << 20
    assert plan.devices["host"].output_bytes == 32 << 10
