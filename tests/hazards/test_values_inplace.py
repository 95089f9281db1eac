"""Graphs that broke real systems, and the values that they must give: in place, fetches, feeds, parameters, sizes.

S01 to S18, S37, S38; S19 and what else is read from ONNX files is in test_values_onnx.
"""

from __future__ import annotations

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.errors import CapacityError, DonationError, ExecutionError, FeedError, InvalidPlanError
from memopt.ops import Input, OpSpec, Output, View, registry
from tests.hazards.line import forced, give, lent, plans, right_everywhere, wrong_everywhere

# -- S01 --------------------------------------------------------------------------------------------------------------

S01 = give(a=[1, 2], b=[3, 4], c=[10, 10])


def s01(first: str, *, donated: bool = False, control: bool = False):
    b = GraphBuilder()
    x, y, z = b.input("a", (2,)), b.input("b", (2,), donated=donated), b.input("c", (2,))
    made = {}
    for name in (first, "e" if first == "d" else "d"):
        made[name] = b.mul(x, y, name="d") if name == "d" else b.add(y, z, name="e")
    b.output(made["d"], made["e"])
    if control:
        b.graph.node("e").controls.append(b.graph.node("d"))
    return b.build()


def right_s01(a, b, c):
    return {"d": a * b, "e": b + c}


@pytest.mark.parametrize("first", ["d", "e"])
@pytest.mark.parametrize("donated", [False, True])
def test_s01(first, donated):
    assert right_s01(**S01)["d"].tolist() == [3, 8]
    right_everywhere(s01(first, donated=donated), S01, right_s01, lacks="Add")


def test_s01_forced_before_the_other_reader():
    plan = forced(s01("e", donated=True), "e", "b")
    (finding,) = wrong_everywhere(plan, S01, right_s01(**S01), "clobbered")
    assert "%b" in finding.message
    assert "%e" in finding.message
    assert plan.run(S01)["d"].tolist() == [13, 28]
    with pytest.raises(InvalidPlanError):
        validate(plan)


def test_s01_and_s57_legal_as_listed_but_not_in_any_order():
    plan = forced(s01("d", donated=True), "e", "b")
    assert validate(plan) == []
    assert [f.kind for f in validate(plan, findings="return", order="any")] == ["unordered"]
    assert validate(forced(s01("d", donated=True, control=True), "e", "b"), order="any") == []


# -- S02, S04 ---------------------------------------------------------------------------------------------------------


def s02():
    b = GraphBuilder()
    x1 = b.op("Identity", b.input("x", (2, 2)), name="x1")
    x3 = b.neg(b.reshape(x1, shape=(4,), name="x2"), name="x3")
    b.output(b.add(x1, b.reshape(x3, shape=(2, 2), name="r"), name="x4"))
    return b.build()


def test_s02():
    feeds = give(x=[[1, 2], [3, 4]])
    right_everywhere(s02(), feeds, lambda x: {"x4": np.zeros((2, 2))}, lacks="Neg")
    graph = s02()
    storage = graph.storage
    base = storage.buffer(graph.value("x1"))
    for name in ("x2", "x3", "r"):
        storage.share(storage.variable(graph.value(name)), base)
    plan = compile(graph, "none", validate=False)
    wrong_everywhere(plan, feeds, {"x4": np.zeros((2, 2))}, "clobbered")
    assert plan.run(feeds)["x4"].tolist() == [[-2, -4], [-6, -8]]


@pytest.fixture
def two(monkeypatch):
    """An op with two outputs, x + 1 and 2 x, that runs as a host call."""
    spec = OpSpec(
        "HazardTwo", (Input("x"),), (Output("a"), Output("b")),
        infer=lambda types, attrs, count: (types[0], types[0]),
        reference=lambda arrays, attrs, types: (arrays[0] + 1, arrays[0] * 2),
    )  # fmt: skip
    monkeypatch.setitem(registry._OPS, spec.name, spec)


