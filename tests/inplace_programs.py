"""Random programs with in-place methods and views, and two models of what they mean.

A program is a list of statements over numbered tensors. `run_handles` writes it with handles and in-place methods.
`run_twin` writes the same without any: a tensor is a storage and the positions that it shows of it; a read gathers, a
write makes a new storage. `run_numpy` does that with arrays, and no graph at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from memopt.ir import GraphBuilder, TensorBuilder
from memopt.ops import get_op
from memopt.types import TensorType

__all__ = ["EXACT", "UNARY", "Program", "programs", "run_handles", "run_numpy", "run_twin"]

SHAPES = [(6,), (2, 3), (4,), (2, 2), (2, 3, 2)]
UNARY = ("Relu", "Neg", "Sin", "Sigmoid", "Exp")
#: Ops that are exact on small integers, so that sums of gradients do not depend on their order.
EXACT = ("Relu", "Neg", "Abs")


@dataclass(frozen=True)
class Program:
    """leaves: shapes of the parameters; statements: (kind, *operands); kept: tensors whose last values are outputs."""

    leaves: tuple[tuple[int, ...], ...]
    statements: tuple[tuple[Any, ...], ...]
    kept: tuple[int, ...]


@st.composite
def programs(draw, *, unary=UNARY, views=True, max_statements=8):
    """A program that never writes to a leaf. Tensor shapes are known while drawing."""
    leaves = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)))
    shapes = list(leaves)
    writable = [False] * len(leaves)
    statements = []
    for _ in range(draw(st.integers(2, max_statements))):
        kind = draw(st.sampled_from(["new", "write", "new", "write", *(["view", "assign", "view", "assign"] * views)]))
        picks = [i for i in range(len(shapes)) if writable[i] or kind in ("new", "view")]
        if not picks:
            kind, picks = "new", list(range(len(shapes)))
        t = draw(st.sampled_from(picks))
        if kind == "view":
            step, shape = draw(_views(shapes[t]))
            statements.append(("view", t, step))
            shapes.append(shape)
            writable.append(writable[t])
        elif kind == "assign":
            index, shape = draw(_indexes(shapes[t]))
            others = [i for i, s in enumerate(shapes) if s == shape]
            other = draw(st.sampled_from([*others, 2.0]))
            statements.append(("assign", t, index, other))
        else:
            others = [i for i, s in enumerate(shapes) if s == shapes[t]]
            op = draw(st.sampled_from([*unary, "Add", "Mul", "Sub"]))
            operands = () if op in unary else (draw(st.sampled_from([*others, 2.0])),)
            statements.append((kind, t, op, operands))
            if kind == "new":
                shapes.append(shapes[t])
                writable.append(True)
        if draw(st.integers(0, 3)) == 0:
            statements.append(("hold", t))  # somebody keeps what the tensor is now
    kept = [len(shapes) - 1, *draw(st.lists(st.integers(0, len(shapes) - 1), max_size=2))]
    return Program(leaves, tuple(statements), tuple(dict.fromkeys(kept)))


@st.composite
def _indexes(draw, shape):
    """(index, shape of the slice)"""
    index = []
    for dim in shape:
        start = draw(st.integers(0, dim - 1))
        stop = draw(st.integers(start + 1, dim))
        some = [slice(start, stop), slice(None), slice(start, stop, 2), slice(None, None, -1), start]
        index.append(draw(st.sampled_from(some)))
    index = tuple(index)
    return index, np.empty(shape)[index].shape


@st.composite
def _views(draw, shape):
    kind = draw(st.sampled_from(["index", "reshape", "transpose", "index"]))
    if kind == "index":
        index, new = draw(_indexes(shape))
        return ("index", index), new
    if kind == "transpose":
        perm = tuple(draw(st.permutations(range(len(shape)))))
        return ("transpose", perm), tuple(shape[i] for i in perm)
    n = int(np.prod(shape))
    new = draw(st.sampled_from([(n,), (1, n), (n, 1), *((d, n // d) for d in (2, 3) if n % d == 0)]))
    return ("reshape", new), new


def leaf_data(program, exact):
    rng = np.random.default_rng(5)
    return [
        rng.integers(-3, 4, shape).astype("float64") if exact else rng.uniform(-2, 2, shape) for shape in program.leaves
    ]


# -- with in-place methods --------------------------------------------------------------------------------------------


def run_handles(program, exact=False, strict=False):
    """(builder, leaves, outputs) of the program with in-place methods."""
    b = TensorBuilder("inplace", strict=strict)
    tensors = [b.param(f"w{i}", data) for i, data in enumerate(leaf_data(program, exact))]
    leaves, held = list(tensors), []
    for kind, t, *rest in program.statements:
        x = tensors[t]
        if kind == "hold":
            held.append(x.value)
        elif kind == "view":
            tensors.append(_view(x, *rest[0]))
        elif kind == "assign":
            index, other = rest
            x[index] = tensors[other] if isinstance(other, int) else other
        else:
            op, operands = rest
            operands = [tensors[o] if isinstance(o, int) else o for o in operands]
            if kind == "new":
                tensors.append(b.op(op, x, *operands))
            else:
                getattr(x, f"{op.lower()}_")(*operands)
    return b, leaves, [*(tensors[t].value for t in program.kept), *held]


def _view(x, kind, detail):
    if kind == "index":
        return x[detail]
    return x.reshape(detail) if kind == "reshape" else x.transpose(detail)


# -- without ----------------------------------------------------------------------------------------------------------


def positions(kind, detail, shown):
    """The positions that a view shows, from those of its source."""
    if kind == "index":
        return shown[detail]
    return shown.reshape(detail) if kind == "reshape" else shown.transpose(detail)


class _Twin:
    """Tensors as (number of a storage, positions shown); `read` and `make` are the backend's."""

    def run(self, program, exact):
        tensors = [(self.store(data, f"w{i}"), _whole(data.shape)) for i, data in enumerate(leaf_data(program, exact))]
        held = []
        for kind, t, *rest in program.statements:
            storage, shown = tensors[t]
            if kind == "hold":
                held.append(self.read(storage, shown))
            elif kind == "view":
                tensors.append((storage, positions(*rest[0], shown)))
            elif kind == "assign":
                index, other = rest
                where = shown[index]
                self.write(storage, where, self.operand(tensors, other, where.shape))
            else:
                op, operands = rest
                inputs = [self.read(storage, shown), *(self.operand(tensors, o, ()) for o in operands)]
                made = self.make(op, inputs)
                if kind == "new":
                    tensors.append((self.keep(made), _whole(shown.shape)))
                else:
                    self.write(storage, shown, made)
        return [*(self.read(*tensors[t]) for t in program.kept), *held]

    def operand(self, tensors, other, shape):
        return self.read(*tensors[other]) if isinstance(other, int) else self.number(other, shape)


