"""Transfers: bring an operand to the placement that a kernel wants, in the order layout -> dtype -> device.

Each step that changes something copies into a fresh buffer of the node's transfer scope. Whether one copy serves
several readers, and how long copies live, are options (Fluid: no; until the end of the step).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from memopt.devices import Placement
from memopt.ir import Node, Value, Variable
from memopt.lowering.program import Instruction, Transfer
from memopt.lowering.scope import Draft, Location, Scope, placed_bytes

__all__ = ["Transfers", "steps_between"]

_Kind = Literal["layout", "dtype", "device"]


def steps_between(have: Placement, want: Placement) -> list[tuple[_Kind, Placement]]:
    """The transfers from `have` to `want`: each with its kind and the placement after it."""
    steps: list[tuple[_Kind, Placement]] = []
    if have.layout != want.layout:
        have = replace(have, layout=want.layout)
        steps.append(("layout", have))
    if have.dtype != want.dtype:
        have = replace(have, dtype=want.dtype)
        steps.append(("dtype", have))
    if have.device != want.device:
        steps.append(("device", replace(have, device=want.device)))
    return steps


@dataclass(slots=True)
class Transfers:
    """Emits transfers. `share` lets one copy serve every later reader, until the variable is written."""

    scope: Scope
    out: list[Instruction]
    share: bool = False
    _copies: dict[tuple[Variable, int, Placement], Location] = field(default_factory=dict)

    def bring(self, node: Node, value: Value, want: Placement) -> Location:
        """The location of `value` for `node`, as `want`: where it is, or a copy."""
        variable = self.scope.graph.storage.variable(value)
        here = self.scope.locations[variable]
        if here.placement == want:
            return here
        key = (variable, self.scope.versions[variable], want)
        if self.share and key in self._copies:
            return self._copies[key]
        for kind, placement in steps_between(here.placement, want):
            size = placed_bytes(value, placement)
            draft = Draft(f"{node.name}/{variable.name}", placement.device, "arena", size, size, transfer=True)
            there = Location(self.scope.new_buffer(draft), 0, placement)
            self._emit(node.name, kind, variable, value, here, there)
            here = there
        self._copies[key] = here
        return here

    def forget(self, copy: Location) -> None:
        """This copy's bytes have been overwritten: it serves no later reader."""
        self._copies = {key: there for key, there in self._copies.items() if there.buffer != copy.buffer}

    def bring_home(self, value: Value, home: Location) -> None:
        """At the end of the step: the last value of a parameter's variable goes back to where the parameter lives."""
        variable = self.scope.graph.storage.variable(value)
        here = self.scope.locations[variable]
        if here == home:
            return
        steps = steps_between(here.placement, home.placement)
        for kind, placement in steps[:-1]:
            size = placed_bytes(value, placement)
            draft = Draft(f"home/{variable.name}", placement.device, "arena", size, size, transfer=True)
            there = Location(self.scope.new_buffer(draft), 0, placement)
            self._emit("", kind, variable, value, here, there)
            here = there
        self.out.append(
            Transfer("", "home", here.operand(variable.name, value.name), home.operand(variable.name, value.name))
        )

    def _emit(self, node: str, kind: _Kind, variable: Variable, value: Value, here: Location, there: Location) -> None:
        self.out.append(
            Transfer(node, kind, here.operand(variable.name, value.name), there.operand(variable.name, value.name))
        )
