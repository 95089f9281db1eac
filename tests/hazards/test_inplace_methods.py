"""Hazards that people who write in-place methods run into; numbers as in the list of hazards."""

from __future__ import annotations

import math

import numpy as np
import pytest

import memopt
from memopt.autodiff import check_saved, grad
from memopt.autodiff.saved import check_reads
from memopt.errors import GradientError, OptionError
from memopt.ir import TensorBuilder
from memopt.report import inplace_outcomes

STRATEGIES = ("none", "share", "rename")


def run_all(b, *fetched):
    """Results of the reference and of a plan of each strategy, three runs each, as one list of equal ones."""
    names = [value.name for value in fetched]
    b.output(*fetched)
    graph = b.build()
    want, _ = memopt.run_reference(graph, {})
    for strategy in STRATEGIES:
        plan = memopt.compile(graph, strategy)
        for _ in range(3):
            got = plan.run({})
            for name in names:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-7)
    return [want[name] for name in names], memopt.compile(graph, "share")


# -- S43: in place after an op whose backward reads its output, or whose own backward reads its input -----------------


def test_s43_sqrt_over_exp():
    b = TensorBuilder()
    x = b.param("x", np.array([math.log(4)]))
    y = x.exp()
    y.sqrt_()
    loss = y.reduce_sum(keepdims=0)
    with pytest.raises(GradientError, match=r"strict: sqrt_ on %exp .* bytes \[0, 8\) of %exp, .* exp.backward"):
        check_saved(b.graph, loss)
    (gradient,) = grad(b.graph, loss, [x])
    (got,), plan = run_all(b, gradient)
    assert got == pytest.approx(1.0)
    (outcome,) = inplace_outcomes(plan)
    assert (outcome.honoured, outcome.extra_bytes) == (False, 8)
    assert "exp.backward" in outcome.reason


def test_s43_sin():
    b = TensorBuilder()
    x = b.param("x", np.array([math.pi / 3]))
    y = x.identity()
    y.sin_()
    loss = y.reduce_sum(keepdims=0)
    with pytest.raises(GradientError, match=r"strict: sin_ .* sin.backward"):
        check_saved(b.graph, loss)
    (gradient,) = grad(b.graph, loss, [x])
    (got,), plan = run_all(b, gradient)
    assert got == pytest.approx(0.5)
    assert not inplace_outcomes(plan)[0].honoured


@pytest.mark.parametrize("op", ["relu", "sigmoid", "tanh", "exp"])
def test_s43_backward_by_the_output(op):
    """May overwrite its input; then nothing may overwrite its output."""
    b = TensorBuilder(strict=True)
    x = b.param("x", np.array([0.5, -1.0]))
    y = x * 2
    getattr(y, f"{op}_")()
    loss = y.reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [x])
    _, plan = run_all(b, gradient, loss)
    assert inplace_outcomes(plan)[0].honoured
    y.neg_()
    num_nodes = len(b.graph.nodes)
    with pytest.raises(GradientError, match=rf"neg_ on %{op} .* {op}.backward"):
        grad(b.graph, y.reduce_sum(keepdims=0), [x])
    assert len(b.graph.nodes) == num_nodes + 1  # the new loss; none of the gradient's



# -- leaves, versions -------------------------------------------------------------------------------------------------


def test_leaf_under_no_grad_trains():
    b = TensorBuilder(strict=True)
    w, x = b.param("w", np.array([3.0])), b.param("x", np.array([2.0]), requires_grad=False)
    loss = (w * x).reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [w])
    with pytest.raises(GradientError, match="leaf"):
        w.sub_(gradient)
    with b.no_grad():
        w.sub_(b.mul(gradient, 0.5))  # after the last backward reader: allowed, though strict
    b.output(loss)
    graph = b.build()
    for strategy in STRATEGIES:
        plan = memopt.compile(graph, strategy)
        assert [float(plan.run({})[loss.name]) for _ in range(3)] == [6, 4, 2]


def test_versions_go_by_bytes():
    """Disjoint slices of a saved tensor may be written; a version counter refuses them."""
    b = TensorBuilder(strict=True)
    w = b.param("w", np.arange(4.0))
    y = w * 1
    front = y[:2].sin()  # saves y[:2]
    y[2:] = 7.0
    y[3:].add_(1)
    loss = front.reduce_sum(keepdims=0) + y.reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [w])
    (got, whole), plan = run_all(b, gradient, y)
    np.testing.assert_allclose(got, [2, 1 + math.cos(1), 0, 0])
    assert whole.tolist() == [0, 1, 7, 8]
    assert [one.method for one in inplace_outcomes(plan)] == ["[...] =", "add_"]


