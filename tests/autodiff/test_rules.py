"""Every rule of the elementwise, reduction, blas and movement ops against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ops import all_ops, get_op
from tests.autodiff.numeric import Case, check_gradient


def real(*shape, low=-2.0, high=2.0, seed=0, away=(), gap=0.05):
    """Random float64, at least `gap` away from the numbers in `away`, where the derivative jumps."""
    rng = np.random.default_rng([seed, *shape, 3])
    x = rng.uniform(low, high, shape)
    for number in away:
        near = np.abs(x - number) < gap
        x = np.where(near, number + gap * np.where(x < number, -2, 2), x)
    return np.asarray(x)


def distinct(*shape, seed=0):
    """Random float64 of which no two are near."""
    size = int(np.prod(shape))
    return np.random.default_rng([seed, size]).permutation(np.linspace(-2, 2.1, size)).reshape(shape)


X = real(3, 4, away=(0,))
P = real(3, 4, low=0.3)
UNARY = {
    "Abs": X, "Neg": X, "Exp": X, "Log": P, "Sqrt": P, "Reciprocal": X, "Sigmoid": X, "Tanh": X, "Relu": X,
    "LeakyRelu": X, "Elu": X, "Selu": X, "HardSigmoid": real(3, 4, low=-4, high=4, away=(-2.5, 2.5)),
    "HardSwish": real(3, 4, low=-5, high=5, away=(-3, 3)), "Sin": X, "Cos": X, "Erf": X, "Gelu": X, "Softplus": X,
    "Softsign": X, "Floor": real(3, 4, away=(-2, -1, 0, 1, 2)), "Ceil": real(3, 4, away=(-2, -1, 0, 1, 2)),
    "Round": real(3, 4, away=(-1.5, -0.5, 0.5, 1.5)), "Sign": X, "Identity": X, "Scale": X, "Clip": X,
}  # fmt: skip
CASES = [
    *(Case(op, [x]) for op, x in UNARY.items()),
    Case("LeakyRelu", [X], alpha=-0.3),
    Case("Elu", [X], alpha=-0.7),
    Case("Elu", [X], alpha=0.3),
    Case("Selu", [X], gamma=-1.0),
    Case("Scale", [X], factor=-2.5),
    Case("HardSigmoid", [X], alpha=0.4, beta=0.1),
    Case("Gelu", [X], approximate="tanh"),
    Case("Clip", [real(5, 5, away=(-0.5, 1))], min=-0.5, max=1.0),
    Case("Clip", [real(5, 5, away=(1,))], max=1.0),
    Case("Clip", [real(5, 5)], min=1.0, max=-1.0),
    Case("Cast", [X], to="float64"),
    Case("Mul", [X, real(3, 4, seed=9)]),
    Case("Pow", [P, X]),
    Case("Pow", [X, np.full((1, 4), 3.0)], wrt=[0]),
    Case("Pow", [X, np.array([0, 1, 2, 3])]),
    Case("PRelu", [X, real(4, seed=2)]),
    Case("PRelu", [real(2, 3, 4, away=(0,)), real(3, 1, seed=2)]),
    Case("Max", [distinct(2, 3), distinct(2, 3, seed=5) + 0.01, distinct(3, seed=7) + 0.02]),
    Case("Min", [distinct(2, 3), distinct(2, 3, seed=5) + 0.01]),
    Case("Max", [X]),
    Case("Sum", [X, real(4, seed=1), real(1, 1, seed=2)]),
    Case("Sum", [X]),
    Case("Mean", [X, real(4, seed=1), real(3, 1, seed=2)]),
    Case("Where", [X > 0, X, real(4, seed=1)]),
    Case("Where", [X[:, :1] > 0, real(), real(2, 3, 4, seed=1)]),
    Case("Masked", [X, X[0] > 0]),
    Case("Masked", [real(4), X > 0], invert=1),
    *(Case(op, [distinct(2, 3, 4)], axes=axes, keepdims=keep)
      for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL2")
      for axes, keep in (((1,), 1), ((0, 2), 0), ((-1,), 0), ((0,), 0))),
    *(Case(op, [real(2, 3, away=(0,))]) for op in ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceProd")),
    Case("ReduceL1", [real(2, 3, away=(0,))], axes=(1,), keepdims=0),
    Case("ReduceSum", [X], noop_with_empty_axes=1),
    Case("ReduceMax", [X], noop_with_empty_axes=1),
    Case("ReduceProd", [X], noop_with_empty_axes=1),
    Case("ReduceProd", [np.array([[0, 2, 3], [1, -2, 3], [0, 0, 4.0]])], axes=(1,)),
    Case("ReduceSum", [real()]),
    Case("ReduceMean", [real(1, 1)], axes=(0, 1), keepdims=0),
    *(Case(op, [real(2, 3, 4)], axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (-1, 0, 1)),
    *(Case("CumSum", [real(3, 4)], axis=axis, exclusive=e, reverse=r)
      for axis, e, r in ((0, 0, 0), (1, 1, 0), (1, 0, 1), (-1, 1, 1))),
    # matrix products
    *(Case("MatMul", [real(*a), real(*b, seed=1)]) for a, b in (
        ((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (3, 3, 4)), ((3,), (2, 3, 4)), ((2, 2, 3), (3,)), ((2, 2, 3), (2, 3, 4)), ((1, 2, 3), (2, 3, 4)),
        ((2, 1, 3), (1, 3, 1)))),
    *(Case("FusedMatMul", [real(2, *((3, 2) if ta else (2, 3))), real(*batch, *((4, 3) if tb else (3, 4)), seed=1)],
           transA=ta, transB=tb, alpha=0.5) for ta in (0, 1) for tb in (0, 1) for batch in ((), (2,))),
    *(Case("Gemm", [real(*((3, 2) if ta else (2, 3))), real(*((4, 3) if tb else (3, 4)), seed=1), c],
           transA=ta, transB=tb, alpha=a, beta=2.0)
      for ta in (0, 1) for tb in (0, 1) for c, a in ((None, 1.0), (real(4), 0.5))),
    *(Case("Gemm", [real(2, 3), real(3, 4), real(*shape)]) for shape in ((2, 4), (1, 4), (2, 1), (4,), (1,), ())),
    # movement
    Case("Reshape", [X], shape=(2, -1)),
    Case("Reshape", [real(1)], shape=()),
    Case("Flatten", [real(2, 3, 2)], axis=2),
    Case("Squeeze", [real(2, 1, 3, 1)], axes=(1,)),
    Case("Squeeze", [real(2, 1, 3, 1)]),
    Case("Unsqueeze", [X], axes=(0, -1)),
    Case("Transpose", [real(2, 3, 4)], perm=(1, 2, 0)),
    Case("Transpose", [X]),
    Case("Concat", [real(2, 3), real(2, 1, seed=1), real(2, 2, seed=2)], axis=1),
    Case("Concat", [real(2, 3), real(1, 3, seed=1)], axis=-2, wrt=[1]),
    Case("Concat", [X], axis=0),
    Case("Split", [real(2, 5)], outputs=2, axis=1, split=(2, 3)),
    Case("Split", [real(4, 2)], outputs=3, num_outputs=3),
    Case("Split", [X], outputs=1),
    Case("Slice", [real(4, 5)], starts=(1,), ends=(3,), axes=(1,)),
    Case("Slice", [real(4, 5)], starts=(-3, 0), ends=(9, -1)),
    Case("Slice", [real(4, 5)], starts=(0, -1), ends=(4, -9), steps=(2, -2)),
    Case("Slice", [real(4, 5)], starts=(3,), ends=(1,)),
    Case("Slice", [X], starts=(0,), ends=(9,)),
    Case("Expand", [real(3, 1)], shape=(2, 3, 4)),
    Case("Expand", [real(3, 2)], shape=(1, 1)),
    Case("Expand", [real()], shape=(2, 2)),
    Case("Tile", [real(2, 3)], repeats=(2, 3)),
    Case("Tile", [real(2, 1, 3)], repeats=(1, 4, 2)),
    Case("Tile", [real(2, 1, 2, 2)], repeats=(3, 2, 2, 2)),
    Case("Tile", [X], repeats=(1, 1)),
    Case("Pad", [real(2, 3)], pads=(1, 0, 2, 1), value=3.0),
    Case("Pad", [real(3, 4)], pads=(-1, 1, 0, -2)),
    Case("Pad", [real(3, 4)], pads=(2, 1, 1, 3), mode="reflect"),
    Case("Pad", [real(3, 4)], pads=(2, 0, 1, 3), mode="edge"),
    Case("Pad", [real(2, 3, 4)], pads=(0, 0, -1, 0, 0, 2), mode="edge"),
    Case("Pad", [X], pads=(0, 0, 0, 0)),
    Case("Gather", [real(4, 3), np.array([[0, 2], [2, -1]])]),
    Case("Gather", [real(2, 3, 2), np.array([2, 2, 0], "int32")], axis=-2),
    Case("Gather", [real(4), np.array(1)], axis=0),
    Case("DepthToSpace", [real(1, 8, 2, 3)], blocksize=2),
    Case("DepthToSpace", [real(1, 8, 2, 3)], blocksize=2, mode="CRD"),
    Case("SpaceToDepth", [real(1, 2, 4, 6)], blocksize=2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_rule(case):
    check_gradient(case, kernels=False)


def test_every_rule_is_tried():
    families = {"elementwise", "reduction", "blas", "movement"}
    rules = {s.name: s.gradient.build.__module__.split(".")[-1] for s in all_ops() if s.gradient is not None}
    ours = {name for name, module in rules.items() if module.split("_")[0] in families | {"gradients"}}
    elsewhere = {"Add", "Sub", "Div", "SoftmaxCrossEntropyLoss", "MSELoss", "SliceAssign"}
    assert ours - {case.op for case in CASES} <= elsewhere


SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (2, 1), (4, 1, 3), (4, 2, 1), (1, 2, 3)])


@settings(max_examples=30)
@given(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"]), SHAPES, SHAPES, st.integers(0, 99))
def test_broadcasting(op, left, right, seed):
    low = 0.5 if op == "Pow" else -2.0
    a = real(*left, low=low, seed=seed)
    b = real(*right, seed=seed + 100, away=(0,), gap=0.2)
    try:
        np.broadcast_shapes(left, right)
    except ValueError:
        return
    if op in ("Max", "Min"):
        b = b + np.where(np.min(np.abs(np.subtract.outer(a, b))) < 1e-3, 0.0123, 0.0)
    check_gradient(Case(op, [a, b]), tol=2e-6, kernels=False)


@pytest.mark.parametrize(("op", "want"), [("Max", [[1, 0.5, 0], [0, 0.5, 1]]), ("Min", [[0, 0.5, 1], [1, 0.5, 0]])])
def test_ties_are_shared(op, want):
    import memopt
    from memopt.autodiff import grad

    b = memopt.GraphBuilder()
    x, y = b.param("x", np.array([3.0, 2, 1])), b.param("y", np.array([1.0, 2, 3]))
    loss = b.reduce_sum(b.op(op, x, y), keepdims=0)
    b.output(*grad(b.graph, loss, [x, y]))
    outputs, _ = memopt.run_reference(b.build(), {})
    assert [a.tolist() for a in outputs.values()] == want


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Abs", "Clip", "PRelu"])
def test_the_kink(op):
    """The conventions where there is no derivative."""
    import memopt
    from memopt.autodiff import grad

    b = memopt.GraphBuilder()
    x = b.param("x", np.zeros(1))
    more = [b.param("slope", np.full(1, 0.25))] if op == "PRelu" else []
    loss = b.reduce_sum(b.op(op, x, *more, **({"min": 0.0} if op == "Clip" else {})), keepdims=0)
    (g,) = grad(b.graph, loss, [x])
    b.output(g)
    want = {"LeakyRelu": 0.01, "PRelu": 0.25}.get(op, 0.0)
    assert memopt.run_reference(b.build(), {})[0][g.name] == pytest.approx(want)
    assert get_op(op).gradient is not None
