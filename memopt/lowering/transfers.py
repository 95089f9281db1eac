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
        if here.placement == want:  # in strides perhaps: those who read it there were asked
            return here
        key = (variable, self.scope.versions[variable], want)
        if self.share and key in self._copies:
            return self._copies[key]
        self._copies[key] = self._through(node.name, value, here, steps_between(here.placement, want))
        return self._copies[key]

    def forget(self, copy: Location) -> None:
        """This copy's bytes have been overwritten: it serves no later reader."""
        self._copies = {key: there for key, there in self._copies.items() if there.buffer != copy.buffer}

    def bring_home(self, value: Value, home: Location) -> None:
        """At the end of the step: the last value of a parameter's variable goes back to where the parameter lives."""
        variable = self.scope.graph.storage.variable(value)
        here = self.scope.locations[variable]
        if here == home:
            return
        here = self._through("", value, here, steps_between(here.placement, home.placement)[:-1])
        self._emit("", "home", value, here, home)

    def _through(self, node: str, value: Value, here: Location, steps: list[tuple[_Kind, Placement]]) -> Location:
        """Copy `value` from `here` step by step, each into a fresh transfer-scope buffer; where the last copy is."""
        variable = self.scope.graph.storage.variable(value)
        for kind, placement in steps:
            size = placed_bytes(value, placement)
            draft = Draft(f"{node or 'home'}/{variable.name}", placement.device, "arena", size, size, transfer=True)
            there = Location(self.scope.new_buffer(draft), 0, placement)
            self._emit(node, kind, value, here, there)
            here = there
        return here

    def _emit(self, node: str, kind: _Kind | Literal["home"], value: Value, here: Location, there: Location) -> None:
        name = self.scope.graph.storage.variable(value).name
        self.out.append(Transfer(node, kind, here.operand(name, value.name), there.operand(name, value.name)))
