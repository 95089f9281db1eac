"""Graphs that broke real systems, and the values that they must give: views, overlaps, sizes, dtypes (S20 to S36, S42).

Left out: S30 B's and S39's unknown dims (plans are static; the shapes that they run with are tested), S41 (strings).
"""

from __future__ import annotations

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, validate
from memopt.errors import MemoptError, TypeInferenceError, VerifyError
from tests.hazards.line import forced, give, plans, right_everywhere, wrong_everywhere


def test_s20_an_expanded_scalar():
    b = GraphBuilder()
    s = b.op("Identity", b.input("x", ()), name="s")
    b.output(b.op("Cos", b.op("Expand", s, shape=(3,), name="e"), name="y"))
    graph, feeds = b.build(), give(x=np.float32(np.pi / 4))
    right_everywhere(graph, feeds, lambda x: {"y": np.full(3, np.cos(x))}, lacks="Cos")
    np.testing.assert_allclose(compile(graph).run(feeds)["y"], [0.7071] * 3, atol=1e-4)
    plan = forced(graph, "e", "s")  # three stored elements, of which the first is s: nothing is lost
    assert validate(plan, findings="return") == []
    np.testing.assert_allclose(plan.run(feeds)["y"], [0.7071] * 3, atol=1e-4)
    for name in ("e", "y"):  # three elements in one stored
        variable = graph.storage.variable(graph.value(name))
        graph.storage.share(variable, graph.storage.buffer(graph.value("s")))
        variable.strides = (0,)
    with pytest.raises(VerifyError, match="elements overlap"):
        compile(graph, "none", validate=False)


def test_s21_shifted_slices():
    """a[1:] / a[:-1] written into a[1:]."""
    b = GraphBuilder()
    a = b.op("Identity", b.input("x", (8,)), name="a")
    h = b.op("Slice", a, starts=(1,), ends=(8,), axes=(0,), name="h")
    t = b.op("Slice", a, starts=(0,), ends=(7,), axes=(0,), name="t")
    q = b.op("Div", h, t, name="q")
    b.output(b.concat(b.op("Slice", a, starts=(0,), ends=(1,), axes=(0,), name="f"), q, axis=0, name="y"))
    graph, feeds = b.build(), give(x=[10, 11, 12, 13, 14, 13, 12, 11])

    def right(x):
        return {"y": np.concatenate([x[:1], x[1:] / x[:-1]])}

    np.testing.assert_allclose(
        right(**feeds)["y"], [10, 1.1, 1.0909, 1.0833, 1.0769, 0.9286, 0.9231, 0.9167], atol=1e-4
    )
    right_everywhere(graph, feeds, right, lacks="Div")
    storage = graph.storage
    for name, offset in (("h", 4), ("t", 0)):
        storage.share(storage.variable(graph.value(name)), storage.buffer(graph.value("a")), offset)
    plan = forced(graph, "q", "a", 4)  # over h, but also over what is left of t
    assert "overlap" in {f.kind for f in validate(plan, findings="return")}


def test_s21_an_update_slice_that_is_read_from_its_target():
    b = GraphBuilder()
    base = b.add(b.input("x", (4,)), b.param("one", np.float32([1, 1, 1, 1])), name="base")
    first = b.op("Slice", base, starts=(0,), ends=(1,), axes=(0,), name="first")
    rest = b.op("Slice", base, starts=(0,), ends=(3,), axes=(0,), name="rest")
    b.output(b.reshape(b.concat(first, rest, axis=0, name="k"), shape=(2, 2), name="y"))
    graph, feeds = b.build(), give(x=[0, 1, 2, 3])
    right_everywhere(
        graph, feeds, lambda x: {"y": np.reshape(x[[0, 0, 1, 2]] + 1, (2, 2))}, lacks="Concat"
    )
    assert compile(graph).run(feeds)["y"].tolist() == [[1, 1], [2, 3]]
    storage = graph.storage
    for name in ("first", "rest"):
        storage.share(storage.variable(graph.value(name)), storage.buffer(graph.value("base")))
    assert validate(forced(graph, "k", "base"), findings="return")


def test_s22_plus_its_transpose():
    b = GraphBuilder()
    a = b.op("Identity", b.input("x", (2, 2)), name="a")
    t = b.transpose(a, perm=(1, 0), name="t")
    b.output(b.add(a, t, name="y"))
    graph, feeds = b.build(), give(x=[[0, 1], [2, 3]])
    right_everywhere(graph, feeds, lambda x: {"y": x + x.T}, lacks="Transpose")
    assert compile(graph).run(feeds)["y"].tolist() == [[0, 3], [3, 6]]
    found = wrong_everywhere(forced(graph, "t", "a"), feeds, {"y": [[0, 3], [3, 6]]})
    assert found[0].instruction is not None