def test_s04_an_output_that_nobody_reads(two):
    b = GraphBuilder()
    x = b.input("x", (2,))
    a, _ = b.op("HazardTwo", x, outputs=("a", "b"), name="two")
    b.output(b.add(a, x, name="c"))
    graph = b.build()
    feeds = give(x=[1, 2])
    right_everywhere(graph, feeds, lambda x: {"c": x + 1 + x}, lacks="HazardTwo")
    for label, plan in plans(graph):
        (buffer,) = [p for p in plan.program.buffers if p.name == "b"]
        assert buffer.end > buffer.start, label
    found = wrong_everywhere(forced(graph, "b", "a"), feeds, {"c": [3, 5]}, "overlap", "clobbered")
    assert found[0].kind == "overlap"


# -- fetched values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fetch", [("cost",), ("cost", "a"), ("cost", "a", "b")])
def test_s06_fetched_intermediates(fetch):
    b = GraphBuilder()
    one, other = b.input("A", (2, 2)), b.input("B", (2, 2))
    a, c = b.op("Abs", one, name="a"), b.op("Abs", other, name="b")
    d = b.sub(a, c, name="diff")
    cost = b.mul(d, d, name="cost")
    b.output(*[{"cost": cost, "a": a, "b": c}[name] for name in fetch])
    graph = b.build()
    feeds = give(A=[[1, -2], [3, 4]], B=[[-1, 2], [3, -4]])

    def right(A, B):
        found = {"a": abs(A), "b": abs(B), "cost": (abs(A) - abs(B)) ** 2}
        return {name: found[name] for name in fetch}

    right_everywhere(graph, feeds, right, lacks="Sub")
    if "a" in fetch:
        plan = forced(graph, "diff", "a")
        found = wrong_everywhere(plan, feeds, right(**feeds), "lost-output", "clobbered")
        assert (found[0].kind, found[0].value) == ("lost-output", "a")


@pytest.mark.parametrize("same", [False, True])
def test_s07_two_partial_losses(same):
    b = GraphBuilder()
    x = b.input("x", (2,))
    y = x if same else b.input("y", (1,))
    f = b.op("ReduceSum", b.mul(x, x), keepdims=0, name="f")
    h = b.op("ReduceSum", b.mul(y, y), keepdims=0, name="h")
    b.output(f, h, b.add(f, h, name="L"))

    def right(x, y=None):
        y = x if y is None else y
        return {"f": (x * x).sum(), "h": (y * y).sum(), "L": (x * x).sum() + (y * y).sum()}

    graph, feeds = b.build(), give(x=[1, 2]) if same else give(x=[1, 2], y=[3])
    right_everywhere(graph, feeds, right, lacks="ReduceSum")
    for keep in ((), ("f",), ("f", "h", "L")):
        for label, plan in plans(graph, keep=keep):
            got = plan.run(feeds)
            assert [float(got[name]) for name in "fhL"] == ([5, 5, 10] if same else [5, 9, 14]), label


def test_s09_an_output_and_its_identity():
    b = GraphBuilder()
    y = b.mul(b.input("x", (2,)), b.param("two", np.float32([2, 2])), name="y")
    b.output(y, b.op("Identity", y, name="z"), y)
    graph, feeds = b.build(), give(x=[1, 2])
    right_everywhere(graph, feeds, lambda x: {"y": 2 * x, "z": 2 * x}, lacks="Mul")
    for label, plan in plans(graph):
        got = plan.run(feeds)
        got["y"][0] = 99
        assert got["z"].tolist() == [2, 4], label
        assert plan.run(feeds)["y"].tolist() == [2, 4], label


def test_s11_parameters_as_outputs():
    b = GraphBuilder()
    w, c1, c2 = (b.param(name, np.float32(data)) for name, data in (("w", [1, 2]), ("c1", 3), ("c2", 3)))
    b.output(w, c1, b.add(b.input("x", (2,)), c2, name="y"))
    graph, feeds = b.build(), give(x=[1, 2])
    right_everywhere(graph, feeds, lambda x: {"w": [1, 2], "c1": 3, "y": x + 3}, lacks="Add")
    for label, plan in plans(graph):
        got = plan.run(feeds)
        got["w"][...] = -1
        got["c1"][...] = -1
        out = np.full(2, 7, np.float32)
        again = plan.run(feeds, out={"w": out})
        assert again["w"] is out
        assert (out.tolist(), float(again["c1"]), again["y"].tolist()) == ([1, 2], 3, [4, 5]), label


