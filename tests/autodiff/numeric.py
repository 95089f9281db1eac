"""Gradients against central differences, in float64, by the reference; and the same graph through compile and its
kernels.
"""

from __future__ import annotations

import numpy as np

import memopt
from memopt.autodiff import grad
from memopt.ops import get_op

__all__ = ["Case", "check_gradient", "gradient_graph"]


class Case:
    """One node: the op, its input arrays (None: absent), attributes, and the number of outputs."""

    def __init__(self, op, arrays, *, outputs=1, wrt=None, seed=0, **attrs):
        self.op, self.arrays, self.outputs, self.attrs, self.seed = op, arrays, outputs, attrs, seed
        floats = [i for i, a in enumerate(arrays) if a is not None and a.dtype.kind == "f"]
        self.wrt = floats if wrt is None else wrt

    def __repr__(self):
        shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.op}({shapes}) {self.attrs}"


def gradient_graph(case):
    """(graph whose outputs are loss and gradients, loss, gradients, node, feeds). The loss weighs every output."""
    b = memopt.GraphBuilder(case.op)
    feeds = {f"x{i}": a for i, a in enumerate(case.arrays) if a is not None}
    inputs = [None if a is None else b.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(case.arrays)]
    results = b.op(case.op, *inputs, outputs=case.outputs, **case.attrs)
    rng = np.random.default_rng(case.seed + 1)
    node = b.graph.nodes[-1]
    terms = []
    for value in results if isinstance(results, tuple) else (results,):
        if value.dtype.startswith("float"):
            weights = b.param(f"c{value.name}", rng.uniform(0.5, 1.5, value.shape).astype(value.dtype))
            term = b.reduce_sum(b.mul(value, weights), keepdims=0)
            terms.append(term if term.dtype == "float64" else b.cast(term, to="float64"))
    loss = b.sum(*terms, name="total")
    wrt = [inputs[i] for i in case.wrt]
    grads = grad(b.graph, loss, wrt)
    b.output(loss, *dict.fromkeys(grads))
    return b.build(), loss, grads, node, feeds


def check_gradient(case, *, step=1e-6, tol=1e-6, kernels=True):
    graph, loss, grads, node, feeds = gradient_graph(case)
    forward = forward_only(graph, loss)
    check_reads(graph, node)
    outputs, _ = memopt.run_reference(graph, feeds)
    for index, value in zip(case.wrt, grads, strict=True):
        got, array = outputs[value.name], case.arrays[index]
        assert got.shape == array.shape
        assert got.dtype == array.dtype
        want = np.zeros(array.shape)
        for at in np.ndindex(*array.shape):
            sides = []
            for sign in (1, -1):
                moved = np.array(array)
                moved[at] += sign * step
                sides.append(memopt.run_reference(forward, {**feeds, f"x{index}": moved})[0][loss.name])
            want[at] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol, err_msg=f"{case!r}, input {index}")
    if kernels:
        run = memopt.compile(graph, "share").run(feeds)
        for name, array in outputs.items():
            np.testing.assert_allclose(run[name], array, rtol=1e-11, atol=1e-11, err_msg=f"{case!r}: {name}")
    return graph


def forward_only(graph, loss):
    """A copy of `graph` that computes the loss and no gradients."""
    copy = graph.copy()
    copy.set_outputs([copy.value(loss.name)])
    for node in reversed(copy.nodes):
        if not any(value.uses or value in copy.outputs for _, value in node.real_outputs):
            copy.remove_node(node)
    return copy


def check_reads(graph, node):
    """The nodes of the gradient read of the forward's data what the rule declares, and nothing else."""
    rule = get_op(node.op).gradient
    allowed = {node.inputs[i] for i in rule.needs_inputs if i < len(node.inputs)}
    allowed |= {node.outputs[i] for i in rule.needs_outputs if i < len(node.outputs)}
    forward = {v for v in (*node.inputs, *node.outputs) if v is not None}
    loss_at = next(i for i, other in enumerate(graph.nodes) if other.name == "total")
    for made in graph.nodes[loss_at + 1 :]:
        for _, value in made.data_inputs:
            assert value not in forward or value in allowed, f"{made} reads {value}, which the rule does not declare"
