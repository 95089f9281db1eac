"""`Tensor`: a handle on a value that may change, for people who write graphs with in-place methods.

A `Value` is defined once and never changes. A handle *means* a value, and after `x.sin_()` it means another one;
whoever holds the old value (`x.value` taken before, a node built before, the backward of `sin`) still has the old one.

Holds true:
1. Handles made by view methods (`reshape`, `flatten`, `squeeze`, `unsqueeze`, `transpose`, `expand`, `slice`, `split`,
indexing) share one cell with the handle they were made from: a write through any of them is seen through all. All else
makes a handle with a cell of its own.   2. This is bookkeeping of the builder's only: a view's value is read from the
newest value of what it is a view of, when it is next asked for.   3. A handle never changes shape or dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from memopt.errors import OptionError
from memopt.ir.value import Value
from memopt.ir.views import ViewStep, index_steps
from memopt.types import TensorType

__all__ = ["Cell", "HandleBuilder", "Tensor"]

#: Attributes that may be given to a method as plain numbers: `x.reshape(2, 3)`.
_POSITIONAL = {"Reshape": "shape", "Expand": "shape", "Transpose": "perm", "Squeeze": "axes", "Unsqueeze": "axes"}


class Cell:
    """What handles that alias have in common: the newest value, and how often it was written.

    `leaf` is the feed or parameter that this is, if it is one. Of a parameter, `held` is the value that is bound to its
    variable, and `stored` the value that was written there.
    """

    __slots__ = ("held", "leaf", "stored", "value", "version")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.version = 0
        self.leaf = value if value.producer is None else None
        self.held = self.stored = value


class HandleBuilder(Protocol):
    """What a handle asks of the builder that made it."""

    def append(self, op: str, *inputs: Value | None, **attrs: Any) -> Any:
        """Append a node of plain values."""

    def op(self, op: str, *inputs: Any, **options: Any) -> Any:
        """Append a node; handles in, handles out."""

    def find_op(self, name: str) -> str | None:
        """The op that a method of that name stands for."""

    def write_op(self, target: Tensor, op: str, *others: Any, **attrs: Any) -> None:
        """`target.op_(*others)`."""

    def assign(self, target: Tensor, index: Any, value: Any) -> None:
        """`target[index] = value`."""

    def requires_grad(self, value: Value) -> bool:
        """Whether a gradient would be recorded for `value`."""


class Tensor:
    """A handle on a value of the graph; see the module for what aliases what.

    Every op of the registry is a method: `x.relu()`, `x.add(y)`; with `_` at the end it is in place: `x.relu_()`,
    `x.add_(y)`. `+ - * / @`, `x += y`, `x[1:]` and `x[1:] = y` work too; other operands are handles, values or numbers.
    """

    __slots__ = ("_builder", "_cell", "_parent", "_seen", "_step", "_type", "_version")
    __array_ufunc__ = None  # NumPy's numbers leave `2 * x` to us

    def __init__(self, builder: HandleBuilder, cell: Cell) -> None:
        self._builder = builder
        self._cell = cell
        self._parent: Tensor | None = None
        self._step: ViewStep | None = None
        self._type = cell.value.type
        self._seen: Value | None = cell.value
        self._version = cell.version

    def view(self, step: ViewStep, value: Value | None = None) -> Tensor:
        """A view of this handle; `value` is what it shows now, if there is a value for that already."""
        made = Tensor(self._builder, self._cell)
        made._parent, made._step, made._seen, made._version = self, step, value, self._cell.version
        made._type = step.type_of(self._type)
        return made

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def value(self) -> Value:
        """The value that the handle means now; a view's may be read from its base here, by a new node."""
        if self._parent is None or self._step is None:
            return self._cell.value
        if self._seen is None or self._version != self._cell.version:
            self._seen = self._step.read(self._builder.append, self._parent.value)
            self._version = self._cell.version
        return self._seen

    @property
    def cell(self) -> Cell:
        return self._cell

    @property
    def type(self) -> TensorType:
        return self._type

    @property
    def shape(self) -> tuple[int, ...]:
        return self._type.shape

    @property
    def dtype(self) -> str:
        return self._type.dtype

    @property
    def nbytes(self) -> int:
        return self._type.nbytes

    @property
    def name(self) -> str:
        """The name of the value that the handle means now."""
        return self.value.name

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient would be recorded for what the handle means now."""
        return self._builder.requires_grad(self.value)

    @property
    def is_leaf(self) -> bool:
        """Whether this is a feed or a parameter, or a view of one."""
        return self._cell.leaf is not None

    def path(self) -> list[tuple[Tensor, ViewStep]]:
        """(handle, how this is seen through it) from this view's parent up to the handle that is no view."""
        found: list[tuple[Tensor, ViewStep]] = []
        at = self
        while at._parent is not None and at._step is not None:
            found.append((at._parent, at._step))
            at = at._parent
        return found

    def clone(self) -> Tensor:
        """A handle on a copy: writes to either are not seen through the other."""
        made: Tensor = self._builder.op("Identity", self)
        return made

    def __repr__(self) -> str:
        if self._parent is None:
            return f"Tensor({self._cell.value!r})"
        return f"Tensor(a view of %{self._cell.value.name}: {self._type})"

    # -- writing ------------------------------------------------------------------------------------------------

    def store(self, new: Value) -> None:
        """From here on the handle, and all that alias it, mean `new`, which has been written through its path."""
        self._seen, self._version = new, self._cell.version

    def __getitem__(self, index: Any) -> Tensor:
        """A view: integers, slices, `...` and None. Its node is appended when it is first read. `x[:]` is x."""
        made = self
        for step in index_steps(index, self.shape):
            made = made.view(step)
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        self._builder.assign(self, index, value)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise OptionError(f"a handle of the shape [] ({self._type}) has no rows to go through")
        return (self[i] for i in range(self.shape[0]))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        op = self._builder.find_op(name.removesuffix("_"))
        if op is None:
            raise AttributeError(f"a handle has no method and no op {name!r}")
        if not name.endswith("_"):
            return lambda *others, **attrs: self._make(op, others, attrs)

        def write(*others: Any, **attrs: Any) -> Tensor:
            self._builder.write_op(self, op, *others, **attrs)
            return self

        return write

    # -- operators ----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return self._call("Add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self._call("Add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return self._call("Sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._call("Sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return self._call("Mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._call("Mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return self._call("Div", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._call("Div", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return self._call("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return self._call("MatMul", other, self)

    def __neg__(self) -> Tensor:
        return self._call("Neg", self)

    def __iadd__(self, other: Any) -> Tensor:
        return self._write("Add", other)

    def __isub__(self, other: Any) -> Tensor:
        return self._write("Sub", other)

    def __imul__(self, other: Any) -> Tensor:
        return self._write("Mul", other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._write("Div", other)

    def _make(self, op: str, others: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        if others and op in _POSITIONAL:
            numbers = others[0] if isinstance(others[0], (tuple, list)) else others
            others, attrs = (), {_POSITIONAL[op]: tuple(numbers), **attrs}
        return self._builder.op(op, self, *others, **attrs)

    def _call(self, op: str, *inputs: Any) -> Tensor:
        made: Tensor = self._builder.op(op, *inputs)
        return made

    def _write(self, op: str, other: Any) -> Tensor:
        self._builder.write_op(self, op, other)
        return self
