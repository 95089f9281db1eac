"""memopt: compile a tensor graph into a checked memory plan, and run it.

    import memopt

    graph = memopt.load("model.onnx", dims={"batch": 1})
    plan = memopt.compile(graph, passes="share", machine=memopt.Machine.host_and("gpu", lacks={"BatchNormalization"}))
    print(plan.report())
    outputs = plan.run({"x": x})

This package imports neither numba nor onnx, networkx or scipy until they are needed.
"""

from memopt.autodiff import check_saved, grad
from memopt.bisect import Bisection, bisect
from memopt.compare import Comparison, compare
from memopt.compile import Plan, compile, load_plan
from memopt.devices import Device, Machine
from memopt.errors import InvalidPlanError, MemoptError
from memopt.frontends import load
from memopt.ir import Graph, GraphBuilder, Tensor, TensorBuilder, parse
from memopt.pipeline import Decision, PassResult, known_passes, known_strategies, run_pipeline
from memopt.runtime import run_reference
from memopt.training import SGD, Adam, AdamW, Momentum, training_step
from memopt.types import TensorType
from memopt.validate import Finding, validate

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bisection",
    "Comparison",
    "Decision",
    "Device",
    "Finding",
    "Graph",
    "GraphBuilder",
    "InvalidPlanError",
    "Machine",
    "MemoptError",
    "Momentum",
    "PassResult",
    "Plan",
    "Tensor",
    "TensorBuilder",
    "TensorType",
    "__version__",
    "bisect",
    "check_saved",
    "compare",
    "compile",
    "grad",
    "known_passes",
    "known_strategies",
    "load",
    "load_plan",
    "parse",
    "run_pipeline",
    "run_reference",
    "training_step",
    "validate",
]

__version__ = "0.1.0"
