"""Handles: what aliases what, what in-place methods make of the graph, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import memopt
from memopt.autodiff import grad
from memopt.errors import GradientError, OptionError, TypeInferenceError
from memopt.ir import GraphBuilder, Tensor, TensorBuilder, Value
from memopt.report import inplace_outcomes, inplace_table

X = np.arange(6, dtype=np.float32)


def build(write, shape=(6,), **options):
    """(builder, results by reference): `write(b, x)` returns the handles and values to fetch; x holds 0, 1, 2, …"""
    b = TensorBuilder("t", **options)
    x = b.input("x", shape)
    fetched = write(b, x)
    names = [value.name for value in fetched]
    b.output(*fetched)
    results, _ = memopt.run_reference(b.build(), {"x": np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)})
    return b, [results[name].tolist() for name in names]


def test_an_old_reader_keeps_the_old_value():
    def write(b, x):
        y = x * 2
        before, twice = y.value, y + y
        assert y.add_(1) is y
        assert isinstance(before, Value)
        assert before is not y.value
        return [y, before, twice]

    _, (new, old, twice) = build(write, (3,))
    assert (new, old, twice) == ([1, 3, 5], [0, 2, 4], [0, 4, 8])


def test_every_way_to_write():
    def write(b, x):
        y = x.identity()
        y += 1
        y *= x
        y -= 2.0
        y /= 2
        z = x.clone()
        z.relu_().neg_().add_(y)
        b.assign(z, slice(0, 1), 9)
        return [y, z, 1 - x, 2 / (x + 1), -x, np.float32(3) * x, x.reshape(1, 3) @ x.reshape((3, 1))]

    _, results = build(write, (3,))
    assert results == [[-1, 0, 2], [9, -1, 0], [1, 0, -1], [2, 1, pytest.approx(2 / 3)], [0, -1, -2], [0, 3, 6], [[5]]]


def test_writes_are_seen_through_all_views():
    def write(b, x):
        base = x.identity()
        rows = base.reshape(2, 3)
        tail = base[3:]
        column = rows[:, 1]
        turned = rows.transpose()
        parts = rows.split(outputs=2, axis=0)
        assert all(isinstance(part, Tensor) for part in parts)
        tail.neg_()  # 0 1 2 -3 -4 -5
        column += 10  # 0 11 2 -3 6 -5
        turned[0] = 7  # 7 11 2 7 6 -5
        parts[0].mul_(2)  # 14 22 4 7 6 -5
        return [base, rows, tail, column, turned, parts[0], parts[1]]

    _, results = build(write)
    flat = [14, 22, 4, 7, 6, -5]
    assert results[0] == flat
    assert results[1] == [flat[:3], flat[3:]]
    assert results[2] == flat[3:]
    assert results[3] == [22, 6]
    assert results[4] == [[14, 7], [22, 6], [4, -5]]
    assert results[5:] == [[flat[:3]], [flat[3:]]]


def test_three_axes_turned_and_turned_back():
    def write(b, x):
        base = x.identity()
        turned = base.transpose(1, 2, 0)
        turned[0] = -1
        turned.add_(1)
        return [base, turned]

    _, (base, turned) = build(write, (2, 3, 4))
    want = np.arange(24.0).reshape(2, 3, 4)
    want.transpose(1, 2, 0)[0] = -1
    want += 1
    np.testing.assert_array_equal(base, want)
    np.testing.assert_array_equal(turned, want.transpose(1, 2, 0))


def test_what_is_no_view_is_a_copy():
    def write(b, x):
        y = x + 0
        copy, sum_ = y.clone(), y.add(0)
        again = b.tensor(y.value)
        y.mul_(0)
        return [y, copy, sum_, again]

    _, results = build(write, (2,))
    assert results == [[0, 0], [0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    "index",
    [
        np.s_[1:], np.s_[:-1, 1], np.s_[..., 0], np.s_[::-1], np.s_[1, ::2], np.s_[:, None, 1:3], np.s_[-1, -1],
        np.s_[2:1], np.s_[None], np.s_[::-2, 3:0:-1], np.s_[-9:9, ...], np.s_[:],
    ],
    ids=str,
)  # fmt: skip
def test_indexes_are_numpys(index):
    def write(b, x):
        y = x + 0
        part = y[index]
        y[index] = part * 2
        y[index] += 1
        return [y, part]

    _, (whole, part) = build(write, (3, 4))
    want = np.arange(12, dtype=np.float32).reshape(3, 4)
    want[index] = want[index] * 2
    want[index] += 1
    np.testing.assert_array_equal(whole, want)
    np.testing.assert_array_equal(np.reshape(part, want[index].shape), want[index])


@pytest.mark.parametrize("index", [True, [0, 1], 1.5, "a", (0, 0, 0), (..., ...), 3, slice(None, None, 0)], ids=str)
def test_indexes_that_are_none(index):
    x = TensorBuilder().input("x", (3, 4))
    with pytest.raises(OptionError):
        x[index]


def test_rows_and_strangers():
    b = TensorBuilder()
    x = b.input("x", (2, 3))
    assert [row.shape for row in x] == [(3,), (3,)]
    with pytest.raises(OptionError, match="no rows"):
        iter(b.input("s", ()))
    with pytest.raises(AttributeError, match="no_such_op"):
        x.no_such_op_()
    assert (x.dtype, x.nbytes, x.shape, repr(x)) == ("float32", 24, (2, 3), "Tensor(%x: f32[2,3])")
    y, num_nodes = x[0], len(b.graph.nodes)
    assert repr(y) == "Tensor(a view of %x: f32[3])"
    assert len(b.graph.nodes) == num_nodes
    y.relu_()
    assert repr(y) == "Tensor(a view of %slice_assign: f32[3])"


def test_plain_values_and_handles_side_by_side():
    b = GraphBuilder()
    value = b.input("x", (2,))
    assert isinstance(b.relu(value), Value)
    x = b.tensor(value)
    assert b.tensor(x) is x
    y = b.mul(x, 2)
    assert isinstance(y, Tensor)
    assert isinstance(b.add(value, y), Tensor)
    b.output(y)
    assert b.build().outputs == [y.value]
    with pytest.raises(TypeInferenceError, match=r"make it one with b.param"):
        b.add(value, 2)


def test_a_value_points_to_handles():
    value = GraphBuilder().input("x", (2,))
    with pytest.raises(AttributeError, match=r"no in-place method 'sin_'.*b.tensor\(value\).*TensorBuilder"):
        value.sin_()
    with pytest.raises(AttributeError, match="no attribute 'sin'"):
        value.sin()
    assert not hasattr(value, "__array__")


def refused(write, match, error=OptionError):
    """`write` raises, and the graph is as it was."""
    b = TensorBuilder()
    x = b.input("x", (2, 3)) + 0
    i = b.param("i", np.arange(3)) + b.param("j", np.arange(3))
    before = (str(b.graph), x.value, b.inplace_requests)
    with pytest.raises(error, match=match):
        write(b, x, i)
    assert (str(b.graph), x.value, b.inplace_requests) == before


def test_what_in_place_methods_refuse():
    refused(lambda b, x, i: x.add_(np.ones((4, 2, 3))), r"result is f32\[4,2,3\], but .* keeps the type")
    refused(lambda b, x, i: x.cast_(to="int32"), "keeps the type")
    refused(lambda b, x, i: x.add_(i), "dtype", TypeInferenceError)
    refused(lambda b, x, i: x.add_("a"), "is no number")
    refused(lambda b, x, i: i.add_(0.5), "0.5 is no int64")
    refused(lambda b, x, i: x.sgd_(x, 1.0), "writes to its variable by definition")
    refused(lambda b, x, i: x.leaky_relu_(slope=1), "no attribute 'slope'", TypeInferenceError)
    refused(lambda b, x, i: b.assign(x, 0, np.ones(2)), r"the slice is f32\[3\], the value f32\[2\]")
    refused(lambda b, x, i: b.assign(x, 0, i), "want that dtype")
    refused(lambda b, x, i: b.assign(x, 0, None), "value None")


def test_whole_assignment_moves_no_bytes():
    def write(b, x):
        y, z = x + 0, x * 3
        view = y[:2]
        y[:] = z
        z.add_(1)
        return [y, z, view]

    b, results = build(write, (3,))
    assert results == [[0, 3, 6], [1, 4, 7], [0, 3]]
    assert b.inplace_requests[0].places == ()
    assert [len(request.places) for request in b.inplace_requests] == [0, 1]
    square = b.tensor(b.graph.value("mul")).reshape(1, 3)
    square[:] = 1
    assert b.inplace_requests[-1].places == ()
    assert "SliceAssign" not in [node.op for node in b.graph.nodes]
    assert inplace_outcomes(memopt.compile(b.graph))[0].reason.startswith("nothing is written")


def test_views_are_read_from_the_new_base_unless_they_are_all_of_it():
    b = TensorBuilder()
    base = b.input("x", (4,)) + 0
    part, whole = base[1:3], base.reshape(2, 2).transpose()
    part.neg_()
    assert part.value.producer.op == "Slice"
    assert part.value.producer.inputs[0] is base.value
    whole.neg_()
    assert whole.value.producer.op == "Neg"  # nothing to read again


# -- leaves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["method", "view", "slice", "operator", "second handle"])
def test_a_leaf_that_requires_a_gradient_is_not_written(how):
    b = TensorBuilder()
    w = b.param("w", X)
    b.input("x", (6,), requires_grad=True)
    view = w.reshape(2, 3)
    before = str(b.graph)
    writes = {
        "method": lambda: w.sin_(),
        "view": lambda: view.sin_(),
        "slice": lambda: b.assign(w, slice(1, None), 0),
        "operator": lambda: w.__iadd__(1),
        "second handle": lambda: b.tensor(b.graph.value("w")).sin_(),
    }
    match = r"%w is a parameter .* \(it is a leaf\).*Nothing was changed.*no_grad.*stop_gradient"
    with pytest.raises(GradientError, match=match):
        writes[how]()
    assert str(b.graph) == before
    assert w.value is b.graph.value("w")
    with pytest.raises(GradientError, match="%x is a feed"):
        b.tensor(b.graph.value("x")).relu_()


def test_the_ways_out():
    b = TensorBuilder()
    w, v, frozen = b.param("w", X), b.param("v", X), b.param("frozen", X, requires_grad=False)
    count, x = b.param("count", np.array(0)), b.input("x", (6,))
    assert [t.requires_grad for t in (w, v, frozen, count, x)] == [True, True, False, False, False]
    with b.no_grad():
        w.mul_(2)
        assert not b.records_grad
        assert not (w + 1).requires_grad
    assert b.stop_gradient(v) is v
    v.mul_(3)
    frozen.add_(1)
    count += 1
    x.relu_()
    assert w.requires_grad
    assert not v.requires_grad
    with pytest.raises(GradientError):
        w.sin_()  # it is still a leaf
    y = w * v
    assert y.requires_grad
    assert not y.is_leaf
    y.sin_()
    loss = y.reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [w])
    b.output(gradient)
    results, state = memopt.run_reference(b.build(), {"x": X})
    np.testing.assert_allclose(results[gradient.name], 3 * X * np.cos(6 * X * X), rtol=1e-5)
    for name, want in (("w", X * 2), ("v", X * 3), ("frozen", X + 1)):
        assert state[name].tolist() == want.tolist()
    assert state["count"] == 1


def test_an_int_has_no_gradient():
    b = GraphBuilder()
    with pytest.raises(OptionError, match="only values of float dtypes"):
        b.input("i", (2,), "int64", requires_grad=True)


def test_gradients_stop_at_what_no_grad_made():
    b = TensorBuilder()
    w = b.param("w", X)
    with b.no_grad():
        constant = w * 2
    stopped = b.stop_gradient(w * 3)
    loss = (w * constant + stopped * w).reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [w])
    b.output(gradient)
    results, _ = memopt.run_reference(b.build().copy(), {})
    np.testing.assert_allclose(results[gradient.name], 5 * X)


def test_a_written_parameter_is_stored_as_early_as_legal():
    b = TensorBuilder()
    w = b.param("w", X)
    view = b.reshape(w, shape=(2, 3)).value
    with b.no_grad():
        w.sub_(1)
    late = b.relu(view)
    y = w * 2
    b.output(y, late)
    graph = b.build()
    assert [node.op for node in graph.nodes] == ["Reshape", "Sub", "Relu", "Assign", "Mul"]
    assert str(b.build()) == str(graph)  # stored once
    for strategy in ("none", "share", "rename"):
        plan = memopt.compile(graph, strategy)
        for step in range(1, 4):
            result = plan.run({})
            np.testing.assert_array_equal(plan.state()["w"], X - step)
            np.testing.assert_array_equal(result[y.name], 2 * (X - step))
            np.testing.assert_array_equal(result[late.name], np.maximum(X - step + 1, 0).reshape(2, 3))
    with b.no_grad():
        w.mul_(2)
    assert [node.op for node in b.build().nodes].count("Assign") == 2
    assert memopt.run_reference(b.graph, {})[1]["w"].tolist() == ((X - 1) * 2).tolist()


def test_handles_follow_updates():
    b = TensorBuilder()
    w, x = b.param("w", X), b.input("x", (6,))
    view = w[:2]
    b.sgd(w, x, 0.5)
    b.output(w * 1, view)
    name = view.name
    with b.no_grad():
        w.mul_(4)
    b.sgd(w, x, 0.5)
    graph = b.build()
    for run in (memopt.run_reference(graph, {"x": X})[1], _state(graph)):
        np.testing.assert_array_equal(run["w"], X / 2 * 4 - X / 2)
    assert memopt.run_reference(graph, {"x": X})[0][name].tolist() == [0, 0.5]


def _state(graph):
    plan = memopt.compile(graph)
    plan.run({"x": X})
    return plan.state()


# -- what it costs ----------------------------------------------------------------------------------------------------


def test_the_plan_says_what_became_of_each_method():
    b = TensorBuilder()
    w = b.param("w", X)
    y = w * 2
    y.sin_()
    y.relu_()
    y[2:4].add_(1)
    loss = y.reduce_sum(keepdims=0)
    b.output(loss, *grad(b.graph, loss, [w]))
    plan = memopt.compile(b.build(), "share")
    sin, relu, add = inplace_outcomes(plan)
    assert (sin.method, sin.target, sin.honoured, sin.extra_bytes) == ("sin_", "mul", False, 24)
    assert "sin.backward" in sin.reason
    assert (relu.honoured, relu.extra_bytes) == (True, 0)
    assert (add.method, add.honoured, add.extra_bytes) == ("add_", False, 32)
    text = str(inplace_table(plan))
    assert "in place" in text
    assert "+24 B" in text
    alone = inplace_outcomes(memopt.compile(b.graph, ()))
    assert all(not one.honoured and "no in-place pass" in one.reason for one in alone)
    assert "no in-place methods" in str(inplace_table(memopt.compile(memopt.parse(str(b.graph)))))


def test_the_example_of_the_docs_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "inplace.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)
    exec(compile(code[1], "inplace.md", "exec"), {"memopt": memopt, "data": np.ones((8, 4), np.float32)})
    assert "in place" in capsys.readouterr().out


def test_names_are_found_in_constant_time_and_freed():
    b = GraphBuilder()
    x = b.input("x", (1,))
    a, c, d = b.relu(x), b.relu(x), b.relu(x)
    assert [v.name for v in (a, c, d)] == ["relu", "relu.2", "relu.3"]
    b.graph.remove_node(c.producer)
    assert b.graph.fresh_name("relu") == b.graph.fresh_value_name("relu") == "relu.2"
    assert b.relu(x).name == "relu.2"
    assert b.relu(x).name == "relu.4"
    b.graph.rename_value(a, "first")
    assert b.graph.fresh_value_name("relu") == "relu"
    assert b.graph.fresh_name("relu") == "relu.5"  # the node is still called relu
    assert [p.name for p in b.split(x, outputs=1, split=(1,)).producer.outputs] == ["split"]
    y = b.input("y", (2,))
    names = [v.name for v in (*b.split(y, outputs=2), *b.split(y, outputs=2))]
    assert names == ["split.0", "split.1", "split.0.2", "split.1.2"]
