"""`parse`: the text of a graph, read back. The form is described in `memopt.ir.text`.

Holds true: whatever is wrong with the text is a `ParseError` that gives line and column and says what was expected and
found; the graph that `parse` returns verifies. Line breaks are white space. Types on the right of a node may be left
out; where they are given, they must be what the op infers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from memopt.errors import MemoptError, ParseError, VerifyError
from memopt.ir.graph import Graph
from memopt.ir.storage import Buffer, Storage, Variable
from memopt.ir.value import Node, Value
from memopt.ir.verify import verify
from memopt.strides import Strides
from memopt.types import DTYPES, TensorType, as_dtype

__all__ = ["parse"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<value>%(?:[A-Za-z0-9_./~$-]+|"(?:[^"\\\n]|\\.)*"))
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?:inf|nan)(?![A-Za-z0-9_./~$-])))
    |(?P<word>[A-Za-z_][A-Za-z0-9_./~$-]*)
    |(?P<mark>[{}()\[\]=:,@+])""",
    re.VERBOSE,
)
_SHORT = {short: name for name, short in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # value, string, number, word, mark, end
    text: str  # for values and strings: unquoted, without the `%`
    at: int

    def __str__(self) -> str:
        shown = {"end": "the end of the text", "value": f"'%{self.text}'", "string": json.dumps(self.text)}
        return shown.get(self.kind, f"'{self.text}'")


class _Placed(NamedTuple):
    """A variable in a buffer."""

    variable: str
    offset: int
    strides: Strides | None


def parse(text: str) -> Graph:
    """The graph that `text` describes. Raises `ParseError` with line and column."""
    return _Parser(text).graph()


def _place(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(f"{_place(text, at)}: expected a name, a number, a string or a mark, found {text[at]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, _unquoted(text, match.group(), at), at))
        at = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _unquoted(text: str, token: str, at: int) -> str:
    token = token.removeprefix("%")
    if not token.startswith('"'):
        return token
    try:
        return str(json.loads(token))
    except ValueError as error:
        raise ParseError(f"{_place(text, at)}: expected a JSON string, found {token} ({error})") from None


class _Parser:
    """Recursive descent over tokens; one method a rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._graph = Graph()
        self._nodes: dict[str, Node] = {}

    def graph(self) -> Graph:
        start = self._expect("word", "graph")
        self._graph.name = self._expect("string", what="the graph's name in quotes").text
        self._expect("mark", "{")
        outputs: list[Value] = []
        while not self._accept("mark", "}"):
            if self._accept("word", "input"):
                self._input()
            elif self._accept("word", "param"):
                self._param()
            elif self._accept("word", "output"):
                outputs.append(self._known_value())
            elif self._is("word", "storage"):
                self._storage()
            else:
                self._node()
        self._expect("end", what="the end of the text")
        self._at(start, self._graph.set_outputs, outputs)
        self._at(start, verify, self._graph)
        return self._graph

    # -- statements -----------------------------------------------------------------------------------------------

    def _input(self) -> None:
        name = self._expect("value", what="the name of a feed, such as %x")
        type = self._type()
        donated = self._accept("word", "donated") is not None
        self._at(name, lambda: self._graph.add_input(name.text, type, donated=donated))

    def _param(self) -> None:
        name = self._expect("value", what="the name of a parameter, such as %w")
        type = self._type()
        device = self._name("a device").text if self._accept("mark", "@") else None
        data = None
        if self._accept("mark", "="):
            start = self._peek()
            items = self._items(self._scalar)
            if len(items) != type.num_elements:
                self._fail(f"{type.num_elements} numbers for %{name.text}: {type}", f"{len(items)}", start)
            if "int" in type.dtype and any(not isinstance(item, int) for item in items):
                self._fail(f"integers for %{name.text}: {type}", "others", start)
            data = self._at(start, lambda: np.array(items, dtype=type.dtype).reshape(type.shape))
        self._at(name, lambda: self._graph.add_param(name.text, type, data, device=device))

    def _node(self) -> None:
        outputs: list[_Token] = []
        if self._is("value") or self._is("word", "_"):
            outputs.append(self._operand())
            while self._accept("mark", ","):
                outputs.append(self._operand())
            self._expect("mark", "=")
        op = self._expect("word", what="a statement: input, param, output, storage, or a node such as %y = Relu(%x)")
        inputs: list[Value | None] = []
        self._expect("mark", "(")
        while not self._accept("mark", ")"):
            if inputs:
                self._expect("mark", ",")
            inputs.append(None if self._accept("word", "_") else self._known_value())
        attrs = self._attrs()
        device = self._name("a device").text if self._accept("mark", "@") else None
        controls = self._controls()
        name = self._expect("string").text if self._is("string") else None
        results = [None if token.kind == "word" else token.text for token in outputs]
        if name is None:
            name = next((result for result in results if result is not None), None)
        node = self._at(op, lambda: self._graph.add_node(op.text, inputs, results, attrs, name=name, device=device))
        node.controls = controls
        self._nodes[node.name] = node
        self._result_types(node)

    def _attrs(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        if not self._accept("mark", "{"):
            return attrs
        while not self._accept("mark", "}"):
            if attrs:
                self._expect("mark", ",")
            name = self._expect("word", what="an attribute's name")
            if name.text in attrs:
                self._fail(f"attribute {name.text} once", "it twice", name)
            self._expect("mark", "=")
            attrs[name.text] = self._items(self._scalar) if self._is("mark", "[") else self._scalar()
        return attrs

    def _controls(self) -> list[Node]:
        if not self._accept("word", "after"):
            return []
        self._expect("mark", "(")
        controls: list[Node] = []
        while not self._accept("mark", ")"):
            if controls:
                self._expect("mark", ",")
            name = self._name("a node's name")
            if name.text not in self._nodes:
                self._fail("the name of a node above", str(name), name)
            controls.append(self._nodes[name.text])
        return controls

    def _result_types(self, node: Node) -> None:
        if not self._is("mark", ":"):
            return
        for index, value in enumerate(node.outputs):
            start = self._next
            if value is None:
                self._expect("mark", "," if index else ":")
                self._expect("word", "_")
                continue
            type = self._type("," if index else ":")
            if type != value.type:
                found = self._tokens[start + 1]
                self._fail(f"{value.type} for %{value.name}, as {node.op} infers", str(type), found)

    # -- storage --------------------------------------------------------------------------------------------------

    def _storage(self) -> None:
        """Replace the default storage: listed values and variables first, all others as by default."""
        start = self._expect("word", "storage")
        self._expect("mark", "{")
        values: dict[str, list[Value]] = {}
        buffers: dict[str, list[_Placed]] = {}
        while not self._accept("mark", "}"):
            if self._accept("word", "variable"):
                name = self._fresh(values, "variable")
                values[name] = self._separated(self._known_value)
            elif self._accept("word", "buffer"):
                name = self._fresh(buffers, "buffer")
                buffers[name] = self._separated(self._placed)
            else:
                self._fail("`variable name: %a, ...` or `buffer name: variable+offset, ...`", str(self._peek()))
        old = self._graph.storage
        listed = {value for group in values.values() for value in group}
        for variable in old.variables:
            rest = [value for value in old.values_of(variable) if value not in listed]
            if rest:
                if variable.name in values:
                    self._fail(f"every value of variable {variable.name}", f"%{rest[0].name} left out", start)
                values[variable.name] = rest
        self._graph.storage = self._at(start, lambda: _build_storage(self._graph, values, buffers))

    def _fresh(self, known: dict[str, Any], what: str) -> str:
        name = self._name(f"a {what}'s name")
        if name.text in known:
            self._fail(f"{what} {name.text} once", "it twice", name)
        self._expect("mark", ":")
        return name.text

    def _placed(self) -> _Placed:
        name = self._name("a variable's name").text
        offset = self._offset()
        return _Placed(name, offset, self._items(self._stride) if self._is("mark", "[") else None)

    def _offset(self) -> int:
        if self._is("number") and self._peek().text.startswith("+"):
            token = self._expect("number")
        elif self._accept("mark", "+"):
            token = self._expect("number", what="an offset in bytes")
        else:
            return 0
        if not token.text.lstrip("+").isdecimal():
            self._fail("an offset in bytes", str(token), token)
        return int(token.text)

    def _stride(self) -> int:
        token = self._expect("number", what="a stride, 0 or more")
        if not token.text.isdecimal():
            self._fail("a stride, 0 or more", str(token), token)
        return int(token.text)

    # -- small rules ----------------------------------------------------------------------------------------------

    def _type(self, mark: str = ":") -> TensorType:
        self._expect("mark", mark)
        token = self._expect("word", what="a type such as f32[2,3]")
        if token.text not in _SHORT:
            self._fail(f"a dtype ({', '.join(_SHORT)})", str(token), token)
        dims = self._items(self._dim)
        return TensorType(tuple(dims), as_dtype(token.text))

    def _dim(self) -> int:
        token = self._expect("number", what="a dimension, 0 or more")
        if not token.text.isdecimal():
            self._fail("a dimension, 0 or more", str(token), token)
        return int(token.text)

    def _scalar(self) -> bool | int | float | str:
        token = self._peek()
        self._next += 1
        if token.kind == "string":
            return token.text
        if token.kind == "number":
            return int(token.text) if token.text.lstrip("+-").isdecimal() else float(token.text)
        if token.kind != "word" or token.text not in ("true", "false"):
            self._fail("a number, a string, true or false", str(token), token)
        return token.text == "true"

    def _items(self, rule: Callable[[], Any]) -> tuple[Any, ...]:
        self._expect("mark", "[")
        if self._accept("mark", "]"):
            return ()
        items = self._separated(rule)
        self._expect("mark", "]")
        return tuple(items)

    def _separated(self, rule: Callable[[], Any]) -> list[Any]:
        items = [rule()]
        while self._accept("mark", ","):
            items.append(rule())
        return items

    def _operand(self) -> _Token:
        return self._accept("word", "_") or self._expect("value", what="a value such as %y, or _")

    def _known_value(self) -> Value:
        token = self._expect("value", what="a value such as %x, or _ where an optional input is absent")
        if not self._graph.has_value(token.text):
            self._fail("a value that is defined above", str(token), token)
        return self._graph.value(token.text)

    def _name(self, what: str) -> _Token:
        return self._expect("string") if self._is("string") else self._expect("word", what=what)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _is(self, kind: str, text: str | None = None) -> bool:
        token = self._peek()
        return token.kind == kind and (text is None or token.text == text)

    def _accept(self, kind: str, text: str | None = None) -> _Token | None:
        return self._expect(kind, text) if self._is(kind, text) else None

    def _expect(self, kind: str, text: str | None = None, *, what: str = "") -> _Token:
        token = self._peek()
        if not self._is(kind, text):
            self._fail(what or (f"'{text}'" if text is not None else f"a {kind}"), str(token), token)
        if kind != "end":
            self._next += 1
        return token

    def _fail(self, expected: str, found: str, token: _Token | None = None) -> NoReturn:
        at = (token or self._peek()).at
        raise ParseError(f"{_place(self._text, at)}: expected {expected}, found {found}")

    def _at(self, token: _Token, action: Callable[..., Any], *args: Any) -> Any:
        """Run `action`; whatever it objects to is an error at `token`."""
        try:
            return action(*args)
        except ParseError:
            raise
        except (MemoptError, ValueError, OverflowError, TypeError) as error:
            raise ParseError(f"{_place(self._text, token.at)}: {error}") from None


def _build_storage(
    graph: Graph, values: dict[str, list[Value]], buffers: dict[str, list[_Placed]]
) -> Storage:
    place: dict[str, tuple[Buffer, int, Strides | None]] = {}
    for name, held in buffers.items():
        buffer = Buffer(name)
        for variable, offset, strides in held:
            if variable not in values:
                raise VerifyError(f"buffer {name} holds variable {variable!r}, which does not exist")
            if variable in place:
                raise VerifyError(f"variable {variable} is in two buffers, {place[variable][0].name} and {name}")
            place[variable] = (buffer, offset, strides)
    order = {value: i for i, value in enumerate(graph.values)}
    storage = Storage()
    for name, bound in sorted(values.items(), key=lambda item: min(order[value] for value in item[1])):
        buffer, offset, strides = place.get(name) or (Buffer(name), 0, None)
        storage.add(Variable(name, buffer, offset, strides), bound)
    return storage
