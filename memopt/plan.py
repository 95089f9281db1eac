"""A memory plan: a graph, its program, a slot for every buffer, and what that costs on each device. Data only.

`memopt.compile` makes one (as `memopt.Plan`, which can run itself too). Holds true if `memopt.validate` finds
nothing; nothing here checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memopt.devices import Machine
from memopt.ir import Graph
from memopt.lowering.program import Program
from memopt.pipeline import Decision
from memopt.types import format_bytes

__all__ = ["DeviceUse", "MemoryPlan", "Slot"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The third arrow: where a buffer sits. `space` is "arena", or the name of the feed's, parameter's or output's own
    allocation ("feed:x", "param:w", "output:y"); `offset` and `size` are bytes within it."""

    device: str
    space: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one device needs for one run, in bytes. Every figure counts one thing only.

    height_bytes       the arena: where the highest slot ends (activations, transfer-scope copies, and outputs that are
                       copied out)
    peak_bytes         the largest sum of sizes of arena buffers that are live at one instruction
    lower_bound_bytes  no packing of these buffers is lower
    scratch_bytes      the largest workspace of one kernel call; one region beside the arena
    feed_bytes         feeds that lie on this device             param_bytes   parameters that live on this device
    transfer_bytes     transfer-scope copies made on this device in a run, all together (part of the arena while they
                       live)
    num_transfers      how many copies those are                 link_seconds  modelled time of those that crossed the
                       link
    output_bytes       outputs that are written into arrays of the caller's (`outputs="caller"`)
    status             "optimal" where the height is proved to be the lowest, else "feasible"
    """

    height_bytes: int = 0
    peak_bytes: int = 0
    lower_bound_bytes: int = 0
    scratch_bytes: int = 0
    feed_bytes: int = 0
    param_bytes: int = 0
    transfer_bytes: int = 0
    num_transfers: int = 0
    link_seconds: float = 0.0
    status: str = "optimal"
    output_bytes: int = 0

    @property
    def fragmentation_bytes(self) -> int:
        """Height that no live byte explains: height − peak."""
        return self.height_bytes - self.peak_bytes

    @property
    def total_bytes(self) -> int:
        """All that must be allocated on the device: arena, scratch, feeds, parameters and the caller's outputs."""
        return self.height_bytes + self.scratch_bytes + self.feed_bytes + self.param_bytes + self.output_bytes


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPlan:
    """A program with a slot for each of its buffers (`slots[i]` is that of `program.buffers[i]`)."""

    graph: Graph
    program: Program
    slots: tuple[Slot, ...]
    devices: Mapping[str, DeviceUse]
    decisions: tuple[Decision, ...] = ()
    strategy: str = "none"
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_validated(self) -> bool:
        """Whether the validator has accepted this very object, as `compile` and `load_plan` ask it to.

        Only then do runs use arrays of the caller's in place. A changed copy (`dataclasses.replace`) has not been.
        """
        return "_validated" in self.__dict__

    def mark_validated(self) -> None:
        """Note that the validator has accepted the plan."""
        self.__dict__["_validated"] = True

    @property
    def machine(self) -> Machine:
        return self.program.machine

    def __repr__(self) -> str:
        arenas = ", ".join(f"{name} {format_bytes(use.height_bytes)}" for name, use in self.devices.items())
        what = f"{self.strategy}, {len(self.program.instructions)} instructions, arenas: {arenas}"
        return f"<{type(self).__name__} of {self.graph.name!r}: {what}>"
