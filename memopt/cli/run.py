"""`memopt run`: plan and run a model, or run a plan that was made before."""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memopt.cli import changes, options
from memopt.errors import OptionError

if TYPE_CHECKING:
    from memopt.compile import Plan
    from memopt.report import Table

__all__ = ["add_parser"]

_DESCRIPTION = """\
Plan a model and run it, or run a plan.json; with seeded random feeds, or with
--feeds. Shows the outputs' shapes and checksums, the time, and which nodes ran
without a kernel of their own (host calls, in NumPy).

A plan.json carries no large parameters: --model says where they come from, or
--weights random makes some."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        help="run a model or a plan",
        description=_DESCRIPTION,
        formatter_class=options.HelpFormatter,
    )
    what = (
        "an ONNX file, a text graph, a built-in model, or a plan.json (for which machine and plan options are settled)"
    )
    options.add_model_options(parser, what=what)
    options.add_machine_options(parser)
    options.add_compile_options(parser)
    changes.add_change_options(parser)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--model", dest="weights_from", metavar="MODEL", help="the model of a plan.json, for its parameters"
    )
    group.add_argument("--feeds", metavar="FILE.npz", help="feeds by name (default: seeded random numbers)")
    group.add_argument("--output", metavar="FILE.npz", help="write the outputs there")
    group.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times and report the fastest (default: 1)"
    )
    group.add_argument("--measure", action="store_true", help="report the memory that was really touched")
    group.add_argument("--sanitize", action="store_true", help="poison freed bytes and watch every access (slow)")
    options.add_json_option(parser)
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    import numpy as np

    from memopt.cli.output import show, show_json
    from memopt.cli.plan import plan_dict

    if args.repeat < 1:
        raise OptionError(f"--repeat {args.repeat} is less than 1")
    plan = _plan(args)
    feeds = options.load_feeds(plan.graph, args.feeds, args.seed)
    results = plan.run(_lent(plan, feeds), measure=args.measure, sanitize=args.sanitize)
    seconds = [results.seconds, *(plan.run(_lent(plan, feeds)).seconds for _ in range(args.repeat - 1))]
    if args.output:
        np.savez(args.output, **dict[str, Any]({**results, **results.kept}))
    outputs = {name: _describe(array, results.outputs[name]) for name, array in {**results, **results.kept}.items()}
    if args.json:
        measured = _measured(results.measured)
        facts = {
            "outputs": outputs,
            "seconds": min(seconds),
            "host_calls": list(results.host_calls),
            "feeds": dict(results.feeds),
            "measured": measured,
        }
        show_json({**plan_dict(plan), **facts, **changes.difference_dict(plan)})
        return 0
    show(
        _table(plan, outputs, min(seconds), args.repeat),
        *changes.difference_table(plan),
        *_remarks(results),
        *([f"wrote {args.output}"] if args.output else []),
    )
    return 0


def _lent(plan: Plan, feeds: dict[str, Any]) -> dict[str, Any]:
    """The feeds, with copies of those that a run may overwrite."""
    return {name: array.copy() if name in plan.graph.donated else array for name, array in feeds.items()}


def _plan(args: argparse.Namespace) -> Plan:
    """The plan that MODEL is, or that is made for it. A plan from a file is validated before it runs."""
    import memopt

    if not _is_plan(args.model):
        if args.weights_from:
            raise OptionError(f"--model {args.weights_from} is for a plan.json, and {args.model} is a model itself")
        graph, change = options.load_model(args), changes.change_options(args)
        return memopt.compile(graph, **options.compile_options(args), **change)
    changes.refuse_changes(args)
    source = None
    if args.weights_from:
        source = options.load_model(argparse.Namespace(**{**vars(args), "model": args.weights_from}))
    plan = memopt.load_plan(args.model, source, validate=not args.no_validate)
    if source is None and args.weights == "random":
        from memopt.models import fill_params

        fill_params(plan.graph, args.seed)
    return plan


def _is_plan(path: str) -> bool:
    """Whether the file is a plan, by its first bytes."""
    if Path(path).suffix.lower() != ".json" or not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        return b"memopt_plan" in file.read(200)


def _describe(array: Any, made: str) -> dict[str, Any]:
    import numpy as np

    numbers = array.astype(np.float64)
    return {
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "crc32": f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}",
        "mean": float(numbers.mean()) if array.size else 0.0,
        "max_abs": float(np.abs(numbers).max(initial=0.0)),
        "made": made,
    }


def _table(plan: Plan, outputs: dict[str, dict[str, Any]], seconds: float, repeat: int) -> Table:
    from memopt.report import Table, describe_plan
    from memopt.types import TensorType, format_bytes

    rows = tuple(
        (name, str(TensorType.of(o["shape"], o["dtype"])), o["crc32"], f"{o['mean']:.5g}", f"{o['max_abs']:.5g}")
        for name, o in outputs.items()
    )
    arenas = ", ".join(f"{name} {format_bytes(use.height_bytes)}" for name, use in plan.devices.items())
    fastest = f"fastest of {repeat} runs" if repeat > 1 else "run"
    notes = (f"{fastest}: {seconds * 1e3:.2f} ms, copies in and out not counted; arenas: {arenas}",)
    return Table(describe_plan(plan), ("output", "type", "crc32", ">mean", ">largest"), rows, notes)


def _remarks(results: Any) -> list[str]:
    import textwrap

    from memopt.types import format_bytes

    remarks = []
    if results.host_calls:
        calls = ", ".join(results.host_calls)
        remarks.append(textwrap.fill(f"host calls (NumPy, no kernel): {len(results.host_calls)}: {calls}", 80))
    measured = results.measured
    if measured is not None:
        for name, touched in measured.arena_bytes.items():
            used = "unknown" if touched is None else format_bytes(touched)
            remarks.append(f"{name}: touched {used} of its arena; planned {format_bytes(measured.planned_bytes[name])}")
        remarks.append(f"peak of the whole process: {format_bytes(measured.process_peak_bytes)}")
    return ["\n".join(remarks)] if remarks else []


def _measured(measured: Any) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "arena_bytes": dict(measured.arena_bytes),
        "planned_bytes": dict(measured.planned_bytes),
        "process_peak_bytes": measured.process_peak_bytes,
    }
