"""`compare`: one graph under several strategies and transfer policies: planned, validated, run, checked.

Holds true: a wrong plan is compared too, and said to be wrong; every figure is the plan's own; every error is measured
on a real run against `runtime.reference`, which knows no storage, no plan and no device (`memopt.verdict` judges it).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.compile import Plan
from memopt.compile import compile as compile_graph
from memopt.devices import Device, Machine
from memopt.errors import OptionError
from memopt.ir import Graph
from memopt.lowering import TransferPolicy
from memopt.models import random_feeds
from memopt.pipeline import PassSelection
from memopt.plan import DeviceUse
from memopt.report import Curve, Table, device_dict, memory_figure, save_figure, step_bytes
from memopt.runtime import run_reference
from memopt.validate import validate
from memopt.verdict import (
    TOLERANCE,
    Difference,
    Errors,
    Expected,
    LostValue,
    differences,
    lost_values,
    max_rel_error,
    updated_params,
)

__all__ = ["TOLERANCE", "Comparison", "Row", "compare", "max_rel_error"]

_MAX_MESSAGES = 5
_COUNTED = (
    "peak: most bytes live at once in the device's arena; arena: its height, which is what must be allocated; "
    "saved: of the arena, against the first strategy; copies: bytes copied to this device for single nodes. "
    "Arenas hold node outputs, graph outputs and transfer copies; feeds, parameters and scratch lie beside them. "
    "error: largest difference from the NumPy reference, "
)
_OUTPUT_ERROR = "relative to the output's largest element."
_STEP_ERROR = (
    "of an output relative to its largest element, of what the step updates relative to how far it should have "
    "moved (1: it never moved). It counts only beyond what rounding explains: a run on the host alone, without any "
    "pass, is off by {}."
)
_FAULTS = (
    "Lost values, by whose fault. pass: it gave a value another value's variable. program: its own updates, whose "
    "input and output have one variable by definition, so that they are lost with no pass too. Then, of each kind of "
    "array, how many a run gets wrong (of how many), and by how much at most."
)
_ONE_DEVICE = "One device, with no wishes for dtype or layout: nothing is transferred, whatever the transfer policy."
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """What one strategy under one transfer policy needs, and whether it is right.

    devices    name -> what the device needs            valid, num_findings   the validator's verdict
    findings   the first few messages                   kinds    finding kind -> how many
    lost       the values that the findings miss, and by whose fault
    differences     kind of array -> which of them a run got wrong (empty: not run)
    max_rel_error   of them all, against the reference (None: not run; inf: nan where it has none)
    seconds    to compile and validate                  run_seconds   of the run, kernels compiled
    live       device -> bytes live in the arena, at most, in each step
    """

    strategy: str
    transfer: str
    devices: Mapping[str, DeviceUse]
    valid: bool
    num_findings: int
    findings: tuple[str, ...] = ()
    kinds: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[LostValue, ...] = ()
    differences: Mapping[str, Difference] = field(default_factory=dict)
    max_rel_error: float | None = None
    seconds: float = 0.0
    run_seconds: float | None = None
    live: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def right(self) -> bool:
        """Whether the plan validates and, if it ran, its results are those of the reference."""
        return self.valid and not any(one.differing for one in self.differences.values())

    def num_lost(self, fault: str) -> int:
        """How many values are lost by the fault of the "pass", or of the "program"."""
        return sum(one.fault == fault for one in self.lost)

    @property
    def verdict(self) -> str:
        """`ok`, or what is wrong, in at most 17 characters."""
        if self.valid:
            return "ok" if self.right else "WRONG: differs"
        kind = max(self.kinds, key=lambda name: self.kinds[name], default="").split("-")[0]
        word = kind if kind in ("lost", "stale", "clobbered", "overlap") else "found"
        return f"WRONG: {len(self.lost)} {word}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The rows of a comparison; `str` of it is the table (of a graph that updates, two).

    updates    whether the graph updates parameters        rounding   how far off the reference a right run is
    """

    model: str
    machine: Machine
    rows: tuple[Row, ...]
    updates: bool = False
    rounding: float | None = None

    def row(self, strategy: str, transfer: str | None = None) -> Row:
        """The row of that strategy and policy (the first one, where no policy is named)."""
        for row in self.rows:
            if row.strategy == strategy and transfer in (None, row.transfer):
                return row
        have = ", ".join(f"{row.strategy}/{row.transfer}" for row in self.rows)
        raise OptionError(f"the comparison has no row {strategy}/{transfer or 'any'}; it has {have}")

    def table(self) -> Table:
        """Peaks, arenas and verdicts: a line for each strategy, policy and device."""
        unit, divisor = _unit(self.rows)
        columns = ("strategy", "transfer", "device", ">peak", ">arena", ">saved", ">copies", "result", ">error")
        lines: list[tuple[str, ...]] = []
        for before, row in zip((None, *self.rows), self.rows, strict=False):
            if before is not None and before.strategy != row.strategy and len(self.rows) > 3:
                lines.append(())
            lines += self._lines(row, divisor)
        error = _OUTPUT_ERROR if self.rounding is None else _STEP_ERROR.format(_error(self.rounding))
        notes = [f"Sizes in {unit}. {_COUNTED}{error}"]
        if not _transfers_matter(self.machine):
            notes.append(_ONE_DEVICE)
        wrong = next((row for row in self.rows if row.findings), None)
        if wrong is not None:
            example = wrong.findings[0].split("; ")[-1]
            notes.append(f"{wrong.strategy} with {wrong.transfer} is wrong, for example: {example}")
        return Table(f"{self.model} on {self.machine}", columns, tuple(lines), tuple(notes))

    def faults(self) -> Table:
        """Whose fault the lost values are, and what a run shows of it: a line for each strategy and policy."""
        kinds = list(dict.fromkeys(kind for row in self.rows for kind in row.differences))
        columns = ("strategy", "transfer", ">pass", ">program", *(f">{kind}" for kind in kinds), ">off by")
        lines = []
        for row in self.rows:
            cells = [str(row.differences[kind]) if kind in row.differences else "-" for kind in kinds]
            worst = max((one.error for one in row.differences.values() if one.differing), default=0.0)
            lost = (str(row.num_lost("pass")), str(row.num_lost("program")))
            lines.append((row.strategy, row.transfer, *lost, *cells, _error(worst if row.differences else None)))
        return Table("Whose fault, and what a run shows", columns, tuple(lines), (_FAULTS,))

    def tables(self) -> tuple[Table, ...]:
        """The table, and for a graph that updates the one of faults."""
        return (self.table(), self.faults()) if self.updates else (self.table(),)

    def _lines(self, row: Row, divisor: int) -> list[tuple[str, ...]]:
        lines = []
        for index, (name, use) in enumerate(row.devices.items()):
            head = (row.strategy, row.transfer) if index == 0 else ("", "")
            tail = (row.verdict, _error(row.max_rel_error)) if index == 0 else ("", "")
            saved = self._saved(row, name)
            sizes = [f"{size / divisor:.2f}" for size in (use.peak_bytes, use.height_bytes)]
            lines.append((*head, name, *sizes, saved, f"{use.transfer_bytes / divisor:.2f}", *tail))
        return lines

    def _saved(self, row: Row, device: str) -> str:
        """How much lower the arena is than under the first strategy with the same policy."""
        first = next((r for r in self.rows if r.transfer == row.transfer), row)
        before = first.devices[device].height_bytes
        if first is row or not before:
            return "-"
        return f"{round(100 * (1 - row.devices[device].height_bytes / before))}%"

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain lists, dicts, strings and numbers (docs/json.md)."""
        return {
            "model": self.model,
            "machine": machine_dict(self.machine),
            "rounding": self.rounding,
            "rows": [
                {
                    "strategy": row.strategy,
                    "transfer": row.transfer,
                    "devices": {name: device_dict(use) for name, use in row.devices.items()},
                    "valid": row.valid,
                    "num_findings": row.num_findings,
                    "findings": list(row.findings),
                    "verdict": row.verdict,
                    "lost": [{"value": one.value, "fault": one.fault} for one in row.lost],
                    "differences": {kind: asdict(one) for kind, one in row.differences.items()},
                    "max_rel_error": row.max_rel_error,
                    "seconds": row.seconds,
                    "run_seconds": row.run_seconds,
                }
                for row in self.rows
            ],
        }

    def plot(self, path: str | Path) -> Path:
        """Draw each strategy's memory over time, per device and policy, to `path`. Needs the extra `plot`."""
        curves = [
            Curve(row.strategy, row.transfer, device, live, not row.right)
            for row in self.rows
            for device, live in row.live.items()
        ]
        save_figure(memory_figure(curves, f"{self.model} on {self.machine}"), path)
        return Path(path)

    def __str__(self) -> str:
        return "\n\n".join(str(table) for table in self.tables())

    def __repr__(self) -> str:
        return f"<Comparison of {self.model} on {self.machine}: {len(self.rows)} rows>"

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(*self.tables())


