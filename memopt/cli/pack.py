"""`memopt pack`: place the buffers of a CSV file."""

from __future__ import annotations

import argparse
import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from memopt.cli import options

if TYPE_CHECKING:
    from memopt.packing import PackingPlan
    from memopt.report import Table

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Give every buffer of a CSV file an offset, such that buffers that are live
together do not overlap, and the arena is as low as possible.

  memopt pack problem.csv --capacity 1MiB --effort prove -o placed.csv

One line a buffer; columns id, lower, upper (the first step after it), size,
and if there are any alignment, gaps, offset. Status 0: placed, and it fits.
Status 1: no placement fits the capacity, or none was found in time."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "pack", help="place the buffers of a CSV file", description=_DESCRIPTION, formatter_class=options.HelpFormatter
    )
    parser.add_argument("problem", metavar="PROBLEM.csv", help="the buffers; - reads standard input")
    parser.add_argument(
        "--capacity", metavar="BYTES", help="what the arena may hold: 1048576, 1MiB (default: no limit)"
    )
    parser.add_argument(
        "--effort",
        choices=("fast", "best", "prove"),
        default="best",
        help="fast: one pass; best: until the lower bound or the time limit; prove: decide the capacity or the optimum "
        "(default: best)",
    )
    parser.add_argument("--time-limit", metavar="S", type=float, default=10.0, help="seconds to search (default: 10)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the restarts (default: 0)")
    parser.add_argument("--pins", action="store_true", help="an offset in the file is binding (default: ignored)")
    parser.add_argument("--columns", metavar="A,B,...", help="what the columns are, for a file without header")
    parser.add_argument("-o", "--output", metavar="out.csv", help="write the buffers with their offsets there")
    options.add_json_option(parser)
    options.add_plot_option(parser, "the picture (time across, offset up)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Pack, write what was asked for, and say how it went."""
    from memopt.packing import pack, parse_csv, plot_packing, read_csv, write_csv

    capacity = None if args.capacity is None else options.parse_bytes(args.capacity)
    columns = None if args.columns is None else args.columns.split(",")
    if args.problem == "-":
        text = sys.stdin.read()
        problem = parse_csv(text, source="<stdin>", pins=args.pins, capacity=capacity, columns=columns)
    else:
        problem = read_csv(args.problem, pins=args.pins, capacity=capacity, columns=columns)
    with _progress(args.time_limit) as watch:
        plan = pack(problem, time_limit=args.time_limit, effort=args.effort, seed=args.seed, watch=watch)
    wrote = []
    if args.output and plan.offsets:
        write_csv(args.output, problem, plan.offsets)
        wrote.append(args.output)
    if args.plot and plan.offsets:
        plot_packing(plan, args.plot, f"{args.problem}: {len(problem)} buffers, {plan.status}")
        wrote.append(args.plot)
    _show(plan, args, wrote)
    return 0 if plan.fits else 1


def _show(plan: PackingPlan, args: argparse.Namespace, wrote: list[str]) -> None:
    from memopt.cli.output import show, show_json

    if args.json:
        fields = ("height", "lower_bound", "status", "proof", "seconds", "offsets")
        payload = {name: getattr(plan, name) for name in fields}
        show_json({**payload, "capacity": plan.problem.capacity, "ratio": plan.ratio, "core": list(plan.core)})
        return
    show(_table(plan, args.problem), *([f"wrote {', '.join(wrote)}"] if wrote else []))


def _table(plan: PackingPlan, name: str) -> Table:
    from memopt.report import Table

    problem = plan.problem
    rows = [
        ("buffers", f"{len(problem):,}"),
        ("height", f"{plan.height:,} bytes"),
        ("lower bound", f"{plan.lower_bound:,} bytes"),
        ("height / bound", f"{plan.ratio:.5f}"),
    ]
    if problem.capacity is not None:
        rows.append(("capacity", f"{problem.capacity:,} bytes"))
    rows += [("status", plan.status), ("seconds", f"{plan.seconds:.2f}")]
    notes = [plan.proof] if plan.proof else []
    if plan.core:
        by_id = {buffer.id: buffer for buffer in problem.buffers}
        core = ", ".join(f"{by_id[id_]}: {by_id[id_].size:,}" for id_ in plan.core[:12])
        more = f" and {len(plan.core) - 12} more" if len(plan.core) > 12 else ""
        notes.append(f"impossible because of: {core}{more}")
    return Table(textwrap.shorten(name, 80), ("what", ">value"), tuple(rows), tuple(notes))


@contextlib.contextmanager
def _progress(time_limit: float) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over the time limit with height and ratio, on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = (BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*bar, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=max(time_limit, 0.001))

        def watch(height: int, bound: int) -> None:
            text = f"height {height:,}, {height / max(bound, 1):.4f} x the bound"
            progress.update(task, completed=progress.tasks[task].elapsed, description=text)

        yield watch
