"""Gradients against PyTorch (extra `peers`; skipped without it), the conventions at kinks and ties included."""

from __future__ import annotations

import numpy as np
import pytest

import memopt
from memopt.autodiff import grad

torch = pytest.importorskip("torch")
F = torch.nn.functional

X = np.array([[-3.5, -3, -1, -0.25, 0, 0.25], [0.5, 1, 2, 3, 3.5, 6]])
UNARY = {
    "Abs": torch.abs, "Exp": torch.exp, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": torch.relu,
    "Sin": torch.sin, "Cos": torch.cos,
    "Erf": torch.erf, "Gelu": F.gelu, "Softplus": F.softplus, "Softsign": F.softsign, "Elu": F.elu,
    "Selu": F.selu, "LeakyRelu": F.leaky_relu, "HardSwish": F.hardswish, "Sign": torch.sign, "Floor": torch.floor,
    "Softmax": lambda x: torch.softmax(x, -1), "LogSoftmax": lambda x: torch.log_softmax(x, -1),
    "ReduceL2": lambda x: torch.linalg.vector_norm(x), "ReduceProd": torch.prod, "ReduceMax": torch.amax,
    "ReduceMin": torch.amin, "ReduceMean": torch.mean, "ReduceL1": lambda x: x.abs().sum(),
}  # fmt: skip
WITH_ATTRS = {
    "Clip": ({"min": 0.0, "max": 6.0}, F.relu6),
    "HardSigmoid": ({"alpha": 1 / 6}, F.hardsigmoid),
    "Gelu": ({"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    "Elu": ({"alpha": 0.5}, lambda x: F.elu(x, 0.5)),
}
BINARY = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow, "Max": torch.maximum,
    "Min": torch.minimum, "MatMul": lambda a, b: a @ b.T, "PRelu": None,
}  # fmt: skip


def ours(build, *arrays):
    b = memopt.GraphBuilder()
    inputs = [b.param(f"x{i}", a) for i, a in enumerate(arrays)]
    y = build(b, *inputs)
    weights = b.param("weights", np.arange(1.0, 1 + y.type.num_elements).reshape(y.shape))
    grads = grad(b.graph, b.reduce_sum(b.mul(y, weights), keepdims=0), inputs)
    b.output(*dict.fromkeys(grads))
    outputs, _ = memopt.run_reference(b.build(), {})
    return [outputs[g.name] for g in grads]


def theirs(function, *arrays):
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(*inputs)
    weights = torch.arange(1.0, 1 + y.numel(), dtype=torch.float64).reshape(y.shape)
    (y * weights).sum().backward()
    return [x.grad.numpy() for x in inputs]


def check(build, function, *arrays):
    for got, want in zip(ours(build, *arrays), theirs(function, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("op", UNARY)
def test_unary(op):
    options = {"keepdims": 0} if op.startswith("Reduce") else {}
    check(lambda b, x: b.op(op, x, **options), UNARY[op], X)


@pytest.mark.parametrize("op", WITH_ATTRS)
def test_attributes(op):
    attrs, function = WITH_ATTRS[op]
    check(lambda b, x: b.op(op, x, **attrs), function, X)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_positive(op):
    check(lambda b, x: b.op(op, x), getattr(torch, op.lower()), np.abs(X) + 0.5)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"])
def test_binary(op):
    a, b = (np.abs(X), np.array([[0.0, 1, 2, 3, 0.5, 2]])) if op == "Pow" else (X, X[1:] - 1.0)
    check(lambda g, x, y: g.op(op, x, y), BINARY[op], a, b)


def test_products():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(2, 3, 4)), rng.normal(size=(1, 4, 5)), rng.normal(size=(3, 1))
    check(lambda g, x, y, z: g.add(g.matmul(x, y), z), lambda x, y, z: x @ y + z, a, b, c)
    check(lambda g, x, y: g.prelu(x, y), lambda x, y: F.prelu(x, y), X.T.copy()[:, :2], np.array([0.25, -1.5]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction):
    labels = np.array([5, 0])
    check(
        lambda b, x: b.softmax_cross_entropy_loss(x, b.param("labels", labels), reduction=reduction),
        lambda x: F.cross_entropy(x, torch.tensor(labels), reduction=reduction),
        X,
    )
    check(
        lambda b, x: b.softmax_cross_entropy_loss(x, b.param("labels", labels), reduction=reduction, ignore_index=0),
        lambda x: F.cross_entropy(x, torch.tensor(labels), reduction=reduction, ignore_index=0),
        X,
    )
    check(
        lambda b, x, y: b.mseloss(x, y, reduction=reduction),
        lambda x, y: F.mse_loss(x, y, reduction=reduction),
        X,
        X[::-1].copy(),
    )


def test_movement():
    index = np.array([1, 1, 0])
    check(lambda b, x: b.gather(x, b.param("index", index), axis=1), lambda x: x[:, torch.tensor(index)], X)
    check(lambda b, x: b.pad(x, pads=(0, 2, 0, 1), mode="reflect"), lambda x: F.pad(x, (2, 1), mode="reflect"), X)
    check(lambda b, x: b.slice(x, starts=(1,), ends=(6,), axes=(1,), steps=(2,)), lambda x: x[:, 1:6:2], X)
