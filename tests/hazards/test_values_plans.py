"""Graphs that broke real systems, and what must be true of their plans: addresses, frees, orders, limits.

S38, S45, S48, S58 and S59 A as far as there are no streams (under every order of the instructions), S64.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, run_reference, validate
from memopt.analysis import analyze_liveness
from memopt.autodiff import grad
from memopt.errors import VerifyError
from memopt.packing import PackingBuffer, PackingProblem, first_fit, pack, validate_packing
from tests.hazards.line import forced, give, right_everywhere, wrong_everywhere


@pytest.mark.parametrize("alignment", [1, 16, 64, 256])
def test_s38_what_an_offset_promises_an_address_keeps(alignment):
    """Alignment of offsets is worth nothing if the base is off: each operand's address is a multiple of it."""
    b = GraphBuilder()
    x = b.input("x", (1,), "uint8")
    made = [b.op("Identity", x, name="a"), b.neg(b.param("w", np.ones(11, np.float32)), name="b")]
    b.output(*made, b.neg(b.param("v", np.ones(1, np.float32)), name="c"))
    plan = compile(b.build(), "none", Machine.host_only(alignment=alignment))
    regions = plan.executor().regions
    for buffer in plan.program.buffers:
        slot = plan.slots[buffer.id]
        region = regions[slot.device, slot.space]
        if slot.space == "arena":
            assert (region.address + slot.offset) % alignment == 0
            assert region.address % 64 == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_s45_what_the_backward_needs_the_shape_of_is_free_before_it(rows):
    """z = x + y: the gradient of y is summed to y's shape, which is known without y's bytes."""
    b = GraphBuilder()
    x = b.input("x", (rows, 1000))
    y = b.neg(b.input("y0", (1000,)), name="y")
    z = b.add(x, y, name="z")
    loss = b.op("ReduceSum", b.mul(z, z), keepdims=0, name="loss")
    b.output(loss)
    graph = b.build()
    (found,) = grad(graph, loss, [graph.value("y0")])
    graph.set_outputs([found])
    span = analyze_liveness(graph).intervals[graph.value("y")]
    assert span.end == graph.steps()[graph.node("z")] + 1
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    right_everywhere(graph, feeds, lambda x, y0: {found.name: -2 * (x - y0).sum(axis=0)}, lacks="Add")


def test_s45_storage_that_was_taken_meanwhile():
    """z takes y's bytes in place; the gradient still has y's shape, and the reference agrees."""
    b = GraphBuilder()
    x, y = b.input("x", (2, 1)), b.op("Exp", b.input("y0", (2, 3)), name="y")
    z = b.add(x, y, name="z")
    loss = b.op("ReduceSum", z, keepdims=0, name="loss")
    b.output(loss)
    graph = b.build()
    (found,) = grad(graph, loss, [graph.value("x")])
    graph.set_outputs([found, z])
    plan = compile(graph, "share")
    assert plan.graph.storage.buffer(plan.graph.value("z")) is plan.graph.storage.buffer(plan.graph.value("y"))
    feeds = {"x": np.float32([[1], [2]]), "y0": np.zeros((2, 3), np.float32)}
    got = plan.run(feeds)
    assert got[found.name].tolist() == [[3], [3]]
    np.testing.assert_array_equal(got["z"], run_reference(graph, feeds)[0]["z"])


def test_s48_two_normalisations_of_one_statistic():
    """At most one may move it: whoever comes second must read what the first made of it."""
    b = GraphBuilder()
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    params = [b.param(name, data) for name, data in zip("wbmv", (ones, zeros, zeros, ones), strict=True)]
    first = b.op("BatchNormalization", b.input("x", (2, 1)), *params, outputs=("y", "m2", "v2"), training_mode=1)
    b.output(b.op("BatchNormalization", first[0], *params, outputs=("z", "m3", "v3"), training_mode=1)[0])
    with pytest.raises(VerifyError, match="%m"):
        b.build()