def test_s11_every_output_in_an_array_of_the_callers():
    b = GraphBuilder()
    w, c1, c2 = (b.param(name, np.float32(data)) for name, data in (("w", [1, 2]), ("c1", 3), ("c2", 3)))
    b.output(w, c1, b.add(b.input("x", (2,)), c2, name="y"))
    graph, feeds = b.build(), give(x=[1, 2])
    for label, plan in plans(graph, "Add", outputs="caller"):
        for _ in range(2):
            out = {v.name: np.full(v.shape, 7, np.float32) for v in graph.outputs}
            got = plan.run(feeds, out=out)
            assert all(got[name] is array for name, array in out.items()), label
            assert (out["w"].tolist(), float(out["c1"]), out["y"].tolist()) == ([1, 2], 3, [4, 5]), label
            assert got.outputs["w"] == "copied: it lies in the bytes of parameter %w", label
            for array in out.values():
                array[...] = -1


# -- feeds and parameters ---------------------------------------------------------------------------------------------


def test_s12_an_undonated_feed_and_another_shape():
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (1, 4, 8)), name="y"))
    graph = b.build()
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 4, 8)
    right_everywhere(graph, {"x": x}, lambda x: {"y": np.maximum(x, 0)}, lacks="Relu")
    wrong = forced(graph, "y", "x")
    assert [f.kind for f in validate(wrong, findings="return")] == ["pinned-write"]
    plan = compile(graph, outputs="caller")
    with pytest.raises(FeedError, match=r"'x' is float32\[1, ?4, ?8\]|'x' is f32\[1, ?4, ?8\]"):
        plan.run({"x": x[:, :1]})
    kept, got = x.copy(), plan.run({"x": x})
    np.testing.assert_array_equal(got["y"], np.maximum(x, 0))
    assert (got.feeds, got.outputs) == ({"x": "in place"}, {"y": "in place"})
    got["y"][...] = 9
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("donate", [(), ("x",), ("y",), ("x", "y")])
@pytest.mark.parametrize("outputs", ["arena", "caller"])
def test_s13_one_array_for_two_feeds(donate, outputs):
    b = GraphBuilder()
    b.output(b.add(b.input("x", (4,)), b.input("y", (4,)), name="s"))
    for label, plan in plans(b.build(), "Add", donate=donate, outputs=outputs):
        a = np.float32([1, 2, 3, 4])
        for other in (a, a[:]):
            got = plan.run({"x": a, "y": other})
            assert got["s"].tolist() == [2, 4, 6, 8], label
            copied = [name for name, how in got.feeds.items() if how != "in place"]
            assert all("it shares memory with feed %" in got.feeds[name] for name in copied), label
            assert len(copied) <= 1, label
            if a.tolist() != [1, 2, 3, 4]:  # a donated array that was used in place
                with pytest.raises(FeedError, match="consumed"):
                    plan.run({"x": a, "y": np.ones(4, np.float32)})
                a[...] = [1, 2, 3, 4]
                assert len(donate) > 1, label


def test_s13_overlap_is_found_by_address():
    b = GraphBuilder()
    b.output(b.add(b.input("x", (4,)), b.input("y", (4,)), name="s"))
    plan = compile(b.build(), donate=["x"])
    memory = np.arange(6, dtype=np.float32)
    got = plan.run({"x": memory[:4], "y": memory[2:]})
    assert (got["s"].tolist(), memory.tolist()) == ([2, 4, 6, 8], [0, 1, 2, 3, 4, 5])
    assert got.feeds == {"x": "copied: it shares memory with feed %y", "y": "in place"}
    assert plan.run({"x": memory[:4], "y": np.ones(4, np.float32)}).feeds["x"] == "in place"
    assert memory.tolist() == [1, 2, 3, 4, 4, 5]


