"""What a graph remembers of in-place methods: which were written, what gradients stop at, how strict to be.

Holds true: nothing here changes what a graph computes. An in-place method makes new values like any other (the graph
stays SSA); its request says which value *asked* to take over the bytes of which. Passes decide; `memopt.report.inplace`
says how it went. Values and nodes are noted by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["InplaceNotes", "InplacePlace", "InplaceRequest"]


class InplacePlace(NamedTuple):
    """Value `new`, made by `node`, asked for the bytes of value `old`."""

    node: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class InplaceRequest:
    """One in-place method: its name (`add_`, `[...] =`), the value that it was called on, and the places it asked for.

    A write through a view asks for several: that of the view, then that of what it is a view of. A rebinding
    (`x[:] = y`, whole) asks for none.
    """

    method: str
    target: str
    places: tuple[InplacePlace, ...]


@dataclass(slots=True)
class InplaceNotes:
    """requests   the in-place methods, in the order of writing
    stopped    names of values at which gradients stop (made under `no_grad`, or by `stop_gradient`)
    strict     whether `memopt.grad` raises where a saved value would be overwritten
    """

    requests: list[InplaceRequest] = field(default_factory=list)
    stopped: dict[str, None] = field(default_factory=dict)
    strict: bool = False

    def copy(self) -> InplaceNotes:
        return InplaceNotes(list(self.requests), dict(self.stopped), self.strict)