def _whole(shape):
    return np.arange(int(np.prod(shape))).reshape(shape)


class _NumpyTwin(_Twin):
    def __init__(self):
        self.storages = []

    def store(self, data, name):
        return self.keep(data)

    def keep(self, array):
        self.storages.append(np.array(array).reshape(-1))
        return len(self.storages) - 1

    def number(self, number, shape):
        return np.full(shape, number)

    def read(self, storage, shown):
        return self.storages[storage][shown]

    def write(self, storage, shown, array):
        self.storages[storage][shown] = array

    def make(self, op, arrays):
        spec = get_op(op)
        types = spec.infer([TensorType.of(np.shape(a), "float64") for a in arrays], {}, 1)
        return spec.reference([np.asarray(a) for a in arrays], {}, types)[0]


class _GraphTwin(_Twin):
    def __init__(self):
        self.builder = GraphBuilder("twin")
        self.storages = []
        self.leaves = []

    def store(self, data, name):
        value = self.builder.param(name, data)
        self.leaves.append(value)
        return self.keep(value)

    def keep(self, value):
        flat = self.builder.reshape(value, shape=(value.type.num_elements,))
        self.storages.append(flat)
        return len(self.storages) - 1

    def constant(self, array):
        return self.builder.param(self.builder.graph.fresh_name("c"), np.asarray(array), requires_grad=False)

    def number(self, number, shape):
        return self.constant(np.full(shape, number))

    def read(self, storage, shown):
        return self.builder.gather(self.storages[storage], self.constant(shown))

    def write(self, storage, shown, value):
        b, flat = self.builder, self.storages[storage]
        size = flat.type.num_elements
        source, mask = np.zeros(size, np.int64), np.zeros(size, bool)
        source[shown.reshape(-1)] = np.arange(shown.size)
        mask[shown.reshape(-1)] = True
        spread = b.gather(b.reshape(value, shape=(shown.size,)), self.constant(source))
        self.storages[storage] = b.where(self.constant(mask), spread, flat)

    def make(self, op, values):
        return self.builder.op(op, *values)


def run_numpy(program, exact=False):
    return _NumpyTwin().run(program, exact)


def run_twin(program, exact=False):
    """(builder, leaves, outputs) of the program without in-place methods and views."""
    twin = _GraphTwin()
    outputs = twin.run(program, exact)
    return twin.builder, twin.leaves, outputs
