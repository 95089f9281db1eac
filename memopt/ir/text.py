"""The canonical text of a graph, and its parser (being written)."""

from __future__ import annotations

from memopt.ir.graph import Graph

__all__ = ["parse", "print_graph"]


def print_graph(graph: Graph) -> str:
    raise NotImplementedError


def parse(text: str) -> Graph:
    raise NotImplementedError
