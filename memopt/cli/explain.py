"""`memopt explain`: what lies in memory at the peak and why, what would lower it; one value; what changes a result."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from memopt.cli import changes, options
from memopt.errors import OptionError

if TYPE_CHECKING:
    from memopt.compile import Plan

__all__ = ["add_parser"]

_DESCRIPTION = """\
Explain a plan: for each device the values that are live at its peak, with their
bytes and why they are alive; what the passes decided about them; the next best
moves, with the bytes that they would earn; then what each pass accepted and
refused, and why. --decisions lists single decisions, --about NAME only those
that concern a node, value, pass or reason with NAME in its name.

--value NAME tells all about one value: its variable, buffer, slot and interval,
who shares its bytes, what was refused about it, how to keep it.

--bisect runs the plan, wrong or not, against the NumPy reference, and names the
smallest set of decisions that changes the result. Status 1: something does."""


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
    changes.add_change_options(parser)
    group = parser.add_argument_group("explain")
    group.add_argument("--value", metavar="NAME", help="explain this value only")
    group.add_argument("--seconds", type=float, default=2.0, metavar="S", help="time to measure moves (default: 2)")
    group.add_argument("--decisions", action="store_true", help="list single decisions")
    group.add_argument("--about", metavar="NAME", help="list the decisions about NAME")
    group.add_argument("--refused", action="store_true", help="list refused ones only")
    group.add_argument("--accepted", action="store_true", help="list accepted ones only")
    group.add_argument("--all", action="store_true", help="no limit on lists (default: 20 lines)")
    group = parser.add_argument_group("bisect")
    group.add_argument("--bisect", action="store_true", help="find the decisions that change a result")
    group.add_argument("--every", action="store_true", help="with --bisect: look for more sets after the first")
    group.add_argument("--feeds", metavar="FILE.npz", help="with --bisect: feeds (default: seeded random numbers)")
    options.add_json_option(parser)
    options.add_plot_option(parser, "a picture of the arenas")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    import memopt
    from memopt.report import arena_figure, describe_plan, save_figure

    options.check_plot(args)
    _check(args)
    given = {**options.compile_options(args), **changes.change_options(args)}
    if args.bisect:
        given["validate"] = False
    plan = memopt.compile(options.load_model(args), **given)
    if args.plot:
        save_figure(arena_figure(plan, describe_plan(plan)), args.plot)
    if args.bisect:
        return _bisect(args, plan)
    return _value(args, plan) if args.value else _peaks(args, plan)


def _check(args: argparse.Namespace) -> None:
    if args.value and args.bisect:
        raise OptionError("--value and --bisect are two questions: ask one at a time")
    for name in ("every", "feeds"):
        if getattr(args, name) and not args.bisect:
            raise OptionError(f"--{name} goes with --bisect")
    if args.seconds < 0:
        raise OptionError(f"--seconds {args.seconds} is negative")


def _wrote(args: argparse.Namespace) -> list[str]:
    return [f"wrote {args.plot}"] if args.plot else []


def _peaks(args: argparse.Namespace, plan: Plan) -> int:
    from memopt.cli.output import show, show_json
    from memopt.cli.plan import plan_dict
    from memopt.report import decision_dict, decisions_list, decisions_table, filter_decisions

    wanted = None if args.accepted == args.refused else args.accepted
    decisions = filter_decisions(plan.decisions, args.about, accepted=wanted)
    explanation = plan.explain(seconds=args.seconds)
    if args.json:
        listed = {"decisions": [decision_dict(one) for one in decisions]}
        show_json({**plan_dict(plan), **explanation.to_dict(), **listed, **changes.difference_dict(plan)})
        return 0
    limit = None if args.all else 20
    single = args.decisions or args.about or wanted is not None
    show(
        explanation.text(limit),
        *changes.difference_table(plan),
        decisions_table(plan.decisions),
        *([decisions_list(decisions, limit) or "no such decision"] if single else []),
        *_wrote(args),
    )
    return 0


def _value(args: argparse.Namespace, plan: Plan) -> int:
    from memopt.cli.output import show, show_json
    from memopt.cli.plan import plan_dict

    explanation = plan.explain(args.value, seconds=args.seconds)
    if args.json:
        show_json({**plan_dict(plan), "value": explanation.to_dict(), **changes.difference_dict(plan)})
    else:
        show(str(explanation), *changes.difference_table(plan), *_wrote(args))
    return 0


def _bisect(args: argparse.Namespace, plan: Plan) -> int:
    import memopt
    from memopt.cli.output import show, show_json
    from memopt.cli.plan import plan_dict

    found = memopt.bisect(plan, options.load_feeds(plan.graph, args.feeds, args.seed), every=args.every)
    if args.json:
        show_json({**plan_dict(plan), "bisection": found.to_dict()})
    else:
        show(str(found), *_wrote(args))
    return 1 if found.changed else 0
