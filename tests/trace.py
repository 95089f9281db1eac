"""A numeric witness beside the symbolic validator: run a plan row by row and compare every operand with the
reference's values.
"""

from __future__ import annotations

import numpy as np

from memopt import Plan, run_reference
from memopt.lowering import Call, Transfer
from memopt.runtime.rows import operand_view

__all__ = ["all_values", "coincide", "wrong_reads"]


def all_values(graph, feeds, state=None):
    """value name -> array, for every value of the graph."""
    made = [v.name for node in graph.nodes for v in node.outputs if v is not None]
    outputs, after = run_reference(graph, feeds, state, fetch=made)
    start = {v.name: feeds[v.name] for v in graph.inputs}
    start |= {v.name: (state or {}).get(v.name, graph.param_data(v)) for v in graph.params}
    return {**start, **outputs}, after


def close(a, b, rtol):
    return np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True)


def wrong_reads(plan: Plan, feeds, rtol=1e-4):
    """(instruction, value) of each operand, output or last parameter value whose bytes are not what the reference
    says.
    """
    values, after = all_values(plan.graph, feeds, plan.state())
    executor, wrong = plan.executor(), []
    regions = executor.regions

    def look(position, operand, name, want):
        shape = plan.graph.value(name).shape
        if not close(operand_view(plan, regions, operand, shape), want, rtol):
            wrong.append((position, name))

    for result in plan.program.feeds:
        operand_view(plan, regions, result.operand, plan.graph.value(result.name).shape)[...] = feeds[result.name]
    for position, instruction in enumerate(plan.program.instructions):
        if isinstance(instruction, Call):
            node = plan.graph.node(instruction.node)
            for operand, value in zip(instruction.inputs, node.inputs, strict=True):
                if operand is not None:
                    look(position, operand, value.name, values[value.name])
        if isinstance(instruction, (Call, Transfer)):
            executor.step(position)
    ends = [(plan.program.results, values), (plan.program.finals, after)]
    for result, wanted in ((result, wanted) for found, wanted in ends for result in found):
        look(None, result.operand, result.name, wanted[result.name])
    return wrong


def coincide(graph, feeds, state=None, rtol=1e-4):
    """Whether two values hold the same numbers, so that mixing them up need not show."""
    values, _ = all_values(graph, feeds, state)
    arrays = [np.asarray(a, np.float64).ravel() for a in values.values() if a.size]
    by_size: dict[int, list] = {}
    for array in arrays:
        by_size.setdefault(array.size, []).append(array)
    return any(
        np.isclose(a, b, rtol=rtol, atol=rtol, equal_nan=True).any()
        for group in by_size.values()
        for i, a in enumerate(group)
        for b in group[:i]
    )
