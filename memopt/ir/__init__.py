"""The intermediate representation: values, nodes, graphs, storage, and their text."""

from memopt.ir.builder import GraphBuilder
from memopt.ir.graph import Graph
from memopt.ir.names import nearest_names
from memopt.ir.storage import Buffer, Storage, Variable
from memopt.ir.text import parse, print_graph
from memopt.ir.value import Node, Use, Value
from memopt.ir.verify import verify

__all__ = [
    "Buffer",
    "Graph",
    "GraphBuilder",
    "Node",
    "Storage",
    "Use",
    "Value",
    "Variable",
    "nearest_names",
    "parse",
    "print_graph",
    "verify",
]
