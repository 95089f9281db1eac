"""Kernel choice: on which device a node runs, and how its kernel wants each operand placed.

Holds true: the choice looks at the node, the machine and where its inputs are now; never at who shares bytes with
whom. Rank-4 operands of one call all have the call's layout where the op takes it; everything else lies in the
default layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memopt.devices import Device, Machine, Placement
from memopt.errors import PlanError
from memopt.ir import Graph, Node, Value
from memopt.ops import ANY_LAYOUT, DEFAULT_LAYOUT, KernelQuery
from memopt.pipeline import Decision
from memopt.strides import Strides, canonical
from memopt.types import TensorType

__all__ = ["Choice", "choose", "kernel_query", "resolve_devices"]


_Steps = tuple[Strides | None, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a node runs and what its kernel takes and makes. `inputs[i]` is None for an input whose bytes nobody
    reads.
    """

    device: str
    fallback: bool
    layout: str
    inputs: tuple[Placement | None, ...]
    outputs: tuple[Placement | None, ...]


def device_of(node: Node, machine: Machine) -> tuple[Device, Device]:
    """(the device that `node` asks for, the one that it runs on): the host stands in where the first lacks the
    kernel.
    """
    wanted = node.device or machine.default
    if all(wanted != device.name for device in machine.all_devices):
        names = ", ".join(device.name for device in machine.all_devices)
        raise PlanError(f"node {node.name} ({node.op}) is pinned to device {wanted!r}; the machine has {names}")
    device = machine.device(wanted)
    return device, machine.host if node.op in device.lacks else device


def resolve_devices(graph: Graph, machine: Machine) -> list[Decision]:
    """Pin every node to the device that it runs on, so that passes know who can share bytes; a decision for each
    fallback. Raises `PlanError` for a node or a parameter on a device that there is not.
    """
    decisions = []
    names = [device.name for device in machine.all_devices]
    for param, lives in graph.param_devices.items():
        if lives not in names:
            raise PlanError(f"parameter %{param} lives on device {lives!r}; the machine has {', '.join(names)}")
    for step, node in enumerate(graph.nodes):
        wanted, device = device_of(node, machine)
        if device is not wanted:
            reason = f"{wanted.name} lacks {node.op}: runs on {device.name}"
            outputs = tuple(value.name for _, value in node.real_outputs)
            decisions.append(Decision("lowering", node.name, outputs, True, reason, 0, step, "fallback"))
        node.device = device.name
    return decisions


def choose(node: Node, machine: Machine, current: Callable[[Value], Placement]) -> Choice:
    """The device, layout and placements for `node`; `current` says how a value lies now."""
    wanted, device = device_of(node, machine)
    fallback = device is not wanted or (device is machine.host and node.op in machine.device(machine.default).lacks)
    layout = _layout(node, device, current)
    inputs = tuple(
        None
        if value is None or not node.spec.reads_data(i)
        else _place(device, value.type, _input_layout(node, i, layout))
        for i, value in enumerate(node.inputs)
    )
    outputs = tuple(None if value is None else _place(device, value.type, layout) for value in node.outputs)
    return Choice(device.name, fallback, layout, inputs, outputs)


def kernel_query(
    node: Node, device: Device, layout: str, scratch_limit: int, strides: tuple[_Steps, _Steps] = ((), ())
) -> KernelQuery:
    """What `node`'s op is asked for on `device`: types as placed there, shapes logical; strides of inputs and outputs.
    """

    def placed(type: TensorType | None) -> TensorType | None:
        return None if type is None else type.with_dtype(device.kernel_dtype(type.dtype))

    sides = zip((node.input_types, node.output_types), strides, strict=True)
    return KernelQuery(
        tuple(placed(type) for type in node.input_types),
        tuple(placed(type) for type in node.output_types),
        node.attrs,
        layout,
        scratch_limit,
        *(_canonical(types, steps) for types, steps in sides),
    )


def _canonical(types: Sequence[TensorType | None], steps: _Steps) -> _Steps:
    """The strides in their one spelling; () if nothing lies in strides."""
    found = tuple(None if type is None else canonical(type.shape, one) for type, one in zip(types, steps, strict=False))
    return found if any(one is not None for one in found) else ()


def _place(device: Device, type: TensorType, layout: str) -> Placement:
    return Placement(device.name, device.kernel_dtype(type.dtype), layout if type.rank == 4 else DEFAULT_LAYOUT)


def _input_layout(node: Node, index: int, layout: str) -> str:
    if layout == DEFAULT_LAYOUT or ANY_LAYOUT in node.spec.layouts or index in node.spec.layout_inputs:
        return layout
    return DEFAULT_LAYOUT


def _layout(node: Node, device: Device, current: Callable[[Value], Placement]) -> str:
    """The layout of the node's rank-4 data: the device's wish, or for a kernel that takes any, the one they all
    have.
    """
    wish = device.layouts.get(node.op, DEFAULT_LAYOUT)
    takes_any = ANY_LAYOUT in node.spec.layouts  # such a kernel has no wish of its own to be met
    if wish != DEFAULT_LAYOUT and not takes_any and any(t is not None and t.rank == 4 for t in node.output_types):
        if wish not in node.spec.layouts:
            raise PlanError(f"device {device.name} wants {wish} for {node.op}, which has no {wish} kernel")
        return wish
    if not takes_any:
        return DEFAULT_LAYOUT
    data = [value for _, value in node.data_inputs]
    shapes = {value.shape for value in data} | {value.shape for _, value in node.real_outputs}
    layouts = {current(value).layout for value in data}
    if len(shapes) == 1 and len(layouts) == 1 and len(next(iter(shapes))) == 4:
        return layouts.pop()
    return DEFAULT_LAYOUT
