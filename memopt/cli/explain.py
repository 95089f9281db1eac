"""`memopt explain`: what lies in memory at the peak, and what the passes accepted and refused."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from memopt.cli import options

if TYPE_CHECKING:
    from memopt.compile import Plan
    from memopt.report import Table

__all__ = ["add_parser"]

_DESCRIPTION = """\
Explain a plan: for each device the values that are live at its peak, with their
bytes, who made them and who reads them last; then what each pass accepted and
refused, and why. --decisions lists single decisions, --about NAME only those
that concern a node, value, pass or reason with NAME in its name."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help="say what lies in memory at the peak, and why",
        description=_DESCRIPTION,
        formatter_class=options.HelpFormatter,
    )
    options.add_model_options(parser)
    options.add_machine_options(parser)
    options.add_compile_options(parser)
    group = parser.add_argument_group("explain")
    group.add_argument("--decisions", action="store_true", help="list single decisions")
    group.add_argument("--about", metavar="NAME", help="list the decisions about NAME")
    group.add_argument("--refused", action="store_true", help="list refused ones only")
    group.add_argument("--accepted", action="store_true", help="list accepted ones only")
    group.add_argument("--all", action="store_true", help="no limit on lists (default: 20 lines)")
    options.add_json_option(parser)
    options.add_plot_option(parser, "a picture of the arenas")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    import memopt
    from memopt.cli.output import show, show_json
    from memopt.cli.plan import plan_dict
    from memopt.report import (
        arena_figure,
        decision_dict,
        decisions_list,
        decisions_table,
        describe_plan,
        filter_decisions,
        save_figure,
    )

    options.check_plot(args)
    plan = memopt.compile(options.load_model(args), **options.compile_options(args))
    wanted = None if args.accepted == args.refused else args.accepted
    decisions = filter_decisions(plan.decisions, args.about, accepted=wanted)
    if args.plot:
        save_figure(arena_figure(plan, describe_plan(plan)), args.plot)
    if args.json:
        peaks = {device.name: _peak_dict(plan, device.name) for device in plan.machine.all_devices}
        show_json({**plan_dict(plan), "peaks": peaks, "decisions": [decision_dict(one) for one in decisions]})
        return 0
    limit = None if args.all else 20
    tables = [
        _peak_table(plan, device.name, limit)
        for device in plan.machine.all_devices
        if plan.devices[device.name].peak_bytes
    ]
    listed = args.decisions or args.about or wanted is not None
    show(
        *tables,
        decisions_table(plan.decisions),
        *([decisions_list(decisions, limit) or "no such decision"] if listed else []),
        *([f"wrote {args.plot}"] if args.plot else []),
    )
    return 0


def _peak_table(plan: Plan, device: str, limit: int | None) -> Table:
    from memopt.lowering import print_instruction
    from memopt.report import Table, at_peak
    from memopt.types import format_bytes

    instruction, held = at_peak(plan, device)
    shown = held[:limit]
    rows = [(f"%{h.value}", format_bytes(h.buffer.size_bytes), h.producer, h.last_reader, h.freed_after) for h in shown]
    if len(shown) < len(held):
        rest = sum(h.buffer.size_bytes for h in held[len(shown) :])
        rows.append((f"... {len(held) - len(shown)} more", format_bytes(rest), "", "", ""))
    total = format_bytes(plan.devices[device].peak_bytes)
    title = (
        f"{device}: {total} live at instruction {instruction} of {len(plan.program.instructions)}: "
        f"{print_instruction(plan.program, plan.program.instructions[instruction])}"
    )
    return Table(title, ("live value", ">bytes", "made by", "last read by", "freed after"), tuple(rows))


def _peak_dict(plan: Plan, device: str) -> dict[str, Any]:
    from memopt.report import at_peak

    instruction, held = at_peak(plan, device)
    live = [
        {
            "value": h.value,
            "bytes": h.buffer.size_bytes,
            "producer": h.producer,
            "last_reader": h.last_reader,
            "freed_after": h.freed_after,
            "start": h.buffer.start,
            "end": h.buffer.end,
        }
        for h in held
    ]
    return {"instruction": instruction, "peak_bytes": plan.devices[device].peak_bytes, "live": live}