@pytest.mark.parametrize("index", [slice(1, 3), slice(None, None, 3), slice(None, None, -1)], ids=str)
def test_versions_see_one_byte(index):
    b = TensorBuilder(strict=True)
    w = b.param("w", np.arange(4.0))
    y = w * 1
    front = y[:2].sin()
    y[index] = 7.0
    loss = front.reduce_sum(keepdims=0) + y.reduce_sum(keepdims=0)
    before = str(b.graph)
    with pytest.raises(GradientError, match=r"overwrites bytes .* sin.backward") as info:
        grad(b.graph, loss, [w])
    assert "without strict=True" in str(info.value)
    assert str(b.graph) == before


def test_versions_of_views():
    """A write through a view reaches what is saved through another."""
    b = TensorBuilder(strict=True)
    w = b.param("w", np.arange(6.0))
    base = w * 1
    rows = base.reshape(2, 3)
    loss = rows[1].sin().reduce_sum(keepdims=0)
    base[:3].neg_()
    check_saved(b.graph, loss)
    base[5:].neg_()
    with pytest.raises(GradientError, match=r"bytes \[16, 24\)"):
        check_saved(b.graph, loss)


def test_a_write_through_a_transpose_is_seen():
    b = TensorBuilder(strict=True)
    base = b.param("w", np.arange(6.0).reshape(2, 3)) * 1
    loss = base.sin().reduce_sum(keepdims=0)
    base.transpose().neg_()
    with pytest.raises(GradientError, match=r"neg_ .* overwrites bytes \[0, 48\) of %mul"):
        check_saved(b.graph, loss)


def test_writes_after_the_last_backward_reader():
    b = TensorBuilder(strict=True)
    w = b.param("w", np.arange(4.0))
    y = w * 1
    loss = y.sin().reduce_sum(keepdims=0)
    (gradient,) = grad(b.graph, loss, [w])
    backward = [node for node in b.graph.nodes if "backward" in node.name]
    assert backward
    y.neg_()
    check_reads(b.graph, backward)
    with pytest.raises(GradientError, match=r"neg_ .* overwrites"):
        check_saved(b.graph, loss)  # but not for a second backward
    b.output(y)
    (got, _), plan = run_all(b, gradient, y)
    np.testing.assert_allclose(got, np.cos(np.arange(4.0)))
    assert inplace_outcomes(plan)[0].honoured


# -- views ------------------------------------------------------------------------------------------------------------


def test_s20_expanded():
    b = TensorBuilder()
    s = b.param("s", np.array(math.pi / 4))
    e = s.clone().expand(3)
    with pytest.raises(OptionError, match=r"expanded from f64\[\] to f64\[3\].*clone"):
        e.cos_()
    (got,), _ = run_all(b, e.cos())
    np.testing.assert_allclose(got, [math.sqrt(0.5)] * 3)
    copy = e.clone()
    copy.cos_()


def test_s20_view_of_an_expanded_base():
    b = TensorBuilder()
    s = b.param("s", np.array(1.0)).clone()
    e = s.expand(3)
    with pytest.raises(OptionError, match="expanded"):
        e[1:] = 5
    s.add_(1)
    (got,), _ = run_all(b, e)
    assert got.tolist() == [2, 2, 2]


def test_s21_shifted_slices():
    b = TensorBuilder()
    a = b.param("a", np.array([10.0, 11, 12, 13, 14, 13, 12, 11])) + 0
    a[1:] = a[1:] / a[:-1]
    (got,), _ = run_all(b, a)
    np.testing.assert_allclose(got, [10, 1.1, 1.0909, 1.0833, 1.0769, 0.9286, 0.9231, 0.9167], atol=1e-4)


def test_s21_a_slice_read_from_its_own_target():
    b = TensorBuilder()
    base = b.param("x", np.arange(4.0)) + 1
    base[1:] = base[:3]
    (got,), plan = run_all(b, base.reshape(2, 2))
    assert got.tolist() == [[1, 1], [2, 3]]
    (outcome,) = inplace_outcomes(plan)
    assert outcome.honoured or "SliceAssign reads both" in outcome.reason  # in place only if the slice is a copy


def test_a_tensor_over_itself_reversed():
    b = TensorBuilder()
    a = b.param("a", np.arange(3.0)) + 0
    a[::-1] = a
    (got,), _ = run_all(b, a)
    assert got.tolist() == [2, 1, 0]


def test_s22_plus_its_transpose():
    b = TensorBuilder()
    a = b.param("a", np.arange(4.0).reshape(2, 2)) + 0
    a.add_(a.transpose())
    (got,), _ = run_all(b, a)
    assert got.tolist() == [[0, 3], [3, 6]]


@pytest.mark.parametrize("later", ["nothing", "q", "b"])
def test_s27_one_part_of_a_split(later):
    b = TensorBuilder()
    whole = b.param("w", np.array([-1.0, -2, 3, -4])) + 0
    before = whole.value
    p, q = whole.split(outputs=2)
    p.relu_()
    fetched = {"nothing": [p], "q": [p, q * 1], "b": [p, q * 1, b.neg(b.tensor(before))]}[later]
    got, _ = run_all(b, *fetched)
    want = [[0, 0], [3, -4], [1, 2, -3, 4]][: len(fetched)]
    assert [array.tolist() for array in got] == want
