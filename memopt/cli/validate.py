"""`memopt validate`: is this plan right?"""

from __future__ import annotations

import argparse
from typing import Any

from memopt.cli import options

__all__ = ["add_parser"]

_DESCRIPTION = """\
Check that a plan.json computes what its graph says, by interpreting it over
bytes, whoever made it. Status 0: right. Status 1: wrong, with what is wrong."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "validate", help="check a plan", description=_DESCRIPTION, formatter_class=options.HelpFormatter
    )
    parser.add_argument("plan", metavar="plan.json", help="a plan that memopt plan -o wrote")
    parser.add_argument(
        "--order",
        default="listed",
        choices=("listed", "any"),
        help="any: it must be right under every order that keeps to data and control edges (default: listed)",
    )
    parser.add_argument("--all", action="store_true", help="list every finding (default: the first 10)")
    options.add_json_option(parser)
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    import textwrap

    import memopt
    from memopt.cli.output import show, show_json
    from memopt.report import describe_plan

    plan = memopt.load_plan(args.plan, validate=False)
    findings = memopt.validate(plan, findings="return", order=args.order)
    if args.json:
        fields = ("kind", "instruction", "value", "message", "node", "device")
        listed = [{name: getattr(finding, name) for name in fields} for finding in findings]
        show_json({"plan": args.plan, "valid": not findings, "num_findings": len(findings), "findings": listed})
        return 1 if findings else 0
    head = textwrap.fill(describe_plan(plan), 80)
    if not findings:
        under = " under every order that keeps to its edges" if args.order == "any" else ""
        show(head, f"valid: it computes what its graph says{under}")
        return 0
    shown = findings if args.all else findings[:10]
    lines = [textwrap.fill(str(finding), 80, subsequent_indent="  ", break_on_hyphens=False) for finding in shown]
    if len(shown) < len(findings):
        lines.append(f"... {len(findings) - len(shown)} more (--all shows them)")
    show(head, f"WRONG: {len(findings)} findings", "\n".join(lines))
    return 1