def test_s25_a_copy_whose_source_is_written():
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", (4,)), name="x")
    y = b.op("Identity", x, name="y")
    r = b.op("Slice", y, starts=(3,), ends=(-5,), axes=(0,), steps=(-1,), name="r")
    b.output(b.mul(r, b.param("two", np.full(4, 2, np.float32)), name="out"))
    graph, feeds = b.build(), give(x0=[0, 1, 2, 3])
    right_everywhere(graph, feeds, lambda x0: {"out": 2 * x0[::-1]}, lacks="Slice")
    assert compile(graph).run(feeds)["out"].tolist() == [6, 4, 2, 0]
    graph.storage.share(graph.storage.variable(graph.value("y")), graph.storage.buffer(graph.value("x")))
    wrong_everywhere(forced(graph, "r", "x"), feeds, {"out": [6, 4, 2, 0]}, "illegal-inplace")


def test_s25_an_operand_twice():
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", (4,)), name="x")
    s = b.add(x, x, name="s")
    b.output(b.add(s, x, name="t"))
    graph, feeds = b.build(), give(x0=[1, 2, 3, 4])
    right_everywhere(graph, feeds, lambda x0: {"t": 3 * x0}, lacks="Add")
    wrong_everywhere(forced(graph, "s", "x"), feeds, {"t": [3, 6, 9, 12]}, "clobbered")
    assert validate(forced(graph, "t", "s")) == []
    assert validate(forced(graph, "t", "x")) == []


@pytest.mark.parametrize(
    ("op", "attrs", "legal"),
    [("Add", {}, True), ("MatMul", {}, False), ("CumSum", {"axis": 0}, False), ("Reverse", {}, False)],
)
def test_s25_an_operand_twice_and_dead(op, attrs, legal):
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", (2, 2)), name="x")
    if op == "CumSum":
        b.output(b.op(op, x, name="y", **attrs))
    elif op == "Reverse":
        b.output(b.op("Slice", x, starts=(1,), ends=(-3,), axes=(0,), steps=(-1,), name="y"))
    else:
        b.output(b.op(op, x, x, name="y"))
    graph, feeds = b.build(), give(x0=[[1, 2], [3, 4]])
    right = {
        "Add": lambda x0: {"y": x0 + x0}, "MatMul": lambda x0: {"y": x0 @ x0},
        "CumSum": lambda x0: {"y": np.cumsum(x0, 0)}, "Reverse": lambda x0: {"y": x0[::-1]},
    }[op]  # fmt: skip
    right_everywhere(graph, feeds, right, lacks="Add MatMul CumSum Slice")
    found = validate(forced(graph, "y", "x"), findings="return")
    assert not found if legal else {f.kind for f in found} == {"illegal-inplace"}


@pytest.mark.parametrize("later", ["none", "the other half", "the whole"])
def test_s27_one_output_of_split(later):
    b = GraphBuilder()
    base = b.op("Identity", b.input("x", (4,)), name="b")
    p, q = b.op("Split", base, outputs=("p", "q"), axis=0, split=(2, 2), name="split")
    p2 = b.relu(p, name="p2")
    if later == "none":
        b.output(b.neg(p2, name="y"))
    elif later == "the other half":
        b.output(b.neg(p2, name="y"), b.neg(q, name="z"))
    else:
        b.output(b.neg(p2, name="y"), b.neg(base, name="z"))
    graph, feeds = b.build(), give(x=[-1, -2, 3, -4])

    def right(x):
        z = {"none": {}, "the other half": {"z": -x[2:]}, "the whole": {"z": -x}}[later]
        return {"y": -np.maximum(x[:2], 0), **z}

    right_everywhere(graph, feeds, right, lacks="Relu")
    storage = graph.storage
    for name, offset in (("p", 0), ("q", 8)):
        storage.share(storage.variable(graph.value(name)), storage.buffer(graph.value("b")), offset)
    plan = forced(graph, "p2", "p")
    if later == "the whole":
        found = wrong_everywhere(plan, feeds, right(**feeds), "clobbered", "partial-overwrite")
        assert "%b" in found[0].message
    else:
        assert validate(plan) == []
        np.testing.assert_array_equal(plan.run(feeds)["y"], right(**feeds)["y"])


