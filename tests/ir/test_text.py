from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memopt.errors import ParseError, VerifyError
from memopt.ir import Graph, GraphBuilder, parse, print_graph, verify
from tests.strategies import graphs

DEVICES = (None, "host", "gpu")


def same_graph(a: Graph, b: Graph) -> None:
    """Equal in all that the text says."""
    assert a.name == b.name
    assert a.donated == b.donated
    for one, two in ((a.inputs, b.inputs), (a.params, b.params), (a.outputs, b.outputs)):
        assert [(v.name, v.type) for v in one] == [(v.name, v.type) for v in two]
    for node, twin in zip(a.nodes, b.nodes, strict=True):
        assert (node.name, node.op, node.device) == (twin.name, twin.op, twin.device)
        assert repr(dict(node.attrs)) == repr(dict(twin.attrs))
        assert [v and v.name for v in node.inputs] == [v and v.name for v in twin.inputs]
        assert [v and (v.name, v.type) for v in node.outputs] == [v and (v.name, v.type) for v in twin.outputs]
        assert [n.name for n in node.controls] == [n.name for n in twin.controls]
    assert places(a) == places(b)


def places(graph: Graph) -> dict[str, tuple[str, str, int]]:
    """value -> (variable, buffer, offset)"""
    found = {v.name: graph.storage.variable(v) for v in graph.values}
    return {name: (variable.name, variable.buffer.name, variable.offset) for name, variable in found.items()}


@given(graphs(devices=DEVICES, min_dim=0), st.randoms(use_true_random=False))
def test_text_round_trips(graph, random):
    storage = graph.storage
    for node in graph.nodes[1:]:
        if random.random() < 0.3:
            node.controls.append(random.choice(graph.nodes[: graph.nodes.index(node)]))
    for _ in range(random.randrange(4)):  # any storage that updates allow, sound or not
        one, two = random.choice(storage.variables), random.choice(storage.variables)
        if random.random() < 0.5:
            storage.rename(one, into=two)
        else:
            storage.share(one, two.buffer, 4 * random.randrange(3))
    verify(graph)
    text = print_graph(graph)
    again = parse(text)
    assert print_graph(again) == text
    assert text.isascii()
    same_graph(graph, again)
    same_graph(graph.copy(), again)


NAMES = st.text(min_size=1, max_size=5).filter(lambda s: not any(c.isspace() or c in '%,(){}"' for c in s))


