"""Donations that no value takes: named with a reason, and refused if asked to."""

from __future__ import annotations

import pytest

import memopt
from memopt import GraphBuilder, Machine, compile, load_plan
from memopt.errors import DonationError, PlanError
from memopt.runtime.uses import FeedUse, feed_uses


def unused(plan):
    """feed -> why its donation is unused."""
    found = [d for d in plan.decisions if d.rule == "donation-unused"]
    assert all(d.pass_name == "donate" and not d.accepted for d in found)
    return {d.subject[0]: d.reason.removeprefix("donation unused: ") for d in found}


def build(kind):
    b = GraphBuilder(kind)
    x = b.input("x", (4,))
    if kind == "relu":
        b.output(b.relu(x, name="y"))
    elif kind == "cast":
        b.output(b.op("Cast", x, to="int64", name="y"))
    elif kind == "output":
        b.output(x, b.relu(x, name="y"))
    elif kind == "unread":
        b.output(b.input("z", (2,)))
    elif kind == "read later":
        r = b.relu(x, name="r")
        b.output(b.op("Concat", r, x, axis=0, name="y"))
    elif kind == "view":
        b.output(b.op("Concat", b.reshape(x, shape=(4,), name="v"), x, axis=0, name="y"))
    elif kind == "empty":
        b = GraphBuilder(kind)
        b.output(b.relu(b.input("x", (0, 4)), name="y"))
    elif kind == "sum":
        b.output(b.op("ReduceSum", x, keepdims=0, name="y"))
    return b.build()


@pytest.mark.parametrize(
    ("kind", "strategy", "why"),
    [
        ("relu", "share", None),
        ("relu", "rename", None),
        ("relu", "none", "strategy 'none' puts no value there"),
        ("cast", "share", "%y over it (32 bytes over 16): "),
        ("cast", "none", "%y, made of it, has 32 bytes, it has 16"),
        ("output", "share", "it is an output itself"),
        ("unread", "share", "no node reads it"),
        ("read later", "share", "%r over it: "),
        ("view", "share", ""),
        ("empty", "share", "it has no bytes"),
        ("sum", "best", "%y, made of it, has 4 bytes, it has 16"),
    ],
)
def test_the_reason(kind, strategy, why):
    graph = build(kind)
    plan = compile(graph, strategy, donate=["x"])
    found = unused(plan)
    assert list(found) == ([] if why is None else ["x"])
    assert found.get("x", "").startswith(why or "")
    assert unused(compile(graph, strategy)) == {}
    if why is None:
        compile(graph, strategy, donate=["x"], strict_donation=True)
        return
    with pytest.raises(DonationError, match="no value takes their bytes: %x: ") as raised:
        compile(graph, strategy, donate=["x"], strict_donation=True)
    assert isinstance(raised.value, PlanError)
    assert found["x"] in str(raised.value)


def test_a_feed_that_is_only_read_on_another_device():
    plan = compile(build("relu"), "share", Machine.host_and("gpu"), donate=["x"])
    (why,) = unused(plan).values()
    assert why.startswith(("%y over it: ", "it lies on host, but relu"))
    assert "gpu" in why
    assert unused(compile(build("relu"), "none", Machine.host_and("gpu"), donate=["x"])) == {
        "x": "it lies on host, but y (Relu) runs on gpu"
    }


def test_what_a_plan_does_to_feeds():
    b = GraphBuilder()
    x, z = b.input("x", (2, 2), donated=True), b.input("z", (2, 2), donated=True)
    b.output(b.neg(b.reshape(x, shape=(4,), name="r"), name="y"), b.relu(z, name="w"))
    graph = b.build()
    assert feed_uses(compile(graph, "none")) == {"x": FeedUse(), "z": FeedUse()}
    assert feed_uses(compile(graph, "share")) == {"x": FeedUse(True, "y"), "z": FeedUse(True, "w")}
    graph.donated.clear()
    uses = feed_uses(compile(graph, "share"))
    assert uses["z"] == FeedUse()
    assert uses["x"].taken_by == ""  # a view onto itself, if anything


def test_decisions_are_saved_with_the_plan(tmp_path):
    plan = compile(build("cast"), donate=["x"])
    plan.save(tmp_path / "plan.json")
    assert unused(load_plan(tmp_path / "plan.json")) == unused(plan)


def test_strict_plans_can_be_explained_and_bisected():
    """Trial plans share less: they may have no use for the feed, and that is no fault."""
    plan = compile(build("relu"), "share", donate=["x"], strict_donation=True)
    assert plan.explain(seconds=1).moves.can_replan
    assert plan.explain("x").held == ""
    assert memopt.bisect(plan).cause == "nothing"
    with pytest.raises(DonationError):
        plan.replan(passes="none")
