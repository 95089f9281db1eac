"""The tables about one plan: what each device needs, and what the passes decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memopt.plan import DeviceUse, MemoryPlan
from memopt.report.table import Table, row_dict
from memopt.types import format_bytes

__all__ = ["DEVICE_FIELDS", "describe_plan", "device_dict", "plan_table"]

_DEVICES_A_TABLE = 5
#: The fields of a device in JSON, in order.
DEVICE_FIELDS = (
    "height_bytes",
    "peak_bytes",
    "lower_bound_bytes",
    "fragmentation_bytes",
    "scratch_bytes",
    "feed_bytes",
    "param_bytes",
    "output_bytes",
    "total_bytes",
    "transfer_bytes",
    "num_transfers",
    "link_seconds",
    "status",
)
_COUNTED = (
    "Arena: outputs of nodes, graph outputs and transfer copies while they live; its height is what is allocated, "
    "its peak the most that is live at once. Scratch, feeds and parameters lie beside it. Total is all of them."
)
_OUTPUTS = "Outputs: graph outputs that are made in the caller's arrays, beside the arena, and not copied out."


def device_dict(use: DeviceUse) -> dict[str, Any]:
    """One device's figures, for JSON."""
    return row_dict(DEVICE_FIELDS, use)


def describe_plan(plan: MemoryPlan) -> str:
    """One line: graph, strategy, transfer policy, frees, machine."""
    program = plan.program
    return (
        f"{plan.graph.name}: strategy {plan.strategy}, transfer {program.transfer}, free {program.free}, "
        f"on {plan.machine} ({len(plan.graph.nodes)} nodes, {len(program.instructions)} instructions)"
    )


def plan_table(plan: MemoryPlan) -> Table:
    """What each device needs for one run: a column for each device."""
    names = [device.name for device in plan.machine.all_devices]
    rows: list[tuple[str, ...]] = []
    first = names[:_DEVICES_A_TABLE]
    for start in range(0, len(names), _DEVICES_A_TABLE):
        chunk = names[start : start + _DEVICES_A_TABLE]
        if start:
            rows += [(), ("", *_padded(chunk, len(first)))]
        uses = [plan.devices[name] for name in chunk]
        metrics = _metrics(uses, _has_outputs(plan.devices.values()))
        rows += [(label, *_padded(cells, len(first))) for label, cells in metrics]
    columns = ("per device", *(f">{name}" for name in first))
    notes = (_COUNTED, _OUTPUTS) if _has_outputs(plan.devices.values()) else (_COUNTED,)
    return Table(describe_plan(plan), columns, tuple(rows), notes)


def _has_outputs(uses: Iterable[DeviceUse]) -> bool:
    return any(use.output_bytes for use in uses)


def _padded(cells: Sequence[str], count: int) -> list[str]:
    return [*cells, *[""] * (count - len(cells))]


def _metrics(uses: Sequence[DeviceUse], outputs: bool) -> list[tuple[str, list[str]]]:
    labels = {
        "arena peak": "peak_bytes",
        "arena height": "height_bytes",
        "lower bound": "lower_bound_bytes",
        "fragmentation": "fragmentation_bytes",
        "scratch": "scratch_bytes",
        "feeds": "feed_bytes",
        "parameters": "param_bytes",
        **({"outputs": "output_bytes"} if outputs else {}),
        "total": "total_bytes",
        "transfer copies": "transfer_bytes",
    }
    rows = [(label, [format_bytes(getattr(use, name)) for use in uses]) for label, name in labels.items()]
    rows.append(("transfers", [str(use.num_transfers) for use in uses]))
    rows.append(("link time (model)", [f"{use.link_seconds * 1e3:.2f} ms" for use in uses]))
    rows.append(("packing", [use.status for use in uses]))
    return rows