def s14():
    b = GraphBuilder()
    b.output(b.op("Cast", b.input("x", (4,)), to="int64", name="y"))
    return b.build()


def test_s14_a_donation_that_is_of_no_use():
    graph = s14()
    right_everywhere(graph, give(x=[1.5, -2.5, 3, 0]), lambda x: {"y": x.astype(np.int64)}, lacks="Cast", donate=["x"])
    plan = compile(graph, "share", donate=["x"])
    (decision,) = [d for d in plan.decisions if d.subject == ("y", "x")]
    assert not decision.accepted
    assert decision.bytes == 32
    (unused,) = [d for d in plan.decisions if d.rule == "donation-unused"]
    assert (unused.subject, unused.accepted, unused.bytes) == (("x",), False, 16)
    assert "%y over it (32 bytes over 16)" in unused.reason
    x = np.float32([1.5, -2.5, 3, 0])
    for _ in range(2):  # it was not consumed
        assert plan.run({"x": x}).feeds == {"x": "in place"}
    assert x.tolist() == [1.5, -2.5, 3, 0]


@pytest.mark.parametrize("strategy", ["none", "share"])
def test_s14_strict(strategy):
    with pytest.raises(DonationError, match=r"%x: .*\b32 bytes.*\b16"):
        compile(s14(), strategy, donate=["x"], strict_donation=True)
    compile(s14(), strategy, strict_donation=True)
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (4,)), name="y"), b.op("Cast", b.input("z", (4,)), to="int64"), b.input("u", (1,)))
    with pytest.raises(DonationError) as raised:
        compile(b.build(), strategy, donate=["x", "z", "u"], strict_donation=True)
    assert [f"%{name}:" in str(raised.value) for name in "xzu"] == [strategy == "none", True, True]
    assert "%u: it is an output itself" in str(raised.value)


def test_s14_an_array_that_was_consumed():
    b = GraphBuilder()
    b.output(b.relu(b.input("x", (4,)), name="y"))
    plan, x = compile(b.build(), donate=["x"], strict_donation=True), np.float32([1, -2, 3, -4])
    assert plan.run({"x": x}, copy_feeds=True).feeds == {"x": "copied: copy_feeds=True"}
    assert plan.run({"x": x})["y"].tolist() == [1, 0, 3, 0]
    for again in (x, x[:]):
        with pytest.raises(FeedError, match=r"feed 'x' is an array that an earlier run has consumed.*%y was written"):
            plan.run({"x": again})
    with pytest.raises(FeedError, match="consumed"):  # whichever plan it is fed to
        compile(plan.graph).run({"x": x})
    assert plan.run({"x": x.copy()})["y"].tolist() == [1, 0, 3, 0]
    x[...] = [-1, 2, -3, 4]
    assert plan.run({"x": x})["y"].tolist() == [0, 2, 0, 4]


def test_s15_what_the_caller_does_to_an_array_later():
    b = GraphBuilder()
    b.output(b.op("Identity", b.input("x", (100,)), name="y"))
    for outputs in ("arena", "caller"):
        for label, plan in plans(b.build(), "Identity", outputs=outputs):
            for copy in (False, True):
                x = np.zeros(100, np.float32)
                got = plan.run({"x": x}, copy_feeds=copy)
                assert (got.feeds["x"] == "in place") is not copy, label
                x[0] = -1
                assert got["y"][0] == 0, label
                assert plan.run({"x": x}, copy_feeds=copy)["y"][0] == -1, label


def test_s17_a_weight_through_a_view():
    b = GraphBuilder()
    w2 = b.op("Unsqueeze", b.param("w", np.float32([-1, 2])), axes=(0,), name="w2")
    b.output(b.relu(w2, name="y"))
    graph = b.build()
    right_everywhere(graph, {}, lambda: {"y": [[0, 2]]}, lacks="Relu")
    graph.storage.share(graph.storage.variable(graph.value("w2")), graph.storage.buffer(graph.value("w")))
    plan = forced(graph, "y", "w2")
    assert [f.kind for f in validate(plan, findings="return")] == ["pinned-write"]


