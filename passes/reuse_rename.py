"""`ReuseRename`: an output gets the *variable* of values that are dead (the cross-op reuse of Fluid 1.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memopt.analysis import (
    ExecutionOrder,
    Occupancy,
    Reason,
    ReuseRecord,
    Verdict,
    borrower_refusal,
    check_order,
    param_variables,
    walk_reuse,
)
from memopt.ir import Buffer, Graph, Node, Value, Variable
from memopt.pipeline import Decision, PassResult
from passes.fluid_table import MIN_CHUNK_ELEMENTS
from passes.results import pass_result

__all__ = ["ReuseRename", "reuse_rename", "reuse_rename_fluid"]


@dataclass(frozen=True)
class ReuseRename:
    """Cross-op reuse by renaming. `fluid_rules=True` reuses as 1.5 does: same dtype, equal bytes, fetches unknown.

    By default: the smallest dead buffer that is large enough, if the peak of live bytes does not rise. `min_elements`
    is Fluid's MinChunkSize.
    `order="any"` adds the control edges with which its shares hold under every order.
    """

    fluid_rules: bool = False
    min_elements: int = MIN_CHUNK_ELEMENTS
    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "reuse-rename"

    def __post_init__(self) -> None:
        check_order(self.order)

    def run(self, graph: Graph) -> PassResult:
        records = reuse_rename_fluid(graph, self.min_elements) if self.fluid_rules else reuse_rename(graph)
        decisions = [
            Decision(
                self.name,
                node.name,
                (output.name,) if lender is None else (output.name, lender.name),
                v.accepted,
                v.text,
                v.num_bytes,
                step,
                v.reason,
            )
            for node, step, output, lender, v in records
        ]
        return pass_result(self.name, graph, decisions, self.order)


def reuse_rename(graph: Graph) -> list[ReuseRecord]:
    """Bind outputs to the variables of dead values; a record for every output."""
    return walk_reuse(graph, _rename)


def _rename(occupancy: Occupancy, output: Value, lender: Buffer) -> bool:
    storage = occupancy.graph.storage
    offset = storage.variable(output).offset
    if storage.variable(output).strides is not None:
        return False
    for tenant in reversed(occupancy.tenants(lender)):
        variable = storage.variable(tenant.value)
        if variable.offset == offset and variable.strides is None:
            occupancy.rename(output, variable)
            return True
    return False


# -- Fluid 1.5 --------------------------------------------------------------------------------------------------------


def reuse_rename_fluid(graph: Graph, min_elements: int) -> list[ReuseRecord]:
    """Fluid 1.5's rules: one linear chain, liveness of names by their readers only, a pool searched in order."""
    rules = _Fluid15(graph, min_elements)
    records: list[ReuseRecord] = []
    for step, node in enumerate(graph.nodes):
        for _, output in node.real_outputs:
            refusal = rules.refusal(node, output)
            cache = None if refusal is not None else rules.take(output)
            if refusal is None and cache is None:
                text = f"no dead variable has the dtype and exactly the {output.nbytes} B of %{output.name}"
                refusal = Verdict(False, Reason.NO_CANDIDATE, text, output.nbytes)
            if cache is None:
                assert refusal is not None
                records.append((node, step, output, None, refusal))
                continue
            saved = rules.occupancy.size(graph.storage.buffer(output))
            rules.occupancy.rename(output, graph.storage.variable(cache))
            text = f"%{cache.name} is dead and has the same dtype and bytes"
            records.append((node, step, output, cache, Verdict(True, Reason.FLUID, text, saved)))
        rules.after(step, node)
    return records


class _Fluid15:
    """The pool of dead variables of 1.5, each by its last value."""

    def __init__(self, graph: Graph, min_elements: int) -> None:
        self._graph = graph
        self._min_elements = min_elements
        self.occupancy = Occupancy(graph)
        self._persistent = param_variables(graph)
        self._pool: list[Value] = []
        self._last_use = {v: step for step, node in enumerate(graph.nodes) for v in node.inputs if v is not None}

    def refusal(self, node: Node, output: Value) -> Verdict | None:
        """Why `output` may not be renamed, or None. A variable that is written leaves the pool."""
        mine = self._graph.storage.variable(output)
        self._pool = [value for value in self._pool if self._graph.storage.variable(value) is not mine]
        refusal = borrower_refusal(self.occupancy, output)
        if refusal is not None:
            return refusal
        if mine in self._inputs(node):
            text = f"variable {mine.name} is an input of {node.op} too"
            return Verdict(False, Reason.ALREADY_BORROWED, text, output.nbytes)
        if not self._can_be_reused(output):
            text = f"%{output.name} is persistent, or has fewer than {self._min_elements} elements"
            return Verdict(False, Reason.TOO_SMALL, text, output.nbytes)
        return None

    def take(self, output: Value) -> Value | None:
        """Take the first dead variable of the same dtype and bytes."""
        for i, value in enumerate(self._pool):
            if value.dtype == output.dtype and value.nbytes == output.nbytes:
                return self._pool.pop(i)
        return None

    def after(self, step: int, node: Node) -> None:
        """Admit the variables whose last reader this node is; what no node made never enters."""
        storage = self._graph.storage
        written = [value for _, value in node.real_outputs if self._last_use.get(value, -1) > step]
        busy = {storage.variable(value) for value in (*written, *self._pool)}
        for value in node.inputs:
            if value is None or value.producer is None or self._last_use[value] != step:
                continue
            variable = storage.variable(value)
            if variable not in busy and self._can_be_reused(value):
                busy.add(variable)
                self._pool.append(value)

    def _inputs(self, node: Node) -> set[Variable]:
        return {self._graph.storage.variable(value) for value in node.inputs if value is not None}

    def _can_be_reused(self, value: Value) -> bool:
        large, variable = value.type.num_elements >= self._min_elements, self._graph.storage.variable(value)
        return bool(value.shape) and large and variable.strides is None and variable not in self._persistent