def compare(  # noqa: PLR0913 # the public face; all but the graph have defaults
    graph: Graph,
    strategies: Sequence[PassSelection] = ("none", "rename", "share"),
    transfers: Sequence[TransferPolicy] = ("fluid-1.5", "publish"),
    machine: Machine | None = None,
    feeds: Arrays | None = None,
    *,
    run: bool = True,
    progress: Callable[[str], None] | None = None,
    show: bool = True,
    **options: Any,
) -> Comparison:
    """Plan, validate and run `graph` under every strategy and transfer policy, and print the table.

    strategies  names, passes or lists of them  transfers  policies; only one is used where nothing can be transferred
    machine     default: the host alone         feeds      default: seeded random numbers
    run         whether to run each plan (wrong ones too) and compare outputs with the NumPy reference
    progress    called with a label before each piece of work: one for the reference, if `run`, and one a row
    show        whether to print the table      options    go to `memopt.compile`

    Raises what `memopt.compile` raises, `FeedError` and `OptionError`. Wrong plans do not raise; their rows say so.
    """
    machine = machine or Machine.host_only()
    if not strategies or not transfers:
        raise OptionError("compare needs at least one strategy and one transfer policy")
    say = progress or (lambda label: None)
    used = list(transfers) if _transfers_matter(machine) else ["publish" if "publish" in transfers else transfers[0]]
    feeds = random_feeds(graph) if feeds is None else feeds
    oracle: _Oracle | None = None
    if run:
        say("NumPy reference")
        oracle = _oracle(graph, feeds, options)
    rows = []
    for strategy in strategies:
        for transfer in used:
            say(f"{strategy if isinstance(strategy, str) else 'passes'}, {transfer}")
            chosen = {"passes": strategy, "machine": machine, "transfer": transfer, **options}
            rows.append(_row(graph, feeds, oracle, chosen))
    rounding = None if oracle is None or oracle.rounding is None else oracle.rounding.worst
    comparison = Comparison(graph.name, machine, tuple(rows), bool(updated_params(graph)), rounding)
    if show:
        print(comparison)
    return comparison


