"""What a plan was compiled from, so that it can be compiled again with a change; and the values to keep or leave out.

Holds true: a recipe refers to the caller's graph, which `compile` does not change; its stamp tells whether the caller
has changed it since. A value that is kept is an output for every pass, and for the validator. A value that is left out
has a buffer of its own after every pass, except with the versions of its variable that updates make by definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memopt.analysis import Reason, updated_value
from memopt.errors import OptionError
from memopt.ir import Graph, Value, nearest_names, verify
from memopt.pipeline import Decision, Pass, PassResult, known_passes, leave_out_passes, pass_names

__all__ = ["Recipe", "keep_values", "leave_out"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """The graph and the options of one `compile`."""

    graph: Graph
    options: Mapping[str, object]
    stamp: int

    @staticmethod
    def of(graph: Graph, options: Mapping[str, object]) -> Recipe:
        return Recipe(graph, options, _stamp(graph))

    def is_current(self) -> bool:
        """Whether the graph is as it was."""
        return _stamp(self.graph) == self.stamp


def _stamp(graph: Graph) -> int:
    """A digest of what a plan depends on: nodes, edges, devices, feeds, outputs and storage (no parameter's data)."""
    nodes = tuple((n, n.inputs, n.outputs, n.device, tuple(n.controls)) for n in graph.nodes)
    ends = (tuple(graph.inputs), tuple(graph.params), tuple(graph.outputs), frozenset(graph.donated))
    variables = tuple((v, v.buffer, v.offset, v.strides, graph.storage.values_of(v)) for v in graph.storage.variables)
    return hash((nodes, ends, variables))


def keep_values(graph: Graph, names: Sequence[str]) -> dict[str, object]:
    """Make the values outputs of `graph`; returns the plan's options that say so.

    Raises `OptionError` for a value that there is not, `VerifyError` for one that an update overwrites.
    """
    if isinstance(names, str):
        raise OptionError(f"keep={names!r} is text; give a list of names: keep=[{names!r}]")
    values = []
    for name in names:
        if not graph.has_value(name.removeprefix("%")):
            raise OptionError(f"keep={name!r} is not a value of graph {graph.name!r}{nearest_names(graph, name)}")
        values.append(graph.value(name))
    if not values:
        return {}
    extra = [value for value in dict.fromkeys(values) if value not in graph.outputs]
    graph.set_outputs([*graph.outputs, *extra])
    verify(graph)
    kept = tuple(dict.fromkeys(value.name for value in values))
    return {"keep": kept, "extra_outputs": tuple(value.name for value in extra)}


def leave_out(graph: Graph, passes: Sequence[Pass], names: Sequence[str]) -> tuple[Pass, ...]:
    """`passes` without those that `names` names, and such that the values that it names share with nobody.

    Raises `OptionError` for what is neither a pass nor a value.
    """
    if isinstance(names, str):
        raise OptionError(f"without={names!r} is text; give a list of names: without=[{names!r}]")
    have = {*pass_names(passes), *(one.name for one in passes)}
    gone: set[str] = set()
    for name in names:
        if name in have:
            gone.add(name)
        elif graph.has_value(name.removeprefix("%")):
            graph.excluded.add(name.removeprefix("%"))
        elif name not in known_passes():
            raise OptionError(
                f"without={name!r} is neither a pass nor a value of graph {graph.name!r}; the passes are "
                f"{', '.join(sorted(have)) or 'none'}{nearest_names(graph, name)}"
            )
    left = leave_out_passes(passes, gone)
    return tuple(_Apart(one) for one in left) if graph.excluded else left


@dataclass(frozen=True)
class _Apart:
    """A pass, after which the excluded values have buffers of their own."""

    inner: Pass

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, graph: Graph) -> PassResult:
        result = self.inner.run(graph)
        decisions = [_undone(graph, d) if d.accepted else d for d in result.decisions]
        undone = any(old is not new for old, new in zip(result.decisions, decisions, strict=True))
        modified = any(d.accepted for d in decisions) if undone else result.modified
        for name in sorted(graph.excluded):
            value = graph.value(name)
            if not _is_updated(graph, value):
                graph.storage.separate(value)
        return PassResult(modified, decisions)


def _is_updated(graph: Graph, value: Value) -> bool:
    """Whether an update binds `value` to another value's variable, or another to its."""
    versions = graph.storage.values_of(graph.storage.variable(value))
    return updated_value(value) is not None or any(updated_value(other) is value for other in versions)


def _undone(graph: Graph, decision: Decision) -> Decision:
    name = next((name for name in decision.subject if name in graph.excluded), None)
    if name is None:
        return decision
    return replace(decision, accepted=False, rule=Reason.EXCLUDED, reason=f"%{name} is left out by request")
