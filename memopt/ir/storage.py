"""The first two arrows: value -> variable -> buffer.

Holds true: every value of the graph is bound to exactly one variable, every variable holds bytes of exactly one
buffer from `offset` on, every variable has at least one value and every buffer at least one variable. A variable with
`strides` holds one value, a view of elements that others hold there (`verify` says of which). All orders are insertion
orders. With no pass, each value has its own variable and each variable its own buffer, except that an update
(`SGD`) binds its result to its input's variable by definition.

Nothing else in the program decides who shares bytes with whom.
"""

from __future__ import annotations

from collections.abc import Iterable

from memopt.errors import VerifyError
from memopt.ir.value import Value
from memopt.strides import Strides, extent
from memopt.types import itemsize

__all__ = ["Buffer", "Storage", "Variable"]


class Buffer:
    """Bytes with one lifetime. Equal by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Buffer({self.name})"


class Variable:
    """A name in a scope; holds a range of one buffer that starts at `offset` bytes. Equal by identity.

    `strides` (in elements, canonical) say how its value steps through the buffer; None: element after element.
    """

    __slots__ = ("buffer", "name", "offset", "strides")

    def __init__(self, name: str, buffer: Buffer, offset: int = 0, strides: Strides | None = None) -> None:
        self.name = name
        self.buffer = buffer
        self.offset = offset
        self.strides = strides

    def __repr__(self) -> str:
        return f"Variable({self.name})"


class Storage:
    """Who shares a variable with whom, and who shares bytes with whom."""

    def __init__(self) -> None:
        self._variable: dict[Value, Variable] = {}
        self._values: dict[Variable, list[Value]] = {}
        self._variables: dict[Buffer, list[Variable]] = {}
        self._names: set[str] = set()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(self._values)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._variables)

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(self._variable)

    def variable(self, value: Value) -> Variable:
        """The variable that `value` is bound to."""
        try:
            return self._variable[value]
        except KeyError:
            raise VerifyError(f"value %{value.name} is not bound to a variable of this graph") from None

    def buffer(self, value: Value) -> Buffer:
        """The buffer whose bytes `value` is stored in."""
        return self.variable(value).buffer

    def values_of(self, variable: Variable) -> tuple[Value, ...]:
        """The values bound to `variable`, in the order in which they were bound."""
        return tuple(self._values[variable])

    def variables_of(self, buffer: Buffer) -> tuple[Variable, ...]:
        return tuple(self._variables[buffer])

    def tenants(self, buffer: Buffer) -> tuple[Value, ...]:
        """Every value stored in `buffer`, through whichever variable."""
        return tuple(value for variable in self._variables[buffer] for value in self._values[variable])

    def __contains__(self, value: object) -> bool:
        return value in self._variable

    def extent_bytes(self, value: Value) -> int:
        """The bytes from the first to the last element of `value`, as it is stored; `nbytes` where it has no strides.
        """
        strides = self.variable(value).strides
        return value.nbytes if strides is None else extent(value.shape, strides) * itemsize(value.dtype)

    # -- binding ------------------------------------------------------------------------------------------------

    def define(self, value: Value, variable: Variable | None = None) -> Variable:
        """Bind a new value to `variable`, or to a variable and a buffer of its own that bear its name."""
        if value in self._variable:
            raise VerifyError(f"value %{value.name} is bound already, to variable {self._variable[value].name}")
        if variable is None:
            name = self._fresh(value.name)
            variable = Variable(name, Buffer(name))
            self._values[variable] = []
            self._variables[variable.buffer] = [variable]
        self._variable[value] = variable
        self._values[variable].append(value)
        return variable

    def rename(self, variable: Variable, into: Variable) -> None:
        """Bind every value of `variable` to `into` instead; `variable` ceases to exist. (Fluid 1.5's edit.)"""
        if variable is into:
            return
        for one in (variable, into):
            if one.strides is not None:
                raise VerifyError(f"variable {one.name} lies in strides {list(one.strides)}: it holds one value only")
        moved = self._values.pop(variable)
        for value in moved:
            self._variable[value] = into
        self._values[into].extend(moved)
        self._names.discard(variable.name)
        self._leave(variable)

    def share(self, variable: Variable, buffer: Buffer, offset: int = 0) -> None:
        """Let `variable` hold bytes of `buffer`, from `offset` on; both variables stay. (Fluid 1.6's edit.)"""
        if variable.buffer is not buffer:
            self._leave(variable)
            variable.buffer = buffer
            self._variables[buffer].append(variable)
        variable.offset = offset

    def separate(self, value: Value) -> Variable:
        """Undo: give `value` a variable and a buffer of its own again."""
        old = self.variable(value)
        if len(self._values[old]) == 1 and len(self._variables[old.buffer]) == 1:
            return old
        self.forget(value)
        return self.define(value)

    def relabel(self, value: Value, old: str) -> None:
        """`value` was named `old`: its variable and buffer bear its name now, if they bore the old one."""
        variable = self._variable[value]
        if variable.name == old:
            self._names.discard(old)
            variable.name = self._fresh(value.name)
            if variable.buffer.name == old:
                variable.buffer.name = variable.name

    def forget(self, value: Value) -> None:
        """Drop a value that leaves the graph."""
        variable = self._variable.pop(value)
        self._values[variable].remove(value)
        if not self._values[variable]:
            del self._values[variable]
            self._names.discard(variable.name)
            self._leave(variable)

    def add(self, variable: Variable, values: Iterable[Value]) -> None:
        """Add a whole variable with its values (the parser's and the copier's way in)."""
        if variable.name in self._names:
            raise VerifyError(f"there are two variables named {variable.name!r}")
        self._names.add(variable.name)
        self._values[variable] = []
        self._variables.setdefault(variable.buffer, []).append(variable)
        for value in values:
            self.define(value, variable)

    def copy(self, values: dict[Value, Value]) -> Storage:
        """The same map over the copies that `values` gives for each value."""
        twin = Storage()
        buffers = {buffer: Buffer(buffer.name) for buffer in self._variables}
        order = {
            variable: Variable(variable.name, buffers[variable.buffer], variable.offset, variable.strides)
            for variable in self._values
        }
        for buffer, variables in self._variables.items():
            twin._variables[buffers[buffer]] = [order[variable] for variable in variables]
        for variable, bound in self._values.items():
            twin._values[order[variable]] = [values[value] for value in bound]
            twin._names.add(variable.name)
        for value, variable in self._variable.items():
            twin._variable[values[value]] = order[variable]
        return twin

    def _leave(self, variable: Variable) -> None:
        left = self._variables[variable.buffer]
        left.remove(variable)
        if not left:
            del self._variables[variable.buffer]

    def _fresh(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._names:
            count += 1
            candidate = f"{name}~{count}"
        self._names.add(candidate)
        return candidate
