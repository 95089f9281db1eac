"""A plan as JSON, and back. The graph goes along as its canonical text; large parameter data does not.

Schema 1: `{"memopt_plan": 1, "graph": text, "machine": {...}, "strategy", "transfer", "free", "scratch_limit",
"instructions": [...], "buffers": [...], "slots": [...], "feeds", "params", "results", "finals": [[name, operand]],
"devices": {name: {...}}, "decisions": [...]}`; an operand is `[buffer, offset, device, dtype, layout, variable,
value]`, and its strides after that if it has any. A reader believes nothing: run `memopt.validate` on what it returns.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from memopt.devices import Device, Machine, Placement
from memopt.errors import LoadError, MemoptError
from memopt.ir import parse, print_graph
from memopt.lowering import Call, Free, Instruction, Operand, Program, ProgramBuffer, Rebind, Result, Transfer
from memopt.pipeline import Decision
from memopt.plan import DeviceUse, MemoryPlan, Slot

__all__ = ["load_json", "plan_from_dict", "plan_to_dict", "save_json"]

_VERSION = 1
_KINDS: dict[str, type[Any]] = {"call": Call, "transfer": Transfer, "rebind": Rebind, "free": Free}


def save_json(plan: MemoryPlan, path: str | Path) -> None:
    """Write `plan` to `path`, whole or not at all."""
    target = Path(path)
    text = json.dumps(plan_to_dict(plan), indent=None, separators=(",", ":"))
    try:
        handle, scratch = tempfile.mkstemp(dir=target.parent or Path(), prefix=f".{target.name}.")
    except OSError as error:
        raise LoadError(f"cannot write plan {str(target)!r}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text + "\n")
        os.chmod(scratch, 0o644)
        os.replace(scratch, target)
    except OSError as error:
        os.unlink(scratch)
        raise LoadError(f"cannot write plan {str(target)!r}: {error.strerror}") from None


def load_json(path: str | Path) -> MemoryPlan:
    """Read what `save_json` wrote; raises `LoadError` naming the file and what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(
            f"cannot read plan {str(path)!r}: {getattr(error, 'strerror', None) or 'it is not text'}"
        ) from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"plan {str(path)!r} is not JSON: {error}") from None
    try:
        return plan_from_dict(data)
    except LoadError as error:
        raise LoadError(f"plan {str(path)!r}: {error}") from None


def plan_to_dict(plan: MemoryPlan) -> dict[str, Any]:
    """The plan in plain lists, dicts, strings and numbers."""
    program = plan.program
    return {
        "memopt_plan": _VERSION,
        "graph": print_graph(plan.graph),
        "strategy": plan.strategy,
        "machine": {
            "host": _device_dict(program.machine.host),
            "devices": [_device_dict(device) for device in program.machine.devices],
            "default": program.machine.default,
        },
        "transfer": program.transfer,
        "free": program.free,
        "scratch_limit": program.scratch_limit,
        "instructions": [_instruction_dict(instruction) for instruction in program.instructions],
        "buffers": [dataclasses.asdict(buffer) for buffer in program.buffers],
        "slots": [dataclasses.asdict(slot) for slot in plan.slots],
        **{name: [[r.name, _operand_list(r.operand)] for r in getattr(program, name)] for name in _PLACES},
        "devices": {name: dataclasses.asdict(use) for name, use in plan.devices.items()},
        "decisions": [dataclasses.asdict(decision) for decision in plan.decisions],
        "options": {name: list(names) for name, names in plan.options.items() if isinstance(names, tuple)},
    }


_PLACES = ("feeds", "params", "results", "finals")


def plan_from_dict(data: Any) -> MemoryPlan:
    """The plan that `plan_to_dict` described; raises `LoadError` on anything else."""
    if not isinstance(data, dict) or data.get("memopt_plan") != _VERSION:
        found = data.get("memopt_plan") if isinstance(data, dict) else type(data).__name__
        raise LoadError(f"not a memopt plan of version {_VERSION} (found {found!r})")
    try:
        machine = Machine(
            _device(data["machine"]["host"]),
            tuple(_device(d) for d in data["machine"]["devices"]),
            data["machine"]["default"],
        )
        program = Program(
            machine,
            tuple(_instruction(entry) for entry in data["instructions"]),
            tuple(ProgramBuffer(**buffer) for buffer in data["buffers"]),
            **{place: _results(data[place]) for place in _PLACES},
            transfer=data["transfer"],
            free=data["free"],
            scratch_limit=int(data["scratch_limit"]),
        )
        decisions = tuple(Decision(**{**entry, "subject": tuple(entry["subject"])}) for entry in data["decisions"])
        return MemoryPlan(
            parse(data["graph"]),
            program,
            tuple(Slot(**slot) for slot in data["slots"]),
            {name: DeviceUse(**use) for name, use in data["devices"].items()},
            decisions,
            str(data["strategy"]),
            {str(name): tuple(map(str, names)) for name, names in data.get("options", {}).items()},
        )
    except MemoptError as error:
        raise LoadError(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise LoadError(f"the plan is malformed: {type(error).__name__} {error}") from None


def _results(data: Any) -> Any:  # any: mypy cannot match the names that `_PLACES` spells
    return tuple(Result(str(name), _operand_of(operand)) for name, operand in data)


def _device_dict(device: Device) -> dict[str, Any]:
    return {
        field.name: sorted(device.lacks) if field.name == "lacks" else getattr(device, field.name)
        for field in dataclasses.fields(device)
    }


def _device(data: dict[str, Any]) -> Device:
    return Device(**{**data, "lacks": frozenset(data["lacks"])})


def _operand_list(operand: Operand | None) -> list[Any] | None:
    if operand is None:
        return None
    place = operand.placement
    plain = [operand.buffer, operand.offset, place.device, place.dtype, place.layout, operand.variable, operand.value]
    return plain if operand.strides is None else [*plain, list(operand.strides)]


def _operand_of(data: list[Any]) -> Operand:
    buffer, offset, device, dtype, layout, variable, value, *rest = data
    (strides,) = rest or (None,)
    placement = Placement(str(device), str(dtype), str(layout))
    steps = None if strides is None else tuple(int(step) for step in strides)
    return Operand(int(buffer), int(offset), placement, str(variable), str(value), steps)


def _instruction_dict(instruction: Instruction) -> dict[str, Any]:
    kind = next(name for name, kind in _KINDS.items() if isinstance(instruction, kind))
    out: dict[str, Any] = {"kind": kind}
    for field in dataclasses.fields(instruction):
        value = getattr(instruction, field.name)
        if isinstance(value, Operand):
            value = _operand_list(value)
        elif isinstance(value, tuple):
            value = [_operand_list(one) for one in value]
        out["how" if field.name == "kind" else field.name] = value
    return out


def _instruction(data: dict[str, Any]) -> Instruction:
    made = _KINDS[data["kind"]]
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(made):
        value = data["how" if field.name == "kind" else field.name]
        if field.name in ("source", "target"):
            value = _operand_of(value)
        elif field.name in ("inputs", "outputs"):
            value = tuple(None if one is None else _operand_of(one) for one in value)
        fields[field.name] = value
    instruction: Instruction = made(**fields)
    return instruction