VIEWS = {
    "reshape": lambda b, t: b.reshape(t, shape=(4,), name="v"),
    "slice": lambda b, t: b.op("Slice", t, starts=(0,), ends=(2,), axes=(0,), name="v"),
    "squeeze": lambda b, t: b.op("Squeeze", b.op("Unsqueeze", t, axes=(0,), name="n"), axes=(0,), name="v"),
    "transpose": lambda b, t: b.transpose(t, perm=(0, 1), name="v"),
    "expand": lambda b, t: b.op("Expand", t, shape=(2, 2), name="v"),
    "nested": lambda b, t: b.flatten(b.reshape(b.reshape(t, shape=(4,), name="n"), shape=(1, 4), name="m"), name="v"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_s28_memory_of_a_live_view(view):
    b = GraphBuilder()
    x, c = b.input("x", (2, 2)), b.input("c", (4,))
    t = b.add(x, x, name="t")
    v = VIEWS[view](b, t)
    u = b.mul(b.param("ten", np.full(4, 10, np.float32)), c, name="u")
    b.output(b.add(b.reshape(v, shape=(4,), name="flat"), u, name="w"))
    graph, feeds = b.build(), give(x=[[1, 1], [1, 1]], c=[1, 2, 3, 4])
    right_everywhere(graph, feeds, lambda x, c: {"w": 2 * x.ravel() + 10 * c}, lacks="Mul")
    assert compile(graph).run(feeds)["w"].tolist() == [12, 22, 32, 42]
    storage = graph.storage
    for name in ("n", "m", "v", "flat"):
        if graph.has_value(name):
            storage.share(storage.variable(graph.value(name)), storage.buffer(graph.value("t")))
    assert validate(compile(graph, "none")) == []
    plan = forced(graph, "u", "t")
    wrong_everywhere(plan, feeds, {"w": [12, 22, 32, 42]}, "clobbered", "stale-read")
    assert plan.run(feeds)["w"].tolist() == [20, 40, 60, 80]


# -- sizes and dtypes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_later", [False, True])
def test_s30_broadcast(read_later):
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", (10, 12), "float64"), name="x")
    y = b.op("Identity", b.input("y0", (2, 3, 10, 12), "float64"), name="y")
    b.output(b.sub(x, y, name="z"), *([b.neg(y, name="n")] if read_later else []))
    graph = b.build()
    rng = np.random.default_rng(0)
    feeds = {"x0": rng.standard_normal((10, 12)), "y0": rng.standard_normal((2, 3, 10, 12))}

    def right(x0, y0):
        return {"z": x0 - y0, **({"n": -y0} if read_later else {})}

    right_everywhere(graph, feeds, right, lacks="Sub")
    assert validate(forced(graph, "z", "x"), findings="return")
    assert bool(validate(forced(graph, "z", "y"), findings="return")) == read_later


def test_s30_one_over_x():
    b = GraphBuilder()
    one, x = b.op("Identity", b.input("one", (1, 3, 1, 1)), name="i"), b.input("x", (1, 3, 8, 8))
    b.output(b.op("Div", one, x, name="z"))
    graph = b.build()
    feeds = give(one=np.ones((1, 3, 1, 1)), x=np.linspace(1, 2, 192).reshape(1, 3, 8, 8))
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    right_everywhere(graph, feeds, lambda one, x: {"z": one / x}, lacks="Div")
    assert validate(forced(graph, "z", "i"), findings="return")


@pytest.mark.parametrize("fetched", [False, True])
def test_s31_comparison_with_itself(fetched):
    b = GraphBuilder()
    a = b.op("Identity", b.input("x", (4,)), name="a")
    b.output(b.op("LessOrEqual", a, a, name="m"), *([a] if fetched else []))
    graph, feeds = b.build(), give(x=[1, -2, 3, 0])
    right_everywhere(
        graph, feeds, lambda x: {"m": [True] * 4, **({"a": x} if fetched else {})}, lacks="LessOrEqual"
    )
    found = validate(forced(graph, "m", "a"), findings="return")
    assert {f.kind for f in found} <= {"illegal-inplace", "overlap", "lost-output"}
    assert found


@pytest.mark.parametrize(("to", "legal"), [("int32", True), ("float16", False), ("float64", False)])
@pytest.mark.parametrize("read_later", [False, True])
def test_s32_cast(to, legal, read_later):
    b = GraphBuilder()
    x = b.op("Identity", b.input("x0", (2,)), name="x")
    b.output(b.op("Cast", x, to=to, name="i"), *([b.neg(x, name="n")] if read_later else []))
    graph, feeds = b.build(), give(x0=[1.5, -2.7])

    def right(x0):
        return {"i": x0.astype(to), **({"n": -x0} if read_later else {})}

    right_everywhere(graph, feeds, right, lacks="Cast")
    if to == "int32":
        assert compile(graph).run(feeds)["i"].tolist() == [1, -2]
    found = validate(forced(graph, "i", "x"), findings="return")
    assert (not found) == (legal and not read_later)


def test_s34_small_tensors_in_a_dead_large_one():
    b = GraphBuilder()
    x = b.input("x", (200,))
    top = b.neg(x, name="A")
    a1 = b.relu(x, name="A1")
    low, high = (b.op(op, a1, keepdims=0) for op in ("ReduceSum", "ReduceMax"))
    one, other = (b.op("Expand", b.op("Cast", v, to="int16"), shape=(200,)) for v in (low, high))
    b.output(top, one, other)
    graph = b.build()
    feeds = {"x": np.ones(200, np.float32)}
    right_everywhere(graph, feeds, lambda x: {"A": -x}, lacks="Neg")
    assert compile(graph, "share").devices["host"].height_bytes <= 1600 + 4 * 64
    double = GraphBuilder()
    assert double.input("d", (10,), "float64").nbytes == 80


def test_s35_a_scalar_is_planned():
    b = GraphBuilder()
    x = b.input("x", (3,))
    s = b.op("ReduceSum", x, keepdims=0, name="s")
    b.output(b.mul(x, s, name="y"))
    graph = b.build()
    assert s.shape == ()
    right_everywhere(graph, give(x=[1, 2, 3]), lambda x: {"y": x * x.sum()}, lacks="ReduceSum")
    for label, plan in plans(graph):
        assert [p.size_bytes for p in plan.program.buffers if p.name == "s"] in ([4], []), label


def test_s36_nothing_is_something():
    b = GraphBuilder()
    e, k = b.input("e", (0, 4)), b.input("k", (3, 4))
    m = b.relu(e, name="m")
    c = b.concat(m, k, axis=0, name="c")
    s = b.op("ReduceSum", e, keepdims=0, name="s")
    f = b.op("Clip", b.op("Identity", e, name="i"), max=1.0, name="f")
    b.output(c, s, f)
    graph = b.build()
    feeds = {"e": np.zeros((0, 4), np.float32), "k": np.arange(12, dtype=np.float32).reshape(3, 4)}
    right_everywhere(graph, feeds, lambda e, k: {"c": k, "s": 0, "f": e}, lacks="Relu Concat")
    for label, plan in plans(graph):
        assert all(p.size_bytes == 0 for p in plan.program.buffers if p.name in ("e", "m", "f")), label
    assert validate(forced(graph, "m", "k")) == []  # no bytes, no conflict


def test_s36_the_largest_of_nothing():
    b = GraphBuilder()
    e = b.input("e", (0, 4))

    def run():
        b.output(b.op("ReduceMax", e, keepdims=0))
        compile(b.build()).run({"e": np.zeros((0, 4), np.float32)})

    with pytest.raises(MemoptError):
        run()


def test_s40_dims_that_are_inferred():
    b = GraphBuilder()
    x = b.input("x", (2, 3, 4))
    assert b.reshape(x, shape=(0, 0, -1)).shape == (2, 3, 4)
    assert b.reshape(x, shape=(2, -1)).shape == (2, 12)
    with pytest.raises(TypeInferenceError):
        b.reshape(x, shape=(-1, 0), allowzero=1)


def test_s42_absent_optional_inputs_and_outputs():
    b = GraphBuilder()
    x = b.input("x", (2,))
    b.output(b.op("Clip", x, max=1.0, name="low"), b.op("Clip", x, min=1.0, name="high"))
    feeds = give(x=[-5, 5])
    graph = b.build()
    right_everywhere(graph, feeds, lambda x: {"low": np.minimum(x, 1), "high": np.maximum(x, 1)}, lacks="Clip")
    assert compile(graph).run(feeds)["low"].tolist() == [-5, 1]


@pytest.mark.parametrize("mask", [False, True])
def test_s42_dropout_with_and_without_its_mask(mask):
    b = GraphBuilder()
    outputs = ("y", "mask") if mask else ("y",)
    made = b.op("Dropout", b.relu(b.input("x", (2, 3))), outputs=outputs, name="drop")
    b.output(*(made if mask else (made,)))
    graph, feeds = b.build(), give(x=[[1, 2, 3], [4, 5, 6]])

    def right(x):
        return {"y": np.maximum(x, 0), **({"mask": np.ones((2, 3), bool)} if mask else {})}

    right_everywhere(graph, feeds, right, lacks="Dropout")
    got = compile(graph, "share", Machine.host_only()).run(feeds)
    assert not mask or got["mask"].dtype == bool
    if not mask:
        assert all(p.name != "mask" for p in compile(graph, "none").program.buffers)
