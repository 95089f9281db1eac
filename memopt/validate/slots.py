"""Slots and sizes: does every buffer sit inside its device, aligned? No instruction is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from memopt.devices import Device
from memopt.lowering.program import Call, ProgramBuffer
from memopt.plan import MemoryPlan, Slot
from memopt.types import format_bytes
from memopt.validate.findings import Finding, Report
from memopt.validate.spaces import ByteMap

__all__ = ["Site", "check_sizes", "place_buffers"]


class Site(NamedTuple):
    """Where a buffer lies: `size` bytes of `space` from `offset` on."""

    space: ByteMap
    offset: int
    size: int


def place_buffers(plan: MemoryPlan, report: Report) -> list[Site | None]:
    """The site of each buffer (None where it has no usable slot); reports slots that break a rule."""
    buffers, slots = plan.program.buffers, plan.slots
    devices = {device.name: device for device in plan.machine.all_devices}
    if len(buffers) != len(slots):
        report.add(Finding("malformed", None, "", f"the plan has {len(buffers)} buffers, but {len(slots)} slots"))
    spaces: dict[tuple[str, str], ByteMap] = {}
    sites: list[Site | None] = []
    for index, buffer in enumerate(buffers):
        slot = slots[index] if index < len(slots) else None
        if slot is None or not _is_sound(index, buffer, slot, devices, report):
            sites.append(None)
            continue
        _check_slot(plan, buffer, slot, devices[slot.device], report)
        key = (slot.device, slot.space)
        if key not in spaces:
            spaces[key] = ByteMap(*key)
        sites.append(Site(spaces[key], slot.offset, buffer.size_bytes))
    return sites


def _is_sound(index: int, buffer: ProgramBuffer, slot: Slot, devices: Mapping[str, Device], report: Report) -> bool:
    """Whether the slot is one of this buffer at all."""
    why = ""
    if not all(isinstance(number, int) for number in (slot.offset, slot.size, buffer.size_bytes)):
        why = f"has a size or an offset that is no integer ({buffer.size_bytes!r}, {slot.offset!r}, {slot.size!r})"
    elif buffer.id != index:
        why = f"has the id {buffer.id}"
    elif slot.device not in devices:
        why = f"lies on {slot.device}, which the machine lacks; it has {', '.join(devices)}"
    elif slot.device != buffer.device:
        why = f"is one of {buffer.device}, but its slot is on {slot.device}"
    elif buffer.size_bytes < 0 or slot.offset < 0:
        why = f"has {buffer.size_bytes} bytes at offset {slot.offset}"
    elif buffer.space not in ("arena", "feed", "param", "output"):
        why = f"is in the space {buffer.space!r}; there are arena, feed, param and output"
    elif not (slot.space == "arena" if buffer.space == "arena" else str(slot.space).startswith(f"{buffer.space}:")):
        why = f"is in the space {buffer.space!r}, but its slot is in {slot.space!r}"
    if why:
        report.add(Finding("malformed", None, "", f"buffer #{index} ({buffer.name}) {why}", "", str(slot.device)))
    return not why


def _check_slot(plan: MemoryPlan, buffer: ProgramBuffer, slot: Slot, device: Device, report: Report) -> None:
    span = f"bytes [{slot.offset}, {slot.offset + slot.size}) of {device.name} {slot.space}"
    name = f"buffer #{buffer.id} ({buffer.name}) at {span}"

    def say(kind: str, why: str) -> None:
        report.add(
            Finding(kind, None, "", f"{name} {why}", "", device.name, None, slot.offset, slot.offset + slot.size)
        )

    if slot.size < buffer.size_bytes:
        say("out-of-bounds", f"needs {buffer.size_bytes} bytes, but its slot has {slot.size}")
    if slot.space != "arena" and slot.offset:
        say("out-of-bounds", f"does not start where its allocation of {slot.size} bytes does")
    if not buffer.size_bytes or slot.space != "arena":
        return
    if slot.offset % device.alignment:
        say("misaligned", f"is not at a multiple of {device.alignment}, the device's alignment")
    height = plan.devices[device.name].height_bytes if device.name in plan.devices else 0
    if slot.offset + buffer.size_bytes > height:
        say("out-of-bounds", f"ends above the arena, which has {height} bytes")


def check_sizes(plan: MemoryPlan, report: Report) -> None:
    """Scratch of every call within the device's scratch region; all together within the device's capacity."""
    scratch: dict[str, int] = {}
    for index, call in enumerate(plan.program.instructions):
        if not isinstance(call, Call) or not isinstance(call.scratch_bytes, int):
            continue
        use = plan.devices.get(call.device)
        most = use.scratch_bytes if use is not None else 0
        if call.scratch_bytes > most:
            needs = f"needs {call.scratch_bytes} bytes of scratch; planned are {most}"
            message = f"instruction {index} (call {call.node} on {call.device}) {needs}"
            report.add(Finding("out-of-bounds", index, "", message, call.node, call.device))
        scratch[call.device] = max(scratch.get(call.device, 0), call.scratch_bytes)
    for device in plan.machine.all_devices:
        if device.capacity_bytes is None:
            continue
        use = plan.devices.get(device.name)
        need = _arena_and_others(plan, device.name) + max(scratch.get(device.name, 0), use.scratch_bytes if use else 0)
        if need > device.capacity_bytes:
            over = f"{device.capacity_bytes} bytes; it lacks {format_bytes(need - device.capacity_bytes)}"
            what = "arena, scratch, feeds, parameters and outputs"
            message = f"{device.name} needs {need} bytes for {what}, but has {over}"
            report.add(Finding("out-of-bounds", None, "", message, "", device.name, None, device.capacity_bytes, need))


def _arena_and_others(plan: MemoryPlan, device: str) -> int:
    """Bytes of the device's arena (as high as planned, or as its slots reach) and of all that lies beside it."""
    use = plan.devices.get(device)
    ends: dict[str, int] = {"arena": use.height_bytes if use else 0}
    for slot in plan.slots:
        if slot.device == device and isinstance(slot.offset, int) and isinstance(slot.size, int):
            ends[slot.space] = max(ends.get(slot.space, 0), slot.offset + slot.size)
    return sum(ends.values())
