"""What the interpreter knows at one instruction: the bytes of every space, and who wrote, freed and rebound what.

Holds true: an operand becomes a `Place` by its buffer, slot, offset and number of bytes only; in strides that is its
hull, from the first element to the last. `writes` lists every
place where a root was ever written, `strided` what kernels wrote in which strides, `views` what calls said to be there
as a view; all serve messages and the choice of kinds, never the question of what bytes hold.
"""

from __future__ import annotations

from collections.abc import Hashable

from memopt.devices import Device, Placement
from memopt.ir import Node, Value
from memopt.lowering.program import Operand, Rebind
from memopt.ops import DEFAULT_LAYOUT
from memopt.plan import MemoryPlan
from memopt.strides import Strides, canonical, extent
from memopt.types import DTYPES, itemsize
from memopt.validate.findings import Finding, Report
from memopt.validate.images import Images
from memopt.validate.slots import Site, place_buffers
from memopt.validate.spaces import Content, Image, Piece, Pieces, Place, Span
from memopt.validate.words import Words

__all__ = ["State"]


class State:
    """The symbolic machine. `index` is the instruction being interpreted, None at the start and the end."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.program = plan.program
        self.report = Report()
        self.words = Words(plan.program)
        self.images = Images(plan.graph)
        self.devices: dict[str, Device] = {device.name: device for device in plan.machine.all_devices}
        self.sites: list[Site | None] = place_buffers(plan, self.report)
        self.index: int | None = None
        self.called: dict[Node, int] = {}
        self.freed: dict[int, int] = {}
        self.writes: dict[Value, list[Content]] = {}
        self.views: set[Value] = set()
        self.strided: set[tuple[Value, Strides]] = set()
        self.rebinds: dict[str, list[tuple[int, Rebind]]] = {}
        self.homes: dict[Value, Place] = {}

    # -- findings -------------------------------------------------------------------------------------------------

    @property
    def here(self) -> str:
        """The instruction being interpreted, in words."""
        return self.words.instruction(self.index)

    def say(self, kind: str, value: str, message: str, place: Place | None = None, same: Hashable = None) -> None:
        """Report something about the current instruction; `message` goes on after its name."""
        node, text = "", message
        if self.index is not None:
            node = str(getattr(self.program.instructions[self.index], "node", ""))
            text = f"{self.here}: {message}"
        device, lower, upper = ("", 0, 0) if place is None else (place.space.device, place.lo, place.hi)
        self.report.add(Finding(kind, self.index, value, text, node, device, None, lower, upper), same)

    # -- operands -------------------------------------------------------------------------------------------------

    def place(self, operand: object, value: Value, role: str, slot: int | None = None) -> Place | None:
        """The bytes of an operand that stores `value`; None (and a finding) if it is no range of bytes at all."""
        if not isinstance(operand, Operand):
            self._misplaced("malformed", value, (role, slot), "has no operand")
            return None
        placed = operand.placement
        if not _is_placement(placed) or not isinstance(operand.offset, int):
            why = f"is {placed!s} at offset {operand.offset!r}, which is no placement"
            self._misplaced("malformed", value, (role, slot), why)
            return None
        if operand.strides is not None and not self._steps(operand, value, (role, slot)):
            return None
        site = self.site(operand.buffer)
        if site is None:
            why = f"is in buffer #{operand.buffer}, which has no place in this plan"
            self._misplaced("malformed", value, (role, slot), why)
            return None
        num_bytes = extent(value.shape, operand.strides) * itemsize(placed.dtype)
        lo = site.offset + operand.offset
        place = Place(site.space, lo, lo + num_bytes, operand.buffer, operand.buffer in self.freed)
        if operand.offset < 0 or operand.offset + num_bytes > site.size:
            bounds = f"{self.words.buffer(place.buffer)} has bytes [{site.offset}, {site.offset + site.size})"
            self._misplaced("out-of-bounds", value, (role, slot), f"is at {place}, but {bounds}", place)
            return place if lo >= 0 else None
        if place.freed:
            why = f"is at {self.words.place(place)}, after {self.words.instruction(self.freed[place.buffer])}"
            self._misplaced("malformed", value, (role, slot), why, place)
        return place

    def _steps(self, operand: Operand, value: Value, role: tuple[str, int | None]) -> bool:
        """Whether the operand's strides are strides of `value`; else a finding."""
        strides: object = operand.strides
        sound = isinstance(strides, tuple) and all(isinstance(step, int) and step >= 0 for step in strides)
        if not sound or not isinstance(strides, tuple) or len(strides) != len(value.shape):
            why = f"is in strides {strides!r}; want {len(value.shape)} integers of 0 or more, one for each axis"
            self._misplaced("malformed", value, role, why)
            return False
        if operand.placement.layout != DEFAULT_LAYOUT:
            why = f"is in strides {strides} as {operand.placement}; strides count in {DEFAULT_LAYOUT}"
            self._misplaced("wrong-form", value, role, why)
            return False
        return True

    def _misplaced(
        self, kind: str, value: Value, role: tuple[str, int | None], why: str, place: Place | None = None
    ) -> None:
        what = role[0] if role[1] is None else f"{role[0]} {role[1]},"
        self.say(kind, value.name, f"{what} %{value.name} {why}", place)

    def site(self, buffer: object) -> Site | None:
        """Where a buffer lies, None if there is no such buffer or slot."""
        return self.sites[buffer] if isinstance(buffer, int) and 0 <= buffer < len(self.sites) else None

    # -- bytes ----------------------------------------------------------------------------------------------------

    def write(self, place: Place, value: Value, pieces: Pieces, source: Content | None = None, fault: str = "") -> None:
        """From now on the bytes of `pieces`, which lie in the place, hold these of `value`. What is there already
        stays: a view written onto itself, or an input where it is joined.
        """
        for lo, hi, piece in pieces:
            self._write(place._replace(lo=lo, hi=hi), value, piece, source, fault)

    def _write(self, place: Place, value: Value, image: Image, source: Content | None, fault: str) -> None:
        if value is not image.root and source is None and self.holds(place, [(place.lo, place.hi, image)]):
            return
        root, dtype, layout, at = image
        content = Content(value, root, dtype, layout, at, self.index, place, source, fault)
        place.space.write(place.lo, place.hi, content, at - place.lo)
        self.writes.setdefault(root, []).append(content)

    def holds(self, place: Place, pieces: Pieces) -> bool:
        """Whether the place's space holds the pieces, or what is the same by the graph."""
        return all(
            place.space.holds(lo, hi, image)
            or all(self.is_of(there, (lo, hi, image)) for there in place.space.read(lo, hi))
            for lo, hi, image in pieces
        )

    def is_of(self, there: Piece, wanted: Span) -> bool:
        """Whether what is there is what should be, where the two meet."""
        content, shift = there.content, wanted[2].at - wanted[0]
        if there.is_of(wanted[2], shift):
            return True
        if content is None or content.root is None or content.fault:
            return False
        image = Image(content.root, content.dtype, content.layout, there.lo + there.shift)
        return self.images.alike((there.lo, there.hi, image), wanted)

    def pieces(self, place: Place, image: Image) -> Pieces:
        """The place as pieces of `image`, joins looked into."""
        return placed(place.lo, self.images.pieces(image, place.hi - place.lo))

    def read(self, place: Place, value: Value, operand: Operand) -> Pieces | None:
        """What the operand's bytes should hold: of the ways in which `value` may be read there the one that they do
        hold, else the first; None if it was never to lie in these strides.
        """
        stored = operand.placement
        first: Pieces | None = None
        for way in self.images.ways(value, stored.dtype, stored.layout, operand.strides):
            pieces = placed(place.lo, way)
            if self.holds(place, pieces):
                return pieces
            first = pieces if first is None else first
        steps = canonical(value.shape, operand.strides)
        computed = self.images.root(value) in self.writes or value in self.views
        if steps is None or (value, steps) in self.strided or not computed:
            return first
        return first if self.images.candidates(value, stored.dtype, stored.layout, steps) else None

    def written(self, place: Place, value: Value, operand: Operand) -> Pieces | None:
        """What a kernel that writes `value` to the operand leaves in its bytes: what is there already if that is the
        value; None if it cannot lie so.
        """
        stored, steps = operand.placement, canonical(value.shape, operand.strides)
        if steps is None:
            return self.read(place, value, operand)
        found = [placed(place.lo, way) for way in self.images.rows(value, stored.dtype, steps)]
        size = value.type.num_elements * itemsize(stored.dtype)
        found = [pieces for pieces in found if sum(hi - lo for lo, hi, _ in pieces) == size]
        return next((pieces for pieces in found if self.holds(place, pieces)), found[0] if found else None)

    def drop(self, place: Place) -> None:
        """From now on the place holds no value."""
        place.space.write(place.lo, place.hi, Content(None, None, "", (), 0, self.index, place), 0)

    def check_pinned(self, place: Place, pieces: Pieces | None, itself: bool = False) -> None:
        """Report a write to an undonated feed or never updated parameter, unless it is a view written onto itself."""
        for lo, hi, value in place.space.pinned:
            if place.lo >= hi or lo >= place.hi or (itself and pieces is not None and self.holds(place, pieces)):
                continue
            what = "a parameter that no node updates" if value in self.graph.params else "a feed that is not donated"
            written = f"%{pieces[0][2].root.name}" if pieces else "bytes"
            message = f"writes {written} to {self.words.place(place)}, where %{value.name} lies, {what}"
            self.say("pinned-write", value.name, message, place, ("pinned", value))


def placed(start: int, pieces: Pieces) -> Pieces:
    """The pieces of an operand, where they lie in its space."""
    return [(start + lo, start + hi, image) for lo, hi, image in pieces] if start else pieces


def _is_placement(placed: object) -> bool:
    """Whether it says how bytes are stored."""
    return isinstance(placed, Placement) and placed.dtype in DTYPES and placed.layout in ("NCHW", "NHWC")