def num_pieces(strategies: Sequence[Any], transfers: Sequence[str], machine: Machine, run: bool) -> int:
    """How often `compare` calls `progress`."""
    return len(strategies) * (len(transfers) if _transfers_matter(machine) else 1) + run


@dataclass(frozen=True, slots=True)
class _Oracle:
    """What a run must leave behind, and what rounding does to it (None: next to nothing)."""

    expected: Expected
    rounding: Errors | None


def _oracle(graph: Graph, feeds: Arrays, options: Mapping[str, Any]) -> _Oracle:
    expected = Expected(graph, *run_reference(graph, feeds))
    if not expected.groups:
        return _Oracle(expected, None)
    plain: Plan = compile_graph(graph, **{**options, "passes": "none", "machine": None, "validate": True})
    results = plain.run(feeds, copy_feeds=True)
    return _Oracle(expected, expected.errors(results, plain.state()))


def _row(graph: Graph, feeds: Arrays, oracle: _Oracle | None, options: Mapping[str, Any]) -> Row:
    start = time.perf_counter()
    plan: Plan = compile_graph(graph, **{**options, "validate": False})
    findings = validate(plan, findings="return")
    seconds = time.perf_counter() - start
    errors = run_seconds = None
    found: Mapping[str, Difference] = {}
    if oracle is not None:
        results = plan.run(feeds, copy_feeds=True)
        errors, run_seconds = oracle.expected.errors(results, plan.state()), results.seconds
        found = differences(errors, oracle.rounding)
    return Row(
        strategy=plan.strategy,
        transfer=plan.program.transfer,
        devices=dict(plan.devices),
        valid=not findings,
        num_findings=len(findings),
        findings=tuple(finding.message for finding in findings[:_MAX_MESSAGES]),
        kinds=dict(Counter(finding.kind for finding in findings)),
        lost=lost_values(graph, findings),
        differences=found,
        max_rel_error=None if errors is None else errors.worst,
        seconds=seconds,
        run_seconds=run_seconds,
        live=step_bytes(plan),
    )


def machine_dict(machine: Machine) -> dict[str, Any]:
    """A machine, for JSON."""
    return {
        "description": str(machine),
        "default": machine.default,
        "devices": [_device(device) for device in machine.all_devices],
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "lacks": sorted(device.lacks),
        "dtypes": dict(device.dtypes),
        "layouts": dict(device.layouts),
        "capacity_bytes": device.capacity_bytes,
        "alignment": device.alignment,
    }


def _transfers_matter(machine: Machine) -> bool:
    return bool(machine.devices or machine.host.dtypes or machine.host.layouts)


def _unit(rows: Sequence[Row]) -> tuple[str, int]:
    largest = max((use.height_bytes for row in rows for use in row.devices.values()), default=0)
    return ("MiB", 1 << 20) if largest >= 1 << 20 else ("KiB", 1 << 10) if largest >= 1 << 12 else ("bytes", 1)


def _error(error: float | None) -> str:
    if error is None:
        return "-"
    if error == 0:
        return "0"
    return f"{error:.2f}" if 0.01 <= error < 100 else f"{error:.0e}"
