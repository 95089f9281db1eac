"""`compile`: passes, lowering, packing and validation in a row; and `Plan`, the plan that can run itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from memopt.analysis import ExecutionOrder, check_order
from memopt.arena import Pairs, packing_problem
from memopt.devices import Machine
from memopt.donation import check_donations, unused_donations
from memopt.errors import CapacityError, OptionError
from memopt.export import load_json, save_json
from memopt.ir import Graph, verify
from memopt.lowering import Call, LoweringOptions, Program, Transfer, TransferPolicy, lower, resolve_devices
from memopt.ordering import Place, order_plan
from memopt.packing import PackingPlan, PackingProblem, pack
from memopt.pipeline import Decision, Observer, PassSelection, find_passes, run_pipeline
from memopt.plan import DeviceUse, MemoryPlan, Slot
from memopt.recipe import Recipe, keep_values, leave_out
from memopt.report import (
    Explanation,
    Table,
    ValueExplanation,
    WhatIf,
    at_peak,
    explain_plan,
    explain_value,
    plan_table,
)
from memopt.types import format_bytes
from memopt.validate import validate as validate_plan

if TYPE_CHECKING:
    from memopt.runtime.executor import Executor, RunResult

__all__ = ["Plan", "compile", "load_plan", "packing_problem"]


@dataclass(frozen=True, eq=False, repr=False)
class Plan(MemoryPlan):
    """A memory plan that can run itself.

    graph, program, slots, devices, decisions: see `MemoryPlan`. `str(plan.program)` is the program's text. The
    executor is made on the first run, and kept. `recipe` is what it was compiled from (None if it was loaded).
    """

    recipe: Recipe | None = field(default=None, repr=False)

    @overload
    def explain(self, value: None = None, *, seconds: float = ...) -> Explanation: ...

    @overload
    def explain(self, value: str, *, seconds: float = ...) -> ValueExplanation: ...

    def explain(self, value: str | None = None, *, seconds: float = 2.0) -> Explanation | ValueExplanation:
        """Who is live at the peak and why, what the passes decided there, and the next best moves; or, with the name of
        a `value`, all about that one: its bytes, when, who shares them, what was refused about it.

        Both print, and have `to_dict()`. Moves (and what keeping the value costs) are measured by compiling once more,
        for about `seconds` in all; 0 measures nothing. Raises `OptionError` for a value that there is not.
        """
        what_if = None
        if self.recipe is not None and self.recipe.is_current():
            replan = partial(self.replan, strict_donation=False)
            what_if = WhatIf(self.recipe.graph, self.recipe.options, replan)
        if value is None:
            return explain_plan(self, what_if, seconds)
        return explain_value(self, value, what_if if seconds > 0 else None)

    def replan(self, graph: Graph | None = None, **changes: Any) -> Plan:
        """The plan that `compile` makes with these options changed, or of another `graph`.

        Raises `OptionError` if the plan was loaded from a file, or its graph was changed since.
        """
        if self.recipe is None:
            raise OptionError("this plan was loaded from a file, which does not say how it was made: compile it again")
        if graph is None and not self.recipe.is_current():
            raise OptionError(f"graph {self.graph.name!r} was changed since this plan was made: compile it again")
        options: dict[str, Any] = {**self.recipe.options, **changes}
        return compile(self.recipe.graph if graph is None else graph, **options)

    def report(self) -> Table:
        """What each device needs, byte by byte: a table to print (`str` of it is plain text of at most 80 columns)."""
        return plan_table(self)

    def executor(self) -> Executor:
        """The plan's executor; compiles the kernels (or loads them from the cache) on first use."""
        found: Executor | None = self.__dict__.get("_executor")
        if found is None:
            from memopt.runtime.executor import Executor  # numba is loaded here, not by `import memopt`

            found = Executor(self)
            self.__dict__["_executor"] = found
        return found

    def run(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        copy_feeds: bool = False,
        measure: bool = False,
        sanitize: bool = False,
    ) -> RunResult:
        """Run once: feed name -> array in, output name -> array out (see `Executor.run`).

        Arrays are used in place where they can be, and donated feeds may be overwritten, unless `copy_feeds` is set;
        `result.feeds` and `result.outputs` say what was copied and why.
        """
        return self.executor().run(feeds, out=out, copy_feeds=copy_feeds, measure=measure, sanitize=sanitize)

    def run_many(self, feeds: Iterable[Mapping[str, Any]], *, copy_feeds: bool = False) -> list[RunResult]:
        """Run once for each of `feeds`; parameters that the graph updates carry over."""
        executor = self.executor()
        return [executor.run(one, copy_feeds=copy_feeds) for one in feeds]

    def state(self) -> dict[str, Any]:
        """parameter name -> its value now, after the runs so far."""
        return dict(self.executor().state())

    def reset(self) -> None:
        """Give the parameters that the graph updates their first values again."""
        self.executor().reset()

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON (the graph's text included, large parameter data not); replaced whole or not at
        all.
        """
        save_json(self, path)


def compile(  # noqa: PLR0913 - the options of the whole line, by keyword
    graph: Graph,
    passes: PassSelection = "share",
    machine: Machine | None = None,
    transfer: TransferPolicy = "publish",
    *,
    free: Literal["eager", "never"] = "eager",
    transfer_lifetime: Literal["last-read", "step"] = "last-read",
    share_transfers: bool = False,
    outputs: Literal["arena", "caller"] = "arena",
    donate: Sequence[str] = (),
    strict_donation: bool = False,
    keep: Sequence[str] = (),
    without: Sequence[str] = (),
    order: ExecutionOrder = "listed",
    validate: bool = True,
    scratch_bytes: int = 1 << 20,
    pack_seconds: float = 2.0,
    observer: Observer | None = None,
) -> Plan:
    """A checked memory plan for `graph` (which is not changed).

    passes     a strategy's or a pass's name, a pass, or a sequence of those; `()` for none
    machine    default: the host alone                transfer   "publish", "outer", or "fluid-1.5" to see it lose
               results
    free       "never" shows what eager freeing earns  transfer_lifetime, share_transfers   see `LoweringOptions`
    outputs    "caller": an output that fills its buffer is made in the caller's array (`plan.run(feeds, out=...)`), or
               in a fresh one, beside the arena; a decision says why another is copied out
    donate     names of feeds whose bytes the plan may overwrite; a decision says which it had no use for, and
               `strict_donation` raises `DonationError` then
    keep       names of values that hold to the end, as if they were outputs: `plan.run(feeds).kept[name]`
    without    names of passes to leave out, and of values (`%name` if a pass has that name too) that share with nobody
    order      "any": the plan holds under every order that respects edges; what that takes (control edges, bytes) is
               told by decisions
    validate   raise `InvalidPlanError` if the plan would not compute what the graph says; False lets you run it all
               the same
    scratch_bytes   the most workspace that one kernel call may plan      pack_seconds   time to close the gap to the
                    lower bound

    Raises `PassError`, `PlanError`, `CapacityError`, `OptionError`.
    """
    given = {name: value for name, value in locals().items() if name not in ("graph", "observer")}
    options = LoweringOptions(transfer, free, transfer_lifetime, share_transfers, scratch_bytes, outputs)
    check_order(order)
    machine = machine or Machine.host_only()
    verify(graph)
    recipe = Recipe.of(graph, given)
    graph = graph.copy()
    _donate(graph, donate)
    kept = keep_values(graph, keep)
    chosen = leave_out(graph, find_passes(passes), without)
    decisions: list[Decision] = resolve_devices(graph, machine)
    for result in run_pipeline(graph, chosen, observer):
        decisions.extend(result.decisions)
    program, lowered = lower(graph, machine, options)
    place = _placing(program, pack_seconds)
    plan = Plan(
        graph,
        program,
        *place(()),
        (*decisions, *lowered),
        passes if isinstance(passes, str) else "+".join(one.name for one in chosen) or "none",
        kept,
        recipe,
    )
    if order == "any":
        plan = order_plan(plan, place)
    _check_capacity(plan)
    plan = replace(plan, decisions=(*plan.decisions, *unused_donations(plan)))
    if strict_donation:
        check_donations(plan.decisions)
    if validate:
        validate_plan(plan, order=order)
        plan.mark_validated()
    return plan


def load_plan(path: str | Path, graph: Graph | None = None, *, validate: bool = True) -> Plan:
    """Read a plan that `Plan.save` wrote. `graph` stands for the saved one, if given: its parameters have data.

    A file is not trusted: raises `InvalidPlanError` with the findings, unless `validate` is False.
    """
    data = load_json(path)
    plan = Plan(**{name: getattr(data, name) for name in MemoryPlan.__dataclass_fields__})
    if validate:
        validate_plan(plan)
        plan.mark_validated()
    if graph is None:
        return plan
    _check_same(graph, plan.graph, str(path))
    for value in graph.params:
        array = graph.param_data(value)
        if array is not None:
            plan.graph.set_param(value.name, array)
    return plan


def _check_same(given: Graph, saved: Graph, path: str) -> None:
    """Raise `OptionError` unless both have the same feeds and parameters, the saved one has all outputs, and what has
    one name has one type. (Passes may have taken out other values, and kept ones are outputs.)
    """
    named = {kind: [[repr(v) for v in getattr(g, kind)] for g in (given, saved)] for kind in ("inputs", "params")}
    differ = [kind for kind, (ours, theirs) in named.items() if ours != theirs]
    differ += ["outputs"] if {v.name for v in given.outputs} - {v.name for v in saved.outputs} else []
    types = {value.name: value.type for value in given.values}
    other = next((v for v in saved.values if types.get(v.name, v.type) != v.type), None)
    if differ or other is not None:
        what = f"their {', '.join(differ)} differ" if other is None else f"%{other.name} is {other.type} there"
        raise OptionError(f"graph {given.name!r} is not the one that plan {path!r} was made for: {what}")


def _placing(program: Program, seconds: float) -> Place:
    """Packs the program's arenas; one whose problem is the same as before is not packed again."""
    known: dict[str, PackingPlan] = {}

    def place(apart: Pairs) -> tuple[tuple[Slot, ...], dict[str, DeviceUse]]:
        for device in program.machine.all_devices:
            problem = packing_problem(program, device.name, device.alignment, apart)
            if device.name not in known or known[device.name].problem != problem:
                known[device.name] = _pack(problem, seconds)
        return _slots(program, known), {name: _use(program, name, packing) for name, packing in known.items()}

    return place


def _pack(problem: PackingProblem, seconds: float) -> PackingPlan:
    """`best` begins with `fast`, and ends there where that meets the lower bound."""
    return pack(problem, effort="best", time_limit=seconds) if seconds > 0 else pack(problem, effort="fast")


def _slots(program: Program, packings: Mapping[str, PackingPlan]) -> tuple[Slot, ...]:
    slots = []
    for buffer in program.buffers:
        if buffer.space == "arena":
            slots.append(
                Slot(buffer.device, "arena", packings[buffer.device].offsets[str(buffer.id)], buffer.size_bytes)
            )
        else:
            slots.append(Slot(buffer.device, f"{buffer.space}:{buffer.name}", 0, buffer.size_bytes))
    return tuple(slots)


def _use(program: Program, device: str, packing: PackingPlan) -> DeviceUse:
    """What `device` needs: see `DeviceUse` for what each figure counts."""
    mine = [b for b in program.buffers if b.device == device]
    copies = [b for b in mine if b.transfer]
    link = program.machine.device(device)
    seconds = 0.0
    for instruction in program.instructions:
        if (
            isinstance(instruction, Transfer)
            and instruction.target.placement.device != instruction.source.placement.device
        ):
            ends = {instruction.source.placement.device, instruction.target.placement.device}
            if device in ends and device != program.machine.host.name:
                size = program.buffers[instruction.target.buffer].size_bytes
                seconds += link.latency + size / link.bandwidth
    return DeviceUse(
        height_bytes=packing.height,
        peak_bytes=_peak(program, device),
        lower_bound_bytes=packing.lower_bound,
        scratch_bytes=max(
            (i.scratch_bytes for i in program.instructions if isinstance(i, Call) and i.device == device), default=0
        ),
        feed_bytes=sum(b.size_bytes for b in mine if b.space == "feed"),
        param_bytes=sum(b.size_bytes for b in mine if b.space == "param"),
        output_bytes=sum(b.size_bytes for b in mine if b.space == "output"),
        transfer_bytes=sum(b.size_bytes for b in copies),
        num_transfers=len(copies),
        link_seconds=seconds,
        status="optimal" if packing.height == packing.lower_bound else packing.status,
    )


def _peak(program: Program, device: str) -> int:
    """The largest sum of sizes of the device's arena buffers that are live at one instruction."""
    change: dict[int, int] = {}
    for b in program.buffers:
        if b.device == device and b.space == "arena":
            change[b.start] = change.get(b.start, 0) + b.size_bytes
            change[b.end] = change.get(b.end, 0) - b.size_bytes
    live = peak = 0
    for position in sorted(change):
        live += change[position]
        peak = max(peak, live)
    return peak


def _donate(graph: Graph, names: Sequence[str]) -> None:
    known = {value.name for value in graph.inputs}
    for name in names:
        if name not in known:
            raise OptionError(f"donate={name!r} is not a feed; the feeds are {', '.join(sorted(known)) or 'none'}")
        graph.donated.add(name)


def _check_capacity(plan: Plan) -> None:
    """Raise `CapacityError` for the first device that the plan does not fit, naming what is live at its peak."""
    for device in plan.machine.all_devices:
        use = plan.devices[device.name]
        if device.capacity_bytes is None or use.total_bytes <= device.capacity_bytes:
            continue
        over = use.total_bytes - device.capacity_bytes
        error = CapacityError(
            f"device {device.name!r} has {format_bytes(device.capacity_bytes)}, "
            f"the plan needs {format_bytes(use.total_bytes)}: "
            f"{over} bytes too many (arena {use.height_bytes}, scratch {use.scratch_bytes}, feeds {use.feed_bytes}, "
            f"parameters {use.param_bytes}{f', outputs {use.output_bytes}' if use.output_bytes else ''})"
        )
        live = (one.buffer for one in at_peak(plan, device.name)[1][:10])
        error.add_note("live at the peak: " + ", ".join(f"{b.name} ({format_bytes(b.size_bytes)})" for b in live))
        raise error