def ident(*views: View, writes: bool = False) -> OpSpec:
    """A user's op that returns its input itself, which it must not, or doubles it where it lies, which it must not."""

    def reference(arrays, attrs, types):
        if writes:
            arrays[0][...] *= 2
            return [arrays[0].copy()]
        return [arrays[0]]

    return OpSpec(
        "HazardIdent", (Input("x"),), (Output("y"),),
        infer=lambda types, attrs, count: (types[0],), reference=reference, views=views,
    )  # fmt: skip


def s18():
    b = GraphBuilder()
    x = b.input("x", (2,), donated=True)
    i = b.op("HazardIdent", x, name="i")
    b.output(b.mul(i, b.param("two", np.float32([2, 2])), name="y"), b.add(i, x, name="z"))
    return b.build()


def test_s18_a_reference_that_returns_its_input(monkeypatch):
    """A host call copies what the reference returns, so an undeclared alias does no harm; sanitizing names it."""
    monkeypatch.setitem(registry._OPS, "HazardIdent", ident())
    feeds = give(x=[1, 2])
    for label, plan in plans(s18(), "HazardIdent"):
        for _ in range(3):
            got = plan.run(lent(plan, feeds))
            assert [got["y"].tolist(), got["z"].tolist()] == [[2, 4], [2, 4]], label
        with pytest.raises(ExecutionError, match="output 0 shares memory with input 0, not declared") as raised:
            plan.run(lent(plan, feeds), sanitize=True)
        assert "call i (HazardIdent)" in str(raised.value)
    outputs, _ = run_reference(s18(), feeds)
    outputs["y"][...] = 0
    assert feeds["x"].tolist() == [1, 2]


def test_s18_a_declared_view(monkeypatch):
    monkeypatch.setitem(registry._OPS, "HazardIdent", ident(View(0, 0, lambda types, outs, attrs, output: 0)))
    right_everywhere(s18(), give(x=[1, 2]), lambda x: {"y": 2 * x, "z": 2 * x}, lacks="HazardIdent")


def test_s18_a_reference_that_writes_its_input(monkeypatch):
    monkeypatch.setitem(registry._OPS, "HazardIdent", ident(writes=True))
    with pytest.raises(ExecutionError, match="its reference writes input 0"):
        compile(s18(), "none").run(give(x=[1, 2]), sanitize=True)


# -- sizes that are reported (S37, S38) -------------------------------------------------------------------------------


def test_s37_no_product_wraps():
    b = GraphBuilder()
    b.output(b.relu(b.relu(b.input("x", (65536, 65536)), name="a"), name="y"))
    graph = b.build()
    assert graph.value("a").nbytes == 17179869184
    assert compile(graph, "none", pack_seconds=0).devices["host"].height_bytes == 2 * 17179869184
    with pytest.raises(CapacityError, match="17179869184"):
        compile(graph, "share", Machine.host_only(capacity_bytes=1 << 30))


def test_s38_the_reported_size_suffices():
    b = GraphBuilder()
    x = b.input("x", (1,), "uint8")
    made = [b.op("Identity", x, name="a"), b.relu(b.param("w", np.ones(11, np.float32)), name="b")]
    b.output(*made, b.relu(b.param("v", np.ones(1, np.float32)), name="c"))
    graph = b.build()
    plan = compile(graph, "none", Machine.host_only(alignment=16))
    use = plan.devices["host"]
    slots = {buffer.name: plan.slots[buffer.id] for buffer in plan.program.buffers if buffer.space == "arena"}
    assert sorted(slot.size for slot in slots.values()) == [1, 4, 44]
    assert use.height_bytes <= 80
    total = use.total_bytes
    exact = compile(graph, "none", Machine.host_only(alignment=16, capacity_bytes=total))
    assert exact.run({"x": np.uint8([7])})["a"].tolist() == [7]
    with pytest.raises(CapacityError, match="16 bytes too many"):
        compile(graph, "none", Machine.host_only(alignment=16, capacity_bytes=total - 16))
