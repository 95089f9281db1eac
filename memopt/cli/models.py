"""`memopt models`: the built-in models."""

from __future__ import annotations

import argparse
from typing import Any

from memopt.cli.options import add_json_option

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("models", help="list the built-in models", description="List the built-in models.")
    add_json_option(parser)
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    from memopt import models
    from memopt.cli.output import show, show_json
    from memopt.report import Table

    infos = models.list_models()
    if args.json:
        show_json({"models": [{"name": info.name, "description": info.description} for info in infos]})
    else:
        rows = tuple((info.name, info.description) for info in infos)
        note = "In any batch and size. With --train each is a training step: memopt compare resnet50 --train --image 64"
        show(Table("Built-in models: real structures, seeded random weights", ("name", "what it is"), rows, (note,)))
    return 0
