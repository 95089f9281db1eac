"""Options that change a plan by name (`--keep`, `--donate`, `--without`), and `--strict-donation`; what leaving out
costs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from memopt.errors import OptionError

if TYPE_CHECKING:
    from memopt.compile import Plan
    from memopt.report import Table

__all__ = ["add_change_options", "change_options", "difference_dict", "difference_table", "refuse_changes"]


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; each may be given several times."""
    group = parser.add_argument_group("values and passes")
    without = "leave this pass out, or let this value share with nobody, and say what that costs"
    for option, metavar, text in (
        ("--keep", "VALUE", "hold this value to the end"),
        ("--donate", "FEED", "let the plan overwrite this feed"),
        ("--without", "VALUE|PASS", without),
    ):
        group.add_argument(option, metavar=metavar, action="append", default=[], help=f"{text} (repeatable)")
    group.add_argument(
        "--strict-donation", action="store_true", help="refuse a plan that has no use for a donated feed (status 1)"
    )


def change_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `memopt.compile`."""
    named = {name: tuple(getattr(args, name)) for name in ("keep", "donate", "without")}
    return {**named, "strict_donation": args.strict_donation}


def refuse_changes(args: argparse.Namespace) -> None:
    """Refuse the options where the plan is made already."""
    for name in ("keep", "donate", "without"):
        for given in getattr(args, name):
            raise OptionError(f"--{name} {given} does not go with a plan.json: plan the model again")
    if args.strict_donation:
        raise OptionError("--strict-donation does not go with a plan.json: plan the model again")


def _differences(plan: Plan) -> list[tuple[str, str, int, int]]:
    """(device, figure, bytes with everything, bytes of this plan) where anything was left out."""
    if not _left_out(plan):
        return []
    whole = plan.replan(without=(), validate=False, strict_donation=False)
    figures = (("peak", "peak_bytes"), ("arena", "height_bytes"), ("copies", "transfer_bytes"))
    return [
        (name, label, getattr(whole.devices[name], field), getattr(use, field))
        for name, use in plan.devices.items()
        for label, field in figures
        if getattr(use, field) or getattr(whole.devices[name], field)
    ]


def difference_table(plan: Plan) -> list[Table]:
    """What leaving out costs, as at most one table."""
    from memopt.report import Table, signed_bytes
    from memopt.types import format_bytes

    found = _differences(plan)
    if not found:
        return []
    rows = [
        (device, label, format_bytes(before), format_bytes(after), signed_bytes(after - before))
        for device, label, before, after in found
    ]
    columns = ("device", "", ">with", ">without", ">difference")
    return [Table(f"Without {', '.join(_left_out(plan))}", columns, tuple(rows))]


def difference_dict(plan: Plan) -> dict[str, Any]:
    """What leaving out costs, for JSON: `{}` where nothing was left out."""
    found = _differences(plan)
    if not found:
        return {}
    difference: dict[str, dict[str, int]] = {}
    for device, label, before, after in found:
        difference.setdefault(device, {})[f"{label}_bytes"] = after - before
    return {"without": list(_left_out(plan)), "difference_bytes": difference}


def _left_out(plan: Plan) -> tuple[str, ...]:
    """The names that were left out of `plan`."""
    names = () if plan.recipe is None else plan.recipe.options["without"]
    return tuple(names) if isinstance(names, (tuple, list)) else ()
