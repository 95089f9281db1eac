"""Some of a plan's merges, made again: which decisions let which values share, and the graph with only a few of them.

Holds true: `replayed(plan, d)` has the plan's nodes in their order; of its storage, exactly the merges that the
decisions in `d` made, values at the same distances within a buffer; and what updates bind by definition. A view that
has to do with strides, its own or its source's, is with its source or with nobody. Leaving merges out of sound storage
leaves it sound. `replayed(plan, merges_of(plan))` shares as the plan's graph does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memopt.analysis import updated_value
from memopt.ir import Graph, Storage, Value, Variable, lies_as_view, stepped_view
from memopt.pipeline import Decision
from memopt.plan import MemoryPlan

__all__ = ["merges_of", "replayed"]


#: (a value that stands for those of one buffer, whether merges brought them together; else they are one variable's).
_Home = tuple[Value, bool]


def replayed(plan: MemoryPlan, decisions: Iterable[Decision]) -> Graph:
    """A copy of the plan's graph whose storage has, of its merges, only those that `decisions` made."""
    twin = plan.graph.copy()
    final = twin.storage
    groups, names = _Union(), _Union()
    for value in twin.values:
        old = updated_value(value)
        if old is not None:
            groups.join(value, old)
            names.join(value, old)
    for decision in decisions:
        first, *others = (twin.value(name) for name in decision.subject)
        for other in others:
            groups.join(first, other)
            if final.variable(first) is final.variable(other):
                names.join(first, other)
    homes = {value: (groups.find(value), True) for value in twin.values}
    while any(_part(value, final, homes, names) for value in twin.values):
        pass
    twin.storage = _rebuilt(twin.values, final, homes, names)
    return twin


def _part(value: Value, final: Storage, homes: dict[Value, _Home], names: _Union) -> bool:
    """Whether `value` was a view, in strides or of what is, and is now taken out of a group in which its source is not:
    there it would be other content in other places.
    """
    view = stepped_view(final, value) if lies_as_view(final, value) else None
    if view is None or homes[view.source] == homes[value]:
        return False
    if final.variable(value).strides is None and final.variable(view.source).strides is None:
        return False
    alone = [one for one in homes if names.find(one) is names.find(value)]
    home = names.find(value), False
    if homes[value] == home:
        return False
    homes.update(dict.fromkeys(alone, home))
    return True


def _rebuilt(values: Sequence[Value], final: Storage, homes: dict[Value, _Home], names: _Union) -> Storage:
    """The storage in which a group has a buffer, and those of one name in it a variable; offsets are as before, and so
    are strides but of what is alone.
    """
    storage = Storage()
    lowest: dict[_Home, int] = {}
    members: dict[_Home, set[Value]] = {}
    for value in values:
        group, offset = homes[value], final.variable(value).offset
        lowest[group] = min(lowest.get(group, offset), offset)
        members.setdefault(group, set()).add(names.find(value))
    variables: dict[Value, Variable] = {}
    first: dict[_Home, Variable] = {}
    for value in values:
        name, group = names.find(value), homes[value]
        known = variables.get(name)
        if known is not None:
            storage.define(value, known)
            continue
        variable = variables[name] = storage.define(value)
        lead = first.setdefault(group, variable)
        storage.share(variable, lead.buffer, final.variable(value).offset - lowest[group])
        variable.strides = final.variable(value).strides if len(members[group]) > 1 else None
    return storage


class _Union:
    """Disjoint sets of values."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}

    def find(self, value: Value) -> Value:
        while self._parent.get(value, value) is not value:
            parent = self._parent[value]
            self._parent[value] = self._parent.get(parent, parent)
            value = parent
        return value

    def join(self, a: Value, b: Value) -> None:
        self._parent[self.find(a)] = self.find(b)


def merges_of(plan: MemoryPlan) -> tuple[Decision, ...]:
    """The decisions that made values share a buffer; for merges that no decision explains, one each that says so."""
    graph, storage, sets = plan.graph, plan.graph.storage, _Union()
    found = []
    for decision in plan.decisions:
        names = decision.subject
        if not decision.accepted or len(names) < 2 or not all(graph.has_value(name) for name in names):
            continue
        values = [graph.value(name) for name in names]
        if len({storage.buffer(value) for value in values}) == 1:
            found.append(decision)
            for other in values[1:]:
                sets.join(values[0], other)
    for value in graph.values:
        old = updated_value(value)
        if old is not None:
            sets.join(value, old)
    for buffer in storage.buffers:
        first, *others = storage.tenants(buffer)
        for other in others:
            if sets.find(first) is not sets.find(other):
                sets.join(first, other)
                maker = other.producer.name if other.producer is not None else ""
                subject = (other.name, first.name)
                found.append(Decision("storage", maker, subject, True, "they share a buffer", other.nbytes, 0))
    return tuple(dict.fromkeys(found))