# -- every order ------------------------------------------------------------------------------------------------------


def s58():
    """g is a view of a view of d, and read late; t has its size, and is made meanwhile."""
    b = GraphBuilder()
    x, y, c = b.input("x", (2, 2)), b.input("y", (2, 2)), b.input("c", (4,))
    d = b.op("Div", x, y, name="d")
    g = b.reshape(b.reshape(d, shape=(4,), name="s"), shape=(4, 1), name="g")
    t = b.neg(c, name="t")
    b.output(b.add(b.reshape(g, shape=(4,), name="f"), t, name="w"))
    return b.build()


def test_s58_the_root_of_a_chain_of_views_is_free_after_its_last_reader():
    feeds = give(x=[[1, 2], [3, 4]], y=[[1, 2], [3, 2]], c=[1, 2, 3, 4])

    def right(x, y, c):
        return {"w": (x / y).ravel() - c}

    right_everywhere(s58(), feeds, right, lacks="Neg", order="any")
    graph = s58()
    storage = graph.storage
    for name in ("s", "g", "f"):
        storage.share(storage.variable(graph.value(name)), storage.buffer(graph.value("d")))
    assert validate(compile(graph, "none", order="any"), order="any") == []
    wrong_everywhere(forced(graph, "t", "d"), feeds, right(**feeds), "clobbered", "stale-read")


def s59(device: str | None = None):
    b = GraphBuilder()
    a = b.input("a", (2, 2))
    ar = b.add(a, a, name="ar", device=device)
    c = b.relu(a, name="c")
    b.output(b.add(b.op("MatMul", c, c, name="cc"), ar, name="e"))
    return b.build()


def test_s59_a_result_that_is_not_read_for_long():
    """ar = 2 a is read last of all: its bytes are not those of c @ c, in whatever order the two are made."""
    feeds = give(a=[[1, 2], [3, 4]])
    for strategy in ("none", "rename", "share", "best"):
        plan = compile(s59("host"), strategy, Machine.host_and("gpu"), order="any")
        assert validate(plan, order="any") == []
        for _ in range(3):
            assert plan.run(feeds)["e"].tolist() == [[9, 14], [21, 30]]
    wrong_everywhere(forced(s59(), "cc", "ar"), feeds, {"e": [[9, 14], [21, 30]]}, "clobbered", "stale-read", "overlap")


# -- packing ----------------------------------------------------------------------------------------------------------


def test_s64_a_time_limit_gives_the_best_plan_so_far():
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 200, 400)
    buffers = [
        PackingBuffer(f"b{i}", int(size), int(start), int(start + length))
        for i, (size, start, length) in enumerate(
            zip(rng.integers(1, 999, 400), starts, rng.integers(1, 60, 400), strict=True)
        )
    ]
    problem = PackingProblem((PackingBuffer("pin", 64, 0, 260, offset=640), *buffers))
    pack(problem, effort="best", time_limit=0.01)  # compiles the search
    began = time.perf_counter()
    plan = pack(problem, effort="best", time_limit=0.2)
    assert time.perf_counter() - began < 5
    assert plan.status in ("optimal", "feasible")
    assert plan.offsets["pin"] == 640
    validate_packing(problem, plan.offsets, capacity=plan.height)
    assert plan.lower_bound <= plan.height <= problem.height(first_fit(problem))


def test_s64_what_is_live_stands_beside_what_is_planned():
    """Two bytes are live at once; where pins leave a gap, the plan is larger, and says both numbers."""
    free = [PackingBuffer(name, 1, start, start + 2) for start, name in enumerate("abc")]
    plan = pack(PackingProblem(tuple(free)))
    assert (plan.lower_bound, plan.height, plan.status) == (2, 2, "optimal")
    plan = pack(PackingProblem((PackingBuffer("d", 1, 0, 2, offset=1), PackingBuffer("e", 1, 1, 3, offset=2))))
    assert plan.height == 3
    assert 2 <= plan.lower_bound <= 3
