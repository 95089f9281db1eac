"""The intermediate representation: values, nodes, graphs, storage, their text, and the builders that write them."""

from memopt.ir.builder import GraphBuilder, TensorBuilder, as_value
from memopt.ir.graph import Graph
from memopt.ir.handle import Tensor
from memopt.ir.inplace import InplaceNotes, InplacePlace, InplaceRequest
from memopt.ir.names import nearest_names
from memopt.ir.stepped import SteppedView, lies_as_view, stepped_view, view_input, view_steps
from memopt.ir.storage import Buffer, Storage, Variable
from memopt.ir.text import parse, print_graph
from memopt.ir.value import Node, Use, Value
from memopt.ir.verify import verify

__all__ = [
    "Buffer",
    "Graph",
    "GraphBuilder",
    "InplaceNotes",
    "InplacePlace",
    "InplaceRequest",
    "Node",
    "SteppedView",
    "Storage",
    "Tensor",
    "TensorBuilder",
    "Use",
    "Value",
    "Variable",
    "as_value",
    "lies_as_view",
    "nearest_names",
    "parse",
    "print_graph",
    "stepped_view",
    "verify",
    "view_input",
    "view_steps",
]
