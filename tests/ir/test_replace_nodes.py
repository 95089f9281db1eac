"""`Graph.replace_nodes`: one node in the place of several; nothing changes where it cannot be."""

from __future__ import annotations

import pytest

from memopt.errors import MemoptError, TypeInferenceError, VerifyError
from memopt.ir import Graph, parse, print_graph, verify

TEXT = """graph "g" {
  input %x: f32[4]
  input %y: f32[4]
  %a = Neg(%x)
  %b = Abs(%y)
  %c = Relu(%a) after(b)
  %d = Tanh(%c) @gpu "last"
  %e = Add(%d, %b) after(a, last)
  output %d
  output %e
}"""
#: `a` leads to `b` and `b` to `c`: no one node can stand for `a` and `c`.
KNOT = TEXT.replace("%b = Abs(%y)", "%b = Abs(%y) after(a)")


def nodes_of(graph: Graph, *names: str):
    return [graph.node(name) for name in names]


def test_the_new_node_makes_the_same_value_under_the_old_name():
    graph = parse(TEXT)
    d, e = graph.value("d"), graph.node("e")
    node = graph.replace_nodes(nodes_of(graph, "a", "c", "last"), "Sin", [graph.value("x")], {}, step=2)
    verify(graph)
    assert (node.name, node.op, node.device, node.outputs) == ("last", "Sin", "gpu", (d,))
    assert d.producer is node
    assert graph.value("d") is d
    assert graph.outputs[0] is d
    assert [use.node for use in d.uses] == [e]
    assert not graph.has_value("a")
    assert not graph.has_node("c")
    assert print_graph(graph) == print_graph(parse(print_graph(graph)))
    assert print_graph(graph) == print_graph(graph.copy())


def test_control_edges_lead_to_and_from_the_new_node_once():
    graph = parse(TEXT)
    node = graph.replace_nodes(nodes_of(graph, "a", "c", "last"), "Sin", [graph.value("x")], {}, step=4)
    verify(graph)
    assert [one.name for one in graph.nodes] == ["b", "last", "e"]
    assert node.controls == [graph.node("b")]
    assert graph.node("e").controls == [node]


def test_names_are_free_again():
    graph = parse(TEXT)
    graph.replace_nodes(nodes_of(graph, "a", "c", "last"), "Sin", [graph.value("x")], {}, step=2)
    assert graph.fresh_name("a") == "a"
    assert graph.fresh_name("last") == "last.2"
    graph.add_node("Neg", [graph.value("x")], ["a"])
    verify(graph)


@pytest.mark.parametrize(
    ("names", "op", "inputs", "step", "error", "words"),
    [
        (("a", "b", "e"), "Add", ("x", "y"), 4, VerifyError, "%a is read by others"),
        (("a", "c", "last", "e"), "Add", ("x", "b"), 4, VerifyError, "%d is read by others"),
        (("a", "c", "last"), "Sin", ("c",), 2, VerifyError, "order puts node last before c, which it needs"),
        (("a", "c", "last"), "Sin", ("d",), 2, VerifyError, "order puts node last before last, which it needs"),
        (("a", "c", "last"), "Sin", ("x",), 1, VerifyError, "order puts node last before b"),
        (("c", "last"), "Sin", ("a",), 5, VerifyError, "order puts node e before last"),
        (("c", "last"), "Cast", ("a",), 3, TypeInferenceError, "'to'"),
        (("c", "last"), "Less", ("a", "x"), 3, VerifyError, "%d is f32[4], but Less makes b8[4]"),
        (("c", "last"), "Add", ("a",), 3, TypeInferenceError, "Add takes 2 inputs"),
    ],
)
def test_what_cannot_be_changes_nothing(names, op, inputs, step, error, words):
    graph = parse(TEXT)
    before = print_graph(graph)
    with pytest.raises(MemoptError) as found:
        graph.replace_nodes(nodes_of(graph, *names), op, [graph.value(name) for name in inputs], {}, step=step)
    assert isinstance(found.value, error)
    assert words in str(found.value)
    verify(graph)
    assert print_graph(graph) == before


@pytest.mark.parametrize("step", range(6))
def test_no_one_node_stands_where_control_edges_would_close_a_circle(step):
    graph = parse(KNOT)
    with pytest.raises(VerifyError, match="order puts node"):
        graph.replace_nodes(nodes_of(graph, "a", "c", "last"), "Sin", [graph.value("x")], {}, step=step)
    assert print_graph(graph) == print_graph(parse(KNOT))


def test_a_value_of_another_graph_is_refused():
    graph, other = parse(TEXT), parse(TEXT)
    with pytest.raises(VerifyError, match="not a value of graph"):
        graph.replace_nodes(nodes_of(graph, "c", "last"), "Sin", [other.value("a")], {}, step=3)
    verify(graph)
