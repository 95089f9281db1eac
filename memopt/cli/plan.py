"""`memopt plan`: what a model needs on each device, and the plan as a file."""

from __future__ import annotations

import argparse
from typing import Any

from memopt.cli import changes, options

__all__ = ["add_parser", "plan_dict"]

_DESCRIPTION = """\
Make a memory plan for a model, validate it, and say what each device needs.
With -o the plan is written as JSON, for memopt validate and memopt run.
Status 1: the plan is wrong (see --transfer) or does not fit a --capacity."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan",
        help="make a memory plan",
        description=_DESCRIPTION,
        formatter_class=options.HelpFormatter,
    )
    options.add_model_options(parser)
    options.add_machine_options(parser)
    options.add_compile_options(parser)
    changes.add_change_options(parser)
    parser.add_argument("-o", "--output", metavar="plan.json", help="write the plan there")
    parser.add_argument("--program", action="store_true", help="print the program's text too")
    options.add_json_option(parser)
    options.add_plot_option(parser, "a picture of the arenas")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    import memopt
    from memopt.cli.output import show, show_json
    from memopt.report import arena_figure, decisions_table, describe_plan, save_figure

    options.check_plot(args)
    plan = memopt.compile(options.load_model(args), **options.compile_options(args), **changes.change_options(args))
    wrote = []
    if args.output:
        plan.save(args.output)
        wrote.append(args.output)
    if args.plot:
        save_figure(arena_figure(plan, describe_plan(plan)), args.plot)
        wrote.append(args.plot)
    if args.json:
        show_json({**plan_dict(plan), **changes.difference_dict(plan)})
        return 0
    texts = [str(plan.program)] if args.program else []
    tables = [plan.report(), *changes.difference_table(plan), decisions_table(plan.decisions)]
    show(*tables, *texts, *([f"wrote {', '.join(wrote)}"] if wrote else []))
    return 0


def plan_dict(plan: Any) -> dict[str, Any]:
    """What every command says of a plan in JSON."""
    from memopt.compare import machine_dict
    from memopt.report import device_dict

    return {
        "model": plan.graph.name,
        "machine": machine_dict(plan.machine),
        "strategy": plan.strategy,
        "transfer": plan.program.transfer,
        "free": plan.program.free,
        "num_nodes": len(plan.graph.nodes),
        "num_instructions": len(plan.program.instructions),
        "devices": {name: device_dict(use) for name, use in plan.devices.items()},
        "num_accepted": sum(decision.accepted for decision in plan.decisions),
        "num_refused": sum(not decision.accepted for decision in plan.decisions),
    }
