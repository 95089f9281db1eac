"""`compare`: one graph under several strategies and transfer policies: planned, validated, run, checked.

Holds true: a wrong plan is compared too, and said to be wrong; every figure is the plan's own; every error is measured
on a real run against `runtime.reference`, which knows no storage, no plan and no device.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

__all__ = ["Comparison", "Row", "compare", "max_rel_error"]

#: A result that is off by more than this is called different (float32 sums in another order are off by about 1e-6).
TOLERANCE = 1e-3
_MAX_MESSAGES = 5
_COUNTED = (
    "peak: most bytes live at once in the device's arena; arena: its height, which is what must be allocated; "
    "saved: of the arena, against the first strategy; copies: bytes copied to this device for single nodes. "
    "Arenas hold node outputs, graph outputs and transfer copies; feeds, parameters and scratch lie beside them. "
    "error: largest difference from the NumPy reference, relative to the output's largest element."
)
_ONE_DEVICE = "One device, with no wishes for dtype or layout: nothing is transferred, whatever the transfer policy."
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """What one strategy under one transfer policy needs, and whether it is right.

    devices    name -> what the device needs            valid, num_findings   the validator's verdict
    findings   the first few messages                   kinds    finding kind -> how many
    max_rel_error   of outputs and updated parameters, against the reference (None: not run; inf: nan where it has none)
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
    max_rel_error: float | None = None
    seconds: float = 0.0
    run_seconds: float | None = None
    live: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def right(self) -> bool:
        """Whether the plan validates and, if it ran, its outputs are those of the reference."""
        return self.valid and (self.max_rel_error is None or self.max_rel_error <= TOLERANCE)

    @property
    def verdict(self) -> str:
        """`ok`, or what is wrong, in at most 17 characters."""
        if self.valid:
            return "ok" if self.right else "WRONG: differs"
        kind = max(self.kinds, key=lambda name: self.kinds[name], default="").split("-")[0]
        word = kind if kind in ("lost", "stale", "clobbered", "overlap") else "found"
        return f"WRONG: {self.num_findings} {word}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The rows of a comparison; `str` of it is the table."""

    model: str
    machine: Machine
    rows: tuple[Row, ...]

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
        notes = [f"Sizes in {unit}. {_COUNTED}"]
        if not _transfers_matter(self.machine):
            notes.append(_ONE_DEVICE)
        wrong = next((row for row in self.rows if row.findings), None)
        if wrong is not None:
            example = wrong.findings[0].split("; ")[-1]
            notes.append(f"{wrong.strategy} with {wrong.transfer} is wrong, for example: {example}")
        return Table(f"{self.model} on {self.machine}", columns, tuple(lines), tuple(notes))

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
            "rows": [
                {
                    "strategy": row.strategy,
                    "transfer": row.transfer,
                    "devices": {name: device_dict(use) for name, use in row.devices.items()},
                    "valid": row.valid,
                    "num_findings": row.num_findings,
                    "findings": list(row.findings),
                    "verdict": row.verdict,
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
        return str(self.table())

    def __repr__(self) -> str:
        return f"<Comparison of {self.model} on {self.machine}: {len(self.rows)} rows>"

    def __rich__(self) -> Any:
        return self.table()


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
    expected: Arrays | None = None
    if run:
        say("NumPy reference")
        outputs, state = run_reference(graph, feeds)
        expected = {**outputs, **_updated(graph, state)}
    rows = []
    for strategy in strategies:
        for transfer in used:
            say(f"{strategy if isinstance(strategy, str) else 'passes'}, {transfer}")
            rows.append(
                _row(graph, feeds, expected, {"passes": strategy, "machine": machine, "transfer": transfer, **options})
            )
    comparison = Comparison(graph.name, machine, tuple(rows))
    if show:
        print(comparison)
    return comparison


def num_pieces(strategies: Sequence[Any], transfers: Sequence[str], machine: Machine, run: bool) -> int:
    """How often `compare` calls `progress`."""
    return len(strategies) * (len(transfers) if _transfers_matter(machine) else 1) + run


def max_rel_error(results: Arrays, expected: Arrays) -> float:
    """The largest difference of any output, relative to that output's largest element (absolute where all are zero).

    inf if one has a nan or an infinity where the other has none.
    """
    worst = 0.0
    for name, want in expected.items():
        have = np.asarray(results[name], np.float64)
        want = np.asarray(want, np.float64)
        finite = np.isfinite(want)
        if not np.array_equal(finite, np.isfinite(have)) or not np.array_equal(
            have[~finite], want[~finite], equal_nan=True
        ):
            return math.inf
        difference = float(np.abs(have[finite] - want[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        worst = max(worst, difference / scale if scale else difference)
    return worst


def _row(graph: Graph, feeds: Arrays, expected: Arrays | None, options: Mapping[str, Any]) -> Row:
    start = time.perf_counter()
    plan: Plan = compile_graph(graph, **{**options, "validate": False})
    findings = validate(plan, findings="return")
    seconds = time.perf_counter() - start
    error = run_seconds = None
    if expected is not None:
        results = plan.run(feeds)
        error, run_seconds = max_rel_error({**_updated(graph, plan.state()), **results}, expected), results.seconds
    return Row(
        strategy=plan.strategy,
        transfer=plan.program.transfer,
        devices=dict(plan.devices),
        valid=not findings,
        num_findings=len(findings),
        findings=tuple(finding.message for finding in findings[:_MAX_MESSAGES]),
        kinds=dict(Counter(finding.kind for finding in findings)),
        max_rel_error=error,
        seconds=seconds,
        run_seconds=run_seconds,
        live=step_bytes(plan),
    )


def _updated(graph: Graph, state: Arrays) -> Arrays:
    """The parameters that the run has updated, under names that no output has."""
    return {f"param:{name}": array for name, array in state.items() if array is not graph.param_data(name)}


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