@given(st.lists(NAMES, min_size=3, max_size=3, unique=True), st.text(max_size=5), st.text(min_size=1, max_size=5))
def test_any_name_round_trips(names, title, device):
    b = GraphBuilder(title, device=device)
    x = b.input(names[0], (2,))
    y = b.op("Relu", x, outputs=[names[1]], name=names[2])
    b.graph.add_node("Neg", [y], ["z z".replace(" ", "_") + names[2]]).controls.append(y.producer)
    graph = b.build()
    graph.storage.share(graph.storage.variable(y), graph.storage.buffer(x))
    same_graph(graph, parse(print_graph(graph)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool"])
def test_parameter_data_round_trips(dtype):
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    special = [True, False] if dtype == "bool" else [0.1, -0.0, np.inf, -np.inf, np.nan, 1e-7, 65504.0, 1 / 3]
    data = np.array([info.min, info.max, 0] if info else special, dtype)
    b = GraphBuilder("data")
    b.output(b.param("w", data))
    again = parse(print_graph(b.build())).param_data("w")
    assert again.dtype == data.dtype
    assert again.tobytes() == data.tobytes()


def test_large_and_missing_data_is_left_out():
    b = GraphBuilder("data")
    b.param("large", np.arange(17, dtype=np.float32))
    b.param("none", shape=(2,))
    b.param("empty", np.zeros((0, 3), np.float32))
    graph = parse(print_graph(b.build()))
    assert graph.param_data("large") is None
    assert graph.param_data("none") is None
    assert graph.param_data("empty").shape == (0, 3)


def test_the_text_of_a_graph(golden: Callable[[str, str], None]):
    b = GraphBuilder("all of it")
    x = b.input("x", (4, 2), donated=True)
    w = b.param("w:0", np.array([0.1, np.inf], np.float32))
    y = b.op("Add", x, w, outputs=["y"])
    p, _ = b.op("Split", y, axis=0, outputs=["p", "q"], name="split it", device="gpu")
    z = b.op("Clip", p, max=1.5, outputs=["z"])
    b.op("Dropout", z, outputs=["d", None])
    b.output(z, x)
    graph = b.build()
    z.producer.controls.append(y.producer)
    storage = graph.storage
    storage.rename(storage.variable(z), into=storage.variable(p))
    storage.share(storage.variable(graph.value("q")), storage.buffer(y), 16)
    golden("ir/all.txt", print_graph(graph))
    same_graph(graph, parse(print_graph(graph)))


def test_comments_and_line_breaks_are_white_space():
    text = 'graph "g" { # a graph\n input %x: f32[2] %y = Relu(%x)\n # types may be left out\n output\n %y }'
    assert print_graph(parse(text)).splitlines()[2] == "  %y = Relu(%x) : f32[2]"


HEAD = 'graph "g" {\n  input %x: f32[2]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'graph', found the end of the text"),
        ("graph g {}", "line 1, column 7: expected the graph's name in quotes, found 'g'"),
        ('graph "g" {} x', "line 1, column 14: expected the end of the text, found 'x'"),
        (HEAD + "  ;", "line 3, column 3: expected a name, a number, a string or a mark, found ';'"),
        (HEAD + '  "\\q"', "line 3, column 3: expected a JSON string"),
        (HEAD + "  param %w: f99[2]", "line 3, column 13: expected a dtype (f16, "),
        (HEAD + "  param %w: f32[-1]", "line 3, column 17: expected a dimension, 0 or more, found '-1'"),
        (HEAD + "  param %w: f32[2] = [1]", "line 3, column 22: expected 2 numbers for %w: f32[2], found 1"),
        (HEAD + "  param %w: i32[1] = [0.5]", "line 3, column 22: expected integers for %w: i32[1]"),
        (HEAD + "  param %w: u8[1] = [256]", "line 3, column 21: "),
        (HEAD + "  input %x: f32[2]", "line 3, column 9: graph 'g' defines %x twice"),
        (HEAD + "  %y = Relu(%z)", "line 3, column 13: expected a value that is defined above, found '%z'"),
        (HEAD + "  %y = Rellu(%x)", "line 3, column 8: there is no op 'Rellu'; did you mean Relu"),
        (HEAD + "  %y = Relu(%x) : f32[3]", "line 3, column 19: expected f32[2] for %y, as Relu infers, found f32[3]"),
        (HEAD + "  %y = Relu(%x) {a=1}", "line 3, column 8: node y (Relu): Relu has no attribute 'a'"),
        (HEAD + "  %y = Clip(%x) {max=1, max=2}", "line 3, column 25: expected attribute max once, found it twice"),
        (HEAD + "  %y = Clip(%x) {max=oops}", "column 22: expected a number, a string, true or false, found 'oops'"),
        (HEAD + "  %y = Relu(%x) after(n)", "line 3, column 23: expected the name of a node above, found 'n'"),
        (HEAD + "  output %y\n}", "line 3, column 10: expected a value that is defined above, found '%y'"),
        (HEAD + "  storage { slot a: x } }", "line 3, column 13: expected `variable name: %a, ...`"),
        (HEAD + "  storage { buffer a: b } }", "line 3, column 3: buffer a holds variable 'b', which does not exist"),
        (HEAD + "  storage { buffer a: x buffer b: x } }", "line 3, column 3: variable x is in two buffers, a and b"),
        (HEAD + "  storage { buffer a: x+0.5 } }", "line 3, column 24: expected an offset in bytes, found '+0.5'"),
        (HEAD + "  storage { variable a: %x variable b: %x } }", "column 3: value %x is bound already"),
        (HEAD + "  %y = Relu(%x) storage { variable x: %y } }", "every value of variable x, found %x left out"),
        (
            'graph "g" { param %p: f32[] input %g: f32[] %q = SGD(%p, %g, %g) storage { variable q: %q } }',
            "line 1, column 1: node q (SGD) updates %p, but %q has another variable",
        ),
    ],
)
def test_errors_say_where_and_what(text, message):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_where_a_parameter_lives_round_trips_and_is_copied():
    b = GraphBuilder("lives")
    b.output(b.add(b.param("w", np.ones(2, np.float32), device="host"), b.param("v", shape=(2,), device="my gpu")))
    graph = b.build()
    assert "param %w: f32[2] @host = [1.0, 1.0]\n" in print_graph(graph)
    for again in (parse(print_graph(graph)), graph.copy()):
        assert again.param_devices == {"w": "host", "v": "my gpu"}
        assert print_graph(again) == print_graph(graph)
    graph.param_devices["add"] = "host"
    with pytest.raises(VerifyError, match="param_devices names %add, which is not a parameter"):
        verify(graph)
