"""`memopt compare`: every strategy under every transfer policy, planned, validated and run."""

from __future__ import annotations

import argparse
from typing import Any

from memopt.cli import options

__all__ = ["add_parser"]

_DESCRIPTION = """\
Plan, validate and run a model under each strategy and each transfer policy, and
compare memory and results with a plain NumPy reference.

Strategies: none (every value has bytes of its own until it is freed), rename
(in-place and reuse by giving values one variable, as Fluid 1.5 did), share (the
same by letting variables share bytes, as Fluid 1.6 did).

Transfer policies: fluid-1.5 (as released, loses results), publish, outer.

With --train a second table says whose fault each lost value is: the pass's, or
the program's own, such as running statistics that live on the gpu while batch
normalization runs on the host."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="compare strategies and transfer policies on one model",
        description=_DESCRIPTION,
        formatter_class=options.HelpFormatter,
    )
    options.add_model_options(parser, default="resnet50")
    options.add_machine_options(parser, "host and gpu; the gpu lacks batch normalization")
    parser.add_argument("--strategies", default="none,rename,share", metavar="A,B", help="default: none,rename,share")
    parser.add_argument(
        "--transfers", default="fluid-1.5,publish,outer", metavar="A,B", help="default: fluid-1.5,publish,outer"
    )
    parser.add_argument("--free", default="eager", choices=("eager", "never"), help="free buffers after their last use")
    parser.add_argument("--feeds", metavar="FILE.npz", help="feeds by name (default: seeded random numbers)")
    parser.add_argument("--no-run", action="store_true", help="plan and validate only")
    options.add_json_option(parser)
    options.add_plot_option(parser, "each strategy's memory over time")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    from memopt.cli.output import progress_bar, show, show_json
    from memopt.compare import compare, num_pieces
    from memopt.devices import Machine

    options.check_plot(args)
    strategies = _names("--strategies", args.strategies)
    transfers = _names("--transfers", args.transfers)
    if options.names_machine(args):
        machine = options.make_machine(args, default=("gpu",))
    else:
        backward = {"BatchNormalizationGrad"} if args.train else set()
        machine = Machine.host_and("gpu", lacks={"BatchNormalization"} | backward)
    graph = options.load_model(args)
    feeds = options.load_feeds(graph, args.feeds, args.seed)
    with progress_bar(num_pieces(strategies, transfers, machine, not args.no_run)) as advance:
        comparison = compare(
            graph,
            strategies,
            transfers,
            machine,
            feeds,
            run=not args.no_run,
            progress=advance,
            show=False,
            free=args.free,
        )
    if args.plot:
        comparison.plot(args.plot)
    if args.json:
        show_json(comparison.to_dict())
    else:
        show(*comparison.tables(), *([f"wrote {args.plot}"] if args.plot else []))
    return 0


def _names(option: str, text: str) -> list[Any]:
    from memopt.errors import OptionError

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise OptionError(f"{option} {text!r} names nothing")
    return names
